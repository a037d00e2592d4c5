"""Single transitions as privacy units (Zhao et al. 2023, Theorem 5.1)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primorl.evaluation.private.episodes import EpisodeSource
from primorl.evaluation.private.problem import Problem

TRANSITION = "transition"
"""The name of the unit, as statements give it."""


@dataclass(frozen=True)
class Transitions:
    """Every transition of ``source`` as a unit of its own.

    A unit of the source has ``places`` places, one for each transition that it may have; a place without a transition
    is a null record, which contributes nothing. So the number of units is a public constant, whatever the lengths of
    trajectories are. Transitions beyond ``places`` are left out, which depends on their own unit's data alone.

    Attributes:
        source: of the trajectories.
        places: the most transitions of a unit, a public constant.
    """

    source: EpisodeSource
    places: int

    @property
    def units(self) -> int:
        """Places of all units."""
        return self.source.units * self.places

    def lengths(self, units: Tensor) -> Tensor:
        """1 where a place holds a transition, 0 where it does not."""
        return (units % self.places < self.source.lengths(units // self.places)).long()

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `EpisodeSource`; what an empty place gives is another row of the same unit, to be masked."""
        return self.source.transitions(*self._rows(units, steps))

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        """True: a transition is its own trajectory."""
        return torch.ones_like(steps, dtype=torch.bool)

    def behaviour_probabilities(self, units: Tensor, steps: Tensor) -> Tensor | None:
        """See `EpisodeSource`."""
        return self.source.behaviour_probabilities(*self._rows(units, steps))

    def _rows(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Units and rows of the source: transitions of places ``units``, ``[U]``, whose only row is ``[U, 1]``."""
        owners, places = units // self.places, units % self.places
        places = places.minimum(self.source.lengths(owners) - 1)
        return owners, (places[:, None].expand_as(steps))


def per_transition(problem: Problem, source: EpisodeSource, delta: float) -> tuple[Problem, Transitions]:
    """The same question and data, with single transitions as privacy units.

    A charge on transitions does not compose at face value with one on the dataset's units: a person with n transitions
    is n units of it. Neighbouring datasets differ in one transition (s, a, r, s'); that s' is also the s of the next
    one is not covered, as in the paper.

    Args:
        problem: with a declared horizon, which bounds the transitions of a unit with one trajectory. A transition does
            not say how much time is left, so the value is that of an unlimited horizon.
        source: the private units.
        delta: below one over the number of transitions, at which the cost is stated.

    Raises:
        ValueError: no horizon is declared, or nothing is discounted.
    """
    if problem.horizon is None or problem.discount == 1.0:
        raise ValueError("single transitions as privacy units need a declared horizon and a discount below 1")
    places = problem.horizon
    stationary = replace(problem, units=problem.units * places, unit=TRANSITION, delta=delta, horizon=None)
    return stationary.with_return_bounds(None), Transitions(source, places)
