"""Ledgers, versions and requests for tests: small, and quick to account."""

import hashlib
import multiprocessing
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dp_accounting import dp_event

from primorl.commands.main import main
from primorl.privacy.accounting.privacy_filter import cost, total
from primorl.privacy.ledger.history import Request, Version
from primorl.privacy.ledger.ledger import Ledger

SECRET = b"s" * 32
DELTA = 1e-5
FORK = multiprocessing.get_context("fork")
INSERT = (
    "INSERT INTO ledger_records (sequence, body, previous, hash) VALUES (:sequence, :body, "
    ":previous, :hash)"
)
GAUSSIAN = dp_event.GaussianDpEvent(5.0)  # cheap to compose


def opened(url: str, folder: Path) -> Ledger:
    return Ledger(url, secret=SECRET, anchor=folder / "ledger.head")


def version(members: Iterable[str], fingerprint: str = "") -> Version:
    """A version whose members have these marks; each stands for an id, or for a unit's rows."""
    marks = sorted(members)
    digests = b"".join(hashlib.blake2b(mark.encode(), digest_size=16).digest() for mark in marks)
    return Version(
        fingerprint or hashlib.sha256(digests).hexdigest(), "trajectory", len(marks), digests
    )


def request(data: Version, event: dp_event.DpEvent = GAUSSIAN, **changes: Any) -> Request:
    named = {"dataset": "pendulum", "stage": "train_model", "identity": "identity"} | changes
    return Request(version=data, event=event, delta=DELTA, **named)


def primorl(*words: str) -> tuple[int, str, str]:
    """Run a command; return its exit status and what it printed."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = main(list(words))
    return status, out.getvalue(), err.getvalue()


def adaptive(*events: dp_event.DpEvent, delta: float = DELTA) -> float:
    return total([cost(event) for event in events]).epsilon(delta)


def execute(url: str, *statements: str, **values: object) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            clause = sa.text(statement)
            connection.execute(clause, {name: values[name] for name in clause.compile().params})


def at_once(*bodies: Callable[[], object]) -> list[Any]:
    """Run each in a process of its own, all begun at the same moment; what they return, or what
    their errors say.
    """
    together, said = FORK.Barrier(len(bodies)), FORK.Queue()

    def run(body: Callable[[], object]) -> None:
        together.wait(60)
        try:
            said.put(body())
        except Exception as refused:
            said.put(str(refused))

    processes = [FORK.Process(target=run, args=(body,)) for body in bodies]
    for process in processes:
        process.start()
    outcomes = [said.get(timeout=120) for _ in bodies]
    for process in processes:
        process.join()
    return outcomes


class Meeting(Ledger):
    """The worst moment: every process has decided on the same head before the first one writes."""

    together: Barrier
    waits = True

    def _append(self, *arguments: Any) -> bool:
        if self.waits:
            self.waits = False
            self.together.wait(60)
        return super()._append(*arguments)
