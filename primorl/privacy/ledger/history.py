"""Requests to the ledger, and the history of its records: dataset versions and charges.

Keyed hashes chain each record to the one before: without the secret the chain can be broken, but
not forged. A cut at the end does not show in the chain; against it the anchor, a file outside the
database, remembers the last record.
"""

import fcntl
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from primorl.base import PipelineError
from primorl.base.files import replaced_file, sync
from primorl.privacy.accounting import DpEvent
from primorl.privacy.accounting.rounding import at_most

_RECORDS = b"primorl ledger records 1"  # the secret keys other things as well
_MEMBERS = b"primorl ledger members 1"
_BEFORE_THE_FIRST = "primorl ledger"
_DRAWS = {
    "evaluate_private": "evaluation.private.draw in params.yaml",
    "online": "draw in online.yaml",
}
"""Settings that number the draws of a stage's noise, where privacy.draw does not."""


class Refused(PipelineError):  # noqa: N818 - of an outcome, not of a fault
    """A request was refused before anything was written.

    After any other error a charge may have been made.
    """


class BudgetExceeded(Refused):
    """A run was refused because it would exceed the budget.

    Nothing was written and nothing is spent.
    """


@dataclass(frozen=True)
class Budget:
    """Limit for all runs on the same units together: ε at δ."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Version:
    """Dataset version as a client describes it to the ledger.

    Two versions *share units* if their members have a digest in common. It is declared public which
    versions do.

    Attributes:
        fingerprint: keyed, of the content.
        unit: of privacy.
        units: number of private units.
        members: 16-byte keyed digests of the private units, in any order.
        public: the same of the public units. They are published, so none of them may ever be
            private again.
        population: keyed digest of the population's name; None: it has none.
        simulated: whether there is a simulator, which may make other trajectories at any time.
    """

    fingerprint: str
    unit: str
    units: int
    members: bytes
    public: bytes = b""
    population: str | None = None
    simulated: bool = False


@dataclass(frozen=True)
class Request:
    """Request of a run of ``stage`` for work on the units of ``version`` of a dataset; ε is read at
    ``delta``.

    Two runs have the same ``identity`` exactly if they are the same paid work.
    """

    version: Version
    dataset: str
    stage: str
    identity: str
    event: DpEvent
    delta: float


@dataclass(frozen=True)
class Charge:
    """A granted charge and its state; it is spent in every state.

    Attributes:
        version: sequence of the record of its dataset version.
        event: JSON of the accounted event (`event_from_json`).
        epsilon: ε at ``delta`` as it was accounted then; None: no guarantee.
        cost: in the privacy filter's currencies.
        time: of the reservation, ISO 8601, UTC.
        budget: ε of the budget that it was granted under; None: there was none.
        by: who ran the work.
        made: files that it made, SHA-256 by name; one entry each time that other content was
            written.
    """

    id: str
    sequence: int
    version: int
    identity: str
    dataset: str
    dataset_fingerprint: str
    unit: str
    units: int
    population: str | None
    stage: str
    event: dict[str, Any]
    epsilon: float | None
    delta: float
    cost: dict[str, Any]
    state: Literal["reserved", "committed"]
    time: str
    git_commit: str | None
    budget: float | None
    by: str | None
    made: tuple[dict[str, str], ...] = ()

    def __str__(self) -> str:
        return f"charge {self.id} of {self.time}"

    @property
    def another_draw(self) -> str:
        """Say which setting pays for another draw of the noise."""
        key = _DRAWS.get(self.stage.partition(":")[0], "privacy.draw in params.yaml")
        return f"to pay for another draw of the noise, set {key} to a new number"

    def refuse_another_draw(self, made: Mapping[str, str]) -> None:
        """Refuse files of another draw of the noise: a charge pays for one draw only.

        Raises:
            PipelineError: ``made`` has other tensors than those that the charge made first.
        """
        for name, digest in made.items():
            first = {earlier.get(name, digest) for earlier in self.made} - {digest}
            if name.endswith(".safetensors") and first:
                raise PipelineError(
                    f"{self}: {name}: found SHA-256 {digest[:12]}…, allowed is {min(first)[:12]}…, "
                    f"which it made first; run `dvc checkout`; {self.another_draw}"
                )


@dataclass(frozen=True)
class Registered:
    """Version as its record holds it: without its members.

    Attributes:
        population: keyed digest of the population's name.
        members: keyed digest of the private units in the database.
        public: the same of the public units.
        dataset: entry that the version was first registered for.
    """

    fingerprint: str
    unit: str
    units: int
    population: str | None
    members: str
    public: str
    dataset: str


@dataclass(frozen=True)
class Record:
    """One row of the ledger: canonical JSON, the hash of the row before it, and its own."""

    sequence: int
    body: str
    previous: str
    hash: str


class Chain:
    """Hashes of the records of a ledger that were read and verified, oldest first; sequences count
    from 1.

    A record's hash is HMAC-SHA256, under a key derived from the project's ``secret``, over the
    previous hash and the record's body, which repeats its sequence. So an edit, a removal, an
    insertion, a duplicate and a change of order are all detected. A cut at the end is not; for that
    see `Anchor`.
    """

    def __init__(self, secret: bytes, ledger: str):
        self._records_key = hmac.digest(secret, _RECORDS, hashlib.sha256)
        self._members_key = hmac.digest(secret, _MEMBERS, hashlib.sha256)
        self._ledger = ledger
        self._head: Record | None = None
        self.hashes: list[str] = []

    def members_digest(self, members: bytes) -> str:
        """Compute the keyed digest by which a ``version`` record names its members."""
        return hmac.new(self._members_key, members, hashlib.sha256).hexdigest()

    def following(self, contents: Sequence[Mapping[str, Any]]) -> list[Record]:
        """Make the records that would come next with these contents; the chain itself does not
        change.
        """
        records: list[Record] = []
        previous = self.hashes[-1] if self.hashes else _BEFORE_THE_FIRST
        for sequence, content in enumerate(contents, len(self.hashes) + 1):
            body = canonical({**content, "sequence": sequence})
            records.append(Record(sequence, body, previous, self._hash(previous, body)))
            previous = records[-1].hash
        return records

    def extend(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Verify the records of a database from the known head on, ordered by sequence, and add
        them to the chain.

        If a head is known, the first record repeats it. Returns the contents of the new records.

        Raises:
            PipelineError: names the first broken record.
        """
        if self._head is not None:
            if not records or records[0] != self._head:
                raise self.broken(self._head.sequence, "edited or removed since it was last read")
            records = records[1:]
        contents, previous = [], self.hashes[-1] if self.hashes else _BEFORE_THE_FIRST
        for due, record in enumerate(records, len(self.hashes) + 1):
            contents.append(self._check(record, due, previous))
            previous = record.hash
        if records:
            self._head = records[-1]
            self.hashes += [record.hash for record in records]
        return contents

    def broken(self, sequence: int, reason: str) -> PipelineError:
        """Make the error about a record."""
        return PipelineError(
            f"ledger {self._ledger}: record {sequence}: {reason}; allowed is the chain as it was "
            "written; restore this database and the folder .primorl from one backup"
        )

    def _check(self, record: Record, due: int, previous: str) -> dict[str, Any]:
        # SQLite keeps whatever somebody put into a column.
        sound = all(isinstance(each, str) for each in (record.body, record.previous, record.hash))
        if sound:
            expected = self._hash(record.previous, record.body)
            sound = hmac.compare_digest(expected.encode(), record.hash.encode())
        content: dict[str, Any] = json.loads(record.body) if sound else {}
        if not sound or (record.sequence, record.previous) != (due, previous):
            raise self.broken(
                due, "missing, edited or moved, or .primorl/secret is not that of this ledger"
            )
        return content

    def _hash(self, previous: str, body: str) -> str:
        return hmac.new(
            self._records_key, f"{previous}\n{body}".encode(), hashlib.sha256
        ).hexdigest()


