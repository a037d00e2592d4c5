"""A trial has a folder of its own, shares the project's data and ledger, and leaves a row whatever becomes of it."""

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from primorl.base.errors import PipelineError
from primorl.base.files import home, locked
from primorl.config.params import Params
from primorl.model.architecture import PublicLosses
from primorl.privacy.ledger.charges import WAIT
from primorl.privacy.ledger.history import BudgetExceeded
from primorl.sweeps import trial as trials
from primorl.sweeps.file import Trial
from primorl.sweeps.sweeping import write_table
from primorl.sweeps.trial import (
    Row,
    TrialFolder,
    finished_rows,
    lock_of,
    read_row,
    run,
    trial_folder,
    unlink_left,
)
from tests.pipeline.training_project import charged
from tests.sweeps.conftest import MODEL, STAGES, Forked, job_of, ran
from tests.sweeps.stages import BAD_SEED

TRIAL = Trial({"seed": 3, "privacy.target_epsilon": 0.5}, "A")
FOLDER = Path(".primorl/sweeps/tiny") / TRIAL.name
ASK = trials.ask_ledger


def refuse() -> None:
    raise BudgetExceeded("privacy.budget is ε 1, of which 1 is spent")


def granted() -> None: ...


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """What the ledger answers from now on."""
    return lambda answer: monkeypatch.setattr(trials, "ask_ledger", answer)


def row_of(trial: Trial) -> Row:
    row = read_row(trial_folder("tiny", trial))
    assert row is not None
    return row


def edit(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new, 1))


def test_a_trial_runs_the_stages_after_partition_once_and_leaves_a_row(
    project: Params, ledger: Any
) -> None:
    """The ledger is asked first. Private rows are linked while it runs, and never copied."""
    asked, here = [], Path.cwd()

    def ask() -> None:
        asked.append([Path("data").is_symlink(), WAIT in os.environ, Path.cwd(), home(), ran()])

    ledger(ask)
    assert run(job_of(TRIAL)) == 0
    assert asked == [[True, True, (here / FOLDER).resolve(), here, []]]
    assert WAIT not in os.environ
    row = json.loads((FOLDER / "row.json").read_text())
    assert row.pop("seconds") < 10
    assert "core" in row.pop("machine")
    settings = {"seed": 3, "privacy.target_epsilon": 0.5}
    expected: dict[str, Any] = {
        "sweep": "tiny",
        "trial": TRIAL.name,
        "case": "A",
        "settings": settings,
    }
    expected |= {
        "status": "finished",
        "error": None,
        "summary": {"return_mean": -3.0, "epsilon": 1.5},
    }
    assert row == expected | {
        "curve": [-3.0, -2.5],
        "commit": "c0ffee",
        "command": "primorl sweep tiny.yaml",
    }
    assert (FOLDER / "privacy.json").read_text() == "{}"
    said = yaml.safe_load((FOLDER / "params.yaml").read_text())
    assert (said["seed"], said["privacy"]["target_epsilon"], said["compute"]["threads"]) == (
        3,
        0.5,
        1,
    )
    private = {file.read_bytes() for file in Path("data/partitions/private").rglob("*.parquet")}
    assert private
    assert not (FOLDER / "data").exists()
    assert not private & {file.read_bytes() for file in FOLDER.rglob("*") if file.is_file()}
    ledger(refuse)
    assert run(job_of(TRIAL)) == 0
    assert ran() == ["train 3", "evaluate 3"]


def test_what_the_ledger_refuses_is_not_begun_and_what_fails_says_why(
    project: Params, ledger: Any
) -> None:
    ledger(refuse)
    assert run(job_of(TRIAL)) == 0
    assert (row_of(TRIAL).status, row_of(TRIAL).error) == (
        "refused",
        "privacy.budget is ε 1, of which 1 is spent",
    )
    assert ran() == []
    ledger(granted)  # the budget was raised
    assert run(job_of(TRIAL)) == 0
    assert row_of(TRIAL).finished
    bad = Trial({"seed": BAD_SEED})
    assert run(job_of(bad)) == 0
    assert (row_of(bad).status, row_of(bad).error, row_of(bad).summary) == (
        "failed",
        "a stage says why",
        {},
    )
    ledger(lambda: edit("data/partitions/manifest.json", "{", "{\n"))
    assert run(job_of(bad)) == 0
    assert (
        row_of(bad).error == "data/partitions: made anew while the trial ran; run the sweep again"
    )
    answers = iter([granted, refuse])
    ledger(lambda: next(answers)())
    assert run(job_of(bad)) == 0
    assert row_of(bad).status == "refused", "two trials that fit alone may not fit together"


