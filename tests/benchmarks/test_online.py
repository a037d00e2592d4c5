"""The tables of online learning: rows say what made them, and a run that goes on makes no row twice."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.quality.online import __main__ as runner
from benchmarks.quality.online.report import interval
from benchmarks.quality.online.runs import Learning
from benchmarks.quality.online.tasks import TASKS, height
from primorl.online.policy_optimisation import PolicyGradient


def case(learning_rate: float = 1.0) -> Learning:
    return Learning(
        table="A",
        task="Dosing-0",
        method="DP-PG",
        column="strict",
        budget="z 1",
        update=PolicyGradient(learning_rate=learning_rate, clipping_norm=1.0),
        noise_multiplier=1.0,
        cohort=3,
        cohorts=2,
        steps=8,
        episodes=1,
    )


def test_a_row_says_what_its_users_paid_and_can_be_read_again() -> None:
    row = case().key | {"seed": 0} | case().run(0)
    assert row["users"] == 6
    assert row["epsilon"] == pytest.approx(4.377, abs=1e-3)  # of the Gaussian mechanism at z = 1 and δ = 1e-5
    assert row["void"] == []
    assert [users for users, _ in row["curve"]] == [3, 6]
    assert json.loads(json.dumps(row)) == row
    assert json.loads(json.dumps(row)).items() >= case().key.items()


def test_a_row_replaces_the_one_of_older_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FILE", tmp_path / "online.json")
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    for learning_rate, seed in ((1.0, 0), (1.0, 1), (2.0, 0)):
        runner.add(case(learning_rate).key | {"seed": seed})
    assert [row["setting"]["update"]["learning_rate"] for row in runner.read()] == [2.0, 1.0]


def test_the_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert interval([1.0])[1] == float("inf")


def test_the_height_is_that_at_which_acrobot_ends() -> None:
    angles = torch.tensor([[0.0, 0.0], [np.pi, 0.0], [0.5, 0.7]])
    first, second = angles.unbind(1)
    observations = torch.stack((first.cos(), first.sin(), second.cos(), second.sin(), first, first), 1)
    assert torch.allclose(height(observations), -first.cos() - (first + second).cos())


def test_policies_are_judged_by_the_same_starts() -> None:
    def rest(observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), 1), np.float32)

    assert np.array_equal(TASKS["Dosing-1"].returns(rest, 3), TASKS["Dosing-1"].returns(rest, 3))
