"""What the policy room asks of a model."""

from typing import Protocol

from torch import Tensor

from primorl.dynamics.seed_generators import SeedGenerators


class Step(Protocol):
    """One step of B rollouts, in the environment's units."""

    @property
    def next_observation(self) -> Tensor:
        """``[B, S]``."""

    @property
    def reward(self) -> Tensor:
        """Penalised reward r - λu, ``[B]``."""

    @property
    def uncertainty(self) -> Tensor:
        """u, ``[B]``."""

    @property
    def terminated(self) -> Tensor | None:
        """Whether the episode ended in a terminal state, bool ``[B]``; None: this model's episodes never do."""


class Model(Protocol):
    """What the policy room asks of a model: `primorl.dynamics.pessimism.PessimisticModel` is one."""

    @property
    def discrete_actions(self) -> bool:
        """Whether actions are one-hot vectors of size A."""

    @property
    def action_low(self) -> Tensor:
        """``[A]``."""

    @property
    def action_high(self) -> Tensor:
        """``[A]``."""

    @property
    def observation_mean(self) -> Tensor:
        """``[S]``, of the public normaliser."""

    @property
    def observation_scale(self) -> Tensor:
        """``[S]``, of the public normaliser."""

    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> Step:
        """Advance B rollouts, equal shares for each seed: ``observation [B, S]``, ``action [B, A]``."""
