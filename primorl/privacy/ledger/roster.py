"""Who is in which dataset version, as keyed digests: every digest is kept once, and each version is a set of bits.

A version's digests are looked up among those of all earlier versions. Those that are new make a *segment*. The version
itself is one bitmap for each segment that it has digests of, and one more for each side, private and public. So twenty
versions of the same people take hardly more room than one, and two versions share a unit where two bitmaps have a bit
in common.

Of each digest the first eight bytes count. They agree by chance with probability 2^-64 a pair, and then two versions
are taken to share a unit, which errs on the safe side.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from primorl.privacy.ledger.history import History, Registered, Version
from primorl.privacy.ledger.store import Packed, Side, Store

DIGEST_BYTES = 16
SIDES: tuple[Side, Side] = ("private", "public")

Heads = npt.NDArray[np.uint64]
Bits = npt.NDArray[np.uint8]
"""Packed: eight digests of a segment a byte."""


@dataclass(frozen=True)
class Roster:
    """The digests of one version: in ``segment`` those that no earlier version has, sorted.

    ``bits`` says, by side and segment, which digests are in it. A segment is named by the version that began it.
    """

    segment: Heads
    bits: Mapping[tuple[Side, int], Bits]

    def shares(self, side: Side, other: "Roster", its: Side) -> bool:
        """Whether one side of this version has a digest in common with one of ``other``."""
        mine = {segment: bits for (of, segment), bits in self.bits.items() if of == side}
        return any(
            bool((mine[segment] & bits).any())
            for (of, segment), bits in other.bits.items()
            if of == its and segment in mine
        )

    def shares_any(self, other: "Roster") -> bool:
        """Whether this version has a digest in common with ``other``, on whatever sides."""
        return any(self.shares(side, other, its) for side in SIDES for its in SIDES)

    def newly_public(self, earlier: Sequence["Roster"]) -> bool:
        """Whether a public digest of this version is private in one of ``earlier``, and public in none."""
        for (side, segment), bits in self.bits.items():
            if side == "private":
                continue
            none = np.zeros_like(bits)
            public = [other.bits.get(("public", segment), none) for other in earlier]
            private = [other.bits.get(("private", segment), none) for other in earlier]
            if (bits & np.bitwise_or.reduce([none, *private]) & ~np.bitwise_or.reduce([none, *public])).any():
                return True
        return False

    def packed(self) -> Packed:
        """What a database holds of it."""
        bits = {key: zlib.compress(bits.tobytes(), 1) for key, bits in self.bits.items()}
        return Packed(self.segment.tobytes(), bits)


def heads(digests: bytes) -> Heads:
    """The first eight bytes of every digest, sorted, each once."""
    return np.unique(np.frombuffer(digests, "<u8").reshape(-1, DIGEST_BYTES // 8)[:, 0])


def placed(private: Heads, public: Heads, own: int, segments: Iterable[int], segment: Callable[[int], Heads]) -> Roster:
    """Lay out a version's private and public heads among the segments that are there, named oldest first.

    It would begin a segment of the name ``own``; ``segment`` gives the digests of earlier ones by name.
    """
    left: dict[Side, Heads] = {"private": private, "public": public}
    bits: dict[tuple[Side, int], Bits] = {}
    for name in segments:
        known = segment(name)
        for side in SIDES:
            at, found = _positions(known, left[side])
            if found.any():
                bits[side, name] = _bits(at[found], known.size)
                left[side] = left[side][~found]
    fresh = np.union1d(left["private"], left["public"])
    for side in SIDES:
        if left[side].size:
            bits[side, own] = _bits(_positions(fresh, left[side])[0], fresh.size)
    return Roster(fresh, bits)


def _positions(known: Heads, wanted: Heads) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Where each of ``wanted`` is in ``known``, both sorted, and whether it is there."""
    if known.size == 0:
        return np.zeros(wanted.size, np.intp), np.zeros(wanted.size, bool)
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return at, known[at] == wanted


def _bits(at: npt.NDArray[np.intp], size: int) -> Bits:
    chosen = np.zeros(size, bool)
    chosen[at] = True
    return np.packbits(chosen)


class Directory:
    """Who is in the versions of a history, which may grow; the store has the digests."""

    def __init__(self, store: Store, history: History):
        self._store = store
        self.history = history
        self._rosters: dict[int, Roster] = {}  # by the sequence of their version's record
        self._segments: dict[int, Heads] = {}

    def check(self) -> None:
        """Read the digests of every version; raises and names the first version whose digests are gone or edited."""
        for sequence in self.history.versions:
            self.roster(sequence)
            self.segment(sequence)

    def placed(self, version: Version) -> Roster:
        """A version's digests among those of the versions that are there."""
        own, earlier = len(self.history.chain.hashes) + 1, list(self.history.versions)
        return placed(heads(version.members), heads(version.public), own, earlier, self.segment)

    def roster(self, version: int) -> Roster:
        """That of a version that is there, without its segment, checked when it is read first."""
        if version not in self._rosters:
            known = self.history.versions[version]
            if known.bits is None:
                self._rosters[version] = self._old_roster(version, known)
            else:
                bits = self._store.bits(version)
                self._check(version, one(bits), known.bits)
                unpacked = {key: np.frombuffer(zlib.decompress(part), np.uint8) for key, part in bits.items()}
                self._rosters[version] = Roster(np.empty(0, np.uint64), unpacked)
        return self._rosters[version]

    def _old_roster(self, version: int, known: Registered) -> Roster:
        """That of a version of schema 1, whose digests are kept whole."""
        content = self._check(version, self._store.members(version), known.members)
        earlier = [each for each in self.history.versions if each < version]
        roster = placed(heads(content), heads(b""), version, earlier, self.segment)
        self._segments[version] = roster.segment
        return roster

    def segment(self, version: int) -> Heads:
        """The digests of the segment that a version began, checked when they are read first."""
        if version not in self._segments:
            digest = self.history.versions[version].segment
            if digest is None:
                self.roster(version)
            else:
                content = self._check(version, self._store.segment(version), digest)
                self._segments[version] = np.frombuffer(content, "<u8")
        return self._segments[version]

    def _check(self, version: int, content: bytes | None, digest: str) -> bytes:
        if content is None or self.history.chain.members_digest(content) != digest:
            raise self.history.chain.broken(version, "the members of this dataset version were removed or edited")
        return content


def one(bits: Mapping[tuple[Side, int], bytes]) -> bytes:
    """A roster's bitmaps as one string of bytes, which no other bitmaps give."""
    return b"".join(f"{side} {segment} {len(part)}\n".encode() + part for (side, segment), part in sorted(bits.items()))
