"""DPTD in a project pays once, goes on after a kill, and states what it cost."""

import json
from contextlib import closing
from typing import Any

import pytest

from primorl.config.params import Params
from primorl.privacy.statement import Statement
from primorl.work.data import open_to_charge
from research import dptd, dptd_project
from tests.pipeline.conftest import data, small
from tests.pipeline.training_project import killed, watch_private

__all__ = ["data", "small"]


def test_a_projects_value_is_paid_once(
    data: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"UPDATES": 6, "EPOCH": 2}.items():
        monkeypatch.setattr(dptd, name, value)
    monkeypatch.setattr(dptd_project, "load", lambda: data)
    states: list[str] = []

    def charges() -> list[Any]:
        with closing(open_to_charge(data)) as ledger:
            return list(ledger.charges())

    watch_private(monkeypatch, lambda: states.append(charges()[-1].id))
    with killed(3):
        dptd_project.evaluate(2.0)
    dptd_project.evaluate(2.0)
    assert len(states) == 2, "the charge was there before each opening of private rows"
    found = (dptd_project.FOLDER / "value.json").read_text(encoding="utf-8")
    dptd_project.evaluate(2.0)
    assert len(states) == 2, "what is finished is restored"
    assert (dptd_project.FOLDER / "value.json").read_text(encoding="utf-8") == found
    (charge,) = charges()
    statement = Statement.read(dptd_project.FOLDER)
    assert statement.charge == charge.id
    assert statement.epsilon == pytest.approx(2.0, rel=1e-3)
    assert [each.what for each in statement.queries] == ["mean_reward"]
    assert abs(json.loads(found)["value"]) < 1e3
    assert "of the mean reward alone" in capsys.readouterr().out
