"""Processes that decide at the same time cannot both take the last of a budget."""

import multiprocessing
from collections.abc import Mapping, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from primorl.privacy.ledger.ledger import Budget, BudgetExceeded, Ledger
from tests.privacy.ledger.ledgers import DELTA, GAUSSIAN, SECRET, adaptive, opened, request, version

PROCESSES, ROUNDS = 6, 3
BUDGET = Budget(adaptive(GAUSSIAN, GAUSSIAN, GAUSSIAN), DELTA)  # two are taken before the race
FORK = multiprocessing.get_context("fork")


class Meeting(Ledger):
    """The worst moment: every process has decided on the same head before the first one writes."""

    together: Barrier
    waits = True

    def _append(self, contents: Sequence[Mapping[str, Any]], *others: Any) -> bool:
        if self.waits:
            self.waits = False
            self.together.wait(60)
        return super()._append(contents, *others)


class Careless(Meeting):
    """The twin: who finds its place taken writes what it had decided in the next."""

    def _append(self, contents: Sequence[Mapping[str, Any]], *others: Any) -> bool:
        while not super()._append(contents, *others):
            self._refresh()
        return True


def members_of(race: int) -> list[str]:
    return [f"{race} {unit}" for unit in range(3)]


def race(kind: type[Meeting], url: str, folder: Path) -> list[int]:
    """How many processes get the last of each round's budget."""
    together, grants = FORK.Barrier(PROCESSES), FORK.Queue()

    def run() -> None:
        ledger = kind.open(url, secret=SECRET, anchor=folder / "ledger.head")
        ledger.together = together
        for turn in range(ROUNDS):
            ledger.waits = True
            try:
                ledger.reserve(request(version(members_of(turn))), BUDGET)
                grants.put((turn, 1))
            except BudgetExceeded:
                grants.put((turn, 0))
            together.wait(60)

    processes = [FORK.Process(target=run) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    taken = [grants.get(timeout=120) for _ in range(PROCESSES * ROUNDS)]
    for process in processes:
        process.join()
    return [sum(granted for at, granted in taken if at == turn) for turn in range(ROUNDS)]


def begun(url: str, folder: Path) -> Ledger:
    """A ledger with room for one more charge in every round."""
    ledger = opened(url, folder)
    for turn in range(ROUNDS):
        for _ in range(2):
            ledger.reserve(request(version(members_of(turn))), BUDGET)
    return ledger


def spent(ledger: Ledger) -> list[float]:
    return [ledger.account(version(members_of(turn))).epsilon(DELTA) for turn in range(ROUNDS)]


def test_one_of_many_gets_the_last_of_a_budget(ledger_url: str, tmp_path: Path) -> None:
    ledger = begun(ledger_url, tmp_path)
    assert race(Meeting, ledger_url, tmp_path) == [1] * ROUNDS
    assert spent(ledger) == [BUDGET.epsilon] * ROUNDS
    assert ledger.verify() == ROUNDS * 4


def test_without_deciding_again_it_is_overspent(ledger_url: str, tmp_path: Path) -> None:
    """The twin of the race: it would be noticed. The chain is whole all the same, as every link was written well."""
    ledger = begun(ledger_url, tmp_path)
    assert race(Careless, ledger_url, tmp_path) == [PROCESSES] * ROUNDS
    assert min(spent(ledger)) > BUDGET.epsilon
    assert ledger.verify() == ROUNDS * (3 + PROCESSES)
