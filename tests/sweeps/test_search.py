"""A search keeps its study in the ledger's database and goes on after a kill."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from primorl.config.params import Params
from primorl.project.files import HOST
from primorl.setup.accounts import project_ledger
from primorl.sweeps.file import Sweep
from primorl.sweeps.rows import Row
from primorl.sweeps.search import Study, study_name
from primorl.sweeps.sweeping import run_sweep
from primorl.sweeps.trials import Trial
from tests.sweeps.conftest import Forked, ran, sweep_of
from tests.sweeps.places import BAD_SEED

optuna = pytest.importorskip("optuna")
SPACE = {"seed": {"low": 2, "high": 12}, "policy.hidden": {"choices": [[8], [8, 8]]}}


def search(trials: int, direction: str = "maximize", space: object = SPACE) -> Sweep:
    said = {"metric": "return_mean", "direction": direction, "trials": trials, "space": space}
    return sweep_of({"settings": {"policy.epochs": 3}, "search": said})


def stored(project: Params) -> Any:
    """The study of `search`, as Optuna itself opens it."""
    return optuna.load_study(study_name=study_name(search(2), project), storage="sqlite:///.primorl/ledger.db")


def nothing(trial: object) -> None:
    """No trial has a row."""


def test_a_search_stops_at_its_number_of_trials_and_keeps_its_study_beside_the_charges(project: Params) -> None:
    done = run_sweep(search(2), workers=2, start=Forked)
    assert [row.status for row in done.rows] == ["finished"] * len(done.rows)
    assert 2 <= len(ran()) <= 4  # Optuna may choose a point twice, which is run once
    assert all(row.settings["policy.hidden"] in ([8], [8, 8]) for row in done.rows)
    study = stored(project)
    assert study.best_value == max(row.summary["return_mean"] for row in done.rows)
    with closing(project_ledger(project)) as ledger:
        assert ledger.verify() == 0
    assert Path(".primorl/ledger.db").stat().st_mode & 0o77 == 0  # it holds who was charged
    before = ran()
    run_sweep(search(len(done.rows)), workers=1, start=Forked)
    assert ran() == before


def test_a_trial_that_a_killed_search_left_open_is_asked_for_again(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Study(search(2), project, nothing)
    asked = first.ask()
    second = Study(search(2), project, nothing)
    assert second.ask() is not None  # the first one lives: its trial is left to it
    assert (
        len(optuna.load_study(study_name=study_name(search(2), project), storage="sqlite:///.primorl/ledger.db").trials)
        == 2
    )
    monkeypatch.setattr("primorl.sweeps.search.is_alive", lambda mark: not mark.startswith(HOST))
    third = Study(search(3), project, nothing)
    assert asked in (third.ask(), third.ask())


def test_two_commands_at_once_ask_for_no_more_than_one(project: Params) -> None:
    """Each trial of another model is a charge."""
    studies = [Study(search(3), project, nothing) for _ in range(2)]
    asked = [study.ask() for _ in range(3) for study in studies]
    assert sum(trial is not None for trial in asked) == 3


def test_an_edited_search_is_another_study_and_more_trials_are_the_same(project: Params) -> None:
    """Values of another metric, ε or space are no values of this search; the twin goes on."""
    done = run_sweep(search(1), workers=1, start=Forked)
    there = {row.trial for row in done.rows}

    def finished(trial: Trial) -> Row | None:
        return done.rows[0] if trial.name in there else None

    assert Study(search(1), project, finished).left == 0
    assert Study(search(2), project, finished).left == 1
    assert Study(search(1), project, nothing).left == 1  # its folder was deleted
    assert Study(search(1, "minimize"), project, finished).left == 1
    assert Study(search(1, space=SPACE | {"policy.penalty": {"low": 0.0, "high": 1.0}}), project, finished).left == 1


def test_what_failed_has_no_value_and_is_replaced(project: Params) -> None:
    bad = {"seed": {"choices": [BAD_SEED]}}
    done = run_sweep(search(1, space=bad), workers=1, start=Forked)
    assert [row.status for row in done.rows] == ["failed"]
    good = Study(search(1, space=bad), project, nothing)
    assert good.left == 1
