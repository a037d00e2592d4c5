"""Private behaviour cloning: the same engine, whose rows are observations and the actions that were taken there."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.normaliser import Normaliser
from primorl.training.cohort import CohortSource
from primorl.training.normaliser_query import normaliser_of_bounds
from primorl.training.policy_network import PolicyNetwork
from primorl.training.setup import TrainingSetup


@dataclass(frozen=True)
class ObservedActions:
    """What a policy is cloned from, out of the rows of a log: the observation, and the action that was taken.

    Attributes:
        observation_size: S.
        action_low: ``[A]``; of one-hot actions 0.
        action_high: ``[A]``; of one-hot actions 1.
        discrete_actions: whether actions are one-hot vectors, which stay as they are.
    """

    observation_size: int
    action_low: Tensor
    action_high: Tensor
    discrete_actions: bool

    def of(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """``[.., S + A]`` (observation, action) to observations ``[.., S]`` and actions in [-1, 1], ``[.., A]``."""
        observation, action = inputs[..., : self.observation_size], inputs[..., self.observation_size :]
        if self.discrete_actions:
            return observation, action
        low, high = (side.to(inputs.device) for side in (self.action_low, self.action_high))
        return observation, ((action - low) / (high - low) * 2 - 1).clamp(-1.0, 1.0)


class CloningSource:
    """The units of a store as rows of `ObservedActions`.

    Args:
        source: the units.
        rows: what their rows become.
    """

    def __init__(self, source: CohortSource, rows: ObservedActions) -> None:
        self._source, self._rows = source, rows

    @property
    def units(self) -> int:
        """Number of units, K."""
        return self._source.units

    def lengths(self, units: Tensor) -> Tensor:
        """Transitions of each unit: int64 ``[U]`` for int64 ``[U]``."""
        return self._source.lengths(units)

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``steps[u, m]`` of unit ``units[u]``: ``[U, M, S]`` and ``[U, M, A]``."""
        return self._rows.of(self._source.transitions(units, steps)[0])


@dataclass(frozen=True)
class CloningSetup(TrainingSetup):
    """A training of a `PolicyNetwork`. Observations are standardised, actions only scaled to [-1, 1]."""

    architecture: PolicyNetwork

    @property
    def rows(self) -> ObservedActions:
        """What the policy is cloned from."""
        bounds = self.bounds
        return ObservedActions(self.architecture.inputs, bounds.action_low, bounds.action_high, bounds.discrete_actions)

    def source_of(self, store: CohortSource) -> CohortSource:
        """The store's units as observations and actions."""
        return CloningSource(store, self.rows)

    def public_of(self, public: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Observations ``[R, S]`` and actions ``[R, A]`` of the public split."""
        return self.rows.of(public[0])

    def make_normaliser(self, public: tuple[Tensor, Tensor] | None, answers: Mapping[str, Tensor]) -> Normaliser:
        """The normaliser that `normaliser` names, of observations; actions are left as they are.

        Args:
            public: of `public_of`.
            answers: none: cloning asks no queries.

        Raises:
            ValueError: there is no public split, and the normaliser comes from it.
        """
        size, actions = self.architecture.inputs, self.architecture.targets
        if self.normaliser == "public":
            if public is None:
                raise ValueError("the normaliser comes from the public split, and there is none")
            found = Normaliser.from_public(*public)
        else:
            found = normaliser_of_bounds(self.columns, self.bounds)
        return Normaliser(found.input_mean[:size], found.input_scale[:size], torch.zeros(actions), torch.ones(actions))
