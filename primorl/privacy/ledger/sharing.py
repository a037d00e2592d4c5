"""Which charges count on the units of a dataset version, and how often.

A *kind of unit* is a name of a unit in one population; a trajectory is one kind everywhere. Two versions share people
if a digest is in both, or if they are of one population and of different kinds: then the same person may have no digest
in common, as units of different kinds have different ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from primorl.privacy.ledger.account import Account, Entry
from primorl.privacy.ledger.directory import Directory
from primorl.privacy.ledger.history import Charge, History, Registered
from primorl.privacy.ledger.requests import Version
from primorl.privacy.ledger.roster import Roster

TRAJECTORY = "trajectory"


@dataclass(frozen=True)
class OtherKind:
    """An account on the same people whose unit is of another kind than that of a request.

    Attributes:
        unit: of the account.
        account: what was charged to it so far.
        units: how many units of the request one unit of the account may be; None: nobody declared a bound.
    """

    unit: str
    account: Account
    units: int | None


def same_kind(one: Version | Registered | Charge, other: Version | Registered | Charge) -> bool:
    """Whether units of the two are of one kind. Older records name no population: there the unit's name decides."""
    elsewhere = None not in (one.population, other.population) and one.population != other.population
    return one.unit == other.unit and (one.unit == TRAJECTORY or not elsewhere)


class Sharing:
    """Accounts of versions, from a history and who is in its versions."""

    def __init__(self, history: History, directory: Directory):
        self._history = history
        self._directory = directory

    def account(self, version: Version | Registered, roster: Roster) -> Account:
        """Every charge on a version that shares people with this one, oldest first."""
        sharing = dict(self._versions(version, roster))
        bounds = [known.trajectories_per_person for known in sharing.values()]
        charges = [each for each in self._history.charges.values() if self._history.version_of[each.id] in sharing]
        return Account(tuple(Entry(charge, _units(version, charge, bounds)) for charge in charges))

    def other_kinds(self, version: Version, roster: Roster) -> list[OtherKind]:
        """The accounts of versions that share people with this one and have another kind of unit."""
        found = []
        for sequence, known in self._versions(version, roster):
            if not same_kind(known, version):
                theirs = self._directory.roster(sequence)
                bounds = [each.trajectories_per_person for _, each in self._versions(known, theirs)]
                units = _units(known, version, [*bounds, version.trajectories_per_person])
                found.append(OtherKind(known.unit, self.account(known, theirs), units))
        return found

    def _versions(self, version: Version | Registered, roster: Roster) -> Iterator[tuple[int, Registered]]:
        for sequence, known in self._history.versions.items():
            one_population = version.population is not None and version.population == known.population
            if (one_population and not same_kind(version, known)) or roster.shares(
                "private", self._directory.roster(sequence), "private"
            ):
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
