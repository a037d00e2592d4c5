import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from primorl.base.errors import PipelineError
from primorl.config.datasets import ReplayDataset, ReplayOptions, checked
from primorl.data.checks import RowCheck
from primorl.data.sources import recording, source_of
from primorl.data.sources.minari.writing import Episode
from primorl.data.sources.recording import RecordingEnvs, _Adam, record_training
from primorl.simulators import batches
from primorl.simulators.environments import make
from tests.data.builders import INFO, dataset, snapshot


def options(**changes: Any) -> ReplayOptions:
    learner = {
        "algorithm": "ddpg",
        "gradient_steps": 1,
        "hidden": [8],
        "learning_rate": 0.001,
        "action_noise": 0.2,
    }
    small = {"episodes": 5, "runs": 1, "num_envs": 3, "learning_starts": 450, "seed": 0} | learner
    return checked(ReplayOptions, small | changes)


def entry(environment: str | None, **changes: Any) -> ReplayDataset:
    return dataset(ReplayDataset, "replay", vars(options(**changes)), environment=environment)


def recorded(folder: str) -> list[minari.EpisodeData]:
    return list(minari.MinariDataset(f"{folder}/x-v0/data").iterate_episodes())


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_every_recorded_transition_obeys_the_pendulum(project: Path, algorithm: str) -> None:
    record_training("Pendulum-v1", options(algorithm=algorithm), Path("raw"), "x-v0")
    episodes = recorded("raw")
    assert len(episodes) == 5
    for episode in episodes:
        assert episode.truncations.tolist() == [False] * 199 + [True]
        assert not episode.terminations.any()
        cosine, sine, velocity = episode.observations.astype(float).T
        force = episode.actions[:, 0].astype(float)
        assert (np.abs(force) <= 2).all()
        angle = np.arctan2(sine, cosine)
        after = np.clip(velocity[:-1] + (15 * sine[:-1] + 3 * force) * 0.05, -8, 8)
        assert np.allclose(velocity[1:], after, atol=1e-5)
        assert np.allclose(cosine[1:], np.cos(angle[:-1] + after * 0.05), atol=1e-5)
        cost = angle[:-1] ** 2 + 0.1 * velocity[:-1] ** 2 + 0.001 * force**2
        near_pi = (
            np.abs(angle[:-1]) > np.pi - 1e-3
        )  # float32 may have turned +pi into -pi: the same cost
        assert np.allclose(episode.rewards[~near_pi], -cost[~near_pi], atol=1e-4)


def test_the_seed_repeats_the_data_and_runs_have_seeds_of_their_own(project: Path) -> None:
    record_training("Pendulum-v1", options(runs=2, num_envs=2), Path("together"), "x-v0")
    together, alone = recorded("together"), []
    for run, episodes in enumerate((3, 2)):
        record_training(
            "Pendulum-v1",
            options(num_envs=2, episodes=episodes, seed=2 * run),
            Path(f"{run}"),
            "x-v0",
        )
        alone += recorded(f"{run}")
    for one, other in zip(together, alone, strict=True):
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.actions, other.actions)
    assert len({tuple(episode.observations[0]) for episode in together}) == 5


