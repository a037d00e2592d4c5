"""One environment of a batch, as Gymnasium has environments."""

from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class _Batch(Protocol):
    """What is needed of `primorl.simulators.batches.EnvironmentBatch`, and the bounds of its observations."""

    observation_low: Floats
    observation_high: Floats
    action_low: Floats
    action_high: Floats
    discrete_actions: bool

    def reset(self, count: int, seed: int) -> Floats: ...

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]: ...


class Single(gymnasium.Env[Floats, Any]):
    """A batch of one environment: the same equations, one episode at a time.

    Args:
        batch: is not shared with others.
    """

    def __init__(self, batch: _Batch):
        self._batch = batch
        self.observation_space = Box(batch.observation_low, batch.observation_high, dtype=np.float32)
        if batch.discrete_actions:
            self.action_space = Discrete(len(batch.action_low))
        else:
            self.action_space = Box(batch.action_low, batch.action_high, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """A new episode; what happens in it is drawn from a seed that Gymnasium's generator gives."""
        super().reset(seed=seed, options=options)
        return self._batch.reset(1, int(self.np_random.integers(2**63)))[0], {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One step of the episode."""
        observations, rewards, terminated, truncated = self._batch.step(np.asarray(action)[None])
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}
