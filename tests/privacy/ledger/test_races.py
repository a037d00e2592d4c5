"""Processes that decide at the same time cannot both take the last of a budget, nor both pay for the same work."""

from pathlib import Path
from typing import Any

from primorl.privacy.ledger.history import Refused, Request
from primorl.privacy.ledger.ledger import Budget, new_charge_id
from tests.privacy.ledger.ledgers import (
    DELTA,
    FORK,
    GAUSSIAN,
    SECRET,
    Meeting,
    adaptive,
    at_once,
    opened,
    request,
    version,
)

PROCESSES = 6
BUDGET = Budget(adaptive(GAUSSIAN, GAUSSIAN, GAUSSIAN), DELTA)  # two are taken before the race
DATA = version("abc")


class Careless(Meeting):
    """The twin: who finds its place taken writes what it had decided in the next."""

    def _append(self, *arguments: Any) -> bool:
        while not super()._append(*arguments):
            self._refresh()
        return True


def granted(kind: type[Meeting], url: str, folder: Path, wanted: Request, budget: Budget | None, paid: bool) -> int:
    """How many processes get what all ask for; ``paid``: as work that is paid for once."""
    kind.together = FORK.Barrier(PROCESSES)

    def run() -> bool:
        ledger = kind.open(url, secret=SECRET, anchor=folder / "ledger.head")
        try:
            ledger.reserve(wanted, budget, new_charge_id() if paid else None)
        except Refused:
            return False
        return True

    answers = at_once(*[run] * PROCESSES)
    assert set(answers) <= {True, False}, answers
    return sum(answers)


def test_one_of_many_gets_the_last_of_a_budget(ledger_url: str, tmp_path: Path) -> None:
    """The twin overspends it. The chain is whole all the same, as every link was written well."""
    ledger = opened(ledger_url, tmp_path)
    for _ in range(2):
        ledger.reserve(request(DATA), BUDGET)
    assert granted(Meeting, ledger_url, tmp_path, request(DATA), BUDGET, paid=False) == 1
    assert ledger.account(DATA).epsilon(DELTA) == BUDGET.epsilon
    assert ledger.verify() == 4
    larger = Budget(adaptive(*[GAUSSIAN] * 4), DELTA)
    assert granted(Careless, ledger_url, tmp_path, request(DATA), larger, paid=False) == PROCESSES
    assert ledger.account(DATA).epsilon(DELTA) > larger.epsilon
    assert ledger.verify() == 4 + PROCESSES


def test_equal_runs_that_decide_on_the_same_past_do_not_both_pay(ledger_url: str, tmp_path: Path) -> None:
    ledger = opened(ledger_url, tmp_path)
    assert granted(Meeting, ledger_url, tmp_path, request(DATA), None, paid=True) == 1
    assert len(ledger.charges()) == 1
