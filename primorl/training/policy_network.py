"""A stochastic policy that the private engine trains by behaviour cloning: its network and its loss.

The network has the form of the policies that SAC trains (`primorl.policy.exported`): ReLU layers; for actions in a box
the mean is the tanh of an output, for discrete actions an output is a logit. So the mean or the likeliest action of a
clone is a policy like any other.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Weights, negative_log_likelihood, soft_bounded


@dataclass(frozen=True)
class PolicyNetwork:
    """Sizes of a policy and the fixed bounds of its log-variance.

    An MLP from the standardised observation. Actions in a box, scaled to [-1, 1], are Gaussian: mean tanh(output) and
    log-variance, side by side. Discrete actions have a logit each.

    Attributes:
        observation_size: S.
        action_size: A.
        discrete_actions: whether actions are one-hot vectors.
        hidden: units of every hidden layer.
        log_variance_low: lower bound, of actions scaled to [-1, 1].
        log_variance_high: upper bound.
    """

    observation_size: int
    action_size: int
    discrete_actions: bool
    hidden: tuple[int, ...]
    log_variance_low: float
    log_variance_high: float

    @property
    def members(self) -> int:
        """One."""
        return 1

    @property
    def inputs(self) -> int:
        """S."""
        return self.observation_size

    @property
    def targets(self) -> int:
        """A."""
        return self.action_size

    @property
    def columns(self) -> int:
        """A: there is no flag."""
        return self.action_size

    @property
    def target_names(self) -> tuple[str, ...]:
        """What each column of a target row is."""
        return tuple(f"action_{i}" for i in range(self.action_size))

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every layer; the last gives logits, or means before tanh and raw log-variances."""
        outputs = self.action_size if self.discrete_actions else 2 * self.action_size
        return tuple(itertools.pairwise((self.inputs, *self.hidden, outputs)))

    @property
    def parameters(self) -> int:
        """Weights: the dimension of one noise draw."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    def initial_weights(self, seed: int) -> Weights:
        """Draw hidden weights uniformly within ±1/√in from a public seed. The output begins at zero: all are equal."""
        generator = torch.Generator().manual_seed(seed)
        weights: list[Tensor] = []
        for inputs, outputs in self.layers:
            bound = 1 / math.sqrt(inputs)
            for shape in ((1, inputs, outputs), (1, 1, outputs)):
                weights.append((torch.rand(shape, generator=generator) * 2 - 1) * bound)
        for last in weights[-2:]:
            last.zero_()
        return tuple(weights)


Network = Architecture | PolicyNetwork
"""N equal MLPs side by side that the engine trains: the dynamics ensemble or a cloned policy."""


def policy_row_losses(shape: PolicyNetwork, weights: Weights, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What the policy loses on every row, and what it expects.

    The negative log-likelihood of the action, for a Gaussian without its constant.

    Args:
        shape: sizes of the network.
        weights: ``[1, in, out]`` and ``[1, 1, out]`` tensors.
        inputs: standardised, ``[1, B, S]``.
        targets: actions scaled to [-1, 1], or one-hot, ``[.., B, A]``.

    Returns:
        Losses ``[1, B]``; means or probabilities ``[1, B, A]``.
    """
    hidden = inputs
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = torch.baddbmm(bias, hidden, weight).relu()
    output = torch.baddbmm(weights[-1], hidden, weights[-2])
    if shape.discrete_actions:
        logs = output.log_softmax(-1)
        return -(logs * targets).sum(-1), logs.exp()
    mean = output[..., : shape.targets].tanh()
    log_variance = soft_bounded(output[..., shape.targets :], shape.log_variance_low, shape.log_variance_high)
    return negative_log_likelihood(mean, log_variance, targets), mean


def constant_policy_loss(shape: PolicyNetwork, targets: Tensor) -> float:
    """What the best policy that ignores the observation loses on ``targets [R, A]``, within the log-variance's bounds.

    For one-hot actions the entropy of their shares.
    """
    if shape.discrete_actions:
        shares = targets.double().mean(0)
        return float(-torch.special.xlogy(shares, shares).sum())
    variance = targets.double().var(dim=0, unbiased=False)
    bounded = variance.log().clamp(shape.log_variance_low, shape.log_variance_high)
    return float(0.5 * (variance * torch.exp(-bounded) + bounded).sum())