@pytest.mark.parametrize("wrong", [None, "_DDPG", "Pendulums"])
def test_fast_environments_and_updates_record_the_bits_of_their_libraries(
    project: Path, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    """The twins update targets, or step, a little differently."""
    chosen = options(episodes=8, num_envs=4, learning_starts=800, hidden=[64, 64])
    with monkeypatch.context() as ours:
        if wrong == "_DDPG":
            ours.setattr(recording, "_DDPG", partial(recording._DDPG, tau=0.0050001))
        if wrong == "Pendulums":
            ours.setattr(
                batches.Pendulums, "_square", lambda self, values: np.nextafter(values**2, 1e3)
            )
        record_training("Pendulum-v1", chosen, Path("ours"), "x-v0")
    monkeypatch.setattr(recording, "_DDPG", stable_baselines3.DDPG)
    monkeypatch.setattr(batches, "Pendulums", looped)
    record_training("Pendulum-v1", chosen, Path("theirs"), "x-v0")
    same = []
    for one, other in zip(recorded("ours"), recorded("theirs"), strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            first, second = getattr(one, name), getattr(other, name)
            same.append(first.dtype == second.dtype and np.array_equal(first, second))
    assert all(same) == (wrong is None)


def looped(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv(
        [lambda: make("Pendulum-v1")] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
    )


def test_discrete_actions_are_learned_by_dqn_and_read_back(project: Path) -> None:
    chosen = entry("CartPole-v1", algorithm="dqn", episodes=30, learning_starts=100)
    source = source_of("some.name", chosen)
    source.collect(project)
    kept = minari.MinariDataset(project / "some-name-v0" / "data")  # Minari's ids have no dots
    assert kept.total_episodes == 30
    for episode in kept.iterate_episodes():
        assert episode.actions.shape == episode.rewards.shape
        last = episode.observations[-1]
        assert episode.terminations[-1] == (abs(last[2]) > 0.2094 or abs(last[0]) > 2.4)
    reader = source.open(project)
    check = RowCheck(replace(INFO, spaces=reader.spaces, horizon=500), reader.path)
    tables = list(reader.tables())
    for table in tables:
        check(table)
    assert sum(table.num_rows for table in tables) == kept.total_steps
    assert (reader.spaces.observation_size, reader.spaces.action_size, reader.horizon) == (
        4,
        2,
        500,
    )
    assert reader.spaces.discrete_actions


def test_its_adam_moves_parameters_as_that_of_pytorch_does_to_the_last_bit() -> None:
    start = [torch.randn(5, 3), torch.randn(5)]
    ours, theirs = ([each.clone().requires_grad_() for each in start] for _ in range(2))
    for parameters, optimiser in (
        (ours, _Adam(ours, lr=1e-2)),
        (theirs, torch.optim.Adam(theirs, lr=1e-2)),
    ):
        inputs = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        for _ in range(50):
            optimiser.zero_grad()
            (inputs @ parameters[0].T + parameters[1]).sin().mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert not torch.equal(ours[0], start[0])


class Unbounded(gymnasium.Env[Any, Any]):
    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-np.inf, np.inf, (1,))


gymnasium.register("tests/Unbounded-v0", Unbounded)


@pytest.mark.parametrize(
    ("environment", "changes", "message"),
    [
        ("Pendulum-v77", {}, "environment 'Pendulum-v77': Gymnasium cannot build it"),
        (
            "CartPole-v1",
            {},
            "options.algorithm: found 'ddpg', but the actions of 'CartPole-v1' are discrete",
        ),
        ("Pendulum-v1", {"algorithm": "dqn"}, "allowed is ddpg, td3 or sac"),
        ("tests/Unbounded-v0", {}, "found an action space without finite bounds"),
    ],
)
def test_unfit_environments_are_refused(
    project: Path, environment: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipelineError) as wrong:
        record_training(environment, options(**changes), Path("raw"), "x-v0")
    assert message in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert snapshot(project) == {}
    with pytest.raises(ValueError, match="episodes must be at least runs"):
        options(runs=6)


def test_a_missing_extra_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("mujoco", "gymnasium.envs.mujoco"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(PipelineError, match=r"pip install primorl\[mujoco\]"):
        record_training("HalfCheetah-v5", options(), Path("raw"), "x-v0")


class Counter(gymnasium.Env[Any, Any]):
    """Observes (episode number, step); ends at step 3, terminated in even episodes, truncated in odd ones."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.episode, self.t, self.executed = -1, 0, []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.executed.append(np.copy(action))
        self.t += 1
        last = self.t == 3
        return (
            self._seen(),
            1 / 3,
            last and self.episode % 2 == 0,
            last and self.episode % 2 == 1,
            {},
        )

    def _seen(self) -> Any:
        return np.array([self.episode, self.t], dtype=np.float32)


class Buttons(Counter):
    action_space = Discrete(3)


def recorder(environment: type[Counter]) -> tuple[RecordingEnvs, list[Episode], list[Counter]]:
    """Two of them, begun."""
    finished: list[Episode] = []
    made: list[Counter] = []

    def begin() -> Counter:
        made.append(environment())
        return made[-1]

    envs = RecordingEnvs(
        SyncVectorEnv([begin] * 2, autoreset_mode=AutoresetMode.SAME_STEP), finished.append
    )
    envs.reset()
    return envs, finished, made


def test_an_episode_ends_in_its_own_terminal_observation() -> None:
    envs, finished, _ = recorder(Counter)
    reports = []
    for step in range(7):
        observations, _, dones, infos = envs.step(np.full((2, 1), step / 8))
        if dones[0]:
            assert observations[0, 1] == 0
            reports.append(
                (infos[0]["terminal_observation"].tolist(), infos[0]["TimeLimit.truncated"])
            )
    assert reports == [([0, 3], False), ([1, 3], True)]
    assert [episode.observations.tolist() for episode in finished[::2]] == [
        [[number, step] for step in range(4)] for number in range(2)
    ]
    assert finished[2].actions.ravel().tolist() == [3 / 8, 4 / 8, 5 / 8]
    assert len(finished) == 4
    assert [(episode.terminated, episode.truncated) for episode in finished[::2]] == [
        (True, False),
        (False, True),
    ]
    assert (dones.any(), infos, observations.tolist()) == (False, [{}, {}], [[2, 1], [2, 1]])


def test_what_is_recorded_is_what_was_executed() -> None:
    envs, finished, made = recorder(Counter)
    for _ in range(3):
        envs.step(np.array([[5.0], [-0.25]]))
    assert [episode.actions.ravel().tolist() for episode in finished] == [[1.0] * 3, [-0.25] * 3]
    assert any(np.array_equal(env.executed, np.ones((3, 1))) for env in made)
    assert finished[0].rewards.tolist() == [1 / 3] * 3
    envs, finished, _ = recorder(Buttons)
    for chosen in ([0, 2], [1, 1], [2, 0]):
        envs.step(np.array(chosen))
    assert [episode.actions.tolist() for episode in finished] == [[0, 1, 2], [2, 1, 0]]
    assert finished[0].actions.dtype == np.int64