def canonical(content: Mapping[str, Any]) -> str:
    """Encode as canonical JSON: sorted keys, no spaces, ASCII, finite numbers only."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Head:
    """A record by its sequence and hash."""

    sequence: int
    hash: str


BEGUN = Head(0, "0" * 64)
"""Head of an empty ledger.

It is written before the first record, so records without a head have lost it.
"""


class Anchor:
    """File that remembers the head of a chain. It only moves forwards.

    It is written before the first record, and after each later record is in the database; so a
    crash in between leaves it behind, never ahead. Restoring both an old database and an old anchor
    is not detected.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> Head | None:
        """Return the remembered head; None if there is none yet.

        Raise if the file is unreadable or damaged.
        """
        try:
            content = json.loads(self.path.read_bytes())
            return Head(int(content["sequence"]), str(content["hash"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as broken:
            raise PipelineError(
                f"{self.path}: found no ledger's head ({type(broken).__name__}); restore it from "
                "its backup"
            ) from None

    def advance(self, head: Head) -> None:
        """Remember ``head``, durably, unless a later one is remembered.

        Raise if the file cannot be written.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                known = self.read()
                if known is not None and known.sequence >= head.sequence:
                    # who wrote it may have died before its name was on the disk
                    sync(self.path.parent)
                    return
                with replaced_file(self.path) as fresh:
                    fresh.chmod(0o600)
                    fresh.write_text(json.dumps(vars(head)) + "\n", encoding="utf-8")
        except OSError as refused:
            raise PipelineError(
                f"{self.path}: cannot be written ({refused.strerror}); let this user write its "
                "folder, or free space"
            ) from None


class History:
    """Dataset versions and charges, as the records of a chain tell them."""

    def __init__(self, chain: Chain):
        self.chain = chain
        self.versions: dict[int, Registered] = {}  # by the sequence of their record
        self.charges: dict[str, Charge] = {}  # oldest first
        # charges whose first mark of progress was written with the reservation
        self.marked: set[str] = set()

    def extend(self, records: Sequence[Record]) -> None:
        """Verify the records of a database from the known head on (`Chain.extend`), and
        apply them.
        """
        for content in self.chain.extend(records):
            self._apply(content)

    def _apply(self, content: dict[str, Any]) -> None:
        match content["kind"]:
            case "version":
                known: dict[str, Any] = {
                    each.name: content.get(each.name) for each in fields(Registered)
                }
                self.versions[content["sequence"]] = Registered(**known)
            case "reserved":
                if content.get("marked"):
                    self.marked.add(content["charge"])
                self.charges[content["charge"]] = _read_reservation(
                    content, self.versions[content["version"]]
                )
            case "committed":
                charge = self.charges[content["charge"]]
                made = (*charge.made, content["made"]) if "made" in content else charge.made
                self.charges[charge.id] = replace(charge, state="committed", made=made)
            case unknown:
                raise self.chain.broken(
                    content["sequence"], f"of kind {unknown!r}, which this version does not know"
                )


def _read_reservation(content: Mapping[str, Any], version: Registered) -> Charge:
    found: dict[str, Any] = {each.name: content.get(each.name) for each in fields(Charge)}
    found |= {"id": content["charge"], "state": "reserved", "made": ()}
    found |= {"unit": version.unit, "units": version.units, "population": version.population}
    return Charge(**found | {"dataset_fingerprint": version.fingerprint})


def list_budget_changes(charges: Sequence[Charge], today: Budget | None) -> list[tuple[str, str]]:
    """Say how the budget changed between these charges, and since the last one to that of
    ``today``, oldest first; and of each who ran the work then, who stays here.

    A charge that names nobody does not tell its budget either.
    """
    known = [
        (None if each.budget is None else Budget(each.budget, each.delta), each)
        for each in charges
        if each.by
    ]
    steps = [(budget, f"on {each.time[:10]}", each.by or "") for budget, each in known]
    found = []
    for (before, _, _), (after, when, by) in pairwise(
        [*steps, (today, "in params.yaml of this clone", "")]
    ):
        if before == after:
            continue
        sides = before, after
        deltas = {each.delta for each in sides if each is not None}
        names = [_name_budget(each, with_delta=len(deltas) > 1) for each in sides]
        found.append((f"{_compare_budgets(*sides)} from {' to '.join(names)} {when}", by))
    return found


def _name_budget(budget: Budget | None, *, with_delta: bool) -> str:
    if budget is None:
        return "none"
    name = f"ε {at_most(budget.epsilon, 6)}"
    return f"{name} at δ {at_most(budget.delta, 6)}" if with_delta else name


def _compare_budgets(before: Budget | None, after: Budget | None) -> str:
    if before is None or after is None:
        return "raised" if after is None else "lowered"
    if after.epsilon >= before.epsilon and after.delta >= before.delta:
        return "raised"
    lowered = after.epsilon <= before.epsilon and after.delta <= before.delta
    return "lowered" if lowered else "changed"
