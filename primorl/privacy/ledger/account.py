"""Rosters and accounts: members of dataset versions as keyed digests, and the charges on versions
that share members.

A roster stores every digest once. A version's digests are looked up among those of all earlier
versions; the new ones form a *segment*. The version itself is one bitmap for each segment and side,
private and public. So twenty versions of the same people take hardly more room than one, and two
versions share a unit where two bitmaps have a bit in common. Only the first eight bytes of a digest
are compared. Two digests agree by chance with probability 2^-64; then two versions are taken to
share a unit, which errs on the safe side.

An account collects the charges on all versions that share a unit with one version, and adds them up
by the privacy filter. A charge on another kind of unit counts as often as one unit may have units
of that kind.
"""

import functools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event

from primorl.privacy.accounting.epsilon import compose, grouped
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.privacy_filter import UNBOUNDED, Cost, cost, total
from primorl.privacy.ledger.history import Charge, History, Registered, Version
from primorl.privacy.ledger.store import Packed, Side, Store

DIGEST_BYTES = 16
SIDES: tuple[Side, Side] = ("private", "public")
TRAJECTORY = "trajectory"
"""Unit of a dataset that does not say which person a trajectory belongs to."""
_MOST_DIFFERENT = 24  # events that PLD composes

Heads = npt.NDArray[np.uint64]
Bits = npt.NDArray[np.uint8]
"""Packed bitmap over the digests of a segment, eight a byte."""


@dataclass(frozen=True)
class Roster:
    """Digests of one version.

    Attributes:
        segment: those that no earlier version has, sorted.
        bits: which digests are in the version, by side and segment. A segment is named by the
            version that began it.
    """

    segment: Heads
    bits: Mapping[tuple[Side, int], Bits]

    def shares(self, side: Side, other: "Roster", its: Side) -> bool:
        """Tell whether one side of this version has a digest in common with side ``its`` of
        ``other``.
        """
        mine = {segment: bits for (of, segment), bits in self.bits.items() if of == side}
        return any(
            bool((mine[segment] & bits).any())
            for (of, segment), bits in other.bits.items()
            if of == its and segment in mine
        )

    def shares_any(self, other: "Roster") -> bool:
        """Tell whether this version has a digest in common with ``other``, on any side."""
        return any(self.shares(side, other, its) for side in SIDES for its in SIDES)

    def newly_public(self, earlier: Sequence["Roster"]) -> bool:
        """Tell whether a public digest of this version is private in one of ``earlier``, and public
        in none.
        """
        for (side, segment), bits in self.bits.items():
            if side == "private":
                continue
            none = np.zeros_like(bits)
            public = [other.bits.get(("public", segment), none) for other in earlier]
            private = [other.bits.get(("private", segment), none) for other in earlier]
            if (
                bits
                & np.bitwise_or.reduce([none, *private])
                & ~np.bitwise_or.reduce([none, *public])
            ).any():
                return True
        return False

    def packed(self) -> Packed:
        """Compress the roster for the database."""
        bits = {key: zlib.compress(bits.tobytes(), 1) for key, bits in self.bits.items()}
        return Packed(self.segment.tobytes(), bits)


