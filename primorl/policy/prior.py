"""KL constraint to a prior policy, such as a clone of the behaviour."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.exported import Layers
from primorl.policy.replay import Scaling

_LOG_ROOT = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Normals:
    """Independent normals, truncated to [-1, 1], so that the divergence from them can fall to zero.

    Attributes:
        mean: of the normals, ``[.., A]``, within [-1, 1].
        std: of the normals, ``[.., A]``.
    """

    mean: Tensor
    std: Tensor

    def log_density(self, action: Tensor) -> Tensor:
        """Of ``action [.., A]`` in [-1, 1]: ``[..]``."""
        inside = torch.special.ndtr((1 - self.mean) / self.std) - torch.special.ndtr((-1 - self.mean) / self.std)
        normal = -0.5 * ((action - self.mean) / self.std).square() - self.std.log() - _LOG_ROOT
        density: Tensor = (normal - inside.log()).sum(-1)
        return density

    def slope(self, action: Tensor) -> Tensor:
        """∂ log density / ∂ action, ``[.., A]``."""
        return (self.mean - action) / self.std.square()


@dataclass(frozen=True)
class KLConstraint:
    """A prior as G policies see it, and how far from it each of them may go.

    Attributes:
        prior: π_b.
        scaling: of the observations that are asked about.
        targets: κ of every policy, ``[G]``: what α holds the divergence KL(π‖π_b) at.
    """

    prior: BehaviourPolicy
    scaling: Scaling
    targets: Tensor

    @classmethod
    def of(
        cls, prior: BehaviourPolicy, scaling: Scaling, divergences: Sequence[float], device: torch.device
    ) -> "KLConstraint":
        """One target a policy: ``divergences`` are per dimension of actions in a box, or in all if they are discrete.

        Raises:
            ValueError: the prior's actions are of the other kind.
        """
        if prior.discrete_actions != scaling.discrete_actions:
            raise ValueError("prior and model must both have discrete actions, or neither")
        dimensions = 1 if scaling.discrete_actions else scaling.columns.action_size
        return cls(prior, scaling, dimensions * torch.tensor(list(divergences), device=device))

    def initial_actor(self, hidden: Sequence[int]) -> Layers | None:
        """The prior's own layers, one network, for a policy to begin with; None: its hidden layers have other sizes.

        Args:
            hidden: units of each hidden layer of the policy.
        """
        layers = self.prior.actor_layers(self.scaling.observation_mean, self.scaling.observation_scale)
        return layers if [bias.shape[-1] for bias in layers[1:-2:2]] == list(hidden) else None

    def normals(self, observation: Tensor) -> Normals:
        """For standardised observations ``[.., S]``."""
        return Normals(*self.prior.mean_and_std(self._raw(observation)))

    def log_probabilities(self, observation: Tensor) -> Tensor:
        """For standardised observations ``[.., S]``: ``[.., A]``."""
        return self.prior.log_probabilities(self._raw(observation))

    def _raw(self, observation: Tensor) -> Tensor:
        return observation * self.scaling.observation_scale + self.scaling.observation_mean
