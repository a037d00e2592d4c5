"""Many environments that step together, as arrays: how users of an online run are simulated."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from primorl.base.errors import PipelineError
from primorl.simulators import dosing, environments
from primorl.simulators.classic_control import AcrobotBatch, CartPoleBatch, PendulumBatch
from primorl.simulators.environments import EnvironmentBatch, Flags, Floats, State

__all__ = ["EnvironmentBatch", "GymBatch", "Pendulums", "batch", "vector_env"]


class GymBatch:
    """Any Gymnasium environment, n of them in one process."""

    def __init__(self, environment: str):
        env = environments.make(environment)
        self._environment = environment
        observation, action = env.observation_space, env.action_space
        self.discrete_actions = isinstance(action, Discrete)
        if not isinstance(observation, Box) or len(observation.shape) != 1:
            raise PipelineError(
                f"environment {environment!r}: observations must be a flat box, found {observation}"
            )
        if not isinstance(action, Box | Discrete):
            raise PipelineError(
                f"environment {environment!r}: actions must be a box or discrete, found {action}"
            )
        self.observation_size = int(observation.shape[0])
        if isinstance(action, Discrete):
            self._start = int(action.start)
            self.action_low, self.action_high = (
                np.zeros(int(action.n), np.float32),
                np.ones(int(action.n), np.float32),
            )
        else:
            self.action_low, self.action_high = (
                action.low.astype(np.float32),
                action.high.astype(np.float32),
            )
        self.step_limit = None if env.spec is None else env.spec.max_episode_steps
        env.close()
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def reset(self, count: int, seed: int) -> Floats:
        """See `EnvironmentBatch.reset`."""
        while len(self._envs) < count:
            self._envs.append(environments.make(self._environment))
        for spare in self._envs[count:]:
            spare.close()
        self._envs = self._envs[:count]
        seeds = np.random.SeedSequence(seed).generate_state(count).tolist()
        resets = [env.reset(seed=own)[0] for env, own in zip(self._envs, seeds, strict=True)]
        self._latest = np.array(resets, np.float32)
        self._rewards = np.zeros(count, np.float32)
        self._terminated, self._truncated, self._over = np.zeros((3, count), bool)
        return self._latest.copy()

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """See `EnvironmentBatch.step`."""
        for at, env in enumerate(self._envs):
            if not self._over[at]:
                action = int(actions[at]) + self._start if self.discrete_actions else actions[at]
                found = env.step(action)
                self._latest[at], self._rewards[at], self._terminated[at], self._truncated[at] = (
                    found[:4]
                )
        self._over = self._terminated | self._truncated
        return (
            self._latest.copy(),
            self._rewards.copy(),
            self._terminated.copy(),
            self._truncated.copy(),
        )

    def restart(self, which: Flags) -> Floats:
        """See `EnvironmentBatch.restart`."""
        for at in np.flatnonzero(which):
            self._latest[at] = self._envs[at].reset()[0]
        self._over &= ~which
        return self._latest.copy()


class Pendulums(PendulumBatch):
    """What this project asks of a ``SyncVectorEnv`` of Pendulum-v1: the same bits, in a tenth of the time."""

    def __init__(self, num_envs: int):
        own = environments.make("Pendulum-v1")
        self.num_envs, self.envs = num_envs, [own]
        self.single_observation_space, self.single_action_space = (
            own.observation_space,
            own.action_space,
        )

    def reset(self, *, seed: Sequence[int | None]) -> tuple[Floats, dict[str, Any]]:  # type: ignore[override]
        """First observations ``[N, 3]``; each environment has a seed of its own."""
        self._generators = [np.random.default_rng(each) for each in seed]
        return super().reset(self.num_envs, 0), {}

    def _first_states(self) -> State:
        widest = np.array(self._widest)
        return np.stack([generator.uniform(-widest, widest) for generator in self._generators], 1)

    def _square(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.array(
            [each**2 for each in values]
        )  # the power of one number rounds otherwise than an array's

    def step(  # type: ignore[override]
        self, actions: npt.NDArray[Any]
    ) -> tuple[Floats, State, Flags, Flags, dict[str, Any]]:
        """Observations, rewards, terminated, truncated and infos; all episodes end, and begin again, in one step."""
        seen, costs, truncated = self.swing(actions)
        now = self.restart(truncated) if truncated.any() else seen
        return now, -costs, np.zeros(self.num_envs, bool), truncated, {"final_obs": seen}

    def close(self) -> None:
        """Nothing is open."""


def vector_env(
    environment: str, count: int, build: Callable[[], gymnasium.Env[Any, Any]]
) -> SyncVectorEnv | Pendulums:
    """Build ``count`` environments, each with Gymnasium's own numbers; one that ends begins again in the same step."""
    if environment == "Pendulum-v1":
        return Pendulums(count)
    return SyncVectorEnv([build] * count, autoreset_mode=AutoresetMode.SAME_STEP)


_FAST: dict[str, Callable[[], EnvironmentBatch]] = {
    "CartPole-v1": CartPoleBatch,
    "Acrobot-v1": AcrobotBatch,
    "Pendulum-v1": PendulumBatch,
    **{name: partial(dosing.DosingBatch, varied) for varied, name in dosing.ENVIRONMENTS.items()},
}
"""Environments that have a batch of their own, many times as fast."""


def batch(environment: str) -> EnvironmentBatch:
    """Make a batch of a registered environment.

    Raises:
        PipelineError: the environment cannot be built.
    """
    return _FAST[environment]() if environment in _FAST else GymBatch(environment)
