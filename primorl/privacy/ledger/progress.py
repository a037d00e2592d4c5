"""Progress of every charge, counted in the ledger's database, so that an old copy of a checkpoint
is detected.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable

from primorl.base.errors import PipelineError
from primorl.privacy.ledger.chain import canonical
from primorl.privacy.ledger.store import Mark, Store

_PROGRESS = b"primorl ledger progress 1"  # the secret keys other things as well
_ATTEMPTS = 20


class Progress:
    """One mark for each charge, outside the chain: its owner, and how often its state was saved.

    Formal property: whatever copies of its checkpoints are put back, and whatever processes run,
    die or are killed, no save of a charge is followed by two releases. Every save has a number, one
    more than the save that it continues. A process makes a release only after it advanced the mark
    to the number of the save that announced it. The advance is a compare-and-swap, so one process
    succeeds. A process begins by writing its own name into the mark (`claim`), which is refused if
    the mark has a higher number than the checkpoint; the previous owner can advance no more. A
    mark's number never falls. So no number is reached twice, and rounds compute on private data at
    most as often as rounds are announced along one line of saves: T times.

    | case | what happens |
    |-----------------------------------------------|-----------------------------------------------------------|
    | killed between a checkpoint and its mark | it goes on, a round is lost |
    | an older copy of the checkpoint | its number is behind the mark: refused |
    | a copy resumes beside the living original | the original stops before its next release |
    | the mark was edited | its keyed digest does not hold: refused |
    | the mark was removed | it is written with the reservation: refused |
    | an old database and an old checkpoint | not noticed, as with an old database and head |

    Args:
        store: holds the marks.
        secret: of the project; the key of the marks is derived from it.
        marked: tells whether a charge's mark was written with its reservation. Work without a
            guarantee has none.
    """

    def __init__(self, store: Store, secret: bytes, marked: Callable[[str], bool]):
        self._store = store
        self._marked = marked
        self._key = hmac.digest(secret, _PROGRESS, hashlib.sha256)

    def first(self, charge: str) -> Mark:
        """Make the mark of a new charge, without an owner, to be written with its reservation."""
        return self._mark(charge, "", 0)

    def check(self, charges: Iterable[str]) -> None:
        """Check all marks.

        Raise PipelineError if one was edited, or the mark of one of ``charges`` was removed.
        """
        marks = {mark.charge: mark for mark in self._store.marks()}
        for mark in marks.values():
            self._check(mark)
        for charge in charges:
            if self._marked(charge) and charge not in marks:
                raise self._broken(charge, "removed")

    def behind(self, charge: str, saves: int) -> bool:
        """Tell whether a checkpoint with this number of saves is an old copy.

        Raise if the mark was edited.
        """
        mark = self._read(charge)
        return mark is not None and mark.saves > saves

    def claim(self, charge: str, owner: str, saves: int) -> Mark | None:
        """Write a new owner (a random name) into a charge's mark, to go on from a checkpoint with
        ``saves`` saves.

        Returns:
            The mark; None if the checkpoint is an old copy.

        Raises:
            PipelineError: the mark was edited or removed.
        """
        after = self._mark(charge, owner, saves)
        for _ in range(_ATTEMPTS):
            before = self._read(charge)
            if before is not None and before.saves > saves:
                return None
            if self._store.replace_progress(before, after):
                return after
        raise PipelineError(
            f"ledger {self._store.shown}: other processes changed charge {charge} meanwhile; try "
            "again"
        )

    def advance(self, mark: Mark) -> Mark:
        """Count one more save, durably.

        Call it after the checkpoint is on the disk and before the release.

        Raises:
            PipelineError: another process has resumed the charge from a copy; this one must release
                nothing more.
        """
        after = self._mark(mark.charge, mark.owner, mark.saves + 1)
        if (
            not self._store.replace_progress(mark, after)
            and self._store.progress(mark.charge) != after
        ):
            raise PipelineError(
                f"charge {mark.charge}: another process has resumed it from a copy of its "
                "checkpoint; this one stops before it reads anything more, and nothing more is "
                "spent"
            )
        return after

    def _read(self, charge: str) -> Mark | None:
        mark = self._store.progress(charge)
        if mark is None and self._marked(charge):
            raise self._broken(charge, "removed")
        return None if mark is None else self._check(mark)

    def _check(self, mark: Mark) -> Mark:
        if type(mark.saves) is not int or mark != self._mark(
            mark.charge, str(mark.owner), mark.saves
        ):
            raise self._broken(mark.charge, "edited")
        return mark

    def _mark(self, charge: str, owner: str, saves: int) -> Mark:
        content = canonical({"charge": charge, "owner": owner, "saves": saves})
        return Mark(
            charge, owner, saves, hmac.new(self._key, content.encode(), hashlib.sha256).hexdigest()
        )

    def _broken(self, charge: str, what: str) -> PipelineError:
        return PipelineError(
            f"ledger {self._store.shown}: ledger_progress: the row of charge {charge} was {what}, "
            "so nobody knows which checkpoint is the newest; restore the database from its "
            "backup; the charge stays spent"
        )
