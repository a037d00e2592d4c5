"""``primorl select``: what it asks for, and that it prints the winner and no score."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from primorl import tracking
from primorl.config.params import Params
from primorl.setup import selection
from tests.commands.conftest import Call
from tests.pipeline.conftest import small
from tests.pipeline.fakes import FakeRun
from tests.setup.test_selection import FOLDERS, project

__all__ = ["project", "small"]


def test_it_prints_the_winner_and_no_score_for_one_charge(
    project: Params, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    monkeypatch.setattr(tracking, "stage_run", lambda *_: nullcontext(FakeRun()))
    for words, said in (
        ([], "name folders, or give --seeds"),
        (["out/a", "--seeds"], "name folders, or give --seeds"),
        (["--epochs", "out/a", "out/b"], "at most one folder"),
        (["out/a", "out/b", "--estimator", "dptd"], "found 'dptd', allowed are model, corrected"),
        (["out/a", "out/b", "--epsilon", "0"], "epsilon"),
    ):
        status, _, err = primorl("select", *words)
        assert status != 0
        assert said in err
    assert not Path("reports").exists()
    given = ("select", *map(str, FOLDERS), "--epsilon", "0.5")
    status, out, err = primorl(*given)
    assert status == 0, err
    report = selection.read()
    assert f"chosen among 3: {report.chosen}" in out
    assert "ε = 0.5, δ = 1e-05 per trajectory" in out
    assert "ε 0.5" in err
    status, out, err = primorl(*given, "--json")
    assert (status, json.loads(out)["chosen"], "reserved" in err) == (0, report.chosen, False)
    (entry,) = json.loads(primorl("ledger", "show", "--json")[1])
    assert (entry["stage"], entry["event"]) == ("select", {"type": "PureDpEvent", "epsilon": 0.5})