def heads(digests: bytes) -> Heads:
    """Return the first eight bytes of every digest, sorted, each once."""
    return np.unique(np.frombuffer(digests, "<u8").reshape(-1, DIGEST_BYTES // 8)[:, 0])


def placed(
    private: Heads,
    public: Heads,
    own: int,
    segments: Iterable[int],
    segment: Callable[[int], Heads],
) -> Roster:
    """Build the roster of a version from the heads of its digests.

    Args:
        private: heads of the private units.
        public: heads of the public units.
        own: name of the segment that this version would begin.
        segments: names of the existing segments, oldest first.
        segment: returns the digests of an existing segment.
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
    """Find the positions of ``wanted`` in ``known``, both sorted, and whether each is there."""
    if known.size == 0:
        return np.zeros(wanted.size, np.intp), np.zeros(wanted.size, bool)
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return at, known[at] == wanted


def _bits(at: npt.NDArray[np.intp], size: int) -> Bits:
    chosen = np.zeros(size, bool)
    chosen[at] = True
    return np.packbits(chosen)


def one(bits: Mapping[tuple[Side, int], bytes]) -> bytes:
    """Encode a roster's bitmaps as one string of bytes, different for different bitmaps."""
    return b"".join(
        f"{side} {segment} {len(part)}\n".encode() + part
        for (side, segment), part in sorted(bits.items())
    )


class Directory:
    """Rosters of the versions of a history, which may grow; they are read from the store once and
    checked.
    """

    def __init__(self, store: Store, history: History):
        self._store = store
        self.history = history
        self._rosters: dict[int, Roster] = {}  # by the sequence of their version's record
        self._segments: dict[int, Heads] = {}

    def check(self) -> None:
        """Read the digests of every version.

        Raise PipelineError for the first version with changed digests.
        """
        for sequence in self.history.versions:
            self.roster(sequence)
            self.segment(sequence)

    def placed(self, version: Version) -> Roster:
        """Build the roster of a version, registered or not, on the segments of the
        registered ones.
        """
        own, earlier = len(self.history.chain.hashes) + 1, list(self.history.versions)
        return placed(heads(version.members), heads(version.public), own, earlier, self.segment)

    def roster(self, version: int) -> Roster:
        """Return the roster of a registered version, without its segment; it is checked when first
        read.
        """
        if version not in self._rosters:
            bits = self._store.bits(version)
            self._check(version, one(bits), self.history.versions[version].bits)
            unpacked = {
                key: np.frombuffer(zlib.decompress(part), np.uint8) for key, part in bits.items()
            }
            self._rosters[version] = Roster(np.empty(0, np.uint64), unpacked)
        return self._rosters[version]

    def segment(self, version: int) -> Heads:
        """Return the digests of the segment that a version began; they are checked when
        first read.
        """
        if version not in self._segments:
            digest = self.history.versions[version].segment
            content = self._check(version, self._store.segment(version), digest)
            self._segments[version] = np.frombuffer(content, "<u8")
        return self._segments[version]

    def _check(self, version: int, content: bytes | None, digest: str) -> bytes:
        if content is None or self.history.chain.members_digest(content) != digest:
            raise self.history.chain.broken(
                version, "the members of this dataset version were removed or edited"
            )
        return content


@dataclass(frozen=True)
class Entry:
    """A charge as one unit of the account sees it: as ``units`` units of the charge; None: no bound
    is declared.
    """

    charge: Charge
    units: int | None

    @property
    def event(self) -> dp_event.DpEvent:
        """Event of all these units together; without a declared bound, nothing is guaranteed."""
        return seen(event_from_json(self.charge.event), self.units)

    @property
    def cost(self) -> Cost:
        """The recorded cost in the filter's currencies of one unit, or the computed one of
        several.
        """
        if self.units is None:
            return UNBOUNDED
        return cost(self.event) if self.units > 1 else Cost.from_json(self.charge.cost)


@dataclass(frozen=True)
class Total:
    """Total of an account at one δ; infinite where nothing is guaranteed.

    Attributes:
        epsilon: by the privacy filter (`primorl.privacy.accounting.privacy_filter`): a budget of
            this size would have granted exactly these charges, however each was chosen.
        epsilon_fixed: by PLD; it holds if all settings were fixed before the first result was seen.
            Beyond 24 different events, where PLD takes long, it is ``epsilon``.
        epsilon_rdp: by RDP, at the filter's orders.
        delta: δ of all three.
        charges: number of charges.
    """

    epsilon: float
    epsilon_fixed: float
    epsilon_rdp: float
    delta: float
    charges: int


@dataclass(frozen=True)
class Account:
    """Charges on all versions that share a unit with one version, oldest first."""

    entries: tuple[Entry, ...]

    @property
    def charges(self) -> list[Charge]:
        """The charges."""
        return [entry.charge for entry in self.entries]

    @functools.cached_property
    def cost(self) -> Cost:
        """Cost of all together in the filter's currencies."""
        return total([entry.cost for entry in self.entries])

    @property
    def events(self) -> list[dp_event.DpEvent]:
        """Events of one unit of the account, oldest first."""
        return [entry.event for entry in self.entries]

    def epsilon(self, delta: float) -> float:
        """Compute ε at ``delta`` by the filter; see `Total`."""
        return _by_filter(self.cost, self.events, delta)

    def total(self, delta: float) -> Total:
        """Compute the total at ``delta``."""
        return _total(self.cost, self.events, delta)

    def with_events(self, events: Sequence[dp_event.DpEvent], delta: float) -> float:
        """Compute ε at ``delta`` after these events as well."""
        costs = total([self.cost, *(cost(event) for event in events)])
        return costs.epsilon(delta) if self.entries else _by_filter(costs, events, delta)

    def running(self, delta: float) -> Iterator[tuple[Charge, float]]:
        """Yield each charge with ε at ``delta`` right after it."""
        costs, events = Cost(), self.events
        for number, entry in enumerate(self.entries, 1):
            costs += entry.cost
            yield entry.charge, _by_filter(costs, events[:number], delta)


def seen(event: dp_event.DpEvent, units: int | None) -> dp_event.DpEvent:
    """Return the event of ``units`` units together; None: an unknown number, so nothing is
    guaranteed.
    """
    return dp_event.NonPrivateDpEvent() if units is None else grouped(event, units)


def total_of(events: Sequence[dp_event.DpEvent], delta: float) -> Total:
    """Compute the total of these events, oldest first, as one unit sees them (`Entry.event`)."""
    return _total(total([cost(event) for event in events]), events, delta)


def _total(costs: Cost, events: Sequence[dp_event.DpEvent], delta: float) -> Total:
    epsilon = _by_filter(costs, events, delta)
    # What holds for any choice holds for a fixed one.
    fixed = min(epsilon, fixed_epsilon(events, delta))
    return Total(epsilon, fixed, costs.renyi_epsilon(delta), delta, len(events))


def _by_filter(costs: Cost, events: Sequence[dp_event.DpEvent], delta: float) -> float:
    epsilon = costs.epsilon(delta)
    if len(events) == 1:  # chosen before there was any result, so PLD's ε holds too
        epsilon = min(epsilon, fixed_epsilon(events, delta))
    return epsilon


def fixed_epsilon(events: Sequence[dp_event.DpEvent], delta: float) -> float:
    """Compute ε of all events together by PLD, for settings that were fixed beforehand."""
    return _composed(tuple(sorted(Counter(events).items(), key=repr)), delta)


@functools.lru_cache(maxsize=4096)
def _composed(counted: tuple[tuple[dp_event.DpEvent, int], ...], delta: float) -> float:
    if (
        any(isinstance(event, dp_event.NonPrivateDpEvent) for event, _ in counted)
        or len(counted) > _MOST_DIFFERENT
    ):
        return math.inf
    return compose([event for event, count in counted for _ in range(count)], delta).epsilon_pld


@dataclass(frozen=True)
class OtherUnitAccount:
    """Account on the same people under another kind of unit than that of a request.

    One ``unit`` of the account may be up to ``units`` units of the request; None: no bound is
    declared.
    """

    unit: str
    account: Account
    units: int | None


def same_kind(one: Version | Registered | Charge, other: Version | Registered | Charge) -> bool:
    """Tell whether both have units of one kind. Without a population the unit's name decides."""
    elsewhere = (
        None not in (one.population, other.population) and one.population != other.population
    )
    return one.unit == other.unit and (one.unit == TRAJECTORY or not elsewhere)


def account_of(directory: Directory, version: Version | Registered, roster: Roster) -> Account:
    """Collect the charges on every version that shares people with this one, oldest first."""
    sharing, history = dict(_sharing(directory, version, roster)), directory.history
    bounds = [known.trajectories_per_person for known in sharing.values()]
    charges = [each for each in history.charges.values() if each.version in sharing]
    return Account(tuple(Entry(charge, _units(version, charge, bounds)) for charge in charges))


def other_kinds(directory: Directory, version: Version, roster: Roster) -> list[OtherUnitAccount]:
    """Collect the accounts of versions that share people with this one and have another kind of
    unit.
    """
    found = []
    for sequence, known in _sharing(directory, version, roster):
        if not same_kind(known, version):
            theirs = directory.roster(sequence)
            bounds = [
                each.trajectories_per_person for _, each in _sharing(directory, known, theirs)
            ]
            units = _units(known, version, [*bounds, version.trajectories_per_person])
            account = account_of(directory, known, theirs)
            if account.entries:  # none: public units alone were used
                found.append(OtherUnitAccount(known.unit, account, units))
    return found


def _sharing(
    directory: Directory, version: Version | Registered, roster: Roster
) -> Iterator[tuple[int, Registered]]:
    for sequence, known in directory.history.versions.items():
        one_population = version.population is not None and version.population == known.population
        by_population = one_population and not same_kind(version, known)
        if by_population or roster.shares("private", directory.roster(sequence), "private"):
            yield sequence, known


def _units(
    of: Version | Registered, other: Version | Registered | Charge, bounds: list[int | None]
) -> int | None:
    """Return how many units of ``other`` one unit of ``of`` may be; None: it is not declared.

    A trajectory belongs to one unit of any kind, so a unit of at most k trajectories is at most k
    units of any kind. The bound must be declared for ``of``; of several declared bounds the largest
    holds.
    """
    if same_kind(of, other) or of.unit == TRAJECTORY:
        return 1
    if of.trajectories_per_person is None:
        return None
    return max([of.trajectories_per_person, *(bound for bound in bounds if bound is not None)])
