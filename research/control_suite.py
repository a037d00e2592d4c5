"""The control suite's cart-pole (Tassa et al. 2018), stepped by MuJoCo without dm_control's layers.

``research.control_suite:primorl/cartpole-balance-v0`` and ``…-swingup-v0``. Observations are those
of ``dm_control/cartpole-*-v0`` to the last bit, for the same seeds; rewards differ by rounding in
double precision at most. A step takes about a tenth of the time, and recordings have 30 million
steps.
"""

import math
from functools import cache
from typing import Any, SupportsFloat

import gymnasium
import mujoco
import numpy as np
import numpy.typing as npt
from dm_control import suite
from dm_control.rl.control import Environment
from gymnasium.spaces import Box

TASKS = ("balance", "swingup")


class CartPole(gymnasium.Env[npt.NDArray[np.float64], npt.NDArray[np.float32]]):
    """One cart-pole: position, cosine and sine of the angle, and two velocities; a force in [-1,
    1].

    Args:
        task: ``balance`` begins near upright, ``swingup`` hanging.
    """

    def __init__(self, task: str):
        self._swing_up = task == "swingup"
        self._model = _load(task).physics.model.ptr
        self._data = mujoco.MjData(self._model)
        self._draws = np.random.RandomState()  # as dm_control draws
        self.observation_space = Box(-np.inf, np.inf, (5,), np.float64)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
        """Begin an episode."""
        if seed is not None:
            self._draws = np.random.RandomState(seed)
        data, draws = self._data, self._draws
        mujoco.mj_resetData(self._model, data)
        if self._swing_up:
            data.qpos[:] = 0.01 * draws.randn(), np.pi + 0.01 * draws.randn()
        else:
            data.qpos[:] = draws.uniform(-0.1, 0.1), draws.uniform(-0.034, 0.034)
        data.qvel[:] = 0.01 * draws.randn(2)
        mujoco.mj_forward(self._model, data)
        return self._observe(), {}

    def step(
        self, action: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float64], SupportsFloat, bool, bool, dict[str, Any]]:
        """Push for 0.01 s."""
        force = float(action[0])
        self._data.ctrl[0] = force
        mujoco.mj_step(self._model, self._data)
        # positions of bodies lag a Runge-Kutta step otherwise
        mujoco.mj_step1(self._model, self._data)
        seen = self._observe()
        position, cosine, _, _, spin = seen.tolist()
        centred = (1 + _near_zero(position, 2)) / 2
        gentle = (4 + max(1 - force**2, 0.0)) / 5
        slow = (1 + _near_zero(spin, 5)) / 2
        reward = (cosine + 1) / 2 * gentle * slow * centred
        return seen, reward, False, False, {}

    def _observe(self) -> npt.NDArray[np.float64]:
        data = self._data
        axes = data.xmat[2]  # of the pole; its third column is the z axis
        return np.array([data.qpos[0], axes[8], axes[2], *data.qvel])


@cache
def _load(task: str) -> Environment:
    """Load a task of the suite, which owns the model that all environments of it share."""
    return suite.load("cartpole", task)


def _near_zero(value: float, margin: float) -> float:
    """The suite's tolerance: 1 at zero, 0.1 at the margin, a bell in between."""
    return math.exp(math.log(0.1) * (value / margin) ** 2)


for _task in TASKS:
    gymnasium.register(
        f"primorl/cartpole-{_task}-v0",
        f"{__name__}:CartPole",
        max_episode_steps=1000,
        kwargs={"task": _task},
    )
