"""The public split in a private training: it evaluates released weights, and makes weights for the
rounds to begin with.

NOT PRIVATE. Plain mini-batches over pooled transitions, no clip, no noise; no private byte is read,
so they cost nothing. `research.mopo` trains the papers' baseline with them.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from primorl.engine.local_update import CohortSource
from primorl.engine.queries import all_rows
from primorl.engine.settings import PooledTraining
from primorl.model.architecture import TERMINATION_GAIN, CloneNetwork, Network, PublicLosses
from primorl.model.ensemble import (
    Normaliser,
    Weights,
    bound_softly,
    gaussian,
    negative_log_likelihood,
    outputs,
)
from primorl.model.numerics import Adam

Rows = tuple[Tensor, Tensor]
"""Inputs ``[R, inputs]`` and targets ``[R, >= columns]``."""
_MOST_PUBLIC_ROWS = 16_384  # that weights are evaluated on
_HELD_OUT = 4  # one unit in so many
_MOST_ROWS, _EPOCH_ROWS = 262_144, 16_384
_POOLED = PooledTraining(
    batch_size=256, learning_rate=2e-3, weight_decay=1e-3, max_epochs=300, patience=10
)
_BATCHES = 50  # of an epoch, at least, where rows are few
_LEAST_BATCH = 32
_ORDER_SEED = 3


@dataclass(frozen=True)
class PublicEvaluation:
    """Losses of the released weights on the public split.

    Attributes:
        round: rounds (or epochs) so far.
        loss: mean negative log-likelihood of the standardised targets.
    """

    round: int
    loss: float


class PublicEvaluator:
    """Evaluates weights on at most 16,384 evenly spaced transitions of the public split.

    Args:
        network: sizes of the network.
        normaliser: of inputs and targets; on the device of the weights.
        public: rows of the public split.
    """

    def __init__(self, network: Network, normaliser: Normaliser, public: Rows) -> None:
        device = normaliser.input_mean.device
        inputs, targets = public[0].to(device), public[1][:, : network.columns].to(device)
        stride = -(-len(inputs) // _MOST_PUBLIC_ROWS)
        self._network = network
        self._inputs = normaliser.inputs(inputs[::stride])
        self._targets = normaliser.targets(targets[::stride])

    def __call__(self, weights: Weights, after: int) -> PublicEvaluation:
        """Evaluate ``weights`` after ``after`` rounds (or epochs)."""
        return PublicEvaluation(after, self._mean_loss(weights))

    def compare(
        self, initial: Weights, final: Weights, public_alone: Weights | None
    ) -> PublicLosses:
        """Compare the final weights with initial ones, a constant, and what public units alone
        made.
        """
        return PublicLosses(
            initial=self._mean_loss(initial),
            constant=constant_loss(self._network, self._targets),
            final=self._mean_loss(final),
            public_alone=None if public_alone is None else self._mean_loss(public_alone),
        )

    @torch.no_grad()
    def _mean_loss(self, weights: Weights) -> float:
        inputs = self._inputs.expand(self._network.members, -1, -1)
        return float(losses_of_rows(self._network, weights, inputs, self._targets).mean())


def constant_loss(network: Network, targets: Tensor) -> float:
    """Compute the loss of the best constant prediction: each target's mean and variance, or the
    rates of one-hot columns and flags.

    ``targets`` are standardised, ``[R, columns]``; the log-variance keeps to its bounds.
    """
    if isinstance(network, CloneNetwork) and network.discrete_actions:
        return _entropy(targets.double().mean(0))
    variance = targets[:, : network.targets].double().var(dim=0, unbiased=False)
    bounded = variance.log().clamp(network.log_variance_low, network.log_variance_high)
    if not network.spread:
        bounded = torch.zeros_like(variance)
    loss = float(0.5 * (variance * torch.exp(-bounded) + bounded).sum())
    if network.columns > network.targets and not network.spread:
        loss += float(0.5 * targets[:, -1].double().var(unbiased=False))
    elif network.columns > network.targets:
        share = targets[:, -1].double().mean()
        loss += _entropy(torch.stack((share, 1 - share)))
    return loss


def _entropy(shares: Tensor) -> float:
    return float(-torch.special.xlogy(shares, shares).sum())


def losses_of_rows(
    network: Network, weights: Weights, inputs: Tensor, targets: Tensor, beta_nll: float = 0.0
) -> Tensor:
    """Compute the loss on every row.

    An ensemble's is `negative_log_likelihood`, plus the flag's cross-entropy (of linear heads its
    square) if terminations are learned. A clone's is the negative log-likelihood of the action, for
    a Gaussian without its constant.

    Args:
        network: the ensemble or the clone.
        weights: of the network.
        inputs: standardised, ``[N, B, inputs]``.
        targets: standardised, ``[.., B, columns]``.
        beta_nll: β of an ensemble's loss that is trained on; losses that are reported have 0.

    Returns:
        Losses ``[N, B]``.
    """
    if not isinstance(network, CloneNetwork):
        output, flag = outputs(weights, inputs), targets[..., -1]
        mean, log_variance = gaussian(network, output)
        known = targets[..., : network.targets]
        loss = negative_log_likelihood(mean, log_variance, known, beta_nll)
        if not network.learned_termination:
            return loss
        if network.features is not None:
            return loss + 0.5 * (output[..., -1] - flag).square()
        logit = TERMINATION_GAIN * output[..., -1]
        return loss + softplus(logit) - logit * flag
    output = outputs(weights, inputs, relu)
    if network.discrete_actions:
        return -(output.log_softmax(-1) * targets).sum(-1)
    mean, raw = output.chunk(2, dim=-1)
    log_variance = bound_softly(raw, network.log_variance_low, network.log_variance_high)
    return negative_log_likelihood(mean.tanh(), log_variance, targets)


def train_pooled(
    network: Network,
    rows: Rows,
    judges: Rows | None,
    normaliser: Normaliser,
    pooled: PooledTraining,
    seed: int,
    beta_nll: float = 0.0,
) -> tuple[Weights, list[PublicEvaluation]]:
    """Train by maximum likelihood on all rows that are given (MOPO, Yu et al. 2020, section 4.3).

    Args:
        network: the ensemble or the clone.
        rows: to train on.
        judges: for evaluation; None: there are none.
        normaliser: of inputs and targets.
        pooled: batches, step size, epochs.
        seed: of the initial weights and the batches.
        beta_nll: β of an ensemble's loss, see `primorl.engine.settings.LocalTraining`.

    Returns:
        The weights with the best loss on ``judges``, or those after the last epoch; and the public
        evaluations after each.
    """
    normaliser = replace(normaliser, flag=network.columns > network.targets)
    evaluate = None if judges is None else PublicEvaluator(network, normaliser, judges)
    inputs, targets = normaliser.inputs(rows[0]), normaliser.targets(rows[1])
    weights = tuple(w.requires_grad_() for w in network.initial_weights(seed))
    gradients = [torch.zeros_like(w) for w in weights]
    for w, gradient in zip(weights, gradients, strict=True):
        w.grad = gradient
    optimiser = Adam(weights, gradients, pooled.learning_rate, pooled.weight_decay)
    generator = torch.Generator().manual_seed(seed)
    evaluations: list[PublicEvaluation] = []
    best, best_loss, since_best = weights, math.inf, 0
    for epoch in range(1, pooled.max_epochs + 1):
        for _ in range(max(1, min(len(inputs), pooled.epoch_rows) // pooled.batch_size)):
            size = (network.members, pooled.batch_size)
            chosen = torch.randint(len(inputs), size, generator=generator)
            losses = losses_of_rows(network, weights, inputs[chosen], targets[chosen], beta_nll)
            torch._foreach_zero_(gradients)
            losses.mean(1).sum().backward()
            optimiser.step()
        if evaluate is None:
            continue
        evaluations.append(evaluate(weights, epoch))
        since_best += 1
        if evaluations[-1].loss < best_loss:
            best_loss, since_best = evaluations[-1].loss, 0
            best = tuple(w.detach().clone() for w in weights)
        elif since_best >= pooled.patience:
            break
    return tuple(w.detach() for w in best), evaluations


class ChosenUnits:
    """Some units of a source as a source of their own."""

    def __init__(self, source: CohortSource, chosen: Tensor) -> None:
        self._source, self._chosen = source, chosen
        self.units = len(chosen)

    def lengths(self, units: Tensor) -> Tensor:
        """See `CohortSource.lengths`."""
        return self._source.lengths(self._chosen[units])

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `CohortSource.transitions`."""
        return self._source.transitions(self._chosen[units], steps)

    def rows(self, most: int) -> Rows:
        """Read all rows, evenly thinned to at most ``most``."""
        parts = [(inputs[own], targets[own]) for inputs, targets, own in all_rows(self, 1)]
        inputs, targets = (torch.cat(same) for same in zip(*parts, strict=True))
        stride = -(-len(inputs) // most)
        return inputs[::stride], targets[::stride]


def make_start(
    network: Network, normaliser: Normaliser, public: CohortSource, seed: int, beta_nll: float
) -> Weights:
    """Train weights on public units, until units that are held out no longer gain from it.

    The number of epochs is found with one unit in four held out. Then all units are trained on for
    as many.

    Args:
        network: the ensemble or the clone.
        normaliser: of inputs and targets.
        public: the public units, as training sees them (`TrainingSetup.view`).
        seed: of the initial weights and the batches.
        beta_nll: β of an ensemble's loss.
    """
    order = torch.randperm(public.units, generator=torch.Generator().manual_seed(_ORDER_SEED))
    held_out = max(1, public.units // _HELD_OUT)
    rows = ChosenUnits(public, order[held_out:]).rows(_MOST_ROWS)
    judges = ChosenUnits(public, order[:held_out]).rows(_MOST_PUBLIC_ROWS)
    size = min(_POOLED.batch_size, max(_LEAST_BATCH, len(rows[0]) // _BATCHES))
    pooled = replace(_POOLED, batch_size=size, epoch_rows=_EPOCH_ROWS)
    _, judged = train_pooled(network, rows, judges, normaliser, pooled, seed, beta_nll)
    losses = [evaluation.loss for evaluation in judged]
    pooled = replace(pooled, max_epochs=1 + losses.index(min(losses)))
    everybody = ChosenUnits(public, order).rows(_MOST_ROWS)
    return train_pooled(network, everybody, None, normaliser, pooled, seed, beta_nll)[0]
