"""The ledger: it records what every run spends on private data before the run begins, and never forgets it.

Append-only and hash-chained (`chain`), in SQLite or PostgreSQL (`store`). The last record is also remembered in a file
outside the database (`anchor`). Everything that was ever reserved counts as spent, whatever became of the run.
"""

import math
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from primorl.privacy.accounting.epsilon import ACCOUNTANT, Spent
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger.anchor import Anchor, Head
from primorl.privacy.ledger.budget_advice import advice
from primorl.privacy.ledger.chain import Chain
from primorl.privacy.ledger.history import Charge, History, Registered
from primorl.privacy.ledger.members import DIGEST_BYTES, Members
from primorl.privacy.ledger.requests import Budget, BudgetExceeded, Request, Version, composed, written
from primorl.privacy.ledger.store import Store
from primorl.project.errors import PipelineError
from primorl.project.files import finite

__all__ = ["Budget", "BudgetExceeded", "Charge", "Ledger", "Request", "Version"]

_ATTEMPTS = 200
_LONGEST_PAUSE = 0.25  # seconds


class Ledger:
    """Grants charges and records them.

    Formal property: let a unit belong to some versions. Whatever processes run at once, die or are killed, the
    composition (PLD, at the budget's δ) of the events of all charges on these versions is at most the budget that the
    last of them was granted under. For a charge is granted on version D only if the composition over every version that
    shares any unit with D, itself included, stays within; and a decision enters the chain only at the place it was
    made for, so nobody decides on a past that has moved on. Versions that share no unit compose in parallel.

    | case                                | what happens                                                        |
    |-------------------------------------|---------------------------------------------------------------------|
    | a run dies after `reserve`          | its charge stays ``reserved``: spent                                |
    | two processes want the last of it   | the later one finds its place taken, decides again and is refused   |
    | a run without any guarantee         | refused under every budget; without one it makes all ε infinite     |
    | the chain or a version is damaged   | nothing is granted                                                  |
    | the database lost its last records  | the anchor tells; nothing is granted                                |

    One object belongs to one thread.
    """

    def __init__(self, store: Store, secret: bytes, anchor: Anchor):
        self._store = store
        self._secret = secret
        self._anchor = anchor
        self._history = History(Chain(secret, store.shown))
        self._members: dict[str, Members] = {}  # by digest

    @classmethod
    def open(cls, url: str, *, secret: bytes, anchor: Path) -> Self:
        """Open a ledger, or begin one.

        Args:
            url: SQLAlchemy's, of a SQLite file or a PostgreSQL database.
            secret: the project's; another one cannot read what this one wrote.
            anchor: the file that remembers the chain's head.

        Raises:
            PipelineError: the database cannot be used; it is named without credentials.
        """
        return cls(Store(url), secret, Anchor(anchor))

    def reserve(self, request: Request, budget: Budget | None, charge_id: str | None = None) -> Charge:
        """Charge for a run, before it touches anything private.

        Args:
            request: what the run will do to which units.
            budget: the limit; None counts without one.
            charge_id: its id, if a checkpoint was written under it already (`new_charge_id`).

        Raises:
            BudgetExceeded: the budget would be exceeded; the message says what still fits. Nothing was written.
            PipelineError: a unit that was charged for as private is public now, and so no longer protected.
            PipelineError: the ledger is damaged or cannot be used, or the members are not digests.
            ValueError: the event is not one that can be written down and accounted again.
        """
        event = written(request.event)
        if not request.version.members or len(request.version.members) % DIGEST_BYTES:
            raise PipelineError(
                f"dataset {request.dataset!r}: members: found {len(request.version.members)} bytes, allowed are whole "
                f"digests of {DIGEST_BYTES} bytes, at least one; run `dvc repro partition` to make them again"
            )
        charge = charge_id or new_charge_id()
        for attempt in range(_ATTEMPTS):
            self._refresh()
            self._refuse_published(request)
            if budget is not None:
                self._refuse_beyond(budget, request)
            version, registration = self._registered(request.version)
            reservation = {
                "kind": "reserved",
                "time": _now(),
                "charge": charge,
                "version": version,
                "dataset": request.dataset,
                "stage": request.stage,
                "identity": request.identity,
                "event": event,
                "epsilon": finite(composed([request.event], request.delta).epsilon_pld),
                "delta": request.delta,
                "accountant": ACCOUNTANT,
                "git_commit": request.git_commit,
                "mlflow_run": request.mlflow_run,
            }
            members = {version: request.version.members} if registration else {}
            if self._append([*registration, reservation], members):
                return self._history.charges[charge]
            _pause(attempt)
        raise self._busy()

    def take(self, charge_id: str, known: int) -> bool:
        """Resume an open charge: once for every time that its checkpoint knows of.

        So of several copies of a checkpoint, on whatever machines, at most one may resume.

        Args:
            charge_id: of the charge.
            known: how often the checkpoint says that it was resumed.

        Returns:
            False if a copy was resumed before, or the charge has ended.
        """
        for attempt in range(_ATTEMPTS):
            self._refresh()
            if self._charge(charge_id).state != "reserved" or self._history.taken[charge_id] != known:
                return False
            if self._append([{"kind": "taken", "charge": charge_id, "time": _now()}], {}):
                return True
            _pause(attempt)
        raise self._busy()

    def commit(self, charge_id: str, made: Mapping[str, str] | None = None) -> None:
        """Record that a run ended well, and the files that it made. Doing so twice has no further effect.

        Args:
            charge_id: of the charge.
            made: SHA-256 of every file by name; None if there are none. Files that were restored with a newer statement
                are recorded beside the first.

        Raises:
            PipelineError: no such charge, it was aborted, or its tensors are not those that it made first.
        """
        self._end(charge_id, {"kind": "committed", "charge": charge_id, **({"made": dict(made)} if made else {})})

    def abort(self, charge_id: str, note: str) -> None:
        """Record that a run failed. What it reserved stays spent.

        Raises:
            PipelineError: no such charge, or it has ended already.
        """
        self._end(charge_id, {"kind": "aborted", "charge": charge_id, "note": note})

    def charges(self) -> list[Charge]:
        """Every charge, oldest first."""
        self._refresh()
        return list(self._history.charges.values())

    def sharing(self, version: Version) -> list[Charge]:
        """Every charge on a version that shares a unit with this one (registered or not), oldest first."""
        self._refresh()
        return self._sharing(self._as_members(version.members))

    def composing(self, charge_id: str) -> list[Charge]:
        """A charge and all earlier ones on versions that share a unit with its own, oldest first.

        Raises:
            PipelineError: no such charge.
        """
        self._refresh()
        charge = self._charge(charge_id)
        shared = self._sharing(self._members_of(self._history.version_of[charge_id]))
        return [other for other in shared if other.sequence <= charge.sequence]

    def spent_on(self, version: Version, delta: float) -> Spent:
        """ε at ``delta`` of everything that was done to the units of a version so far."""
        return composed([event_from_json(charge.event) for charge in self.sharing(version)], delta)

    def versions(self) -> list[Version]:
        """Every dataset version that was ever charged, oldest first."""
        self._refresh()
        return [
            Version(known.fingerprint, known.unit, known.units, self._content(sequence))
            for sequence, known in self._history.versions.items()
        ]

    def verify(self) -> int:
        """Read everything again and check it: hashes, order, the anchor, the members of every version.

        Returns:
            The number of records.

        Raises:
            PipelineError: names the first broken record and what is wrong with it.
        """
        anchored, holders = self._anchor.read(), self._store.versions()  # before the records, which only grow
        read = History(Chain(self._secret, self._store.shown))
        read.extend(self._store.read())
        for sequence, (now, before) in enumerate(zip(read.chain.hashes, self._history.chain.hashes, strict=False), 1):
            if now != before:
                raise read.chain.broken(sequence, "replaced since it was last read")
        self._check_head(read.chain, anchored)
        for sequence in read.versions:
            self._check_members(read, sequence, self._store.members(sequence))
        for holder in holders:
            if holder not in read.versions:
                raise read.chain.broken(holder, "has members, but is no dataset version")
        self._history = read
        self._remember()
        return len(read.chain.hashes)

    def export(self) -> list[dict[str, Any]]:
        """The records as they stand, oldest first: sequence, body (canonical JSON), previous hash, hash.

        Raises:
            PipelineError: the chain is broken; names the first broken record.
        """
        verified = self.verify()
        return [vars(record) for record in self._store.read()[:verified]]

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def _end(self, charge_id: str, content: Mapping[str, Any]) -> None:
        for attempt in range(_ATTEMPTS):
            self._refresh()
            charge, made = self._charge(charge_id), content.get("made")
            if charge.state == content["kind"] == "committed":
                if made is None or made in charge.made:
                    return
                charge.refuse_another_draw(made)
            elif charge.state != "reserved":
                raise PipelineError(
                    f"charge {charge_id}: already {charge.state}, it cannot be {content['kind']} any more"
                )
            if self._append([{**content, "time": _now()}], {}):
                return
            _pause(attempt)
        raise self._busy()

    def _append(self, contents: Sequence[Mapping[str, Any]], members: Mapping[int, bytes]) -> bool:
        """Write what was decided on the history as read; False if it has moved on, so that the caller decides again."""
        records = self._history.chain.following(contents)
        if not self._store.append(records, members):
            return False
        self._refresh()
        self._remember()
        return True

    def _refresh(self) -> None:
        """Read what is new, from the known head on, and check it."""
        anchored = self._anchor.read()  # first: the chain only grows, so what it names must be found afterwards
        self._history.extend(self._store.read(len(self._history.chain.hashes)))
        self._check_head(self._history.chain, anchored)

    def _remember(self) -> None:
        hashes = self._history.chain.hashes
        if hashes:
            self._anchor.advance(Head(len(hashes), hashes[-1]))

    def _check_head(self, chain: Chain, anchored: Head | None) -> None:
        if anchored is None:
            return
        if anchored.sequence > len(chain.hashes):
            reached = f"missing, but {self._anchor.path} knows of {anchored.sequence} records"
            raise chain.broken(len(chain.hashes) + 1, f"{reached} (or ledger.url now names another ledger)")
        if chain.hashes[anchored.sequence - 1] != anchored.hash:
            raise chain.broken(anchored.sequence, f"not the one that {self._anchor.path} knows")

    def _charge(self, charge_id: str) -> Charge:
        charge = self._history.charges.get(charge_id)
        if charge is None:
            raise PipelineError(f"charge {charge_id}: not in the ledger; `primorl ledger show` lists those that are")
        return charge

    def _registered(self, version: Version) -> tuple[int, list[dict[str, Any]]]:
        """The sequence of a version's record, and the record to append if it is new."""
        digest = self._history.chain.members_digest(version.members)
        wanted = Registered(version.fingerprint, version.unit, version.units, digest)
        for sequence, known in self._history.versions.items():
            if known == wanted:
                return sequence, []
        record = {
            "kind": "version",
            "time": _now(),
            "fingerprint": version.fingerprint,
            "unit": version.unit,
            "units": version.units,
            "members": digest,
        }
        return len(self._history.chain.hashes) + 1, [record]

    def _sharing(self, members: Members) -> list[Charge]:
        history = self._history
        versions = {version for version in history.versions if members.share(self._members_of(version))}
        return [charge for charge in history.charges.values() if history.version_of[charge.id] in versions]

    def _as_members(self, content: bytes) -> Members:
        return self._members.get(self._history.chain.members_digest(content)) or Members(content)

    def _members_of(self, version: int) -> Members:
        digest = self._history.versions[version].members_digest
        if digest not in self._members:
            self._members[digest] = Members(self._content(version))
        return self._members[digest]

    def _content(self, version: int) -> bytes:
        return self._check_members(self._history, version, self._store.members(version))

    @staticmethod
    def _check_members(history: History, version: int, members: bytes | None) -> bytes:
        if members is None:
            raise history.chain.broken(version, "the members of this dataset version were removed")
        if history.chain.members_digest(members) != history.versions[version].members_digest:
            raise history.chain.broken(version, "the members of this dataset version were edited")
        return members

    def _refuse_published(self, request: Request) -> None:
        public = Members(request.version.public)
        if any(public.share(self._members_of(sequence)) for sequence in self._history.versions):
            raise PipelineError(
                f"dataset {request.dataset!r}: the public split holds units that earlier runs were charged for as "
                "private, and would publish them; put partition.salt and partition.public_fraction back, or take "
                "other data"
            )

    def _refuse_beyond(self, budget: Budget, request: Request) -> None:
        charges = self._sharing(self._as_members(request.version.members))
        earlier = [event_from_json(charge.event) for charge in charges]
        wanted = composed([*earlier, request.event], budget.delta).epsilon_pld
        if wanted <= budget.epsilon:
            return
        spent = composed(earlier, budget.delta).epsilon_pld
        raise BudgetExceeded(
            f"dataset {request.dataset!r}: privacy.budget is ε {budget.epsilon:.6g} at δ {budget.delta:.6g}, of which "
            f"{_shown(spent)} is spent ({len(charges)} charged) and {max(0.0, budget.epsilon - spent):.6g} is left; "
            f"with this run it would be {_shown(wanted)}; {advice(earlier, request.event, budget)}"
        )

    def _busy(self) -> PipelineError:
        return PipelineError(
            f"ledger {self._store.shown}: other processes wrote first {_ATTEMPTS} times in a row; try again"
        )


def _shown(epsilon: float) -> str:
    return f"{epsilon:.6g}" if math.isfinite(epsilon) else "∞ (a run without a guarantee)"


def new_charge_id() -> str:
    """A random id for a new charge."""
    return secrets.token_hex(8)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _pause(attempt: int) -> None:
    # From the system, as forked processes share the state of `random` and would keep colliding.
    time.sleep(random.SystemRandom().uniform(0, min(_LONGEST_PAUSE, 0.002 * 2 ** min(attempt, 10))))
