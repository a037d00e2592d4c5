"""Environments side by side that record every step they are asked to take."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from primorl.trajectories.sources.replay.backends import Backend

Array = npt.NDArray[Any]

_FIRST_CAPACITY = 256  # steps; it doubles while episodes are longer


@dataclass
class Episode:
    """One episode of T steps as it happened.

    Attributes:
        observations: [T + 1, S], the true last one included.
        actions: [T, A], or whole numbers [T].
        rewards: [T].
        terminated: whether it ended in a terminal state.
        truncated: whether a limit ended it.
    """

    observations: Array
    actions: Array
    rewards: Array
    terminated: bool
    truncated: bool


class RecordingEnvs(VecEnv):
    """Stable-baselines3's view of a `Backend`, with a recorder inside.

    Recording sits at the environment's own boundary, so an episode holds the clipped action that was
    executed, the raw reward and the true last observation, whatever the learner does with them.

    Args:
        backend: ``num_envs`` copies of one environment.
        num_envs: how many.
        observation_space: of one of them: a box of one dimension.
        action_space: of one of them.
        finished: called with every episode that ends, in order of time, then of environment.
    """

    def __init__(
        self,
        backend: Backend,
        num_envs: int,
        observation_space: Box,
        action_space: Box | Discrete,
        finished: Callable[[Episode], None],
    ):
        self._backend = backend
        self._space = action_space
        self._finished = finished
        self._every = np.arange(num_envs)
        self._observations = np.empty(
            (num_envs, _FIRST_CAPACITY + 1, *observation_space.shape), observation_space.dtype
        )
        shape = () if isinstance(action_space, Discrete) else action_space.shape
        self._actions = np.empty((num_envs, _FIRST_CAPACITY, *shape), action_space.dtype)
        self._rewards = np.empty((num_envs, _FIRST_CAPACITY))
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._asked: Array = np.empty(0)
        super().__init__(num_envs, observation_space, action_space)

    def reset(self) -> Array:
        """Start every environment afresh; the seeds given to ``seed`` count once."""
        observations = self._backend.reset(self._seeds)
        self._reset_seeds()
        self._lengths[:] = 0
        self._observations[:, 0] = observations
        return observations

    def step_async(self, actions: Array) -> None:
        """Keep the actions [N, A], clipped to the space: what is recorded is what is executed."""
        if isinstance(self._space, Box):
            actions = np.clip(actions, self._space.low, self._space.high)
        self._asked = actions.astype(self._space.dtype)

    def step_wait(self) -> VecEnvStepReturn:
        """Step every environment once; those that end start again at once, as stable-baselines3 expects."""
        observations, rewards, terminated, truncated, last = self._backend.step(self._asked)
        self._make_room()
        at = self._every, self._lengths
        self._actions[at] = self._asked
        self._rewards[at] = rewards
        self._lengths += 1
        self._observations[self._every, self._lengths] = last
        done = terminated | truncated
        reports: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            steps = self._lengths[i]
            self._finished(
                Episode(
                    self._observations[i, : steps + 1].copy(),
                    self._actions[i, :steps].copy(),
                    self._rewards[i, :steps].copy(),
                    bool(terminated[i]),
                    bool(truncated[i]),
                )
            )
            reports[i] = {
                "terminal_observation": last[i],
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
            }
        self._lengths[done] = 0
        self._observations[done, 0] = observations[done]
        return observations, rewards.astype(np.float32), done, reports

    def _make_room(self) -> None:
        if self._lengths.max() < self._actions.shape[1]:
            return
        for name in ("_observations", "_actions", "_rewards"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.empty_like(old[:, : self._lengths.max()])], axis=1))

    def close(self) -> None:
        """Close every environment."""
        self._backend.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Nothing but the render mode, which stable-baselines3 asks for: none."""
        if attr_name != "render_mode":
            raise AttributeError(attr_name)
        return [None for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """No attribute of an environment is there to be set."""
        raise AttributeError(attr_name)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """No method of an environment is there to be called."""
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """Whether each environment has a wrapper of that class; no learner's wrapper is put here."""
        return [False for _ in self._get_indices(indices)]
