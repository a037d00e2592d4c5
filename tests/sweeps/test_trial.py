"""A trial has a folder of its own, shares the project's data and ledger, and leaves a row whatever becomes of it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from primorl.config.params import Params
from primorl.privacy.ledger.charges import WAIT
from primorl.privacy.ledger.requests import BudgetExceeded
from primorl.project.errors import PipelineError
from primorl.project.files import home, locked
from primorl.sweeps import trial as trials
from primorl.sweeps.folders import Stage, TrialFolder, lock_of, stages, trial_folder, unlink_left
from primorl.sweeps.rows import read_row
from primorl.sweeps.trial import BUSY, run
from primorl.sweeps.trials import Trial
from tests.sweeps.conftest import granted, job_of, ran
from tests.sweeps.places import BAD_SEED

TRIAL = Trial({"seed": 3, "privacy.target_epsilon": 0.5}, "A")
FOLDER = Path(".primorl/sweeps/tiny") / TRIAL.name


def refuse() -> None:
    raise BudgetExceeded("privacy.budget is ε 1, of which 1 is spent")


def test_a_trial_runs_the_stages_after_partition_and_leaves_a_row(project: Params) -> None:
    asked = []

    def ask() -> None:
        asked.append((Path.cwd(), home(), ran()))

    here = Path.cwd()
    assert run(job_of(TRIAL), ask) == 0
    assert asked == [((here / FOLDER).resolve(), here, [])]  # before the first stage, with the project as home
    assert ran() == ["train 3", "evaluate 3"]
    row = json.loads((FOLDER / "row.json").read_text())
    assert row["seconds"] < 10
    assert "core" in row["machine"]
    del row["seconds"], row["machine"]
    assert row == {
        "sweep": "tiny",
        "trial": TRIAL.name,
        "case": "A",
        "settings": {"seed": 3, "privacy.target_epsilon": 0.5},
        "status": "finished",
        "error": None,
        "summary": {"return_mean": -3.0, "epsilon": 1.5},
        "curve": [-3.0, -2.5],
        "commit": "c0ffee",
        "command": "primorl sweep tiny.yaml",
    }
    assert (FOLDER / "privacy.json").read_text() == "{}"
    said = yaml.safe_load((FOLDER / "params.yaml").read_text())
    assert (said["seed"], said["privacy"]["target_epsilon"], said["compute"]["threads"]) == (3, 0.5, 1)
    assert run(job_of(TRIAL), refuse) == 0
    assert ran() == ["train 3", "evaluate 3"]


def test_private_rows_are_linked_while_it_runs_and_never_copied(project: Params) -> None:
    seen = []

    def look() -> None:
        seen.append(Path("data/partitions").is_symlink() and Path("data/partitions/manifest.json").exists())

    assert run(job_of(TRIAL), look) == 0
    assert seen == [True]
    assert list((FOLDER / "data").iterdir()) == []
    private = {file.read_bytes() for file in Path("data/partitions/private").rglob("*.parquet")}
    assert private
    assert not private & {file.read_bytes() for file in FOLDER.rglob("*") if file.is_file()}
    assert Path("data/partitions/manifest.json").exists()


def test_what_the_ledger_refuses_is_not_begun(project: Params) -> None:
    assert run(job_of(TRIAL), refuse) == 0
    row = read_row(FOLDER)
    assert row is not None
    assert (row.status, row.error) == ("refused", "privacy.budget is ε 1, of which 1 is spent")
    assert ran() == []
    assert run(job_of(TRIAL), granted) == 0  # the budget was raised
    assert read_row(FOLDER).finished  # type: ignore[union-attr]


def test_a_failing_stage_leaves_its_error(project: Params) -> None:
    bad = Trial({"seed": BAD_SEED})
    assert run(job_of(bad), granted) == 0
    row = read_row(trial_folder("tiny", bad))
    assert row is not None
    assert (row.status, row.error, row.summary) == ("failed", "a stage says why", {})


def test_a_stage_that_fails_once_the_budget_is_gone_is_refused(project: Params) -> None:
    """Two trials that fit alone may not fit together."""
    answers = iter([granted, refuse])
    bad = Trial({"seed": BAD_SEED})
    assert run(job_of(bad), lambda: next(answers)()) == 0
    assert read_row(trial_folder("tiny", bad)).status == "refused"  # type: ignore[union-attr]


def test_an_interrupted_trial_leaves_no_row_and_goes_on(project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trials._run_stage

    def interrupted(stage: Stage) -> int:
        return 130 if stage.name == "evaluate" else real(stage)

    monkeypatch.setattr(trials, "_run_stage", interrupted)
    assert run(job_of(TRIAL), granted) == 130
    assert read_row(FOLDER) is None
    monkeypatch.setattr(trials, "_run_stage", real)
    assert run(job_of(TRIAL), granted) == 0
    assert ran() == ["train 3", "evaluate 3"]


def test_other_settings_begin_afresh(project: Params) -> None:
    """What earlier settings of the project made must not be taken for the trial's."""
    first = TrialFolder("tiny", TRIAL, 1, "c0ffee")
    first.lay()
    first.ended(stages()[0], 1.0)
    again = TrialFolder("tiny", TRIAL, 2, "c0ffee")
    again.lay()
    assert again.has_ended(stages()[0])
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["policy"]["epochs"] = 7
    Path("params.yaml").write_text(yaml.safe_dump(params))
    other = TrialFolder("tiny", TRIAL, 1, "c0ffee")
    other.lay()
    assert not other.has_ended(stages()[0])
    other.ended(stages()[0], 1.0)
    manifest = Path("data/partitions/manifest.json")
    manifest.write_text(manifest.read_text().replace('"private_units": 2', '"private_units": 1'))
    of_others = TrialFolder("tiny", TRIAL, 1, "c0ffee")
    of_others.lay()
    assert not of_others.has_ended(stages()[0])
    of_others.ended(stages()[0], 1.0)
    newer = TrialFolder("tiny", TRIAL, 1, "decaf")
    newer.lay()
    assert not newer.has_ended(stages()[0])


