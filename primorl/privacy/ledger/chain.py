"""The chain of records and its anchor.

Keyed hashes bind each record to the one before: without the secret the chain can be broken, but not
forged. A cut at the end does not show in the chain; against it the anchor, a file outside the
database, remembers the last record.
"""

import fcntl
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primorl.base.errors import PipelineError
from primorl.base.files import replaced_file, sync

_RECORDS = b"primorl ledger records 1"  # the secret keys other things as well
_MEMBERS = b"primorl ledger members 1"
_BEFORE_THE_FIRST = "primorl ledger"


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
            f"ledger {self._ledger}: record {sequence}: {reason}; nothing can be charged before "
            "the ledger is whole: restore it and .primorl from their backup"
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
                f"{self.path}: not the ledger's head ({type(broken).__name__}); restore it from "
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
                f"{self.path}: the ledger's head cannot be written ({refused.strerror})"
            ) from None
