"""How far the ledger had come, remembered outside its database: a ledger that ends earlier has lost records."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from primorl.project.errors import PipelineError
from primorl.project.files import replaced_file

_HASH_DIGITS = 64


@dataclass(frozen=True)
class Head:
    """A record by its sequence and hash."""

    sequence: int
    hash: str


BEGUN = Head(0, "0" * _HASH_DIGITS)
"""The head before the first record. It is on the disk before the first record is in the database, so records without a
head have lost it."""


class Anchor:
    """A small file that only ever moves forwards; only `replace` (a repair that was asked for) sets it anew.

    It begins before the first record and is written after the database has each later one, so a crash in between leaves
    it behind, never ahead. Who can put back both an old database and an old anchor is not noticed.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> Head | None:
        """What was remembered; None if nothing was yet.

        Raises:
            PipelineError: the file is unreadable or damaged.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as unreadable:
            raise PipelineError(f"{self.path}: the ledger's head cannot be read ({unreadable.strerror})") from None
        try:
            content = json.loads(text)
            head = Head(content["sequence"], content["hash"])
            sound = (
                type(head.sequence) is int and head.sequence >= 0 and len(bytes.fromhex(head.hash)) * 2 == _HASH_DIGITS
            )
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise PipelineError(
                f"{self.path}: damaged; expected one line of JSON with the ledger's last `sequence` and `hash`; "
                "restore it from its backup, or run `primorl ledger repair`"
            )
        return head

    def advance(self, head: Head) -> None:
        """Remember ``head``, durably, unless something later is remembered already.

        Raises:
            PipelineError: the file cannot be written, or is damaged.
        """
        with self._locked():
            known = self.read()
            if known is None or known.sequence < head.sequence:
                self._write(head)

    def replace(self, head: Head) -> Path | None:
        """Set the head anew, also backwards or over a damaged file; return where the previous file is kept, if any.

        Raises:
            PipelineError: the file cannot be written.
        """
        with self._locked():
            kept = self._beside(f"before-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
            if there := self.path.exists():
                os.link(self.path, kept)  # the head itself stays in its place until the new one takes it
            self._write(head)
            return kept if there else None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._beside("lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as refused:
            raise PipelineError(f"{self.path}: the ledger's head cannot be written ({refused.strerror})") from None

    def _write(self, head: Head) -> None:
        with replaced_file(self.path) as fresh:
            fresh.chmod(0o600)
            fresh.write_text(json.dumps({"sequence": head.sequence, "hash": head.hash}) + "\n", encoding="utf-8")

    def _beside(self, purpose: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{purpose}")
