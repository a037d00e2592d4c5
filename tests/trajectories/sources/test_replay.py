from pathlib import Path
from typing import Any

import minari
import pytest

from primorl.config.datasets import ReplayDataset, checked
from primorl.project.errors import PipelineError
from primorl.trajectories.checks import RowCheck
from primorl.trajectories.sources import source_of


def entry(environment: str | None, **changes: Any) -> ReplayDataset:
    options = {
        "backend": "gymnasium",
        "algorithm": "ddpg",
        "episodes": 3,
        "runs": 1,
        "num_envs": 3,
        "gradient_steps": 1,
        "learning_starts": 10**6,
        "hidden": [8],
        "learning_rate": 0.001,
        "action_noise": 0.2,
        "seed": 0,
    }
    content = {
        "source": "replay",
        "environment": environment,
        "unit": "trajectory",
        "population": "tests",
        "trajectories_per_person": None,
        "horizon": None,
        "termination": "learned",
        "ingestion": {},
        "options": options | changes,
        "bounds": {"observation": "public", "reward": "public"},
        "score": None,
        "suggested": {"partition": {}, "privacy": {}, "dynamics": {}, "behaviour": {}, "policy": {}, "evaluation": {}},
    }
    return checked(ReplayDataset, content)


@pytest.mark.parametrize(
    ("environment", "needs", "changes", "sizes", "discrete"),
    [
        ("Pendulum-v1", "gymnasium", {}, (3, 1), False),
        ("CartPole-v1", "gymnasium", {"algorithm": "dqn"}, (4, 2), True),
        ("Hopper-v5", "mujoco", {"episodes": 6}, (11, 3), False),
        ("dm_control/cartpole-balance-v0", "dm_control", {"episodes": 1, "num_envs": 1}, (5, 1), False),
    ],
)
def test_what_was_collected_is_read_back(
    project: Path, environment: str, needs: str, changes: dict[str, Any], sizes: tuple[int, int], discrete: bool
) -> None:
    pytest.importorskip(needs)
    dataset = entry(environment, **changes)
    made = source_of("some.name", dataset)
    made.collect(project)
    kept = minari.MinariDataset(project / "some-name-v0" / "data")  # Minari's ids have no dots
    assert kept.total_episodes == dataset.options.episodes
    reader = made.open(project)
    check = RowCheck(reader.spaces, reader.path, may_terminate=True)
    rows = 0
    for table in reader.tables():
        check(table)
        rows += table.num_rows
    assert rows == kept.total_steps
    assert (reader.spaces.observation_size, reader.spaces.action_size) == sizes
    assert reader.spaces.discrete_actions == discrete


def test_no_environment_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"datasets/x.yaml: environment: found null; allowed is a Gymnasium id"):
        source_of("x", entry(None))


def test_more_runs_than_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="episodes must be at least runs"):
        entry("Pendulum-v1", runs=4)
