"""Accounts: which charges count on the units of a dataset version, and how often, as one of its units sees it.

A *kind of unit* is a name of a unit in one population; a trajectory is one kind everywhere. Two versions share people
if a digest is in both, or if they are of one population and of different kinds: then the same person may have no digest
in common, as units of different kinds have different ids.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dp_accounting import dp_event

from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.groups import grouped
from primorl.privacy.accounting.privacy_filter import UNBOUNDED, Cost, cost, total
from primorl.privacy.ledger.history import Budget, Charge, Registered, Version
from primorl.privacy.ledger.roster import Directory, Roster

TRAJECTORY = "trajectory"
_MOST_DIFFERENT = 24


@dataclass(frozen=True)
class Entry:
    """A charge as one unit of the account sees it; None of its ``units``: nobody declared how many one may be."""

    charge: Charge
    units: int | None

    @property
    def event(self) -> dp_event.DpEvent:
        """What happened to so many units together; without a declared bound, nothing is guaranteed."""
        return seen(event_from_json(self.charge.event), self.units)

    @property
    def cost(self) -> Cost:
        """What it costs in the filter's currencies; as the ledger recorded it, where it did."""
        if self.units is None:
            return UNBOUNDED
        recorded = None if self.units > 1 or self.charge.cost is None else Cost.from_json(self.charge.cost)
        return recorded or cost(self.event)


@dataclass(frozen=True)
class Total:
    """What an account comes to, at one δ; infinite where nothing is guaranteed.

    ``epsilon`` is by the privacy filter (`primorl.privacy.accounting.privacy_filter`): a budget of this size would have
    granted exactly these charges, however each was chosen. ``epsilon_fixed``, by PLD, holds if all settings were fixed
    before the first result was seen; beyond 24 different events PLD takes long, and the filter's stands here too.
    ``epsilon_rdp`` is the same by RDP, at the filter's orders.
    """

    epsilon: float
    epsilon_fixed: float
    epsilon_rdp: float
    delta: float
    charges: int


@dataclass(frozen=True)
class Account:
    """The charges on all versions that share a unit with one version, oldest first."""

    entries: tuple[Entry, ...]

    @property
    def charges(self) -> list[Charge]:
        """The charges."""
        return [entry.charge for entry in self.entries]

    @functools.cached_property
    def cost(self) -> Cost:
        """What they cost together in the filter's currencies."""
        return total([entry.cost for entry in self.entries])

    @property
    def events(self) -> list[dp_event.DpEvent]:
        """What happened to one unit of the account, oldest first."""
        return [entry.event for entry in self.entries]

    def epsilon(self, delta: float) -> float:
        """ε at ``delta`` by the filter; see `Total`."""
        return _by_filter(self.cost, self.events, delta)

    def total(self, delta: float) -> Total:
        """Everything at ``delta``."""
        return _total(self.cost, self.events, delta)

    def fits_all(self, events: Sequence[dp_event.DpEvent], budget: Budget) -> bool:
        """Whether a budget allows these events, one after the other."""
        return self.with_events(events, budget.delta) <= budget.epsilon

    def with_events(self, events: Sequence[dp_event.DpEvent], delta: float) -> float:
        """ε at ``delta`` with these events. The first one of all was fixed beforehand, so PLD holds for it too."""
        by_filter = total([self.cost, *(cost(event) for event in events)]).epsilon(delta)
        first = len(events) == 1 and not self.entries
        return min(by_filter, fixed_epsilon(events, delta)) if first else by_filter

    def running(self, delta: float) -> Iterator[tuple[Charge, float]]:
        """Each charge, and ε at ``delta`` right after it."""
        costs = Cost()
        for number, entry in enumerate(self.entries, 1):
            costs += entry.cost
            yield entry.charge, _by_filter(costs, self.events[:1], delta) if number == 1 else costs.epsilon(delta)


def seen(event: dp_event.DpEvent, units: int | None) -> dp_event.DpEvent:
    """What an event is for so many of its units together; None: nobody knows how many, so nothing is guaranteed."""
    return dp_event.NonPrivateDpEvent() if units is None else grouped(event, units)


