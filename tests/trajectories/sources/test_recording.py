from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from primorl.trajectories.sources.replay import recording
from primorl.trajectories.sources.replay.backends import GymnasiumBackend
from primorl.trajectories.sources.replay.recording import Episode, RecordingEnvs


class Counter(gymnasium.Env[Any, Any]):
    """Observes (episode number, step); ends at step 3, terminated in even episodes, truncated in odd ones."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.episode, self.t, self.executed = -1, 0, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.executed.append(np.copy(action))
        self.t += 1
        last = self.t == 3
        return self._seen(), 1 / 3, last and self.episode % 2 == 0, last and self.episode % 2 == 1, {}

    def _seen(self) -> Any:
        return np.array([self.episode, self.t], dtype=np.float32)


class Buttons(Counter):
    action_space = Discrete(3)


def recorder(environment: type[Counter], count: int) -> tuple[RecordingEnvs, list[Episode], list[Counter]]:
    finished: list[Episode] = []
    made: list[Counter] = []

    def make() -> Counter:
        made.append(environment())
        return made[-1]

    backend = GymnasiumBackend(make, count)
    spaces = environment.observation_space, environment.action_space
    return RecordingEnvs(backend, count, *spaces, finished.append), finished, made[-count:]


def test_an_episode_ends_in_its_own_terminal_observation() -> None:
    """Autoreset hands over the next episode's first observation; it must not become a next_observation."""
    envs, finished, _ = recorder(Counter, 2)
    envs.reset()
    for _ in range(7):
        observations, _, dones, infos = envs.step(np.zeros((2, 1), dtype=np.float32))
    assert [e.observations.tolist() for e in finished[::2]] == [
        [[0, 0], [0, 1], [0, 2], [0, 3]],
        [[1, 0], [1, 1], [1, 2], [1, 3]],
    ]
    assert len(finished) == 4
    assert [(e.terminated, e.truncated) for e in finished[::2]] == [(True, False), (False, True)]
    assert all(len(e.rewards) == len(e.actions) == 3 for e in finished)
    assert not dones.any()
    assert infos == [{}, {}]
    assert observations.tolist() == [[2, 1], [2, 1]]


def test_the_learner_is_told_the_same() -> None:
    """Stable-baselines3 bootstraps at truncations only, from the terminal observation."""
    envs, _, _ = recorder(Counter, 2)
    envs.reset()
    reports = []
    for _ in range(6):
        observations, _, dones, infos = envs.step(np.zeros((2, 1), dtype=np.float32))
        if dones[0]:
            assert observations[0, 1] == 0
            reports.append((infos[0]["terminal_observation"].tolist(), infos[0]["TimeLimit.truncated"]))
    assert reports == [([0, 3], False), ([1, 3], True)]


def test_what_is_recorded_is_what_was_executed() -> None:
    """A model trained on unclipped actions would learn a dynamics that never happened; rewards stay as they were."""
    envs, finished, made = recorder(Counter, 2)
    envs.reset()
    sent = np.array([[5.0], [-0.25]])
    for _ in range(3):
        envs.step(sent)
    assert finished[0].actions.ravel().tolist() == [1.0] * 3
    assert finished[1].actions.ravel().tolist() == [-0.25] * 3
    assert np.array_equal(made[0].executed, np.ones((3, 1)))
    assert finished[0].rewards.tolist() == [1 / 3] * 3


def test_discrete_actions_are_recorded_as_whole_numbers() -> None:
    envs, finished, _ = recorder(Buttons, 2)
    envs.reset()
    for chosen in ([0, 2], [1, 1], [2, 0]):
        envs.step(np.array(chosen))
    assert [e.actions.tolist() for e in finished] == [[0, 1, 2], [2, 1, 0]]
    assert finished[0].actions.dtype == np.int64


def test_an_episode_may_be_longer_than_the_room_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments without a limit have no longest episode; the room grows and keeps what it holds."""
    monkeypatch.setattr(recording, "_FIRST_CAPACITY", 1)
    envs, finished, _ = recorder(Counter, 1)
    envs.reset()
    for action in (0.25, 0.5, 0.75):
        envs.step(np.array([[action]]))
    assert finished[0].observations.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert finished[0].actions.ravel().tolist() == [0.25, 0.5, 0.75]
