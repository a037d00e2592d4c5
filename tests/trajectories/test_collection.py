from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest

from pipeline.errors import PipelineError
from pipeline.params import MinariDataset, ReplayDataset
from pipeline.trajectories.collection import collect
from tests.trajectories.builders import episodes, snapshot, write_raw

COMMON = {"unit": "trajectory", "bounds": {"observation": "space", "reward": "public"}, "score": None}


def replay(environment: str = "Pendulum-v1", **changes: Any) -> ReplayDataset:
    options = {
        "algorithm": "ddpg",
        "episodes": 5,
        "num_envs": 3,
        "gradient_steps": 1,
        "learning_starts": 450,
        "hidden": [8],
        "learning_rate": 0.001,
        "action_noise": 0.2,
        "seed": 0,
    }
    entry = {"source": "replay", "environment": environment, "options": options | changes} | COMMON
    return ReplayDataset.model_validate(entry)


def local(dataset_id: str, root: Path | None) -> MinariDataset:
    options = {"id": dataset_id, "root": None if root is None else str(root)}
    return MinariDataset.model_validate({"source": "minari", "environment": "Pendulum-v1", "options": options} | COMMON)


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_every_recorded_transition_obeys_the_pendulum(project: Path, algorithm: str) -> None:
    """Replaying the equations of motion on every transition, the last ones included, proves the record true."""
    collect("some.name", replay(algorithm=algorithm), Path("data/raw"))
    dataset = minari.MinariDataset("data/raw/some-name-v0/data")
    recorded = list(dataset.iterate_episodes())
    assert len(recorded) == 5
    assert dataset.spec.env_spec.id == "Pendulum-v1"
    starts = []
    for episode in recorded:
        assert len(episode.rewards) == 200
        assert episode.truncations.tolist() == [False] * 199 + [True]
        assert not episode.terminations.any()
        cosine, sine, velocity = episode.observations.astype(float).T
        force = episode.actions[:, 0].astype(float)
        assert (np.abs(force) <= 2).all()
        angle = np.arctan2(sine, cosine)
        after = np.clip(velocity[:-1] + (15 * sine[:-1] + 3 * force) * 0.05, -8, 8)
        assert np.allclose(velocity[1:], after, atol=1e-5)
        moved = angle[:-1] + after * 0.05
        assert np.allclose(cosine[1:], np.cos(moved), atol=1e-5)
        assert np.allclose(sine[1:], np.sin(moved), atol=1e-5)
        cost = angle[:-1] ** 2 + 0.1 * velocity[:-1] ** 2 + 0.001 * force**2
        near_pi = np.abs(angle[:-1]) > np.pi - 1e-3  # float32 may have turned +pi into -pi: the same cost
        assert np.allclose(episode.rewards[~near_pi], -cost[~near_pi], atol=1e-4)
        assert abs(velocity[0]) <= 1  # a reset draws it from [-1, 1]
        starts.append(tuple(episode.observations[0]))
    assert len(set(starts)) == 5


def test_the_seed_repeats_the_data_and_another_does_not(project: Path) -> None:
    """Everything but noise and cohorts is reproducible; the data must not depend on who collected it."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        collect(name, replay(seed=seed, episodes=3), Path(f"data/{name}"))
    first, again, other = (
        np.stack([e.observations for e in minari.MinariDataset(f"data/{name}/{name}-v0/data").iterate_episodes()])
        for name in "abc"
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("Pendulum-v77", "environment 'Pendulum-v77': Gymnasium cannot build it"),
        ("no_such_module:Thing-v0", "environment 'no_such_module:Thing-v0': Gymnasium cannot build it"),
        ("CartPole-v1", "action space: found Discrete, which is not supported yet"),
        ("Blackjack-v1", "observation space: found Tuple, which is not supported yet"),
        ("tests/Unbounded-v0", "found an action space without finite bounds"),
    ],
)
def test_unfit_environments_are_refused_and_the_last_data_stays(project: Path, environment: str, message: str) -> None:
    write_raw(project / "data" / "raw", episodes(1))
    before = snapshot(project)
    with pytest.raises(PipelineError) as wrong:
        collect("new", replay(environment), Path("data/raw"))
    assert message in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert snapshot(project) == before


class Unbounded(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))


gymnasium.register("tests/Unbounded-v0", Unbounded)


@pytest.mark.parametrize("by", ["root", "environment variable"])
def test_a_local_minari_dataset_is_copied(project: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC versions what lies in data/raw, so the bytes have to be there."""
    file = write_raw(project / "library", episodes(2))
    if by == "environment variable":
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(project / "library"))
    collect("name", local("small-v0", Path("library") if by == "root" else None), Path("data/raw"))
    assert Path("data/raw/small-v0/data/main_data.hdf5").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("dataset_id", "message"),
    [
        ("other-v0", r"no Minari dataset 'other-v0' in .*library; there: small-v0; `minari download other-v0`"),
        ("../library/small-v0", "allowed is a Minari id such as"),
        ("small", "allowed is a Minari id such as"),
        ("", "allowed is a Minari id such as"),
    ],
)
def test_unknown_minari_ids_are_refused(project: Path, dataset_id: str, message: str) -> None:
    write_raw(project / "library", episodes(1))
    with pytest.raises(PipelineError, match=message):
        collect("name", local(dataset_id, project / "library"), Path("data/raw"))
    assert not list(project.glob("data/*"))
