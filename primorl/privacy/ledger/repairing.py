"""Begin a new head for a ledger that has lost its own, and put on record what else was lost."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from primorl.privacy.ledger.anchor import BEGUN, Head
from primorl.privacy.ledger.ledger import Ledger
from primorl.project.errors import PipelineError

_ATTEMPTS = 20  # each is lost only to another process that writes a record at the same moment


@dataclass(frozen=True)
class Disagreement:
    """What is wrong with a ledger's head.

    Attributes:
        says: in words, after the head's name.
        records_lost: whether it proves that records are gone; a head that is missing or damaged proves nothing.
    """

    says: str
    records_lost: bool


class BrokenLedger(Ledger):
    """A ledger that is read whatever its head says: it may be missing, damaged, ahead of the records or another's."""

    def describe(self) -> str:
        """Where the ledger is, how many records it has and what the last one is.

        Raises:
            PipelineError: the records themselves are broken; names the first broken one.
        """
        count = self.verify()
        if count == 0:
            return f"ledger {self._store.shown}: no records"
        last = json.loads(self._store.read(count)[0].body)
        whole = f"ledger {self._store.shown}: {count} records, each as it was written"
        return f"{whole}; the last is of {last['time']}: {last['kind']}"

    def disagreement(self) -> Disagreement | None:
        """What is wrong with the head; None if it is the last record's, or that of an earlier one.

        Raises:
            PipelineError: the records themselves are broken; names the first broken one.
        """
        count = self.verify()
        try:
            known = self._anchor.read()
        except PipelineError:
            return Disagreement("damaged", records_lost=False)
        if known is None:
            return Disagreement("not there", records_lost=False) if count else None
        if known.sequence > count:
            lost = known.sequence - count
            return Disagreement(
                f"knows of {known.sequence} records, of which the last {lost} are lost", records_lost=True
            )
        if known != BEGUN and self._history.chain.hashes[known.sequence - 1] != known.hash:
            return Disagreement(
                f"knows another record {known.sequence}, of another ledger or of another past of this one",
                records_lost=True,
            )
        return None

    def renew_head(self) -> Path | None:
        """Begin a new head at the records as they stand; return where the previous one is kept, if there was one.

        Raises:
            PipelineError: the records themselves are broken, or the head cannot be written.
        """
        self.verify()
        hashes = self._history.chain.hashes
        return self._anchor.replace(Head(len(hashes), hashes[-1]) if hashes else BEGUN)

    def record_repair(self, said: Mapping[str, Any]) -> None:
        """Put a repair on record.

        Args:
            said: what was found and done. Its ``lost`` lists charges that count nowhere any more, each with its id as
                ``charge``.
        """
        record = {**said, "kind": "repaired", "time": datetime.now(UTC).isoformat(timespec="seconds")}
        for _ in range(_ATTEMPTS):
            self._refresh()
            if self._append([record], {}):
                return
        raise self._busy()

    def _remembered(self) -> Head | None:
        return None
