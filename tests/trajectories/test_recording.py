from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from pipeline.trajectories.recording import Episode, RecordingEnvs


class Counter(gymnasium.Env[Any, Any]):
    """Observes (episode number, step); ends at step 3, terminated in even episodes, truncated in odd ones."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.episode, self.t, self.executed = -1, 0, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.executed.append(action.copy())
        self.t += 1
        last = self.t == 3
        return self._seen(), 1 / 3, last and self.episode % 2 == 0, last and self.episode % 2 == 1, {}

    def _seen(self) -> Any:
        return np.array([self.episode, self.t], dtype=np.float32)


@pytest.fixture
def recorded() -> tuple[RecordingEnvs, list[Episode]]:
    finished: list[Episode] = []
    return RecordingEnvs(Counter, 2, finished.append), finished


def test_an_episode_ends_in_its_own_terminal_observation(recorded: tuple[RecordingEnvs, list[Episode]]) -> None:
    """Autoreset hands over the next episode's first observation; it must not become a next_observation."""
    envs, finished = recorded
    envs.reset()
    for _ in range(7):
        observations, _, dones, infos = envs.step(np.zeros((2, 1), dtype=np.float32))
    assert [[list(map(int, o)) for o in e.observations] for e in finished[::2]] == [
        [[0, 0], [0, 1], [0, 2], [0, 3]],
        [[1, 0], [1, 1], [1, 2], [1, 3]],
    ]
    assert len(finished) == 4
    assert [(e.terminated, e.truncated) for e in finished[::2]] == [(True, False), (False, True)]
    assert all(len(e.rewards) == len(e.actions) == 3 for e in finished)
    assert not dones.any()
    assert infos == [{}, {}]
    assert observations.tolist() == [[2, 1], [2, 1]]


def test_the_learner_is_told_the_same(recorded: tuple[RecordingEnvs, list[Episode]]) -> None:
    """Stable-baselines3 bootstraps at truncations only, from the terminal observation."""
    envs, _ = recorded
    envs.reset()
    reports = []
    for _ in range(6):
        observations, _, dones, infos = envs.step(np.zeros((2, 1), dtype=np.float32))
        if dones[0]:
            assert observations[0, 1] == 0
            reports.append((infos[0]["terminal_observation"].tolist(), infos[0]["TimeLimit.truncated"]))
    assert reports == [([0, 3], False), ([1, 3], True)]


def test_what_is_recorded_is_what_was_executed(recorded: tuple[RecordingEnvs, list[Episode]]) -> None:
    """A model trained on unclipped actions would learn a dynamics that never happened; rewards stay as they were."""
    envs, finished = recorded
    envs.reset()
    sent = np.array([[5.0], [-0.25]])
    for _ in range(3):
        envs.step(sent)
    assert np.stack(finished[0].actions).ravel().tolist() == [1.0] * 3
    assert np.stack(finished[1].actions).ravel().tolist() == [-0.25] * 3
    assert np.array_equal(envs.get_attr("executed")[0], np.ones((3, 1)))
    assert finished[0].rewards == [1 / 3] * 3
