"""Gymnasium's Acrobot-v1 for a batch: the same equations, many environments at once."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from primorl.simulators.single import Flags, Floats

_STEP, _STEPS, _GRAVITY = 0.2, 500, 9.8
_LENGTH, _CENTRE = 1.0, 0.5
"""Of both links [m]; their masses [kg] and moments of inertia are 1."""
_FASTEST = np.array([4 * math.pi, 9 * math.pi])


class AcrobotBatch:
    """n environments Acrobot-v1 (Sutton 1996), Runge-Kutta steps of 0.2 s; see `EnvironmentBatch`."""

    observation_size: int = 6
    action_low = np.zeros(3, np.float32)
    action_high = np.ones(3, np.float32)
    discrete_actions: bool = True
    step_limit: int | None = _STEPS

    def reset(self, count: int, seed: int) -> Floats:
        """See `EnvironmentBatch.reset`."""
        self._random = np.random.default_rng(seed)
        self._state = np.zeros((4, count))
        self._steps = np.zeros(count, np.int64)
        return self.restart(np.ones(count, bool))

    def restart(self, which: Flags) -> Floats:
        """See `EnvironmentBatch.restart`."""
        self._state[:, which] = self._random.uniform(-0.1, 0.1, self._state.shape)[:, which]
        self._steps[which] = 0
        return self._seen()

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """See `EnvironmentBatch.step`."""
        torque = actions - 1.0
        first = _derivatives(self._state, torque)
        second = _derivatives(self._state + _STEP / 2 * first, torque)
        third = _derivatives(self._state + _STEP / 2 * second, torque)
        fourth = _derivatives(self._state + _STEP * third, torque)
        after = self._state + _STEP / 6 * (first + 2 * second + 2 * third + fourth)
        after[:2] = (after[:2] + math.pi) % (2 * math.pi) - math.pi
        after[2:] = after[2:].clip(-_FASTEST[:, None], _FASTEST[:, None])
        self._state = after
        self._steps += 1
        terminated = -np.cos(after[0]) - np.cos(after[0] + after[1]) > 1
        return self._seen(), np.where(terminated, 0, -1).astype(np.float32), terminated, self._steps >= _STEPS

    def _seen(self) -> Floats:
        angles, speeds = self._state[:2], self._state[2:]
        seen = np.stack([np.cos(angles[0]), np.sin(angles[0]), np.cos(angles[1]), np.sin(angles[1]), *speeds], 1)
        return seen.astype(np.float32)


def _derivatives(state: npt.NDArray[np.float64], torque: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Time derivatives of both angles and both speeds ``[4, n]`` (Sutton and Barto 2018, Section 11.3)."""
    one, two, speed_one, speed_two = state
    cosine, sine = np.cos(two), np.sin(two)
    d1 = _CENTRE**2 + _LENGTH**2 + _CENTRE**2 + 2 * _LENGTH * _CENTRE * cosine + 2
    d2 = _CENTRE**2 + _LENGTH * _CENTRE * cosine + 1
    phi2 = _CENTRE * _GRAVITY * np.cos(one + two - math.pi / 2)
    phi1 = (
        -_LENGTH * _CENTRE * speed_two * (speed_two + 2 * speed_one) * sine
        + (_CENTRE + _LENGTH) * _GRAVITY * np.cos(one - math.pi / 2)
        + phi2
    )
    pulled = torque + d2 / d1 * phi1 - _LENGTH * _CENTRE * speed_one**2 * sine - phi2
    turning = pulled / (_CENTRE**2 + 1 - d2**2 / d1)
    return np.stack([speed_one, speed_two, -(d2 * turning + phi1) / d1, turning])
