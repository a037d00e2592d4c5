"""Records that are bound to one another by keyed hashes: who lacks the secret can break the chain, not forge it."""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primorl.project.errors import PipelineError

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
    """The records of a ledger that were read and found intact, oldest first; sequences count from 1.

    A record's hash is HMAC-SHA256, under a key made of the project's ``secret``, over the hash before it and its body,
    which repeats its sequence. So an edit, a removal, an insertion, a duplicate and a change of order all show; only a
    cut at the end does not, and against that the head is remembered elsewhere (`anchor`).
    """

    def __init__(self, secret: bytes, ledger: str):
        self._records_key = hmac.digest(secret, _RECORDS, hashlib.sha256)
        self._members_key = hmac.digest(secret, _MEMBERS, hashlib.sha256)
        self._ledger = ledger
        self._head: Record | None = None
        self.hashes: list[str] = []

    def members_digest(self, members: bytes) -> str:
        """The keyed digest by which a ``version`` record names its members."""
        return hmac.new(self._members_key, members, hashlib.sha256).hexdigest()

    def following(self, contents: Sequence[Mapping[str, Any]]) -> list[Record]:
        """The records that would come next with these contents; the chain itself stays as it is."""
        records: list[Record] = []
        previous = self.hashes[-1] if self.hashes else _BEFORE_THE_FIRST
        for sequence, content in enumerate(contents, len(self.hashes) + 1):
            body = canonical({**content, "sequence": sequence})
            records.append(Record(sequence, body, previous, self._hash(previous, body)))
            previous = records[-1].hash
        return records

    def extend(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Check what a database holds from the known head on, ordered by sequence, and take it in.

        Where there is a head, the first record repeats it. Returns the contents of those that are new.

        Raises:
            PipelineError: names the first broken record.
        """
        if self._head is not None:
            if not records or records[0] != self._head:
                raise self.broken(self._head.sequence, "edited or removed since it was last read")
            records = records[1:]
        contents, previous = [], self.hashes[-1] if self.hashes else _BEFORE_THE_FIRST
        for due, record in enumerate(records, len(self.hashes) + 1):
            contents.append(self._checked(record, due, previous, records))
            previous = record.hash
        if records:
            self._head = records[-1]
            self.hashes += [record.hash for record in records]
        return contents

    def broken(self, sequence: int, reason: str) -> PipelineError:
        """What to raise about a record."""
        return PipelineError(
            f"ledger {self._ledger}: record {sequence}: {reason}; nothing can be charged before the ledger is whole: "
            "restore the database from its backup, or see what `primorl ledger repair` can do"
        )

    def _checked(self, record: Record, due: int, previous: str, records: Sequence[Record]) -> dict[str, Any]:
        if record.sequence > due:
            raise self.broken(due, "missing")
        if record.sequence < due:
            raise self.broken(record.sequence, "inserted before the first")
        if not self._intact(record):
            if due == 1 and not any(self._intact(other) for other in records):
                raise PipelineError(
                    f"ledger {self._ledger}: written under another secret than this project's .primorl/secret; "
                    "put the secret back that was there when the ledger was begun"
                )
            raise self.broken(due, "its content, its link or its hash was edited")
        content: dict[str, Any] = json.loads(record.body)
        if content["sequence"] != due:
            raise self.broken(due, f"was written as record {content['sequence']}: moved, or others were taken out")
        if record.previous != previous:
            raise self.broken(due, f"does not follow the record {due - 1} that stands there")
        return content

    def _intact(self, record: Record) -> bool:
        texts = (record.body, record.previous, record.hash)
        if not all(isinstance(text, str) for text in texts):  # SQLite keeps whatever somebody put into a column
            return False
        expected = self._hash(record.previous, record.body)
        return hmac.compare_digest(expected.encode(), record.hash.encode())

    def _hash(self, previous: str, body: str) -> str:
        return hmac.new(self._records_key, f"{previous}\n{body}".encode(), hashlib.sha256).hexdigest()


def canonical(content: Mapping[str, Any]) -> str:
    """Strict JSON that is equal where the content is: sorted keys, no spaces, ASCII.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
