"""What the ledger refuses to grant, decided on the history as it was read; nothing is written by any of it."""

from collections.abc import Sequence

from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.account import Account, seen
from primorl.privacy.ledger.budget_advice import advice
from primorl.privacy.ledger.directory import Directory
from primorl.privacy.ledger.history import History
from primorl.privacy.ledger.requests import Budget, BudgetExceeded, Refused, Request
from primorl.privacy.ledger.roster import Roster
from primorl.privacy.ledger.sharing import OtherKind, same_kind

_OTHERS = ("clone_behaviour", "evaluate_private", "online", "select")
"""Stages that a smaller ε mends."""


def refuse_second(request: Request, history: History) -> None:
    """Refuse work that a charge pays for already. Work without an identity is never the same."""
    for charge in history.charges.values():
        if request.identity and charge.identity == request.identity and charge.state != "aborted":
            raise Refused(
                f"charge {charge.id} of {charge.time}: pays for exactly this result already; wait for the process "
                "that works on it; to pay for another draw of the noise, set privacy.draw in params.yaml to a new "
                "number"
            )


def refuse_published(request: Request, roster: Roster, history: History, directory: Directory) -> None:
    """Refuse units that are public in one run and private in another."""
    own = request.version
    for sequence, known in history.versions.items():
        earlier = directory.roster(sequence)
        one_population = own.population is not None and own.population == known.population
        published = bool(own.public) or any(side == "public" for side, _ in earlier.bits)
        if one_population and published and not same_kind(own, known):
            raise Refused(
                f"dataset {request.dataset!r}: unit: found {own.unit!r}, and an earlier run on the same population had "
                f"{known.unit!r}; where some units are public, nobody can tell whose they are under another unit; keep "
                "the unit, or set partition.public_fraction: 0 from the first run on"
            )
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


def refuse_unbounded(request: Request, account: Account, others: Sequence[OtherKind]) -> None:
    """Refuse what composes with charges on another kind of unit, where nobody declared how many one person has."""
    charges = [entry.charge for entry in account.entries if entry.units is None]
    charges += [other.account.charges[0] for other in others if other.units is None]
    for charge in charges:
        raise Refused(
            f"dataset {request.dataset!r}: unit: found {request.version.unit!r}, and charge {charge.id} on the same "
            f"people was made on unit {charge.unit!r}; what both reveal can be told only with trajectories_per_person "
            f"in datasets/{request.dataset}.yaml: the most trajectories of one person, known beforehand"
        )


def refuse_beyond(budget: Budget, request: Request, account: Account, others: Sequence[OtherKind]) -> None:
    """Refuse what the budget does not allow, on any kind of unit, and say what still fits."""
    if not account.fits(request.event, budget):
        tight, event, whose = account, request.event, ""
    else:
        for other in others:
            event = seen(request.event, other.units)
            if not other.account.fits(event, budget):
                tight, whose = other.account, f" for one {other.unit}"
                break
        else:
            return
    spent, wanted = tight.epsilon(budget.delta), tight.with_event(event, budget.delta)
    limit = f"ε {at_most(budget.epsilon, 6)} at δ {at_most(budget.delta, 6)}"
    run = "this run"
    if request.stage.startswith(_OTHERS):  # whose settings are no keys of the model's
        run = request.stage
        still = (
            "ask for a smaller ε (behaviour.target_epsilon, evaluation.private.estimators or online.target_epsilon in "
            "params.yaml, or --epsilon of `primorl select`)"
        )
    else:
        still = advice(account, request.event, budget) if not whose else "a run with more noise, or with fewer rounds"
    raise BudgetExceeded(
        f"dataset {request.dataset!r}: privacy.budget is {limit}, of which {_shown(spent)} is spent{whose} "
        f"({len(tight.entries)} charged) and {left_of(budget.epsilon, spent, 6)} is left; with {run} it would be "
        f"{_shown(wanted)}; {still}"
    )


def _shown(epsilon: float) -> str:
    return at_most(epsilon, 6) if epsilon < float("inf") else "∞ (no guarantee)"
