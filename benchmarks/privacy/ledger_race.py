"""Processes racing for the last of one budget, round after round, on SQLite and on PostgreSQL.

python -m benchmarks.privacy.ledger_race [--processes 8] [--rounds 100]
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median

from benchmarks.machine import row, write
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.history import Budget, BudgetExceeded, Request, Version
from primorl.privacy.ledger.ledger import Ledger
from tests.privacy.ledger import postgresql

EVENT, DELTA, SECRET = Training(0.1, 20.0, 150).event, 1e-5, b"s" * 32
TAKEN = 2  # charges before the race; the budget allows one more
BUDGET = Budget(total_of([EVENT] * (TAKEN + 1), DELTA), DELTA)
UNITS = 3000
FORK = multiprocessing.get_context("fork")


def main() -> None:
    """Race on both databases, check that no budget was ever passed, keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    command = (
        f"python -m benchmarks.privacy.ledger_race --processes {arguments.processes} --rounds "
        f"{arguments.rounds}"
    )
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="race-") as name, postgresql.server() as server:
        for database, url in (
            ("SQLite", f"sqlite:///{name}/ledger.db"),
            ("PostgreSQL", server.new_url()),
        ):
            anchor = Path(name) / f"{database}.head"
            where = f"{database}, {arguments.processes} processes, {arguments.rounds} rounds"
            for what, found, must, unit in race(url, anchor, arguments.processes, arguments.rounds):
                ratio = found / must if must else None
                rows.append(row(command, f"{where}: {what}", found, must, None, ratio, unit))
    write("ledger_race", rows)


def race(
    url: str, anchor: Path, processes: int, rounds: int
) -> list[tuple[str, float, float | None, str]]:
    """The figures of one database, each with what it must be."""
    ledger = Ledger(url, secret=SECRET, anchor=anchor)
    versions = [
        Version(f"{turn:064x}", "trajectory", UNITS, os.urandom(32 * UNITS))
        for turn in range(rounds)
    ]
    for turn, version in enumerate(versions):
        for i in range(TAKEN):
            ledger.commit(ledger.reserve(asked(version, f"{turn} {i}"), BUDGET).id)
    together, results = FORK.Barrier(processes), FORK.Queue()
    racers = [
        FORK.Process(target=run, args=(url, anchor, versions, together, results))
        for _ in range(processes)
    ]
    for racer in racers:
        racer.start()
    outcomes = [results.get() for _ in range(processes * rounds)]
    for racer in racers:
        racer.join()

    granted = Counter(turn for turn, won, _ in outcomes if won)
    grants = [granted[turn] for turn in range(rounds)]
    spent = [ledger.account(version).epsilon(DELTA) for version in versions]
    records = rounds * (1 + TAKEN + TAKEN + 1)
    assert ledger.verify() == records, "the chain has other records than were granted"
    times = {won: [seconds for _, w, seconds in outcomes if w is won] for won in (True, False)}
    return [
        (
            "budgets overspent (must be 0)",
            sum(epsilon > BUDGET.epsilon for epsilon in spent),
            None,
            "rounds",
        ),
        ("grants, fewest in a round", min(grants), 1, "charges"),
        ("grants, most in a round", max(grants), 1, "charges"),
        ("median time to be granted", median(times[True]), None, "s"),
        ("median time to be refused", median(times[False]), None, "s"),
    ]


def run(
    url: str, anchor: Path, versions: list[Version], together: Barrier, results: "Queue[object]"
) -> None:
    """One process: in every round, ask at the same moment as all others."""
    ledger = Ledger(url, secret=SECRET, anchor=anchor)
    for turn, version in enumerate(versions):
        together.wait()
        started = time.perf_counter()
        try:
            ledger.reserve(asked(version, f"{turn} {os.getpid()}"), BUDGET)
            won = True
        except BudgetExceeded:
            won = False
        results.put((turn, won, time.perf_counter() - started))


def asked(version: Version, identity: str) -> Request:
    """What everyone asks for."""
    return Request(version, "race", "train_model", identity, EVENT, DELTA)


if __name__ == "__main__":
    main()
