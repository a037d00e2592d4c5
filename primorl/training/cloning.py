"""Private behaviour cloning: the same engine, whose rows are observations and the actions that were taken there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.normaliser import Normaliser
from primorl.training.cohort import CohortSource
from primorl.training.normaliser_query import normaliser_of_bounds
from primorl.training.policy_network import PolicyNetwork
from primorl.training.setup import TrainingSetup


class CloningSource:
    """The units of a store as observations and actions.

    Args:
        source: the units.
        split: from inputs ``[.., S + A]`` to observations ``[.., S]`` and actions ``[.., A]``.
    """

    def __init__(self, source: CohortSource, split: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        self._source, self._split = source, split
        self.units, self.lengths = source.units, source.lengths

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``steps[u, m]`` of unit ``units[u]``: ``[U, M, S]`` and ``[U, M, A]``."""
        return self._split(self._source.transitions(units, steps)[0])


@dataclass(frozen=True)
class CloningSetup(TrainingSetup):
    """A training of a `PolicyNetwork`. Observations are standardised, actions only scaled to [-1, 1]."""

    architecture: PolicyNetwork

    def source_of(self, store: CohortSource) -> CohortSource:
        """The store's units as observations and actions."""
        return CloningSource(store, self._observations_and_actions)

    def public_of(self, public: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Observations ``[R, S]`` and actions ``[R, A]`` of the public split."""
        return self._observations_and_actions(public[0])

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

    def _observations_and_actions(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split inputs; actions in a box are scaled to [-1, 1], one-hot actions stay as they are."""
        size, bounds = self.architecture.inputs, self.bounds
        observation, action = inputs[..., :size], inputs[..., size:]
        if bounds.discrete_actions:
            return observation, action
        low, high = (side.to(inputs.device) for side in (bounds.action_low, bounds.action_high))
        return observation, ((action - low) / (high - low) * 2 - 1).clamp(-1.0, 1.0)
