"""What the next run of the stages would be refused for is refused before it, and nothing is charged."""

from dataclasses import replace

import pytest

from primorl.config.params import Params
from primorl.privacy.ledger import refusals
from primorl.privacy.ledger.history import BudgetExceeded
from primorl.setup.next_charges import check_next
from tests.pipeline.conftest import data, no_verdict, small, without_groups
from tests.pipeline.training_project import charged, trained, watch_private

__all__ = ["data", "no_verdict", "small", "without_groups"]


@pytest.fixture(autouse=True)
def without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "advice", lambda *_: "ask for less")


def limited(params: Params, epsilon: float | None) -> Params:
    privacy = params.privacy
    return replace(params, privacy=replace(privacy, budget=replace(privacy.budget, epsilon=epsilon, delta=1e-3)))


def test_a_run_is_refused_before_it_begins_unless_it_is_paid(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as watched:
        watch_private(watched, lambda: pytest.fail("private rows were opened"))
        with pytest.raises(BudgetExceeded, match=r"privacy\.budget is ε 0\.01"):
            check_next(limited(data, 0.01))
        check_next(limited(data, 1000.0))
    assert charged(data) == []
    trained(limited(data, None))
    check_next(limited(data, 0.01))
    other = replace(data, seed=data.seed + 1)
    with pytest.raises(BudgetExceeded):
        check_next(limited(other, 0.01))
    assert len(charged(data)) == 1


def test_a_run_without_a_guarantee_fits_no_budget(data: Params) -> None:
    baseline = replace(data, dynamics=replace(data.dynamics, variant="mopo"))
    check_next(limited(baseline, None))
    with pytest.raises(BudgetExceeded):
        check_next(limited(baseline, 1e6))
