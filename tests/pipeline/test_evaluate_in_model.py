"""Evaluation of a dataset that names no environment: values in the released model, and never called a return."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from primorl.config import params
from primorl.config.params import Params
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.starts import StartModel
from primorl.evaluation.wording import text
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import returns_by_member, step_weights
from primorl.project.errors import PipelineError
from primorl.project.files import read_json
from primorl.trajectories.storage.rows import UnitStore
from tests.pipeline.test_evaluate import EPOCHS, PUBLIC, chosen, project, run
from tests.pipeline.tiny_policy import write_model, write_partitions
from tests.statements import PRIVATE as STATEMENT
from tests.trajectories.builders import episodes, table

__all__ = ["project"]


@pytest.fixture
def unsimulated(project: Path) -> Params:
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
