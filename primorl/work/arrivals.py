"""Users of an online run: their order, their cohorts, and their identity in the ledger."""

import hashlib
import hmac
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from primorl.base.errors import PipelineError
from primorl.base.paths import ARRIVALS, WITHDRAWALS
from primorl.config.params import Params
from primorl.data.identity.consent import read_ids
from primorl.data.identity.membership import (
    SpellingCheck,
    id_digests,
    population_digest,
    project_secret,
)
from primorl.online.learning import ONE_USER
from primorl.privacy.ledger.history import Version

_TRAJECTORY = "trajectory"
_LABEL = b"primorl arrivals fingerprint 1\0"  # the secret keys other things as well
_KEY = "online.yaml"


@dataclass(frozen=True)
class Arrivals:
    """The cohorts of a run.

    Attributes:
        cohorts: numbers of the arrivals that each cohort meets, in their order.
        met: ids of the users, in the order in which they are met.
        population: within which ids mean the same.
        unit: name of one of them in the ledger.
        turned_away: arrivals that are not met.
    """

    cohorts: tuple[tuple[int, ...], ...]
    met: tuple[str, ...]
    population: str
    unit: str
    turned_away: int

    @classmethod
    def of(cls, params: Params) -> "Arrivals":
        """Read or make the list of arrivals, and put them into cohorts.

        Raises:
            PipelineError: the list cannot be read, holds too few people for one cohort, or spells
                an id in two ways, or in another one than the list of who withdrew.
        """
        asked = params.online
        if asked.arrivals is None:
            ids = [f"simulated {params.seed} {number}" for number in range(asked.users or 0)]
        else:
            listed = read_ids(asked.arrivals, ARRIVALS, f"{_KEY}: arrivals")
            ids = [one for one in listed if one][: asked.users]
        population, unit = _population(params)
        shared = unit != ONE_USER
        withdrawn, gone = set[str](), params.chosen.ingestion.exclude_units
        if shared and gone is not None:
            withdrawn = set(read_ids(gone, WITHDRAWALS, "ingestion.exclude_units")) - {""}
        check = SpellingCheck(asked.arrivals)
        check(pa.table({"unit_id": pa.array([*ids, *withdrawn], pa.string())}))
        check.finish()
        cohorts = in_cohorts(ids, asked.cohort, asked.appearances, withdrawn)
        if not cohorts:
            raise PipelineError(
                f"{_KEY}: cohort: found {asked.cohort}, and {len(set(ids))} different users "
                f"come{'' if asked.arrivals is None else f' ({asked.arrivals})'}; allowed is at "
                "most their number; lower it"
            )
        return cls(
            cohorts,
            tuple(ids[number] for cohort in cohorts for number in cohort),
            population,
            unit,
            len(ids) - sum(map(len, cohorts)),
        )

    @property
    def people(self) -> int:
        """N, how many different people are met."""
        return len(set(self.met))

    @property
    def shared(self) -> bool:
        """Whether ids are those of the log, so that the charges of a person in both add up."""
        return self.unit != ONE_USER

    @cached_property
    def version(self) -> Version:
        """These people, as the ledger knows them."""
        secret, population = project_secret(), self.population
        content = "\0".join((population, *self.met)).encode()
        return Version(
            hmac.new(secret, _LABEL + content, hashlib.sha256).hexdigest(),
            self.unit,
            self.people,
            id_digests(secret, population, sorted(set(self.met))),
            population=population_digest(secret, population),
        )


def share_ids(params: Params) -> bool:
    """Tell whether the ids of arriving users are the log's; see `Arrivals.shared`."""
    return _population(params)[1] != ONE_USER


def whose_account(*, shared: bool) -> str:
    """Name the account that charges of arriving users count against, as commands say it."""
    return (
        "they share the log's budget where ids are the same"
        if shared
        else "they are counted apart from the log's units"
    )


def in_cohorts(
    ids: list[str], size: int, appearances: int, withdrawn: Collection[str] = ()
) -> tuple[tuple[int, ...], ...]:
    """Numbers of the arrivals in cohorts of ``size``.

    A user who came ``appearances`` times already is turned away, and an id that is already in the
    cohort being filled is skipped. Only ids decide, never actions or outcomes. Users left over at
    the end are not met.
    """
    met: Counter[str] = Counter()
    cohorts: list[tuple[int, ...]] = []
    filling: dict[str, int] = {}
    for number, one in enumerate(ids):
        if met[one] < appearances and one not in filling and one not in withdrawn:
            filling[one] = number
        if len(filling) == size:
            met.update(filling.keys())
            cohorts.append(tuple(filling.values()))
            filling = {}
    return tuple(cohorts)


def _population(params: Params) -> tuple[str, str]:
    """Name the population within which ids mean the same, and one of its units.

    Where the log's unit is a person, users with the same ids are the same people, and their charges
    add up. Where it is a trajectory, it is unknown which users are in it.
    """
    own = params.chosen.population or params.dataset
    if params.online.arrivals is None or params.chosen.unit == _TRAJECTORY:
        return f"{own}, online", ONE_USER
    return own, params.chosen.unit
