"""Evaluation of released weights on the public split."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.config import PublicLosses
from primorl.dynamics.ensemble import Weights, row_losses
from primorl.dynamics.normaliser import Normaliser
from primorl.training.policy_network import Network, PolicyNetwork, constant_policy_loss, policy_row_losses

_MOST_PUBLIC_ROWS = 16384


@dataclass(frozen=True)
class PublicEvaluation:
    """How the released weights do on the public split after ``round`` rounds (or epochs).

    Attributes:
        round: rounds so far.
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
        normaliser: of inputs and targets.
        inputs: ``[R, S + A]``.
        targets: ``[R, columns]``.
    """

    def __init__(self, architecture: Network, normaliser: Normaliser, inputs: Tensor, targets: Tensor) -> None:
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
    def compare(self, initial: Weights, final: Weights) -> PublicLosses:
        """The loss of the initial weights, of the best constant prediction and of the final weights."""
        first, last = (float(self._rows(weights)[0].mean()) for weights in (initial, final))
        return PublicLosses(initial=first, constant=self._constant_loss(), final=last)

    def _rows(self, weights: Weights) -> tuple[Tensor, Tensor]:
        inputs = self._inputs.expand(self._architecture.members, -1, -1)
        return losses_of_rows(self._architecture, weights, inputs, self._targets)

    def _constant_loss(self) -> float:
        """Loss of predicting each target's public mean and variance; the log-variance keeps to the model's bounds."""
        if isinstance(self._architecture, PolicyNetwork):
            return constant_policy_loss(self._architecture, self._targets)
        return constant_loss(self._architecture, self._targets)


def constant_loss(shape: Architecture, targets: Tensor, counted: Tensor | None = None) -> float:
    """Loss of predicting each target's mean and variance, and the rate of terminations where those are learned.

    Args:
        shape: sizes of the ensemble; the log-variance keeps to its bounds.
        targets: standardised, ``[R, columns]``.
        counted: which of the Gaussian's columns count, bool ``[S + 1]``; None: all.
    """
    values = targets[:, : shape.targets].double()
    variance = (values if counted is None else values[:, counted]).var(dim=0, unbiased=False)
    bounded = variance.log().clamp(shape.log_variance_low, shape.log_variance_high)
    loss = float(0.5 * (variance * torch.exp(-bounded) + bounded).sum())
    if shape.learned_termination:
        share = float(targets[:, -1].mean())
        loss -= sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
    return loss


def losses_of_rows(
    network: Network, weights: Weights, inputs: Tensor, targets: Tensor, beta_nll: float = 0.0
) -> tuple[Tensor, Tensor]:
    """What each member loses on every row, and what it expects: `row_losses` or `policy_row_losses`.

    Args:
        network: an ensemble or a policy.
        weights: ``[N, in, out]`` and ``[N, 1, out]`` tensors.
        inputs: standardised, ``[N, B, inputs]``.
        targets: standardised, ``[.., B, columns]``.
        beta_nll: β of an ensemble's loss, see `primorl.training.settings.LocalTraining`.

    Returns:
        Losses ``[N, B]``; means or probabilities ``[N, B, columns]``.
    """
    if isinstance(network, PolicyNetwork):
        return policy_row_losses(network, weights, inputs, targets)
    return row_losses(network, weights, inputs, targets, beta_nll)
