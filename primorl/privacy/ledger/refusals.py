"""What the ledger refuses to grant, decided on the history as it was read; nothing is written by any of it."""

from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.budget_advice import advice
from primorl.privacy.ledger.directory import Directory
from primorl.privacy.ledger.history import History
from primorl.privacy.ledger.requests import Budget, BudgetExceeded, Refused, Request
from primorl.privacy.ledger.roster import Roster


def refuse_second(request: Request, history: History) -> None:
    """Refuse work that a charge pays for already. Work without an identity is never the same."""
    for charge in history.charges.values():
        if request.identity and charge.identity == request.identity and charge.state != "aborted":
            raise Refused(
                f"charge {charge.id} of {charge.time}: pays for exactly this result already; wait for the process "
                "that works on it; to pay for another draw of the noise, set privacy.draw in params.yaml to a new "
                "number"
            )


def refuse_published(request: Request, roster: Roster, directory: Directory) -> None:
    """Refuse units that are public on one side of the time and private on the other."""
    for earlier in directory.rosters():
        if roster.shares("public", earlier, "private"):
            raise Refused(
                f"dataset {request.dataset!r}: the public split holds units that earlier runs were charged for as "
                "private, and would publish them; put partition.salt and partition.public_fraction back, or take "
                "other data"
            )
        if roster.shares("private", earlier, "public"):
            raise Refused(
                f"dataset {request.dataset!r}: the private split holds units that earlier runs used as public, and "
                "nothing protects them any more; put partition.salt and partition.public_fraction back, leave "
                "these units out (ingestion.exclude_units), or take other data"
            )


def refuse_unbounded(request: Request, account: Account) -> None:
    """Refuse what composes with charges on another kind of unit, where nobody declared how many one person has."""
    for entry in account.entries:
        if entry.units is None:
            raise Refused(
                f"dataset {request.dataset!r}: unit: found {request.version.unit!r}, and charge {entry.charge.id} on "
                f"the same people was made on unit {entry.charge.unit!r}; what both reveal can be told only with "
                f"trajectories_per_person in datasets/{request.dataset}.yaml: the most trajectories of one person, "
                "known beforehand"
            )


def refuse_beyond(budget: Budget, request: Request, account: Account) -> None:
    """Refuse what the budget does not allow, and say what still fits."""
    if account.fits(request.event, budget):
        return
    spent, wanted = account.epsilon(budget.delta), account.with_event(request.event, budget.delta)
    limit = f"ε {at_most(budget.epsilon, 6)} at δ {at_most(budget.delta, 6)}"
    raise BudgetExceeded(
        f"dataset {request.dataset!r}: privacy.budget is {limit}, of which {_shown(spent)} is spent "
        f"({len(account.entries)} charged) and {left_of(budget.epsilon, spent, 6)} is left; with this run it would be "
        f"{_shown(wanted)}; {advice(account, request.event, budget)}"
    )


def _shown(epsilon: float) -> str:
    return at_most(epsilon, 6) if epsilon < float("inf") else "∞ (a run without a guarantee)"
