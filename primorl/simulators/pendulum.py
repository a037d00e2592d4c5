"""Gymnasium's Pendulum-v1 for a batch: the same equations, many environments at once."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from primorl.simulators.single import Flags, Floats

_FASTEST, _TORQUE, _STEP, _STEPS, _GRAVITY = 8.0, 2.0, 0.05, 200, 10.0


class PendulumBatch:
    """n environments Pendulum-v1, Euler steps of 0.05 s; see `EnvironmentBatch`."""

    observation_size: int = 3
    action_low = np.full(1, -_TORQUE, np.float32)
    action_high = np.full(1, _TORQUE, np.float32)
    discrete_actions: bool = False
    step_limit: int | None = _STEPS

    def reset(self, count: int, seed: int) -> Floats:
        """See `EnvironmentBatch.reset`."""
        self._random = np.random.default_rng(seed)
        self._state = np.zeros((2, count))
        self._steps = np.zeros(count, np.int64)
        return self.restart(np.ones(count, bool))

    def restart(self, which: Flags) -> Floats:
        """See `EnvironmentBatch.restart`."""
        widest = np.array([[math.pi], [1.0]])
        self._state[:, which] = self._random.uniform(-widest, widest, self._state.shape)[:, which]
        self._steps[which] = 0
        return self._seen()

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """See `EnvironmentBatch.step`."""
        angle, speed = self._state
        torque = actions[:, 0].astype(np.float64).clip(-_TORQUE, _TORQUE)
        upright = (angle + math.pi) % (2 * math.pi) - math.pi
        costs = upright**2 + 0.1 * speed**2 + 0.001 * torque**2
        faster = speed + (1.5 * _GRAVITY * np.sin(angle) + 3 * torque) * _STEP
        faster = faster.clip(-_FASTEST, _FASTEST)
        self._state = np.stack((angle + faster * _STEP, faster))
        self._steps += 1
        return self._seen(), -costs.astype(np.float32), np.zeros(len(costs), bool), self._steps >= _STEPS

    def _seen(self) -> Floats:
        angle, speed = self._state
        return np.stack((np.cos(angle), np.sin(angle), speed), 1).astype(np.float32)
