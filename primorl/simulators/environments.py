"""Gymnasium environments as every room sees them, and the interface of many that step together as
arrays.

Observations are one flat vector. Import this module before a package that imports Gym.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FlattenObservation

from primorl.base import PipelineError

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

_SIDE_BY_SIDE = 32


def make(environment: str) -> gymnasium.Env[Any, Any]:
    """Build the environment; observations that are no flat vector of numbers are flattened.

    A Dict's entries come in the order of its space (Gymnasium sorts the keys), a Discrete one
    becomes one-hot.

    Args:
        environment: a registered Gymnasium id, or ``module:id``, where importing the module
            registers it.

    Raises:
        PipelineError: no such id is registered, or its package is not installed.
    """
    try:
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))  # a module of the project may register the id
        env = gymnasium.make(environment, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as unknown:
        reason = " ".join(str(unknown).split())
        found = f"Gymnasium cannot build it ({reason}); allowed is a registered id, or module:id"
        raise PipelineError(f"environment {environment!r}: {found}") from None
    space = env.observation_space
    flat = (
        isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)
    )
    return env if flat else FlattenObservation(env)


class GymBatch:
    """Any Gymnasium environment, n of them that step together in one process.

    Attributes:
        observation_size: S.
        action_low: ``[A]``; 0 for discrete actions.
        action_high: ``[A]``; 1 for discrete actions.
        action_dtype: of the environment's own.
        discrete_actions: whether actions are 0 … A - 1.
        step_limit: steps after which an episode is cut off; None: it may never end.
    """

    def __init__(self, environment: str):
        env = make(environment)
        self._environment = environment
        action = env.action_space
        self.discrete_actions = isinstance(action, Discrete)
        self.observation_size = gymnasium.spaces.flatdim(env.observation_space)
        self.action_dtype = action.dtype
        if isinstance(action, Discrete):
            self.action_low = np.zeros(int(action.n), np.float32)
            self.action_high = np.ones(int(action.n), np.float32)
        else:
            assert isinstance(action, Box), "as the stage `ingest` found"
            self.action_low = action.low.astype(np.float32)
            self.action_high = action.high.astype(np.float32)
        self.step_limit = None if env.spec is None else env.spec.max_episode_steps
        env.close()
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def refuse_sizes(self, observations: int, actions: int, discrete: bool) -> None:
        """Refuse a policy of other sizes.

        Raises:
            PipelineError: they differ.
        """
        own = self.observation_size, len(self.action_low), self.discrete_actions
        if own != (observations, actions, discrete):
            raise PipelineError(
                f"environment {self._environment!r}: (observations, actions, discrete): found "
                f"{(observations, actions, discrete)}, allowed is {own}; run `dvc repro`"
            )

    def reset(self, count: int, seed: int) -> Floats:
        """Begin ``count`` environments anew; first observations ``[count, S]``."""
        return self.begin(np.random.SeedSequence(seed).generate_state(count).tolist())

    def begin(self, seeds: Sequence[int]) -> Floats:
        """Begin an environment anew from each seed; first observations ``[n, S]``."""
        count = len(seeds)
        while len(self._envs) < count:
            self._envs.append(make(self._environment))
        for spare in self._envs[count:]:
            spare.close()
        self._envs = self._envs[:count]
        resets = [env.reset(seed=own)[0] for env, own in zip(self._envs, seeds, strict=True)]
        self._latest = np.array(resets, np.float32)
        self._rewards = np.zeros(count)
        self._terminated, self._truncated, self._over = np.zeros((3, count), bool)
        return self._latest.copy()

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, npt.NDArray[Any], Flags, Flags]:
        """Step all with actions ``[n, A]``, or ``[n]`` discrete ones; observations ``[n, S]``,
        rewards, ends and cuts ``[n]``.

        An environment steps on after its episode has ended; its results mean nothing until it is
        restarted.
        """
        for at, env in enumerate(self._envs):
            if not self._over[at]:
                action = int(actions[at]) if self.discrete_actions else actions[at]
                found = env.step(action)
                self._latest[at], self._rewards[at], self._terminated[at], self._truncated[at] = (
                    found[:4]
                )
        self._over = self._terminated | self._truncated
        terminated, truncated = self._terminated.copy(), self._truncated.copy()
        return self._latest.copy(), self._rewards.copy(), terminated, truncated

    def restart(self, which: Flags) -> Floats:
        """Begin a new episode where ``which`` says so; current observations of all, ``[n, S]``.

        How many begin does not change what later ones draw: each call draws for all.
        """
        for at in np.flatnonzero(which):
            self._latest[at] = self._envs[at].reset()[0]
        self._over &= ~which
        return self._latest.copy()


def reset_states(environment: str, count: int, seed: int) -> Floats:
    """First observations of ``count`` episodes (rounded up to full vectors), float32 ``[n, S]``.

    Raises:
        PipelineError: if the environment cannot be built.
    """
    envs = SyncVectorEnv([lambda: make(environment)] * _SIDE_BY_SIDE)
    try:
        rounds = -(-count // _SIDE_BY_SIDE)
        observations = [
            envs.reset(seed=seed if number == 0 else None)[0] for number in range(rounds)
        ]
    finally:
        envs.close()
    return np.concatenate(observations).astype(np.float32)
