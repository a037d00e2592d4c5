"""Evaluation of a dataset that names no environment: values in the released model, and never called a return."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from primorl.config import params
from primorl.config.params import Params
from primorl.dynamics.ends import without_head
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.starts import StartModel
from primorl.evaluation.wording import text
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import returns_by_member, step_weights
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.project.paths import MANIFEST
from primorl.project.paths import PUBLIC as PUBLIC_FOLDER
from primorl.setup.evaluation_problem import evaluation_problem
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore
from tests.pipeline.test_evaluate import EPOCHS, PUBLIC, chosen, project, run
from tests.pipeline.tiny_policy import write_model, write_partitions
from tests.statements import PRIVATE as STATEMENT
from tests.trajectories.builders import episodes, table

__all__ = ["project"]


@pytest.fixture
def unsimulated(project: Path) -> Params:
    """The same project, of a dataset that names no environment."""
    write_model(STATEMENT)
    return without_simulator(chosen())


def without_simulator(selected: Params) -> Params:
    raw = params.plain(selected)
    raw["chosen"] |= {
        "environment": None,
        "score": {"low": -1500.0, "high": 0.0, "scale": 1000.0},
    }
    raw["policy"] |= {"starts": "public"}
    return params.from_plain(raw)


def in_the_model(policy: DeterministicPolicy, rollouts: int) -> torch.Tensor:
    model = GaussianEnsemble.load(Path("models/dynamics"), torch.device("cpu"))
    starts = UnitStore.open(Path("data/partitions/public")).first_observations()
    longer = torch.zeros(200, dtype=torch.float64)
    longer[:4] = 1.0  # PUBLIC: one terminated at its only step, which is no cut; the others have 4 and 7 steps
    longer[4:7] = 0.5
    weights = step_weights(200, survival=longer)
    return returns_by_member(model, policy, starts, rollouts=rollouts, weights=weights, seed=9).mean(-1)


def test_without_a_simulator_the_value_in_the_model_stands_in_and_is_called_so(unsimulated: Params) -> None:
    """No return, no interval, no score; the ensemble's mean and spread, with a note, wherever results are read."""
    run(unsimulated)
    summary = json.loads(Path("metrics/summary.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    for key in ("env_id", "return_mean", "return_ci95", "normalized_score", "episodes"):
        assert summary[key] is None
    (by_member,) = in_the_model(EPOCHS[-1], 5)
    assert summary["model_value"] == pytest.approx(float(by_member.mean()))
    assert summary["model_value_range"] == pytest.approx([float(by_member.min()), float(by_member.max())])
    assert summary["model_value_range"][0] < summary["model_value"] < summary["model_value_range"][1]
    assert (summary["model_value_members"], summary["model_value_rollouts"], summary["model_value_horizon"]) == (
        2,
        5,
        200,
    )
    assert "not measured" in summary["model_value_note"]
    assert (summary["private"], summary["epsilon"]) == (True, 1.19)

    rows = list(csv.DictReader(Path("plots/curves.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["return_mean"] for row in rows} == {""}
    for row, policy, count in zip(rows, EPOCHS, (2, 2, 5), strict=True):  # the last epoch's is the final policy
        expected = in_the_model(policy, count)
        assert float(row["model_value"]) == pytest.approx(float(expected.mean()))
        assert float(row["model_low"]) <= float(row["model_value"]) <= float(row["model_high"])
    assert Path("plots/return.png").read_bytes().startswith(b"\x89PNG")
    lines = text(summary)
    assert "return   not measured: there is no simulator" in lines
    assert "value    " in lines
    assert "None" not in lines


def test_rollouts_end_as_those_did_that_the_policy_was_trained_on(project: Path) -> None:
    """Where the policy stage did not believe the learned ends, no rollout ends, and recorded terminations are cuts."""
    model, unsimulated = write_model(STATEMENT, termination="learned"), without_simulator(chosen())
    config = Path("models/policy/config.json")
    found = {}
    for ends in (None, "none"):
        write_json(config, read_json(config) | {"ends": ends})
        run(unsimulated)
        found[ends] = read_json(Path("metrics/summary.json"))["model_value"]
    longer = torch.zeros(200, dtype=torch.float64)
    for step, share in enumerate([1.0] + [2 / 3] * 3 + [1 / 3] * 3):  # PUBLIC: 1 step (terminated), 4 and 7
        longer[step] = share
    starts = UnitStore.open(Path("data/partitions/public")).first_observations()
    bare = without_head(model)
    expected = returns_by_member(bare, EPOCHS[-1], starts, rollouts=5, weights=longer, seed=9).mean()
    assert found["none"] == pytest.approx(float(expected))
    assert found["none"] != found[None], "the twin"
    manifest, public = Manifest.load(MANIFEST), UnitStore.open(PUBLIC_FOLDER)
    for ends, termination in ((None, "learned"), ("none", "none")):
        problem = evaluation_problem(
            manifest,
            Path("models/dynamics"),
            lambda observation: observation[:, :1],
            public,
            delta=1e-5,
            discount=1.0,
            return_bounds=None,
            seed=0,
            ends=ends,
        )
        assert problem.ensemble.termination == termination
    torch.testing.assert_close(problem.survival, longer)


def test_where_nothing_is_public_rollouts_begin_at_released_first_states(unsimulated: Params) -> None:
    shutil.rmtree("data/partitions")
    write_partitions(table(episodes(9)), PUBLIC.slice(0, 0))
    with pytest.raises(PipelineError, match=r"starts.safetensors: not there.*privacy.statistics.starts"):
        run(unsimulated)
    low, high = torch.tensor([-1.0, -1.0, -8.0]), torch.tensor([1.0, 1.0, 8.0])
    block = torch.full((3,), -1)
    StartModel(low, high, torch.zeros(3), torch.eye(3) * 0.1, block, torch.zeros(3)).save(Path("models/dynamics"))
    run(unsimulated)
    assert read_json(Path("metrics/summary.json"))["model_value"] < 0
