"""The ledger: it records the charge of every run on private data before the run begins.

The records are append-only and hash-chained (`chain`), in SQLite or PostgreSQL (`store`). A file
outside the database, the anchor, holds the hash of the last record (`chain.Anchor`). Every
reservation counts as spent, even if its run failed.
"""

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from primorl.base import PipelineError
from primorl.base.files import finite
from primorl.base.processes import git_commit, user_name
from primorl.privacy.accounting.epsilon import compose, event_to_json
from primorl.privacy.accounting.privacy_filter import cost
from primorl.privacy.ledger import history
from primorl.privacy.ledger.account import (
    Account,
    Directory,
    Roster,
    account_of,
    refuse_beyond,
    refuse_other_unit,
    refuse_published,
    refuse_second,
)
from primorl.privacy.ledger.store import Mark, Progress, Store
from primorl.privacy.statement import our_accountant

_Entries = tuple[Sequence[Mapping[str, Any]], Mapping[int, Roster], Mark | None]
"""Contents of records, rosters by the sequence of their version's record, and a mark of
progress.
"""
_ATTEMPTS = 200
_LONGEST_PAUSE = 0.25  # seconds


class Ledger:
    """Ledger of charges: it grants them and records them.

    Formal property: let a unit belong to some versions. Whatever processes run at once, die or are
    killed, and however each run was chosen after looking at the results of the earlier ones, all
    charges on these versions together are (ε, δ)-differentially private with the budget that the
    last of them was granted under. For a charge is granted on version D only if the privacy filter
    over every version that shares any unit with D, itself included, stays within
    (`Account.with_events`); and a decision enters the chain only at the place it was made for, so
    nobody decides on a past that has moved on. Versions that share no unit compose in parallel.
    Beside a charge on another kind of unit none is granted.

    | case | what happens |
    |-------------------------------------|---------------------------------------------------------------------|
    | a run dies after `reserve` | its charge stays ``reserved``: spent |
    | two processes want the last of it | the later one finds its place taken and is refused |
    | a run without any guarantee | refused under a budget; without one all ε is infinite |
    | other kind of unit | refused |
    | a public unit was or becomes private| refused |
    | the chain or a version is damaged | nothing is granted |
    | the database lost its last records | the anchor tells; nothing is granted |
    | records, and no anchor beside them | they can be read; nothing is recorded |

    One object belongs to one thread.

    Args:
        url: of the database, see `Store`; where no ledger is, one is begun.
        secret: the project's; records written under one secret cannot be read under another.
        anchor: the file that remembers the chain's head.
        read_only: create and change nothing; a missing ledger is empty.

    Raises:
        PipelineError: the database cannot be used; it is named without credentials.
    """

    def __init__(
        self, url: str | None, *, secret: bytes, anchor: Path, read_only: bool = False
    ) -> None:
        self._store = store = Store(url, read_only=read_only)
        self._secret, self._anchor = secret, history.Anchor(anchor)
        self._history = Directory(store, history.Chain(secret, store.shown))
        self.progress = Progress(store, secret, lambda charge: charge in self._history.marked)

    def reserve(
        self, request: history.Request, budget: history.Budget | None, charge_id: str | None = None
    ) -> history.Charge:
        """Charge for a run, before it touches anything private.

        Args:
            request: of the run.
            budget: the limit; None counts without one.
            charge_id: id of the charge (`new_charge_id`), if a checkpoint was already written under
                it. Such work can be resumed, so it is paid for once.

        Raises:
            BudgetExceeded: the budget would be exceeded; the message names runs that still fit.
                Nothing was written.
            Refused: a charge pays for work of the same identity that can be resumed; a unit that
                was charged for as private is public now, or the other way round; or an earlier
                charge was on another kind of unit. Nothing was written.
            PipelineError: the ledger is damaged, has lost its head or cannot be used.
            ValueError: this project does not account such an event.
        """
        charge = charge_id or new_charge_id()
        reservation = {
            "kind": "reserved",
            "charge": charge,
            "dataset": request.dataset,
            "stage": request.stage,
            "identity": request.identity,
            "event": event_to_json(request.event),
            "epsilon": finite(compose([request.event], request.delta).epsilon_pld),
            "delta": request.delta,
            "cost": cost(request.event).to_json(),
            "accountant": vars(our_accountant()),
            "git_commit": git_commit(),
            "budget": None if budget is None else budget.epsilon,
            "by": user_name(),
            "marked": charge_id is not None,
        }
        mark = None if charge_id is None else self.progress.first(charge)

        def decide() -> _Entries:
            if charge_id is not None:
                refuse_second(request, self._history)
            roster = Roster.of(request.version)
            account = account_of(self._history, request.version, roster)
            refuse_published(request.dataset, request.version, roster, self._history)
            refuse_other_unit(request, account)
            if budget is not None:
                refuse_beyond(budget, request, account)
            version, registration = self._register(request.dataset, request.version, roster)
            rosters = {version: roster} if registration else {}
            content = {**reservation, "version": version, "time": _now()}
            return [*registration, content], rosters, mark

        self._write(decide)
        return self._history.charges[charge]

    def publish(self, dataset: str, version: history.Version, confirmed: str | None = None) -> None:
        """Record the units of a version without a charge: no private one is touched, and its public
        ones are used.

        Raises:
            Refused: a public unit was charged for as private, or the other way round; or it was
                private in an earlier version, and ``confirmed`` does not name these public units
                (`refuse_published`). Nothing was written.
        """

        def decide() -> _Entries | None:
            roster = Roster.of(version)
            refuse_published(dataset, version, roster, self._history, confirmed)
            sequence, registration = self._register(dataset, version, roster)
            return (registration, {sequence: roster}, None) if registration else None

        self._write(decide)

    def check_published(self, dataset: str, version: history.Version) -> None:
        """Raise the errors of `publish` for the units of a version, and write nothing."""
        self._refresh()
        refuse_published(dataset, version, Roster.of(version), self._history)

    def commit(self, charge_id: str, made: Mapping[str, str] | None = None) -> None:
        """Record that a run ended well, and the files that it made: their SHA-256 by name.

        Doing so twice has no further effect. Files that were restored with a newer statement are
        recorded beside the first.

        Raises:
            PipelineError: no such charge, or its tensors are not those that it made first.
        """
        content: dict[str, Any] = {"kind": "committed", "charge": charge_id}
        content |= {"made": dict(made)} if made else {}

        def decide() -> _Entries | None:
            charge = self._history.charges.get(charge_id)
            if charge is None:
                raise PipelineError(
                    f"charge {charge_id}: not in the ledger; see `primorl ledger show`"
                )
            if charge.state == "committed":
                if not made or made in charge.made:
                    return None
                charge.refuse_another_draw(made)
            return [{**content, "time": _now()}], {}, None

        self._write(decide)

    def charges(self) -> list[history.Charge]:
        """Return every charge, oldest first."""
        self._refresh()
        return list(self._history.charges.values())

    def account(self, version: history.Version) -> Account:
        """Return the charges on versions that share a unit with this one (registered or not),
        oldest first.
        """
        self._refresh()
        return account_of(self._history, version, Roster.of(version))

    def accounts(self) -> dict[int, tuple[history.Registered, Account]]:
        """Return the account of every version, charged or only published, by the sequence of its
        record.
        """
        self._refresh()
        own = self._history
        return {
            each: (known, account_of(own, known, own.roster(each)))
            for each, known in own.versions.items()
        }

    def verify(self) -> int:
        """Read everything again and check it: hashes, order, the anchor, the members of every
        version. Write nothing.

        A ledger without its head verifies (a project that shares it may have none yet);
        `check_head` refuses it.

        Returns:
            The number of records.

        Raises:
            PipelineError: names the first broken record.
        """
        # before the records, which only grow
        anchored = self._anchor.read()
        found = Directory(self._store, history.Chain(self._secret, self._store.shown))
        found.extend(self._store.read())
        self._check_head(found.chain, anchored)
        for sequence in found.versions:
            found.roster(sequence)  # which checks its digests
        self._history = found
        self.progress.check(found.charges)
        return len(found.chain.hashes)

    def check_head(self) -> None:
        """Check that the head is there, if there are records: without it a cut at the end would go
        unnoticed.

        Raises:
            PipelineError: it is not.
        """
        self._refresh()
        if self._history.chain.hashes and self._anchor.read() is None:
            raise PipelineError(
                f"{self._anchor.path}: not there, so ledger {self._store.shown} may be cut; "
                "restore .primorl from its backup, or copy the file from a project that shares it"
            )

    def _write(self, decide: Callable[[], _Entries | None]) -> None:
        """Append the decision of ``decide`` on the present history, if it decides to write; decide
        anew if another process was first.
        """
        for attempt in range(_ATTEMPTS):
            self._refresh()
            decided = decide()
            if decided is None or self._append(*decided):
                return
            # From the system, as forked processes share the state of `random` and would keep
            # colliding.
            time.sleep(
                random.SystemRandom().uniform(0, min(_LONGEST_PAUSE, 0.002 * 2 ** min(attempt, 10)))
            )
        raise PipelineError(
            f"ledger {self._store.shown}: others wrote first {_ATTEMPTS} times; try again later"
        )

    def _append(
        self,
        contents: Sequence[Mapping[str, Any]],
        rosters: Mapping[int, Roster],
        mark: Mark | None,
    ) -> bool:
        """Write a decision on the history as read; return False if other records were appended
        meanwhile.

        Before the first record a head is written; before later records there must be one.
        """
        records = self._history.chain.following(contents)
        if self._history.chain.hashes:
            self.check_head()
        else:
            self._anchor.advance(history.BEGUN)
        stored = {sequence: roster.encode() for sequence, roster in rosters.items()}
        if not self._store.append(records, stored, mark):
            return False
        self._refresh()
        hashes = self._history.chain.hashes  # with what others appended meanwhile
        self._anchor.advance(history.Head(len(hashes), hashes[-1]))
        return True

    def _refresh(self) -> None:
        # First: the chain only grows, so it must be found afterwards.
        anchored = self._anchor.read()
        self._history.extend(self._store.read(len(self._history.chain.hashes)))
        self._check_head(self._history.chain, anchored)

    def _check_head(self, chain: history.Chain, anchored: history.Head | None) -> None:
        if anchored is None or anchored.sequence < 1:
            return
        found = chain.hashes[: anchored.sequence]
        if len(found) < anchored.sequence or found[-1] != anchored.hash:
            why = f"missing, or not as {self._anchor.path} says (or ledger.url names another)"
            raise chain.broken(min(len(found) + 1, anchored.sequence), why)

    def _register(
        self, dataset: str, version: history.Version, roster: Roster
    ) -> tuple[int, list[dict[str, Any]]]:
        """Return the sequence of a version's record, and the record to append if it is new."""
        digest, stored = self._history.chain.members_digest, roster.encode()
        wanted = history.Registered(
            fingerprint=version.fingerprint,
            unit=version.unit,
            units=version.units,
            population=version.population,
            members=digest(stored.get("private", b"")),
            public=digest(stored.get("public", b"")),
            dataset=dataset,
        )
        for sequence, known in self._history.versions.items():
            if replace(known, dataset=dataset) == wanted:  # registered for any entry
                return sequence, []
        return len(self._history.chain.hashes) + 1, [
            {"kind": "version", "time": _now(), **vars(wanted)}
        ]


def new_charge_id() -> str:
    """Return a random id for a new charge."""
    return secrets.token_hex(8)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
