"""The rosters of a ledger's versions, as its database holds them: read when they are needed, checked, and kept."""

from collections.abc import Mapping

import numpy as np

from primorl.privacy.ledger.history import History, Registered
from primorl.privacy.ledger.requests import Version
from primorl.privacy.ledger.roster import Heads, Roster, Side, heads, placed
from primorl.privacy.ledger.store import Packed, Store


class Directory:
    """Who is in the versions of a history.

    Args:
        store: has the digests.
        history: has the versions; it may grow.
    """

    def __init__(self, store: Store, history: History):
        self._store = store
        self._history = history
        self._rosters: dict[int, Roster] = {}  # by the sequence of their version's record
        self._segments: dict[int, Heads] = {}

    def check(self) -> None:
        """Read the digests of every version.

        Raises:
            PipelineError: names the first version whose digests are gone or edited.
        """
        for sequence in self._history.versions:
            self.roster(sequence)
            self.segment(sequence)

    def placed(self, version: Version) -> Roster:
        """A version's digests among those of the versions that are there."""
        own, earlier = len(self._history.chain.hashes) + 1, list(self._history.versions)
        return placed(heads(version.members), heads(version.public), own, earlier, self.segment)

    def roster(self, version: int) -> Roster:
        """That of a version that is there, without its segment, checked when it is read first."""
        if version not in self._rosters:
            history, known = self._history, self._history.versions[version]
            if known.bits_digest is None:
                self._rosters[version] = self._old_roster(version, known)
            else:
                bits = self._store.bits(version)
                if history.chain.members_digest(one(bits)) != known.bits_digest:
                    raise history.chain.broken(version, "the members of this dataset version were removed or edited")
                self._rosters[version] = Roster.unpacked(np.empty(0, np.uint64), bits)
        return self._rosters[version]

    def _old_roster(self, version: int, known: Registered) -> Roster:
        """That of a version of schema 1, whose digests are kept whole."""
        content = self._store.members(version)
        if content is None:
            raise self._history.chain.broken(version, "the members of this dataset version were removed")
        if self._history.chain.members_digest(content) != known.members_digest:
            raise self._history.chain.broken(version, "the members of this dataset version were edited")
        earlier = [each for each in self._history.versions if each < version]
        roster = placed(heads(content), heads(b""), version, earlier, self.segment)
        self._segments[version] = roster.segment
        return roster

    def segment(self, version: int) -> Heads:
        """The digests of the segment that a version began, checked when they are read first."""
        if version not in self._segments:
            digest = self._history.versions[version].segment_digest
            if digest is None:
                self.roster(version)
                return self._segments[version]
            content = self._store.segment(version)
            if content is None or self._history.chain.members_digest(content) != digest:
                raise self._history.chain.broken(version, "the members of this dataset version were removed or edited")
            self._segments[version] = np.frombuffer(content, "<u8")
        return self._segments[version]


def packed(roster: Roster) -> Packed:
    """What a database holds of a roster."""
    return Packed(roster.segment.tobytes(), roster.packed())


def one(bits: Mapping[tuple[Side, int], bytes]) -> bytes:
    """A roster's bitmaps as one string of bytes, which no other bitmaps give."""
    return b"".join(f"{side} {segment} {len(part)}\n".encode() + part for (side, segment), part in sorted(bits.items()))
