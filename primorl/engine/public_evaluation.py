"""Evaluation of released weights on the public split."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.model.architecture import CloneNetwork, Network, PublicLosses
from primorl.model.ensemble import (
    Normaliser,
    Weights,
    negative_log_likelihood,
    row_losses,
    soft_bounded,
)

_MOST_PUBLIC_ROWS = 16384


@dataclass(frozen=True)
class PublicEvaluation:
    """Losses of the released weights on the public split.

    Attributes:
        round: rounds (or epochs) so far.
        loss: mean negative log-likelihood of the standardised targets.
        error: mean squared error of the members' mean prediction, one number a target
            (`Architecture.target_names`), in units of the target's public variance.
    """

    round: int
    loss: float
    error: tuple[float, ...]


class PublicEvaluator:
    """Evaluates weights on at most 16,384 evenly spaced transitions of the public split.

    Args:
        architecture: sizes of the network.
        normaliser: of inputs and targets; on the device of the weights.
        public: inputs ``[R, inputs]`` and targets ``[R, >= columns]``.
    """

    def __init__(
        self, architecture: Network, normaliser: Normaliser, public: tuple[Tensor, Tensor]
    ) -> None:
        device = normaliser.input_mean.device
        inputs, targets = public[0].to(device), public[1][:, : architecture.columns].to(device)
        stride = -(-len(inputs) // _MOST_PUBLIC_ROWS)
        self._architecture = architecture
        self._inputs = normaliser.inputs(inputs[::stride])
        self._targets = normaliser.targets(targets[::stride])
        variance = self._targets.var(dim=0)
        self._variance = torch.where(variance > 0, variance, torch.ones_like(variance))

    @torch.no_grad()
    def __call__(self, weights: Weights, after: int) -> PublicEvaluation:
        """Evaluate ``weights`` after ``after`` rounds (or epochs)."""
        losses, predicted = self._rows(weights)
        error = (predicted.mean(0) - self._targets).square().mean(0) / self._variance
        return PublicEvaluation(after, float(losses.mean()), tuple(error.tolist()))

    @torch.no_grad()
    def compare(
        self, initial: Weights, final: Weights, public_alone: Weights | None = None
    ) -> PublicLosses:
        """Compare the final weights with initial ones, a constant, and what public units alone
        made.
        """
        alone = None if public_alone is None else float(self._rows(public_alone)[0].mean())
        return PublicLosses(
            initial=float(self._rows(initial)[0].mean()),
            constant=constant_loss(self._architecture, self._targets),
            final=float(self._rows(final)[0].mean()),
            public_alone=alone,
        )

    def _rows(self, weights: Weights) -> tuple[Tensor, Tensor]:
        inputs = self._inputs.expand(self._architecture.members, -1, -1)
        return losses_of_rows(self._architecture, weights, inputs, self._targets)


def constant_loss(shape: Network, targets: Tensor, counted: Tensor | None = None) -> float:
    """Loss of the best constant prediction: each target's mean and variance, or the rates of
    one-hot columns and flags.

    Args:
        shape: sizes of the network; the log-variance keeps to its bounds.
        targets: standardised, ``[R, columns]``.
        counted: which of the Gaussian's columns count, bool ``[targets]``; None: all.
    """
    if isinstance(shape, CloneNetwork) and shape.discrete_actions:
        shares = targets.double().mean(0)
        return float(-torch.special.xlogy(shares, shares).sum())
    values = targets[:, : shape.targets].double()
    variance = (values if counted is None else values[:, counted]).var(dim=0, unbiased=False)
    bounded = variance.log().clamp(shape.log_variance_low, shape.log_variance_high)
    if not shape.spread:
        bounded = torch.zeros_like(variance)
    loss = float(0.5 * (variance * torch.exp(-bounded) + bounded).sum())
    if shape.columns > shape.targets:
        share = float(targets[:, -1].mean())
        loss -= sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
    return loss


def losses_of_rows(
    network: Network, weights: Weights, inputs: Tensor, targets: Tensor, beta_nll: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute the loss on every row, and the prediction: `row_losses` of an ensemble, as below of a
    policy.

    A policy's loss is the negative log-likelihood of the action, for a Gaussian without its
    constant.

    Takes standardised ``inputs [N, B, inputs]`` and ``targets [.., B, columns]``, and gives losses
    ``[N, B]`` and means or probabilities ``[N, B, columns]``.
    """
    if not isinstance(network, CloneNetwork):
        return row_losses(network, weights, inputs, targets, beta_nll)
    hidden = inputs
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = torch.baddbmm(bias, hidden, weight).relu()
    output = torch.baddbmm(weights[-1], hidden, weights[-2])
    if network.discrete_actions:
        logs = output.log_softmax(-1)
        return -(logs * targets).sum(-1), logs.exp()
    if not network.spread:
        return negative_log_likelihood(output, torch.zeros_like(output), targets), output
    mean = output[..., : network.targets].tanh()
    log_variance = soft_bounded(
        output[..., network.targets :], network.log_variance_low, network.log_variance_high
    )
    return negative_log_likelihood(mean, log_variance, targets), mean
