"""NOT PRIVATE. Plain mini-batches over pooled transitions, no clip, no noise.

They train weights to begin a private training from, made of the public split alone: those cost
nothing, since no private byte is read. `research.mopo` trains the papers' baseline with them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from primorl.engine.local_update import CohortSource
from primorl.engine.public_evaluation import (
    PublicEvaluation,
    PublicEvaluator,
    losses_of_rows,
)
from primorl.engine.queries import all_rows
from primorl.engine.settings import (
    LEAST_UNITS,
    PooledTraining,
)
from primorl.engine.training import Trained
from primorl.model.architecture import Network
from primorl.model.ensemble import Normaliser, Weights
from primorl.model.numerics import Adam

_CPU = torch.device("cpu")
_HELD_OUT = 4  # one unit in so many
_MOST_ROWS, _HELD_OUT_ROWS = 262_144, 16_384
_EPOCH_ROWS = 16_384
_POOLED = PooledTraining(
    batch_size=256, learning_rate=2e-3, weight_decay=1e-3, max_epochs=300, patience=10
)
_BATCHES = 50  # of an epoch, at least, where rows are few
_LEAST_BATCH = 32
_ORDER_SEED = 3


def train_pooled(
    architecture: Network,
    private: tuple[Tensor, Tensor],
    public: tuple[Tensor, Tensor] | None,
    *,
    normaliser: Normaliser,
    pooled: PooledTraining,
    seed: int,
    device: torch.device = _CPU,
    on_epoch: Callable[[PublicEvaluation | None], None] = lambda evaluation: None,
    beta_nll: float = 0.0,
    epoch_rows: int | None = None,
) -> Trained:
    """Train by maximum likelihood on all transitions that are given (MOPO, Yu et al.

    2020, section 4.3).

    Args:
        architecture: sizes of the network.
        private: inputs ``[R, inputs]`` and targets ``[R, >= columns]`` of every private transition.
        public: the same of the public split, for evaluation; None: there is none.
        normaliser: of inputs and targets.
        pooled: batches, step size, epochs.
        seed: of the initial weights and the batches.
        device: where to compute.
        on_epoch: called with the evaluation after every epoch.
        beta_nll: β of an ensemble's loss, see `primorl.engine.settings.LocalTraining`.
        epoch_rows: rows of an epoch, where there are more; None: all.

    Returns:
        The weights with the best public loss; without a public split, those after the last epoch.
        ``rounds`` counts epochs.
    """
    normaliser = replace(normaliser, flag=architecture.columns > architecture.targets)
    maps = normaliser.to(device)
    evaluate = None if public is None else PublicEvaluator(architecture, maps, public)
    inputs, targets = maps.inputs(private[0].to(device)), maps.targets(private[1].to(device))
    initial = tuple(w.to(device) for w in architecture.initial_weights(seed))
    weights = tuple(w.clone().requires_grad_() for w in initial)
    gradients = [torch.zeros_like(w) for w in weights]
    for w, gradient in zip(weights, gradients, strict=True):
        w.grad = gradient
    optimiser = Adam(weights, gradients, pooled.learning_rate, pooled.weight_decay)
    generator = torch.Generator(device).manual_seed(seed)
    evaluations: list[PublicEvaluation] = []
    best, best_loss, since_best, epoch = weights, float("inf"), 0, 0
    steps = max(1, min(len(inputs), epoch_rows or len(inputs)) // pooled.batch_size)
    for epoch in range(1, pooled.max_epochs + 1):
        for _ in range(steps):
            size = (architecture.members, pooled.batch_size)
            rows = torch.randint(len(inputs), size, generator=generator, device=device)
            losses, _ = losses_of_rows(architecture, weights, inputs[rows], targets[rows], beta_nll)
            loss = losses.mean(1).sum()
            torch._foreach_zero_(gradients)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        if evaluate is None:
            on_epoch(None)
            continue
        evaluations.append(evaluate(weights, epoch))
        on_epoch(evaluations[-1])
        if evaluations[-1].loss < best_loss:
            best_loss, since_best = evaluations[-1].loss, 0
            best = tuple(w.detach().clone() for w in weights)
        else:
            since_best += 1
            if since_best >= pooled.patience:
                break
    released = best if evaluations else tuple(w.detach() for w in weights)
    comparison = evaluate.compare(initial, released) if evaluate else None
    return Trained(released, epoch, tuple(evaluations), normaliser, public_loss=comparison)


class Units:
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

    def rows(self, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Inputs ``[R, inputs]`` and targets ``[R, >= columns]``, evenly thinned to at most
        ``most`` rows.
        """
        parts = [(inputs[own], targets[own]) for inputs, targets, own in all_rows(self, 0, 1)]
        inputs, targets = (torch.cat(same) for same in zip(*parts, strict=True))
        stride = 1 if most is None else -(-len(inputs) // most)
        return inputs[::stride], targets[::stride]


def shuffled(source: CohortSource) -> Tensor:
    """All units of a source in a random order, the same every time."""
    return torch.randperm(source.units, generator=torch.Generator().manual_seed(_ORDER_SEED))


def public_start(
    architecture: Network, normaliser: Normaliser, public: CohortSource, seed: int, beta_nll: float
) -> Weights:
    """Maximum likelihood on public units, stopped when units that are held out no longer gain from
    it.

    The number of epochs is found with one unit in four held out. Then all units are trained on for
    as many.

    Args:
        architecture: sizes of the network, an ensemble or a policy.
        normaliser: of inputs and targets.
        public: the public units, as training sees them (`TrainingSetup.source_of`).
        seed: of the initial weights and the batches.
        beta_nll: β of an ensemble's loss.

    Raises:
        ValueError: there are fewer than `LEAST_UNITS` units.
    """
    if public.units < LEAST_UNITS:
        raise ValueError(
            f"a start from public units needs {LEAST_UNITS} of them, found {public.units}"
        )
    order = shuffled(public)
    held_out = max(1, public.units // _HELD_OUT)
    rows = Units(public, order[held_out:]).rows(_MOST_ROWS)
    size = min(_POOLED.batch_size, max(_LEAST_BATCH, len(rows[0]) // _BATCHES))
    pooled = replace(_POOLED, batch_size=size)
    train = partial(
        train_pooled,
        architecture,
        normaliser=normaliser,
        seed=seed,
        beta_nll=beta_nll,
        epoch_rows=_EPOCH_ROWS,
    )
    judged = train(rows, Units(public, order[:held_out]).rows(_HELD_OUT_ROWS), pooled=pooled)
    losses = [evaluation.loss for evaluation in judged.evaluations]
    epochs = 1 + losses.index(min(losses))
    everybody = Units(public, order).rows(_MOST_ROWS)
    return train(everybody, None, pooled=replace(pooled, max_epochs=epochs)).weights
