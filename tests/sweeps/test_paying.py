"""Trials that train a model: who has the same one, or tries again, pays nothing a second time."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from primorl.config.params import Params
from primorl.dynamics.config import PublicLosses
from primorl.sweeps.folders import trial_folder
from primorl.sweeps.rows import Row, read_row
from primorl.sweeps.trial import run
from primorl.sweeps.trials import Trial
from tests.pipeline.training_project import charged
from tests.sweeps.conftest import MODEL, STAGES, Forked, granted, job_of, ran
from tests.sweeps.places import BAD_SEED


@pytest.fixture(autouse=True)
def training(project: Params, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage of the model is the pipeline's own."""
    shutil.copy(empty_store, "mlflow.db")
    train = STAGES["train"] | {"cmd": "python -m pipeline.train_model"}
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": STAGES | {"train": train}}, sort_keys=False))
    monkeypatch.setattr(PublicLosses, "diverged", False)


def tried(trial: Trial, commit: str) -> Row:
    """A try of its own code, for which all stages are run again."""
    assert run(replace(job_of(trial), commit=commit), granted) == 0
    row = read_row(trial_folder("tiny", trial))
    assert row is not None
    return row


def test_a_trial_that_failed_after_it_was_paid_is_tried_again_at_no_cost(project: Params) -> None:
    bad = Trial(MODEL | {"seed": BAD_SEED})
    said = [tried(bad, commit).error for commit in ("c0ffee", "c0ffee", "decaf")]
    assert said == ["a stage says why"] * 3
    assert len(ran()) == 3
    (charge,) = charged(project)
    assert charge.state == "committed"


def test_a_model_that_diverged_is_refused_again_at_no_cost(project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublicLosses, "diverged", True)
    said = [tried(Trial(MODEL), commit).error or "" for commit in ("c0ffee", "decaf")]
    assert ["the same settings cost nothing again" in error for error in said] == [True, True]
    assert len(charged(project)) == 1


def test_trials_of_one_model_at_once_pay_for_it_once(project: Params) -> None:
    trials = [Trial(MODEL | {"policy.epochs": epochs}) for epochs in (1, 2, 3)]
    started = [Forked(job_of(trial)) for trial in trials]
    assert [process.wait() for process in started] == [0, 0, 0]
    rows = [read_row(trial_folder("tiny", trial)) for trial in trials]
    assert [row and row.error for row in rows] == [None, None, None]
    assert len(charged(project)) == 1
