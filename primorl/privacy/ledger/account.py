"""Rosters and accounts: members of dataset versions as keyed digests, and the charges on versions
that share members.

Only the first eight bytes of a digest are kept and compared. Two digests agree by chance with
probability 2^-64; then two versions are taken to share a unit, which errs on the safe side.

An account collects the charges on all versions that share a unit with one version, and adds them up
by the privacy filter. Beside a charge on another kind of unit nothing is guaranteed. Refusals check
a request against the account and the history as they were read; they write nothing.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from primorl.base import Busy
from primorl.privacy.accounting import DpEvent, dp
from primorl.privacy.accounting.epsilon import compose, event_from_json
from primorl.privacy.accounting.privacy_filter import UNBOUNDED, Cost, cost, total
from primorl.privacy.accounting.rounding import at_most, rest_of
from primorl.privacy.ledger.history import (
    Budget,
    BudgetExceeded,
    Chain,
    Charge,
    History,
    Refused,
    Registered,
    Request,
    Version,
)
from primorl.privacy.ledger.store import SIDES, Side, Store

DIGEST_BYTES = 16
TRAJECTORY = "trajectory"
"""Unit of a dataset that does not say which person a trajectory belongs to."""

Heads = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Roster:
    """Heads of the digests of one version by side, sorted, each once."""

    heads: Mapping[Side, Heads]

    @classmethod
    def of(cls, version: Version) -> "Roster":
        """Make the roster of a version as a client describes it."""
        digests: dict[Side, bytes] = {"private": version.members, "public": version.public}
        words = {side: np.frombuffer(digests[side], "<u8") for side in SIDES}
        return cls({side: np.unique(each[:: DIGEST_BYTES // 8]) for side, each in words.items()})

    def shares(self, side: Side, other: "Roster", its: Side) -> bool:
        """Tell whether one side of this version has a digest in common with side ``its`` of
        ``other``.
        """
        return _meet(self.heads[side], other.heads[its])

    def newly_public(self, earlier: Sequence["Roster"]) -> bool:
        """Tell whether a public digest of this version is private in one of ``earlier``, and public
        in none.
        """
        fresh = self.heads["public"]
        for other in earlier:
            fresh = np.setdiff1d(fresh, other.heads["public"], assume_unique=True)
        return any(_meet(fresh, other.heads["private"]) for other in earlier)

    def encode(self) -> dict[Side, bytes]:
        """Encode the roster for the database."""
        return {side: of.astype("<u8").tobytes() for side, of in self.heads.items() if of.size}


def _meet(one: Heads, other: Heads) -> bool:
    return bool(np.isin(one, other, assume_unique=True).any())


class Directory(History):
    """A history with the rosters of its versions; each is read from the store once and checked."""

    def __init__(self, store: Store, chain: Chain):
        super().__init__(chain)
        self._store = store
        self._rosters: dict[int, Roster] = {}  # by the sequence of their version's record

    def roster(self, version: int) -> Roster:
        """Return the roster of a registered version; it is checked when first read."""
        if version not in self._rosters:
            stored, known = self._store.members(version), self.versions[version]
            digests: dict[Side, str] = {"private": known.members, "public": known.public}
            for side in SIDES:
                if self.chain.members_digest(stored.get(side, b"")) != digests[side]:
                    why = "the members of this version were removed or edited"
                    raise self.chain.broken(version, why)
            heads = {side: np.frombuffer(stored.get(side, b""), "<u8") for side in SIDES}
            self._rosters[version] = Roster(heads)
        return self._rosters[version]


@dataclass(frozen=True)
class Entry:
    """A charge as one unit of the account sees it: on the ``same_unit``, or on another kind, beside
    which nothing is guaranteed.
    """

    charge: Charge
    same_unit: bool

    @property
    def event(self) -> DpEvent:
        """Event of the charge for one unit."""
        if not self.same_unit:
            return dp.NonPrivateDpEvent()
        return event_from_json(self.charge.event)

    @property
    def cost(self) -> Cost:
        """The recorded cost in the filter's currencies."""
        return Cost.from_json(self.charge.cost) if self.same_unit else UNBOUNDED


@dataclass(frozen=True)
class Account:
    """Charges on all versions that share a unit with one version, oldest first."""

    entries: tuple[Entry, ...]

    @property
    def charges(self) -> list[Charge]:
        """The charges."""
        return [entry.charge for entry in self.entries]

    @property
    def paid(self) -> dict[str, Charge]:
        """The newest charge of each identity of paid work."""
        return {charge.identity: charge for charge in self.charges}

    @functools.cached_property
    def cost(self) -> Cost:
        """Cost of all together in the filter's currencies."""
        return total([entry.cost for entry in self.entries])

    @property
    def events(self) -> list[DpEvent]:
        """Events of one unit of the account, oldest first."""
        return [entry.event for entry in self.entries]

    def epsilon(self, delta: float) -> float:
        """Compute ε at ``delta`` by the privacy filter: a budget of this size would have granted
        exactly these charges, however each was chosen; infinite where nothing is guaranteed.
        """
        return _by_filter(self.cost, self.events, delta)

    def with_events(self, events: Sequence[DpEvent], delta: float) -> float:
        """Compute ε at ``delta`` after these events as well."""
        costs = total([self.cost, *(cost(event) for event in events)])
        return costs.epsilon(delta) if self.entries else _by_filter(costs, events, delta)

    def running(self, delta: float) -> Iterator[tuple[Charge, float]]:
        """Yield each charge with ε at ``delta`` right after it."""
        costs, events = Cost(), self.events
        for number, entry in enumerate(self.entries, 1):
            costs += entry.cost
            yield entry.charge, _by_filter(costs, events[:number], delta)


