from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box

from primorl.base import PipelineError
from primorl.config.datasets import ReplayDataset, ReplayOptions, validate
from primorl.data.sources import source_of
from primorl.data.sources.recording import record_training
from tests.data.builders import dataset, snapshot


def options(**changes: Any) -> ReplayOptions:
    learner = {"algorithm": "ddpg", "hidden": [8], "learning_rate": 0.001, "action_noise": 0.2}
    small = {"episodes": 5, "runs": 1, "num_envs": 3, "learning_starts": 1000, "seed": 0} | learner
    return validate(ReplayOptions, small | changes)


def recorded(folder: str) -> list[minari.EpisodeData]:
    return list(minari.MinariDataset(f"{folder}/x-v0/data").iterate_episodes())


def test_every_recorded_transition_obeys_the_pendulum(project: Path) -> None:
    record_training("Pendulum-v1", options(episodes=2), Path("raw"), "x-v0")
    episodes = recorded("raw")
    assert len(episodes) == 2
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


def test_runs_have_seeds_of_their_own_and_an_equal_share(project: Path) -> None:
    record_training("Pendulum-v1", options(runs=2, num_envs=2), Path("together"), "x-v0")
    together = recorded("together")
    record_training("Pendulum-v1", options(num_envs=2, episodes=2, seed=2), Path("alone"), "x-v0")
    for one, other in zip(together[3:], recorded("alone"), strict=True):
        assert np.array_equal(one.observations[0], other.observations[0])
    assert len({tuple(episode.observations[0]) for episode in together}) == 5


def test_discrete_actions_are_learned_by_dqn_and_read_back(project: Path) -> None:
    plain = vars(options(algorithm="dqn", episodes=30, learning_starts=100))
    source = source_of("a.b", dataset(ReplayDataset, "replay", plain, environment="CartPole-v1"))
    source.collect(project)
    kept = minari.MinariDataset(project / "a-b-v0" / "data")  # Minari's ids have no dots
    assert kept.total_episodes == 30
    for episode in kept.iterate_episodes():
        last = episode.observations[-1]
        assert episode.terminations[-1] == (abs(last[2]) > 0.2094 or abs(last[0]) > 2.4)
    reader = source.open(project)
    assert sum(table.num_rows for table in reader.tables()) == kept.total_steps
    assert (reader.spaces.action_size, reader.spaces.discrete_actions) == (2, True)


class Unbounded(gymnasium.Env[Any, Any]):
    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-np.inf, np.inf, (1,))


gymnasium.register("tests/Unbounded-v0", lambda **_: Unbounded())


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ("Pendulum-v77", "environment 'Pendulum-v77'"),
        ("CartPole-v1", "options.algorithm: ddpg"),
        ("tests/Unbounded-v0", "options.algorithm: ddpg"),
    ],
)
def test_unfit_environments_are_refused(project: Path, environment: str, place: str) -> None:
    with pytest.raises(PipelineError, match=rf"{place}[^\n]*$"):
        record_training(environment, options(), Path("raw"), "x-v0")
    assert snapshot(project) == {}
