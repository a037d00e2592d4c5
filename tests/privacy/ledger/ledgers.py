"""Ledgers, versions and requests for tests: small, and quick to account."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa
from dp_accounting import dp_event

from primorl.privacy.accounting.privacy_filter import cost, total
from primorl.privacy.ledger.ledger import Ledger, Request, Version

SECRET = b"s" * 32
DELTA = 1e-5
GAUSSIAN = dp_event.GaussianDpEvent(5.0)  # cheap to compose


def opened(url: str, folder: Path, secret: bytes = SECRET) -> Ledger:
    return Ledger.open(url, secret=secret, anchor=folder / "ledger.head")


def version(members: Iterable[str], fingerprint: str = "") -> Version:
    """A version whose members have these marks; each stands for an id, or for a unit's rows."""
    marks = sorted(members)
    digests = b"".join(hashlib.blake2b(mark.encode(), digest_size=16).digest() for mark in marks)
    return Version(fingerprint or hashlib.sha256(digests).hexdigest(), "trajectory", len(marks), digests)


def request(
    data: Version, event: dp_event.DpEvent = GAUSSIAN, *, dataset: str = "pendulum", identity: str = "identity"
) -> Request:
    return Request(
        version=data,
        dataset=dataset,
        stage="train_model",
        identity=identity,
        event=event,
        delta=DELTA,
        git_commit="c0ffee",
        mlflow_run=None,
    )


def adaptive(*events: dp_event.DpEvent, delta: float = DELTA) -> float:
    """ε of these events by the privacy filter."""
    return total([cost(event) for event in events]).epsilon(delta)


def execute(url: str, *statements: str, **values: object) -> None:
    """Raw SQL behind the ledger's back, in one transaction."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            clause = sa.text(statement)
            connection.execute(clause, {name: values[name] for name in clause.compile().params})
