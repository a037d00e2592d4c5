"""The trajectories of one cohort's users, padded to one length, and their source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from primorl.online.network import PolicyNetwork


@dataclass(frozen=True)
class Trajectories:
    """The steps of U users under one released policy. Sensitive: discard right after the update.

    A user may have several episodes, one after the other. T, the number of steps that a user may take, is public, and
    all tensors have it as their second size, whoever the users are: so what is computed of one user does not depend on
    the others, not even in its last digit.

    Attributes:
        observations: before each step, in the environment's units, float32 ``[U, T, S]``.
        actions: numbers of discrete actions, int64 ``[U, T]``; or what `PolicyNetwork.sample` drew for a box, before it
            was squashed into the bounds, float32 ``[U, T, A]``.
        rewards: float32 ``[U, T]``.
        next_observations: after each step, float32 ``[U, T, S]``.
        terminated: the episode ended by itself with this step, bool ``[U, T]``.
        ends: last step of an episode, whether it terminated or was cut off, bool ``[U, T]``.
        valid: a step that the user took, bool ``[U, T]``; the others are padding, which is zero.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor
    ends: Tensor
    valid: Tensor

    @property
    def users(self) -> int:
        """U."""
        return len(self.rewards)

    @property
    def steps(self) -> int:
        """T."""
        return self.rewards.shape[1]

    def of(self, users: slice) -> "Trajectories":
        """The same of some of the users."""
        return Trajectories(**{name: value[users] for name, value in vars(self).items()})

    def to(self, device: torch.device) -> "Trajectories":
        """The same on a device."""
        return Trajectories(**{name: value.to(device) for name, value in vars(self).items()})


class Users(Protocol):
    """People who can be met once under a policy: an environment that simulates them, or a service."""

    def meet(self, numbers: Sequence[int], network: PolicyNetwork, parameters: Tensor) -> Trajectories:
        """Let users act under a policy and bring back what they did, U = len(numbers).

        Args:
            numbers: of the users, in the order of their arrival from 0. Each is met once.
            network: shape of the policy.
            parameters: of the policy, float32 ``[d]``: public or released.
        """
