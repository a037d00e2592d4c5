"""Gymnasium's classic control tasks and `research.dosing` as batches: the same equations, many
environments at once.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from primorl.simulators.environments import Flags, Floats, GymBatch
from research.dosing import DosingBatch, State, runge_kutta


class EnvironmentBatch(Protocol):
    """n environments of one kind; see `GymBatch`."""

    observation_size: int
    action_low: Floats
    action_high: Floats
    discrete_actions: bool
    step_limit: int | None

    def reset(self, count: int, seed: int) -> Floats:
        """See `GymBatch.reset`."""

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """See `GymBatch.step`."""

    def restart(self, which: Flags) -> Floats:
        """See `GymBatch.restart`."""


class ClassicControl:
    """n environments with a state of D numbers; see `GymBatch`.

    Each subclass has its own equations.
    """

    discrete_actions: bool = True
    step_limit: int | None = 500
    _widest: tuple[float, ...]
    """Of each number of a first state: it is uniform between this bound and its negative."""

    def reset(self, count: int, seed: int) -> Floats:
        """See `GymBatch.reset`."""
        self._random = np.random.default_rng(seed)
        self._state = np.zeros((len(self._widest), count))
        self._steps = np.zeros(count, np.int64)
        return self.restart(np.ones(count, bool))

    def restart(self, which: Flags) -> Floats:
        """See `GymBatch.restart`."""
        self._state[:, which] = self._first_states()[:, which]
        self._steps[which] = 0
        return self._observe()

    def _first_states(self) -> State:
        widest = np.array(self._widest)[:, None]
        return self._random.uniform(-widest, widest, self._state.shape)

    def _move_to(self, state: State) -> tuple[Floats, Flags]:
        """Take the next states ``[D, n]``; return observations and whether the limit of steps is
        reached.
        """
        assert self.step_limit is not None
        self._state = state
        self._steps += 1
        return self._observe(), self._steps >= self.step_limit

    def _observe(self) -> Floats:
        """Observations ``[n, S]``; the states themselves where a subclass does not say
        otherwise.
        """
        return self._state.T.astype(np.float32, order="C")  # sums over it round by its layout


class CartPoleBatch(ClassicControl):
    """CartPole-v1 (Barto, Sutton and Anderson 1983), Euler steps of 0.02 s."""

    observation_size: int = 4
    action_low: Floats = np.zeros(2, np.float32)
    action_high: Floats = np.ones(2, np.float32)
    _widest = (0.05,) * 4
    _gravity, _mass_cart, _mass_pole, _half_length, _force, _tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    _angle_limit, _position_limit = 12 * 2 * math.pi / 360, 2.4

    def _first_states(self) -> State:
        return self._random.uniform(
            -0.05, 0.05, self._state.T.shape
        ).T  # drawn environment by environment

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """See `GymBatch.step`."""
        _, speed, angle, turn = self._state
        force = np.where(actions == 1, self._force, -self._force)
        sine, cosine = np.sin(angle), np.cos(angle)
        total = self._mass_cart + self._mass_pole
        pushed = (force + self._mass_pole * self._half_length * turn**2 * sine) / total
        resistance = self._half_length * (4 / 3 - self._mass_pole * cosine**2 / total)
        turning = (self._gravity * sine - cosine * pushed) / resistance
        pushing = pushed - self._mass_pole * self._half_length * turning * cosine / total
        tau = self._tau
        after = self._state + tau * np.stack((speed, pushing, turn, turning))
        terminated = (np.abs(after[0]) > self._position_limit) | (
            np.abs(after[2]) > self._angle_limit
        )
        after[:, terminated] = after[:, terminated].clip(-1e3, 1e3)
        seen, truncated = self._move_to(after)
        return seen, np.ones(len(actions), np.float32), terminated, truncated


class AcrobotBatch(ClassicControl):
    """Acrobot-v1 (Sutton 1996), Runge-Kutta steps of 0.2 s.

    Masses of both links [kg] and their moments of inertia are 1.
    """

    observation_size: int = 6
    action_low: Floats = np.zeros(3, np.float32)
    action_high: Floats = np.ones(3, np.float32)
    _widest = (0.1,) * 4
    _tau, _gravity = 0.2, 9.8
    _length, _centre = 1.0, 0.5  # of both links [m]
    _fastest = np.array([4 * math.pi, 9 * math.pi])

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """See `GymBatch.step`."""
        torque = actions - 1.0
        after = runge_kutta(lambda state: self._derivatives(state, torque), self._state, self._tau)
        after[:2] = (after[:2] + math.pi) % (2 * math.pi) - math.pi
        after[2:] = after[2:].clip(-self._fastest[:, None], self._fastest[:, None])
        terminated = -np.cos(after[0]) - np.cos(after[0] + after[1]) > 1
        seen, truncated = self._move_to(after)
        return seen, np.where(terminated, 0, -1).astype(np.float32), terminated, truncated

    def _observe(self) -> Floats:
        angles, speeds = self._state[:2], self._state[2:]
        seen = np.stack(
            [np.cos(angles[0]), np.sin(angles[0]), np.cos(angles[1]), np.sin(angles[1]), *speeds], 1
        )
        return seen.astype(np.float32)

    def _derivatives(self, state: State, torque: State) -> State:
        """Time derivatives of both angles and both speeds ``[4, n]`` (Sutton and Barto 2018,
        Section 11.3).
        """
        one, two, speed_one, speed_two = state
        length, centre, gravity = self._length, self._centre, self._gravity
        cosine, sine = np.cos(two), np.sin(two)
        d1 = centre**2 + length**2 + centre**2 + 2 * length * centre * cosine + 2
        d2 = centre**2 + length * centre * cosine + 1
        phi2 = centre * gravity * np.cos(one + two - math.pi / 2)
        phi1 = (
            -length * centre * speed_two * (speed_two + 2 * speed_one) * sine
            + (centre + length) * gravity * np.cos(one - math.pi / 2)
            + phi2
        )
        pulled = torque + d2 / d1 * phi1 - length * centre * speed_one**2 * sine - phi2
        turning = pulled / (centre**2 + 1 - d2**2 / d1)
        return np.stack([speed_one, speed_two, -(d2 * turning + phi1) / d1, turning])


_FAST: dict[str, Callable[[], EnvironmentBatch]] = {
    "CartPole-v1": CartPoleBatch,
    "Acrobot-v1": AcrobotBatch,
    "Dosing-0": partial(DosingBatch, False),
    "Dosing-1": partial(DosingBatch, True),
}


def batch(environment: str) -> EnvironmentBatch:
    """Make a batch of a registered environment; those here are many times as fast as
    Gymnasium's.
    """
    return _FAST[environment]() if environment in _FAST else GymBatch(environment)
