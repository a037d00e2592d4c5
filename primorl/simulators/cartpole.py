"""Gymnasium's CartPole-v1 for a batch: the same equations, many environments at once."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_GRAVITY, _MASS_CART, _MASS_POLE, _HALF_LENGTH, _FORCE, _TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_ANGLE_LIMIT, _POSITION_LIMIT = 12 * 2 * math.pi / 360, 2.4
_STEPS = 500


class CartPoleBatch:
    """n environments CartPole-v1 (Barto, Sutton and Anderson 1983), Euler steps of 0.02 s; see `EnvironmentBatch`."""

    observation_size: int = 4
    action_low = np.zeros(2, np.float32)
    action_high = np.ones(2, np.float32)
    discrete_actions: bool = True
    step_limit: int | None = _STEPS

    def reset(self, count: int, seed: int) -> npt.NDArray[np.float32]:
        """See `EnvironmentBatch.reset`."""
        self._random = np.random.default_rng(seed)
        self._state = np.zeros((count, 4))
        self._steps = np.zeros(count, np.int64)
        return self.restart(np.ones(count, bool))

    def restart(self, which: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        """See `EnvironmentBatch.restart`."""
        self._state[which] = self._random.uniform(-0.05, 0.05, self._state.shape)[which]
        self._steps[which] = 0
        return self._state.astype(np.float32)

    def step(
        self, actions: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """See `EnvironmentBatch.step`."""
        x, speed, angle, turn = self._state.T
        force = np.where(actions == 1, _FORCE, -_FORCE)
        sine, cosine = np.sin(angle), np.cos(angle)
        total = _MASS_CART + _MASS_POLE
        pushed = (force + _MASS_POLE * _HALF_LENGTH * turn**2 * sine) / total
        turning = (_GRAVITY * sine - cosine * pushed) / (_HALF_LENGTH * (4 / 3 - _MASS_POLE * cosine**2 / total))
        pushing = pushed - _MASS_POLE * _HALF_LENGTH * turning * cosine / total
        self._state = np.stack(
            (x + _TAU * speed, speed + _TAU * pushing, angle + _TAU * turn, turn + _TAU * turning), axis=1
        )
        self._steps += 1
        x, _, angle, _ = self._state.T
        terminated = (np.abs(x) > _POSITION_LIMIT) | (np.abs(angle) > _ANGLE_LIMIT)
        self._state[terminated] = self._state[terminated].clip(-1e3, 1e3)
        rewards = np.ones(len(actions), np.float32)
        return self._state.astype(np.float32), rewards, terminated, self._steps >= _STEPS
