"""Environments side by side that record every step they are asked to take."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

Array = npt.NDArray[Any]


@dataclass
class Episode:
    """One episode of T steps as it happened: T + 1 observations, T of everything else."""

    observations: list[Array]
    actions: list[Array] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False


class RecordingEnvs(VecEnv):
    """Stable-baselines3's view of a Gymnasium ``SyncVectorEnv``, with a recorder inside.

    Recording sits at the environment's own boundary, so an episode holds the clipped action that was
    executed, the raw reward and the true last observation, whatever the learner does with them.
    Gymnasium's vector environment is used because it steps 2.5 times as fast as ``DummyVecEnv``.

    Args:
        make: builds one environment.
        num_envs: how many run side by side.
        finished: called with every episode that ends, in order of time, then of environment.
    """

    def __init__(
        self, make: Callable[[], gymnasium.Env[Array, Array]], num_envs: int, finished: Callable[[Episode], None]
    ):
        self._envs = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self._finished = finished
        assert isinstance(self._envs.single_action_space, Box)
        self._space = self._envs.single_action_space
        self._running: list[Episode] = []
        self._actions: Array = np.empty(0)
        super().__init__(num_envs, self._envs.single_observation_space, self._space)

    def reset(self) -> Array:
        """Start every environment afresh; the seeds given to ``seed`` count once."""
        observations: Array
        observations, _ = self._envs.reset(seed=list(self._seeds))
        self._reset_seeds()
        self._running = [Episode([first]) for first in observations]
        return observations

    def step_async(self, actions: Array) -> None:
        """Keep the actions [N, A], clipped to the space: what is recorded is what is executed."""
        self._actions = np.clip(actions, self._space.low, self._space.high).astype(self._space.dtype)

    def step_wait(self) -> VecEnvStepReturn:
        """Step every environment once; those that end start again at once, as stable-baselines3 expects."""
        observations, rewards, terminated, truncated, infos = self._envs.step(self._actions)
        done = terminated | truncated
        reports: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i, episode in enumerate(self._running):
            last = infos["final_obs"][i] if done[i] else observations[i]
            episode.observations.append(last)
            episode.actions.append(self._actions[i])
            episode.rewards.append(float(rewards[i]))
            if done[i]:
                episode.terminated, episode.truncated = bool(terminated[i]), bool(truncated[i])
                self._running[i] = Episode([observations[i]])
                reports[i] = {
                    "terminal_observation": last,
                    "TimeLimit.truncated": episode.truncated and not episode.terminated,
                }
                self._finished(episode)
        return observations, rewards.astype(np.float32), done, reports

    def close(self) -> None:
        """Close every environment."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of each environment."""
        return [self._envs.envs[i].get_wrapper_attr(attr_name) for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set the attribute in each environment."""
        for i in self._get_indices(indices):
            self._envs.envs[i].set_wrapper_attr(attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each environment."""
        return [method(*method_args, **method_kwargs) for method in self.get_attr(method_name, indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each environment has a wrapper of that class; no learner's wrapper is put here."""
        return [False for _ in self._get_indices(indices)]
