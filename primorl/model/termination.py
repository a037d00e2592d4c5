"""When an episode ends: rules that are declared public, as pure functions of one transition.

A rule is a fact about the task that was known before any data, such as the range in which a robot
counts as upright. It is named in datasets/NAME.yaml (``termination``), stated in ``privacy.json``,
and costs nothing. Where nobody knows a rule there is ``learned``: a head of the ensemble, inside
the clipped and noised vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:  # slow to import, and to name a rule needs none of it
    from torch import Tensor

NONE: Final = "none"
LEARNED: Final = "learned"
Ends = Literal["none"] | float | None
"""How rollouts end: not by themselves; by the model's learned termination, with so much taken off
its output; or as the model says.
"""


@dataclass(frozen=True)
class Rule:
    """A declared rule for observations of S numbers.

    ``ends`` takes observation ``[B, S]``, action ``[B, A]`` and next_observation ``[B, S]`` to bool
    ``[B]``.
    """

    observation_size: int
    ends: Callable[[Tensor, Tensor, Tensor], Tensor]


def _cartpole(observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
    """CartPole-v1: the cart leaves |x| ≤ 2.4, or the pole |θ| ≤ 12°."""
    position, angle = next_observation[:, 0], next_observation[:, 2]
    return ~((position.abs() <= 2.4) & (angle.abs() <= math.radians(12)))


def _hopper(observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
    """Hopper-v5: z > 0.7, |angle| < 0.2, and everything after z within ±100, or it has fallen.

    The observation has velocities cut to ±10, so an end by a velocity beyond ±100 alone cannot be
    seen here.
    """
    height, angle, state = next_observation[:, 0], next_observation[:, 1], next_observation[:, 1:]
    return ~((height > 0.7) & (angle.abs() < 0.2) & (state.abs() < 100).all(dim=1))


def _walker2d(observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
    """Walker2d-v5: 0.8 < z < 2 and |angle| < 1, or it has fallen."""
    height, angle = next_observation[:, 0], next_observation[:, 1]
    return ~((height > 0.8) & (height < 2.0) & (angle.abs() < 1.0))


# Each says when an episode goes on and takes the opposite, so that what is not a number ends it.
RULES: dict[str, Rule] = {
    "cartpole": Rule(4, _cartpole),
    "hopper": Rule(11, _hopper),
    "walker2d": Rule(17, _walker2d),
}
"""Observations are Gymnasium's, with its default arguments (for the robots: without the x
position).
"""
