"""The interface of batches of environments, and one environment of a batch as Gymnasium has environments."""

from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class EnvironmentBatch(Protocol):
    """n environments of one kind.

    Attributes:
        observation_size: S.
        action_low: ``[A]``; 0 for discrete actions.
        action_high: ``[A]``; 1 for discrete actions.
        discrete_actions: whether actions are 0 … A - 1.
        step_limit: steps after which an episode is cut off; None: it may never end.
    """

    observation_size: int
    action_low: Floats
    action_high: Floats
    discrete_actions: bool
    step_limit: int | None

    def reset(self, count: int, seed: int) -> Floats:
        """Begin ``count`` environments anew; first observations ``[count, S]``."""

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """Step all: observations ``[n, S]``, rewards ``[n]``, terminated ``[n]``, truncated ``[n]``.

        An environment whose episode has ended steps on, and what it returns means nothing until it is restarted.
        """

    def restart(self, which: Flags) -> Floats:
        """Begin a new episode where ``which`` says so; current observations of all, ``[n, S]``.

        How many begin does not change what later ones draw: each call draws for all.
        """


class Single(gymnasium.Env[Floats, Any]):
    """A batch of one environment: the same equations, one episode at a time.

    Args:
        batch: is not shared with others.
        low: bounds of observations ``[S]``.
        high: likewise.
    """

    def __init__(self, batch: EnvironmentBatch, low: Floats, high: Floats):
        self._batch = batch
        self.observation_space = Box(low, high, dtype=np.float32)
        if batch.discrete_actions:
            self.action_space = Discrete(len(batch.action_low))
        else:
            self.action_space = Box(batch.action_low, batch.action_high, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Begin an episode, drawn from a seed that Gymnasium's generator gives."""
        super().reset(seed=seed, options=options)
        return self._batch.reset(1, int(self.np_random.integers(2**63)))[0], {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One step of the episode."""
        observations, rewards, terminated, truncated = self._batch.step(np.asarray(action)[None])
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}