def total_of(events: Sequence[dp_event.DpEvent], delta: float) -> Total:
    """What an account of these events comes to, oldest first, as one unit of it sees them (`Entry.event`)."""
    return _total(total([cost(event) for event in events]), events, delta)


def _total(costs: Cost, events: Sequence[dp_event.DpEvent], delta: float) -> Total:
    epsilon = _by_filter(costs, events, delta)
    fixed = min(epsilon, fixed_epsilon(events, delta))  # what holds for any choice holds for a fixed one
    return Total(epsilon, fixed, costs.renyi_epsilon(delta), delta, len(events))


def _by_filter(costs: Cost, events: Sequence[dp_event.DpEvent], delta: float) -> float:
    """A single event was chosen before there was any result, so PLD's ε holds for it too."""
    epsilon = costs.epsilon(delta)
    return min(epsilon, fixed_epsilon(events, delta)) if len(events) == 1 else epsilon


def fixed_epsilon(events: Sequence[dp_event.DpEvent], delta: float) -> float:
    """ε of all events together by PLD, for settings that were fixed beforehand."""
    return _composed(tuple(sorted(Counter(events).items(), key=repr)), delta)


@functools.lru_cache(maxsize=4096)
def _composed(counted: tuple[tuple[dp_event.DpEvent, int], ...], delta: float) -> float:
    if any(isinstance(event, dp_event.NonPrivateDpEvent) for event, _ in counted) or len(counted) > _MOST_DIFFERENT:
        return math.inf
    return compose([event for event, count in counted for _ in range(count)], delta).epsilon_pld


@dataclass(frozen=True)
class OtherKind:
    """An account on the same people, of a ``unit`` of another kind than that of a request.

    One of its units may be so many ``units`` of the request; None: nobody declared a bound.
    """

    unit: str
    account: Account
    units: int | None


def same_kind(one: Version | Registered | Charge, other: Version | Registered | Charge) -> bool:
    """Whether units of the two are of one kind. Older records name no population: there the unit's name decides."""
    elsewhere = None not in (one.population, other.population) and one.population != other.population
    return one.unit == other.unit and (one.unit == TRAJECTORY or not elsewhere)


def account_of(directory: Directory, version: Version | Registered, roster: Roster) -> Account:
    """Every charge on a version that shares people with this one, oldest first."""
    sharing, history = dict(_sharing(directory, version, roster)), directory.history
    bounds = [known.trajectories_per_person for known in sharing.values()]
    charges = [each for each in history.charges.values() if each.version in sharing]
    return Account(tuple(Entry(charge, _units(version, charge, bounds)) for charge in charges))


def other_kinds(directory: Directory, version: Version, roster: Roster) -> list[OtherKind]:
    """The accounts of versions that share people with this one and have another kind of unit."""
    found = []
    for sequence, known in _sharing(directory, version, roster):
        if not same_kind(known, version):
            theirs = directory.roster(sequence)
            bounds = [each.trajectories_per_person for _, each in _sharing(directory, known, theirs)]
            units = _units(known, version, [*bounds, version.trajectories_per_person])
            account = account_of(directory, known, theirs)
            if account.entries:  # none: public units alone were used
                found.append(OtherKind(known.unit, account, units))
    return found


def _sharing(directory: Directory, version: Version | Registered, roster: Roster) -> Iterator[tuple[int, Registered]]:
    for sequence, known in directory.history.versions.items():
        one_population = version.population is not None and version.population == known.population
        by_population = one_population and not same_kind(version, known)
        if by_population or roster.shares("private", directory.roster(sequence), "private"):
            yield sequence, known


def _units(of: Version | Registered, other: Version | Registered | Charge, bounds: list[int | None]) -> int | None:
    """How many units of ``other`` one unit of ``of`` may be; None: nobody declared it.

    A trajectory belongs to one unit of any kind. Units of two kinds meet in trajectories: whoever has at most k of them
    has at most k units of any kind. The bound must be declared for the units of ``of``, which are meant by "one person"
    there; of several declared ones the largest holds.
    """
    if same_kind(of, other) or of.unit == TRAJECTORY:
        return 1
    own = of.trajectories_per_person
    return None if own is None else max([own, *(bound for bound in bounds if bound is not None)])
