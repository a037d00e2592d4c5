"""Copies of one environment stepped side by side, by Gymnasium or by envpool."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict, Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from primorl.project.errors import PipelineError

Array = npt.NDArray[Any]
StepResult = tuple[Array, Array, Array, Array, Array]

ENVPOOL = {
    "CartPole-v1": "CartPole-v1",
    "HalfCheetah-v5": "HalfCheetah-v5",
    "Hopper-v5": "Hopper-v5",
    "Pendulum-v1": "Pendulum-v1",
    "dm_control/cartpole-balance-v0": "CartpoleBalance-v1",
    "dm_control/cartpole-swingup-v0": "CartpoleSwingup-v1",
}
"""Gymnasium ids that envpool has as the same environment: `tests/trajectories/sources/test_backends.py` steps both from
the same states and compares observations, rewards, ends and limits. An id that is not here is not taken on trust."""


class Backend(Protocol):
    """N copies of one environment; one that ends starts again in the same step."""

    def reset(self, seeds: Sequence[int | None]) -> Array:
        """Start all of them; returns the first observations [N, S]."""

    def step(self, actions: Array) -> StepResult:
        """Step all of them with ``actions`` [N, A] (or [N], where they are discrete).

        Returns:
            What each observes next ([N, S]; where an episode ended, the first observation of the next one),
            rewards, terminated and truncated [N], and what each observed last ([N, S]: as the first, but true
            where an episode ended).
        """

    def close(self) -> None:
        """Let them go."""


class GymnasiumBackend:
    """See `Backend`: Gymnasium's ``SyncVectorEnv``, which steps 2.5 times as fast as stable-baselines3's own.

    Args:
        make: builds one environment.
        count: N.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], count: int):
        self._envs = SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)

    def reset(self, seeds: Sequence[int | None]) -> Array:
        """Start all of them."""
        observations: Array = self._envs.reset(seed=list(seeds))[0]
        return observations

    def step(self, actions: Array) -> StepResult:
        """Step all of them."""
        observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        last = observations
        done = np.flatnonzero(terminated | truncated)
        if done.size:
            last = observations.copy()
            for i in done:
                last[i] = infos["final_obs"][i]
        return observations, rewards, terminated, truncated, last

    def close(self) -> None:
        """Close every environment."""
        self._envs.close()


class EnvpoolBackend:
    """See `Backend`: envpool's C++ environments, on the calling process's one thread.

    Args:
        environment: a Gymnasium id of `ENVPOOL`.
        observation_space: that of the Gymnasium environment, not flattened: it orders the parts of a Dict.
        count: N.

    Raises:
        PipelineError: if envpool is not installed, or does not have exactly this environment.
    """

    def __init__(self, environment: str, observation_space: Space[Any], count: int):
        if environment not in ENVPOOL:
            raise PipelineError(
                f"options.backend: found envpool for {environment!r}, which is not known to be the same there; "
                f"allowed are {', '.join(ENVPOOL)}; set backend: gymnasium"
            )
        try:
            import envpool
        except ImportError:
            raise PipelineError(
                "options.backend: found envpool, which is not installed; `pip install primorl[envpool]`, or set "
                "backend: gymnasium"
            ) from None
        self._envpool = envpool
        self._id, self._count = ENVPOOL[environment], count
        self._space = observation_space
        self._envs: Any = None

    def reset(self, seeds: Sequence[int | None]) -> Array:
        """Start all of them; envpool takes seeds when it builds."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the bounds of float64 spaces, which nobody asks envpool for
            self._envs = self._envpool.make(
                self._id,
                env_type="gymnasium",
                num_envs=self._count,
                num_threads=1,
                seed=[0 if seed is None else seed for seed in seeds],
            )
            return self._flat(self._envs.reset()[0])

    def step(self, actions: Array) -> StepResult:
        """Step all of them; envpool would reset at the next step, which then ignores its action."""
        seen, rewards, terminated, truncated, _ = self._envs.step(actions)
        last = observations = self._flat(seen)
        done = np.flatnonzero(terminated | truncated)
        if done.size:
            observations = last.copy()
            observations[done] = self._flat(self._envs.reset(done.astype(np.int32))[0])
        return observations, rewards, terminated, truncated, last

    def close(self) -> None:
        """Close them."""
        if self._envs is not None:
            self._envs.close()

    def _flat(self, seen: Any) -> Array:
        if not isinstance(seen, dict):
            return np.asarray(seen, dtype=np.float32)
        assert isinstance(self._space, Dict)
        return np.concatenate([seen[name] for name in self._space.spaces], axis=1).astype(np.float32)