def test_one_process_at_a_time_runs_a_trial(project: Params) -> None:
    with locked(lock_of("tiny", TRIAL)) as free:
        assert free
        assert run(job_of(TRIAL), granted) == BUSY
    assert ran() == []


def test_its_stages_wait_for_who_pays_for_the_same_model(project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials of one model begin together: one pays, the other restores what was paid for, and neither fails."""
    monkeypatch.delenv(WAIT, raising=False)
    seen = []
    assert run(job_of(TRIAL), lambda: seen.append(WAIT in os.environ)) == 0
    assert seen == [True]
    assert WAIT not in os.environ


def test_another_dataset_s_file_makes_no_trial_anew(project: Params) -> None:
    first = TrialFolder("tiny", TRIAL, 1, "c0ffee")
    first.lay()
    first.ended(stages()[0], 1.0)
    (Path("datasets") / "other.yaml").write_text("source: minari\n")
    again = TrialFolder("tiny", TRIAL, 1, "c0ffee")
    again.lay()
    assert again.has_ended(stages()[0])
    own = Path("datasets") / "small.yaml"
    own.write_text(own.read_text() + "# another\n" if own.exists() else "source: minari\n")
    changed = TrialFolder("tiny", TRIAL, 1, "c0ffee")
    changed.lay()
    assert not changed.has_ended(stages()[0])


def test_links_that_a_killed_trial_left_are_taken_away(project: Params) -> None:
    """Also those of trials that nobody runs again, and rows that were copied with the folder. A living process keeps
    its own."""
    living = Trial({"seed": 4})
    for each in (TRIAL, living):
        TrialFolder("tiny", each, 1, None).lay()
    shutil.copytree(FOLDER, FOLDER.with_name("copied"), symlinks=False)
    with locked(lock_of("tiny", living)):
        unlink_left()
    for folder in (FOLDER, FOLDER.with_name("copied")):
        assert list((folder / "data").iterdir()) == []
    assert (trial_folder("tiny", living) / "data/partitions").is_symlink()
    assert Path("data/partitions/manifest.json").exists()


def test_partitions_that_are_made_anew_end_the_trial(project: Params) -> None:
    """Its model is of people who may have left, and the next stage would ask the new ones about it."""

    def remade() -> None:
        manifest = Path("data/partitions/manifest.json")
        manifest.write_text(manifest.read_text() + "\n")

    assert run(job_of(TRIAL), remade) == 0
    row = read_row(FOLDER)
    assert row is not None
    assert (row.status, row.error) == ("failed", "data/partitions: made anew while the trial ran; run the sweep again")
    assert ran() == []


def test_only_modules_are_run(project: Params) -> None:
    Path("dvc.yaml").write_text("stages: {partition: {cmd: a}, other: {cmd: rm -r x}}")
    with pytest.raises(PipelineError, match=r"stages\.other\.cmd"):
        stages()