def test_an_interrupted_trial_leaves_no_row_and_goes_on(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trials._run_stage
    monkeypatch.setattr(
        trials, "_run_stage", lambda words: 130 if words[-1] == "evaluate" else real(words)
    )
    assert run(job_of(TRIAL)) == 130
    assert read_row(FOLDER) is None
    monkeypatch.setattr(trials, "_run_stage", real)
    assert run(job_of(TRIAL)) == 0
    assert ran() == ["train 3", "evaluate 3"]


def test_other_settings_data_or_code_begin_afresh(project: Params) -> None:
    """What earlier settings of the project made must not be taken for the trial's."""

    def goes_on(commit: str = "c0ffee", threads: int = 1) -> bool:
        folder = TrialFolder(job_of(TRIAL, commit, threads))
        known = "train" in folder.seconds
        folder.record_end("train", 1.0)
        return known

    Path("datasets/other.yaml").write_text("source: minari\n")
    assert [goes_on(), goes_on(threads=2), goes_on("decaf"), goes_on("decaf")] == [
        False,
        True,
        False,
        True,
    ]
    for file, old, new in (
        ("params.yaml", "  epochs:", "  epochs: 7 #"),
        ("data/partitions/manifest.json", '"private_units": 2', '"private_units": 1'),
        ("datasets/small.yaml", "source:", "# another\nsource:"),
        ("dvc.yaml", "stages:", "# another\nstages:"),
        ("datasets/other.yaml", "minari", "replay"),
    ):
        edit(file, old, new)
        assert goes_on("decaf") == (file == "datasets/other.yaml"), file


def test_links_that_a_killed_trial_left_are_taken_away(project: Params) -> None:
    """Also rows that were copied with the folder. A living process keeps its own."""
    living = Trial({"seed": 4})
    for each in (TRIAL, living):
        TrialFolder(job_of(each))
    shutil.copytree(FOLDER, FOLDER.with_name("copied"), symlinks=False)
    with locked(lock_of(trial_folder("tiny", living))):
        unlink_left()
    assert not (FOLDER / "data").exists()
    assert not FOLDER.with_name("copied").joinpath("data").exists()
    assert (trial_folder("tiny", living) / "data").is_symlink()
    assert Path("data/partitions/manifest.json").exists()


def test_what_was_paid_is_not_paid_again(
    project: Params, empty_store: Path, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials of one model that begin at once pay for it once, also where they fail and other code tries again."""
    shutil.copy(empty_store, "mlflow.db")
    train = {"cmd": "python -m pipeline.train_model"}
    Path("dvc.yaml").write_text(
        yaml.safe_dump({"stages": STAGES | {"train": train}}, sort_keys=False)
    )
    monkeypatch.setattr(PublicLosses, "diverged", False)
    bad = [Trial(MODEL | {"seed": BAD_SEED, "policy.epochs": count}) for count in (1, 2)]
    started = [Forked(job_of(trial)) for trial in bad]
    assert [process.wait() for process in started] == [0, 0]
    before = signal.getsignal(signal.SIGTERM)
    ledger(ASK)
    assert trials.main([job_of(bad[0], "decaf").argv[-1]]) == 0, (
        "and the ledger itself, asked first, refuses nothing"
    )
    signal.signal(signal.SIGTERM, before)
    assert [row_of(trial).error for trial in bad] == ["a stage says why"] * 2
    assert ran() == [f"evaluate {BAD_SEED}"] * 3
    assert [charge.state for charge in charged(project)] == ["committed"]


def test_rows_are_a_table_with_a_column_a_setting_and_a_figure(tmp_path: Path) -> None:
    summary: dict[str, Any] = {
        "return_ci95": [-4.0, -3.0],
        "epsilon": None,
        "void": ["not private", "old engine"],
    }
    summary |= {
        "spent_on_dataset": {"epsilon": 2.5, "charges": 3},
        "seconds": {"train": 1.0},
        "seed": 9,
    }
    common: dict[str, Any] = {
        "sweep": "tiny",
        "status": "finished",
        "error": None,
        "summary": summary,
    }
    common |= {
        "curve": [-4.0, -3.5],
        "machine": "m",
        "commit": None,
        "command": "primorl sweep",
        "seconds": 2.5,
    }
    one = Row(
        trial="abc", case=None, settings={"seed": 1, "dynamics.hidden": [32, 32], "x": 1}, **common
    )
    two = Row(
        trial="d", case="A", settings={"seed": 2.5, "privacy.rounds": 3, "x": "auto"}, **common
    )
    write_table(tmp_path / "t.csv", [one, two], {"d": ["policy", "data/partitions"]})
    first, second = csv.DictReader((tmp_path / "t.csv").open())
    for key, values in {
        "dynamics.hidden": ("[32, 32]", ""),
        "return_ci95_low": ("-4.0", "-4.0"),
        "privacy.rounds": ("", "3"),
        "curve": ("[-4.0, -3.5]", "[-4.0, -3.5]"),
        "spent_on_dataset": ("2.5", "2.5"),
        "void": ("not private; old engine", "not private; old engine"),
        "stale": ("", "policy, data/partitions"),
        "seed": ("1", "2.5"),
    }.items():
        assert (first[key], second[key]) == values, key
    write_table(tmp_path / "t.parquet", [one, two], {})
    columns = pq.read_table(tmp_path / "t.parquet").to_pydict()
    assert (columns["seed"], columns["case"], columns["x"]) == (
        [1.0, 2.5],
        [None, "A"],
        ["1", "auto"],
    )
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc/row.json").write_text("{}")
    with pytest.raises(PipelineError, match="the sweep runs the trial again"):
        finished_rows(tmp_path)
