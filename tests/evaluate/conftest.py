from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium.spaces import Box

from primorl.policy.exported import DeterministicPolicy

COUNTDOWN = "Countdown-v0"
Vector = npt.NDArray[np.float32]


class Countdown(gymnasium.Env[Vector, Vector]):
    """Terminates after a random number of steps below 8; step t pays t + the first action."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.time = int(self.np_random.integers(1, 8)), 0
        return self._observation(), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        assert self.left > 0, "stepped past its end"
        self.left, self.time = self.left - 1, self.time + 1
        return self._observation(), self.time + float(action[0]), self.left == 0, False, {}

    def _observation(self) -> Vector:
        return np.array([self.left, self.time], dtype=np.float32)


@pytest.fixture
def countdown() -> Iterator[str]:
    gymnasium.register(COUNTDOWN, Countdown, max_episode_steps=5)  # so some episodes are truncated
    yield COUNTDOWN
    del gymnasium.registry[COUNTDOWN]


def random_policy(
    policies: int, observation_size: int, action_limit: float, seed: int = 0
) -> DeterministicPolicy:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    layers = (
        normal(policies, 8, observation_size),
        *(normal(policies, 1, size) for size in (8, 8, 1)),
    )
    mean = torch.zeros(observation_size)
    scale = torch.ones(observation_size)
    limit = torch.tensor([action_limit])
    return DeterministicPolicy(layers, mean, scale, -limit, limit)
