"""A search keeps its study in the ledger's database and goes on after a kill."""

from contextlib import closing
from pathlib import Path

import pytest

from primorl.base.errors import PipelineError
from primorl.base.files import locked
from primorl.config.params import Params
from primorl.paid.accounts import project_ledger
from primorl.sweeps.file import Sweep
from primorl.sweeps.sweeping import Study, run_sweep
from tests.sweeps.conftest import ran, sweep_of
from tests.sweeps.stages import BAD_SEED

optuna = pytest.importorskip("optuna")
SPACE = {"seed": {"low": 2, "high": 12}, "policy.hidden": {"choices": [[8], [8, 8]]}}


def search(trials: int, direction: str = "maximize", space: object = SPACE) -> Sweep:
    said = {"metric": "return_mean", "direction": direction, "trials": trials, "space": space}
    return sweep_of({"settings": {"policy.epochs": 3}, "search": said})


def study(sweep: Sweep, params: Params) -> Study:
    assert sweep.content.search is not None
    return Study(sweep, sweep.content.search, params)


def test_a_search_stops_at_its_number_of_trials_and_keeps_its_study_beside_the_charges(project: Params) -> None:
    done = run_sweep(search(2), workers=2)
    assert [row.status for row in done] == ["finished"] * len(done)
    assert 2 <= len(ran()) <= 4  # Optuna may choose a point twice, which is run once
    assert all(row.settings["policy.hidden"] in ([8], [8, 8]) for row in done)
    stored = optuna.load_study(study_name="tiny-262b71f9", storage="sqlite:///.primorl/ledger.db")
    assert stored.best_value == max(row.summary["return_mean"] for row in done)
    with closing(project_ledger(project)) as ledger:
        assert ledger.verify() == 0
    assert Path(".primorl/ledger.db").stat().st_mode & 0o77 == 0  # it holds who was charged
    before, count = ran(), len(done)
    run_sweep(search(count), workers=1)
    assert ran() == before
    wider = SPACE | {"policy.penalty": {"low": 0.0, "high": 1.0}}
    edits = [search(count), search(count + 1), search(1, "minimize"), search(1, space=wider)]
    left = [study(each, project).left for each in edits]
    assert left == [0, 1, 1, 1], "more trials go on; another direction or space is another study"
    for row in Path(".primorl/sweeps/tiny").glob("*/row.json"):
        row.unlink()
    assert study(search(count), project).left == count


def test_a_trial_that_a_killed_search_left_open_is_asked_for_again(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another machine is left to it, and counts; each trial of another model is a charge."""
    asked = next(study(search(2), project).ask())
    again = study(search(2), project)
    assert next(again.ask()).settings == asked.settings
    monkeypatch.setattr("primorl.sweeps.sweeping.HOST", "other")
    assert study(search(3), project).left == 2
    with locked(Path(".primorl/sweeps/tiny/search.lock")), pytest.raises(PipelineError, match="another command runs"):
        run_sweep(search(2), workers=1)
    bad = {"seed": {"choices": [BAD_SEED]}}
    assert [row.status for row in run_sweep(search(1, space=bad), workers=1)] == ["failed"]
    assert study(search(1, space=bad), project).left == 1, "what failed has no value and is replaced"
