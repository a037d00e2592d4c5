"""Refusals of the ledger: checks of a request against the history as it was read.

Nothing here writes.
"""

from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.account import (
    TRAJECTORY,
    Account,
    Directory,
    Roster,
    same_kind,
)
from primorl.privacy.ledger.history import (
    Budget,
    BudgetExceeded,
    History,
    Refused,
    Registered,
    Request,
    Version,
)
from primorl.privacy.ledger.store import SIDES


def refuse_second(request: Request, history: History) -> None:
    """Refuse work that a charge already pays for. Work without an identity is never the same."""
    for charge in history.charges.values():
        if request.identity and charge.identity == request.identity and charge.state != "aborted":
            raise Refused(
                f"charge {charge.id} of {charge.time}: pays for exactly this result already; wait "
                "for the process that works on it; to pay for another draw of the noise, set "
                "privacy.draw in params.yaml to a new number"
            )


def refuse_published(
    dataset: str, own: Version, roster: Roster, directory: Directory, confirmed: str | None = None
) -> None:
    """Refuse units that were public and are private now, or the other way round.

    Units that were private and never charged for may become public where ``confirmed`` names all
    public units of this version; the error gives the name.
    """
    charged: dict[int, set[str]] = {}
    for charge in directory.history.charges.values():
        charged.setdefault(charge.version, set()).add(charge.dataset)
    where = f"dataset {dataset!r}"
    for sequence, known in directory.history.versions.items():
        earlier = directory.roster(sequence)
        one_population = own.population is not None and own.population == known.population
        published = bool(own.public) or bool(earlier.heads["public"].size)
        if one_population and published and not same_kind(own, known):
            raise Refused(
                f"{where}: unit: found {own.unit!r}, and an earlier run on the same population had "
                f"{known.unit!r}; where some units are public, nobody can tell whose they are "
                "under another unit; keep the unit"
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
                "partition in params.yaml and consent back, leave these units out "
                "(ingestion.exclude_units), or take other data"
            )
    if roster.newly_public([directory.roster(sequence) for sequence in directory.history.versions]):
        name = "p" + directory.history.chain.members_digest(b"publish" + own.public)[:8]
        if confirmed != name:
            raise Refused(
                f"{where}: partition: found units that would become public and were private in an "
                "earlier split; put partition in params.yaml and consent back; or, if it is meant, "
                f"run `primorl ledger publish {name}`, whose word stands for these public units"
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
            f"population has ({', '.join(sorted(entries))}); where some units are public, other "
            "ids may hide that they are the same people; put the entry back, set unit to the "
            "person's column, or name another population if they are others"
        )


def refuse_other_unit(request: Request, account: Account) -> None:
    """Refuse a charge beside those on another kind of unit of the same people."""
    for entry in account.entries:
        if not entry.same_unit:
            raise Refused(
                f"dataset {request.dataset!r}: unit: found {request.version.unit!r}, and charge "
                f"{entry.charge.id} on the same people was made on unit {entry.charge.unit!r}; "
                "what both reveal does not add up; keep the unit"
            )


def refuse_beyond(budget: Budget, request: Request, account: Account) -> None:
    """Refuse a request that the budget does not allow."""
    wanted = account.with_events([request.event], budget.delta)
    if wanted > budget.epsilon:
        spent = account.epsilon(budget.delta)
        limit = f"ε {at_most(budget.epsilon, 6)} at δ {at_most(budget.delta, 6)}"
        raise BudgetExceeded(
            f"dataset {request.dataset!r}: privacy.budget is {limit}, of which {_show(spent)} is "
            f"spent ({len(account.entries)} charged) and {left_of(budget.epsilon, spent, 6)} "
            f"is left; with {request.stage} it would be {_show(wanted)}; ask for a smaller ε in "
            "params.yaml"
        )


def _show(epsilon: float) -> str:
    return at_most(epsilon, 6) if epsilon < float("inf") else "∞ (no guarantee)"