def total_of(events: Sequence[DpEvent], delta: float) -> float:
    """Compute ε of these events as `Account.epsilon` does."""
    return _by_filter(total([cost(event) for event in events]), events, delta)


def _by_filter(costs: Cost, events: Sequence[DpEvent], delta: float) -> float:
    epsilon = costs.epsilon(delta)
    if len(events) == 1:  # chosen before there was any result, so PLD's ε holds too
        epsilon = min(epsilon, compose(events, delta).epsilon_pld)
    return epsilon


def same_kind(one: Version | Registered | Charge, other: Version | Registered | Charge) -> bool:
    """Tell whether both have units of one kind. Without a population the unit's name decides."""
    elsewhere = (
        None not in (one.population, other.population) and one.population != other.population
    )
    return one.unit == other.unit and (one.unit == TRAJECTORY or not elsewhere)


def account_of(directory: Directory, version: Version | Registered, roster: Roster) -> Account:
    """Collect the charges on every version that shares people with this one, oldest first."""
    sharing = set()
    for sequence, known in directory.versions.items():
        one_population = version.population is not None and version.population == known.population
        by_population = one_population and not same_kind(version, known)
        if by_population or roster.shares("private", directory.roster(sequence), "private"):
            sharing.add(sequence)
    charges = [each for each in directory.charges.values() if each.version in sharing]
    return Account(tuple(Entry(charge, same_kind(version, charge)) for charge in charges))


def refuse_second(request: Request, history: History) -> None:
    """Refuse work that a charge already pays for. Work without an identity is never the same."""
    for charge in history.charges.values():
        if request.identity and charge.identity == request.identity:
            raise Busy(
                f"{charge}: pays for exactly this result; wait for its process; "
                f"{charge.another_draw}"
            )


def refuse_published(
    dataset: str, own: Version, roster: Roster, directory: Directory, confirmed: str | None = None
) -> None:
    """Refuse units that were public and are private now, or the other way round.

    Units that were private and never charged for may become public where ``confirmed`` names all
    public units of this version; the error gives the name.
    """
    charged: dict[int, set[str]] = {}
    for charge in directory.charges.values():
        charged.setdefault(charge.version, set()).add(charge.dataset)
    where = f"dataset {dataset!r}"
    for sequence, known in directory.versions.items():
        earlier = directory.roster(sequence)
        one_population = own.population is not None and own.population == known.population
        published = bool(own.public) or bool(earlier.heads["public"].size)
        if one_population and published and not same_kind(own, known):
            raise Refused(
                f"{where}: unit: found {own.unit!r}, and an earlier run on the same population had "
                f"{known.unit!r}, which does not tell whose the public units are; keep the unit"
            )
        if one_population and published and own.unit == TRAJECTORY:
            _refuse_hidden(dataset, own, roster, known, earlier, charged.get(sequence, set()))
        if sequence in charged and roster.shares("public", earlier, "private"):
            raise Refused(
                f"{where}: the public split holds units that earlier runs were charged for as "
                "private; put partition in params.yaml and consent back, or take other data"
            )
        if roster.shares("private", earlier, "public"):
            raise Refused(
                f"{where}: the private split holds units that an earlier split made public; put "
                "partition and consent back, or leave these units out (ingestion.exclude_units)"
            )
    if roster.newly_public([directory.roster(sequence) for sequence in directory.versions]):
        name = "p" + directory.chain.members_digest(b"publish" + own.public)[:8]
        if confirmed != name:
            raise Refused(
                f"{where}: partition: found units that would become public and were private; put "
                f"it and consent back; or, if it is meant, run `primorl ledger publish {name}`"
            )


def _refuse_hidden(
    dataset: str,
    own: Version,
    roster: Roster,
    known: Registered,
    earlier: Roster,
    entries: set[str],
) -> None:
    """Refuse trajectories that may be those of an earlier version under other ids or columns."""
    entries = entries | {known.dataset}
    shared = any(roster.shares(one, earlier, its) for one in SIDES for its in SIDES)
    fits = dataset in entries and (own.simulated or shared)
    if own.fingerprint != known.fingerprint and not fits:
        raise Refused(
            f"dataset {dataset!r}: unit: found {own.unit!r}, as an earlier version of the same "
            f"population has ({', '.join(sorted(entries))}); other ids may hide who is public; put "
            "the entry back, set unit to the person's column, or name another population"
        )


def refuse_other_unit(request: Request, account: Account) -> None:
    """Refuse a charge beside those on another kind of unit of the same people."""
    for entry in account.entries:
        if not entry.same_unit:
            raise Refused(
                f"dataset {request.dataset!r}: unit: found {request.version.unit!r}, and "
                f"{entry.charge} on the same people was made on unit {entry.charge.unit!r}; keep it"
            )


def refuse_beyond(budget: Budget, request: Request, account: Account) -> None:
    """Refuse a request that the budget does not allow."""
    wanted = account.with_events([request.event], budget.delta)
    if wanted > budget.epsilon:
        spent = account.epsilon(budget.delta)
        limit = f"ε {at_most(budget.epsilon, 6)} at δ {at_most(budget.delta, 6)}"
        raise BudgetExceeded(
            f"dataset {request.dataset!r}: privacy.budget is {limit}, of which {at_most(spent)} is "
            f"spent ({len(account.entries)} charged) and {rest_of(budget.epsilon, spent)}; "
            f"with {request.stage} it would be {at_most(wanted)}; ask for a smaller ε"
        )
