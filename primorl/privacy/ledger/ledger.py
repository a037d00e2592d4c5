"""The ledger: what every run spends on private data is written down before it begins, and counted for ever.

Append-only and hash-chained (`ledger_chain`), in SQLite or PostgreSQL (`ledger_store`), its head remembered outside
(`ledger_anchor`). What was ever reserved counts as spent, whatever became of the run: a process that dies says nothing.
"""

import functools
import json
import math
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from dp_accounting import dp_event

from primorl.privacy.accounting.epsilon import ACCOUNTANT, Spent, Training, compose
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.ledger.anchor import Anchor, Head
from primorl.privacy.ledger.budget_advice import multiplier_that_fits, rounds_that_fit
from primorl.privacy.ledger.chain import Chain, canonical
from primorl.privacy.ledger.history import Charge, History, Registered
from primorl.privacy.ledger.members import DIGEST_BYTES, Members
from primorl.privacy.ledger.store import Store
from primorl.project.errors import PipelineError

__all__ = ["Budget", "BudgetExceeded", "Charge", "Ledger", "Request", "Version"]

_ATTEMPTS = 200
_LONGEST_PAUSE = 0.25  # seconds


class BudgetExceeded(PipelineError):  # noqa: N818 - what happened, in Tumult's word too
    """A run was refused: with it, the budget would be passed. Nothing was written and nothing is spent."""


@dataclass(frozen=True)
class Budget:
    """What all runs on the same units may spend together: ε, read at δ."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Version:
    """A dataset version as the ledger knows it.

    ``members`` (who is private here) and ``public`` (who is not) are 16-byte keyed digests in any order. Two versions
    *share units* if their members have a digest in common; which versions do is declared public.
    """

    fingerprint: str
    unit: str
    units: int
    members: bytes
    public: bytes = b""


@dataclass(frozen=True)
class Request:
    """What a run asks to do.

    ``identity`` is equal for two runs exactly if they are the same paid work; ``delta`` is where the run's own ε is
    read.
    """

    version: Version
    dataset: str
    stage: str
    identity: str
    event: dp_event.DpEvent
    delta: float
    git_commit: str | None
    mlflow_run: str | None


class Ledger:
    """Grants charges and remembers them.

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
            budget: what must not be passed; None counts without a limit.
            charge_id: its name, where something was kept under it already (`new_charge_id`).

        Raises:
            BudgetExceeded: it would be passed; says what would still fit. Nothing was written.
            PipelineError: a unit that was charged for as private is public now, and so no longer protected.
            PipelineError: the ledger is damaged or cannot be used, or the members are not digests.
            ValueError: the event is not one that can be written down and accounted again.
        """
        event = _written(request.event)
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
                "epsilon": _finite(_composed([request.event], request.delta).epsilon_pld),
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
        """Take an open charge up again: once for every time its checkpoint knows of.

        So of several copies of a checkpoint, on whatever machines, one at most is gone on with.

        Args:
            charge_id: of the charge.
            known: how often the checkpoint says that it was taken up.

        Returns:
            False if a copy was taken up already, or the charge has ended.
        """
        for attempt in range(_ATTEMPTS):
            self._refresh()
            if self._charge(charge_id).state != "reserved" or self._history.taken[charge_id] != known:
                return False
            if self._append([{"kind": "taken", "charge": charge_id, "time": _now()}], {}):
                return True
            _pause(attempt)
        raise self._busy()

    def commit(self, charge_id: str) -> None:
        """Say that a run ended well. Saying it twice is saying it once.

        Raises:
            PipelineError: no such charge, or it was aborted.
        """
        self._end(charge_id, {"kind": "committed", "charge": charge_id})

    def abort(self, charge_id: str, note: str) -> None:
        """Say that a run ended badly. What it reserved stays spent.

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
        """What was done to the units of a version so far, composed, at ``delta``."""
        return _composed([event_from_json(charge.event) for charge in self.sharing(version)], delta)

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
        """Let the database go."""
        self._store.close()

    def _end(self, charge_id: str, content: Mapping[str, Any]) -> None:
        for attempt in range(_ATTEMPTS):
            self._refresh()
            state = self._charge(charge_id).state
            if state == content["kind"] == "committed":
                return
            if state != "reserved":
                raise PipelineError(f"charge {charge_id}: already {state}, it cannot be {content['kind']} any more")
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
        wanted = _composed([*earlier, request.event], budget.delta).epsilon_pld
        if wanted <= budget.epsilon:
            return
        spent = _composed(earlier, budget.delta).epsilon_pld
        raise BudgetExceeded(
            f"dataset {request.dataset!r}: privacy.budget is ε {budget.epsilon:.6g} at δ {budget.delta:.6g}, of which "
            f"{_shown(spent)} is spent ({len(charges)} charged) and {max(0.0, budget.epsilon - spent):.6g} is left; "
            f"with this run it would be {_shown(wanted)}; {_advice(earlier, request.event, spent, budget)}"
        )

    def _busy(self) -> PipelineError:
        return PipelineError(f"ledger {self._store.shown}: others wrote first {_ATTEMPTS} times in a row; try again")


