"""A stochastic policy that the private engine trains by behaviour cloning: its network.

The network has the form of the policies that SAC trains (`primorl.policy.exported`): ReLU layers;
for actions in a box the mean is the tanh of an output, for discrete actions an output is a logit.
So the mean or the likeliest action of a clone is a policy like any other.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from primorl.model.architecture import Architecture, uniform_weights
from primorl.model.features import Polynomials

if TYPE_CHECKING:
    from primorl.model.ensemble import Weights


@dataclass(frozen=True)
class PolicyNetwork:
    """Sizes of a policy and the fixed bounds of its log-variance.

    An MLP from the standardised observation. Actions in a box, scaled to [-1, 1], are Gaussian:
    mean tanh(output) and log-variance, side by side. Discrete actions have a logit each.

    ``hidden`` are the units of every hidden layer; the bounds are of actions scaled to [-1, 1].

    With ``features`` there is one linear layer of them, which gives the mean action itself, or the
    logits; the spread is asked for after the rounds (`primorl.engine.linear`).
    """

    observation_size: int
    action_size: int
    discrete_actions: bool
    hidden: tuple[int, ...]
    log_variance_low: float
    log_variance_high: float
    members: ClassVar[int] = 1
    features: Polynomials | None = field(default=None, repr=False)

    @property
    def inputs(self) -> int:
        """S, or the number of features."""
        return self.observation_size if self.features is None else self.features.size

    @property
    def spread(self) -> bool:
        """Whether log-variances are outputs beside the means."""
        return not self.discrete_actions and self.features is None

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
        """Names of the columns of a target row."""
        return tuple(f"action_{i}" for i in range(self.action_size))

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every layer; the last gives logits, or means before tanh and raw
        log-variances.
        """
        outputs = (1 + self.spread) * self.action_size
        return tuple(itertools.pairwise((self.inputs, *self.hidden, outputs)))

    @property
    def parameters(self) -> int:
        """Weights: the dimension of one noise draw."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    def initial_weights(self, seed: int) -> Weights:
        """Draw hidden weights uniformly within ±1/√in from a public seed.

        The output begins at zero: all are equal.
        """
        weights = uniform_weights(self.members, self.layers, seed)
        for last in weights[-2:]:
            last.zero_()
        return weights


Network = Architecture | PolicyNetwork
"""N equal MLPs side by side that the engine trains: the dynamics ensemble or a cloned policy."""