def _written(event: dp_event.DpEvent) -> dict[str, Any]:
    """An event as records hold it, once it is sure that it can be read back."""
    content = event_to_json(event)
    if event_from_json(content) != event or event_from_json(json.loads(canonical(content))) != event:
        raise ValueError("the event does not survive being written down")
    return content


def _composed(events: Iterable[dp_event.DpEvent], delta: float) -> Spent:
    counted = Counter(events)
    return _compose_counted(tuple(sorted(counted.items(), key=repr)), delta)


@functools.lru_cache(maxsize=4096)
def _compose_counted(counted: tuple[tuple[dp_event.DpEvent, int], ...], delta: float) -> Spent:
    return compose([event for event, count in counted for _ in range(count)], delta)


def _advice(earlier: Sequence[dp_event.DpEvent], event: dp_event.DpEvent, spent: float, budget: Budget) -> str:
    if isinstance(event, dp_event.NonPrivateDpEvent):
        return "a run without a guarantee fits no budget"
    if spent >= budget.epsilon:
        return "nothing fits any more"

    def fits(other: dp_event.DpEvent) -> bool:
        return _composed([*earlier, other], budget.delta).epsilon_pld <= budget.epsilon

    run, multiplier, rounds = Training.of(event), multiplier_that_fits(event, fits), rounds_that_fit(event, fits)
    found = []
    if run is not None and multiplier is not None:
        found.append(f"noise_multiplier {multiplier:.6g} with these {run.rounds} rounds: {_settings(multiplier)}")
    if run is not None and rounds is not None:
        kept = f"{run.noise_multiplier:.6g}"
        found.append(f"{rounds} rounds with this noise_multiplier {kept}: {_settings(run.noise_multiplier, rounds)}")
    return f"still fitting: {' or '.join(found)}" if found else "no smaller run was found that fits"


def _settings(multiplier: float, rounds: int | None = None) -> str:
    """The words for `dvc exp run` that make it so."""
    words = ["privacy.target_epsilon=null", f"privacy.noise_multiplier={multiplier!r}"]
    words += [] if rounds is None else [f"privacy.rounds={rounds}"]
    return " ".join(f"-S {word}" for word in words)


def _shown(epsilon: float) -> str:
    return f"{epsilon:.6g}" if math.isfinite(epsilon) else "∞ (a run without a guarantee)"


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def new_charge_id() -> str:
    """A name for a charge that nobody has."""
    return secrets.token_hex(8)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _pause(attempt: int) -> None:
    # From the system, as forked processes share the state of `random` and would keep colliding.
    time.sleep(random.SystemRandom().uniform(0, min(_LONGEST_PAUSE, 0.002 * 2 ** min(attempt, 10))))
