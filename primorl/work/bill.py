"""The bill: charges of the next `dvc repro`, those that are paid, and whether the budget allows the
rest.

Model, clone and question are paid one after the other by the same people. A budget that allows the
first and not all would leave a run without its answers, so it is refused before the first. Reads no
private byte.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from primorl.base import PipelineError
from primorl.base.files import CHECKPOINTS, home, workspace
from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import event_from_json
from primorl.privacy.accounting.rounding import at_most, rest_of
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.history import Budget, BudgetExceeded, Charge, list_budget_changes
from primorl.work.data import (
    Partitions,
    budget_of,
    find_charges,
)
from primorl.work.jobs import (
    CLONE_BEHAVIOUR,
    EVALUATE_PRIVATE,
    TRAIN_MODEL,
    Price,
    RunPlan,
)

_ORDER = (TRAIN_MODEL, CLONE_BEHAVIOUR, "plan", "optimize_policy", EVALUATE_PRIVATE)
"""Stages from the first that pays to the last: where one runs, those after it do. A new plan alone
has the policy made again: of another model or clone, its charge tells.
"""
UNKNOWN = (
    "what `dvc repro` charges is known once the data are partitioned: `dvc repro plan` is free"
)
"""Message if one of `MAKE_DATA` will run, which may make other units or another horizon."""


@dataclass(frozen=True, repr=False)
class Bill:
    """Charges of the next run of the stages, and the account before them. As text, it is one line.

    Attributes:
        plan: of the run, with the price of each job.
        account: everything that was charged to the same units.
        delta: δ of the budget.
        budget: the limit of all of it; None: there is none.
        changed: stages whose inputs changed.
        train_anyway: whether a run that cannot learn is paid for.
        folder: of the results, in which DVC runs.
        checkpoints: the project's.
        online: words about users of the stage ``online``, who have an account of their own.
    """

    plan: RunPlan
    account: Account
    delta: float
    budget: Budget | None
    changed: Set[str] = frozenset()
    train_anyway: bool = False
    online: str = ""
    folder: Path = field(default_factory=lambda: workspace().resolve())
    checkpoints: Path = field(default_factory=lambda: home() / CHECKPOINTS)

    def __str__(self) -> str:
        """List the unpaid charges, and ε before and after them."""
        run = "the next `dvc repro`"
        if self.plan.is_refused(train_anyway=self.train_anyway):
            return f"{run} charges nothing: its stage plan refuses it (`primorl plan`)"
        if self.unpaid and (variant := self.plan.model.variant) != "private":
            return f"{run} has no guarantee (variant {variant}): all ε counts as spent"
        line, why = f"{run} charges nothing: all of it is paid", "but"
        if self.unpaid:
            line, why = f"{run} charges {self.total}", "refused before the first charge, as"
        if not self.fits:
            line += ": what does not fit is refused before it reads a private row"
        if self.lost:
            line += f"; {why} it needs {self._name_lost()}"
        for change, _ in list_budget_changes(self.account.charges[-1:], self.budget):
            if not change.startswith("lowered"):
                line += f"; privacy.budget was {change}"
        if self.overdrawn:
            line += f"; privacy.budget is below the ε {at_most(self.spent)} that is spent"
        return line + self.online

    __repr__ = __str__

    @classmethod
    def of(
        cls,
        params: Params,
        plan: RunPlan,
        partitions: Partitions,
        changed: Set[str] = frozenset(),
    ) -> "Bill":
        """Make the bill of a planned run; a job whose identity the account knows is paid.

        Raises:
            PipelineError: δ bounds nothing.
        """
        return cls(
            plan=plan,
            account=partitions.account,
            delta=params.privacy.delta,
            budget=budget_of(params, partitions.manifest.private_units),
            changed=changed,
            train_anyway=params.dynamics.train_anyway,
        )

    @cached_property
    def unpaid(self) -> list[Price]:
        """The jobs that no earlier charge pays for.

        One without a guarantee is charged each time, as it is never restored.
        """
        paid = self.account.paid
        return [
            own
            for own in self.plan.jobs
            if own.identity not in paid or own.event["type"] == "NonPrivateDpEvent"
        ]

    @cached_property
    def lost(self) -> list[Charge]:
        """Charges of jobs that are paid and cannot be restored here, as another clone has their
        checkpoints.

        Where the result is here, that matters if the job's stage will run: it or one before it
        changed, or has an unpaid job.
        """
        paid = self.account.paid
        here = {charge for _, charge in find_charges(self.folder)}
        run = self.changed | {stage_of(each.name) for each in self.unpaid}
        found = []
        for each in (job for job in self.plan.jobs if job not in self.unpaid):
            charge = paid[each.identity]
            before = _ORDER[: _ORDER.index(stage_of(each.name)) + 1]
            needed = run & {*before} or charge.id not in here
            if needed and not (self.checkpoints / f"{charge.id}.safetensors").exists():
                found.append(charge)
        return found

    @cached_property
    def spent(self) -> float:
        """ε of everything before, at the budget's δ."""
        return self.account.epsilon(self.delta)

    @cached_property
    def after(self) -> float:
        """ε of everything before and of all that is unpaid, at the budget's δ."""
        figures = self.plan.figures
        if figures is not None and figures.epsilon is not None and not self.account.entries:
            return figures.epsilon
        events = [event_from_json(each.event) for each in self.unpaid]
        return self.account.with_events(events, self.delta)

    @property
    def total(self) -> str:
        """The unpaid charges, and ε before and after them, in words."""
        limit = ", without a budget"
        if self.budget is not None:
            limit = f", of a budget of {at_most(self.budget.epsilon, 6)}"
        spent = f"ε {at_most(self.spent)} is spent, {at_most(self.after)} then{limit}"
        return f"{name_charges(self.unpaid)}: {spent}"

    @property
    def fits(self) -> bool:
        """Whether the budget allows all that is unpaid."""
        return self.budget is None or not self.unpaid or self.after <= self.budget.epsilon

    @property
    def overdrawn(self) -> bool:
        """Whether the budget was set below what is spent."""
        return self.budget is not None and self.spent > self.budget.epsilon

    def refuse_beyond_budget(self) -> None:
        """Refuse to pay for one job where not all unpaid jobs fit the budget together.

        Raises:
            BudgetExceeded: the budget does not allow all that is unpaid. Nothing was charged.
        """
        if self.budget is None or self.fits:
            return
        remedy = "raise it above what is spent" if self.overdrawn else "ask for a smaller ε"
        raise BudgetExceeded(
            f"params.yaml: privacy.budget is ε {at_most(self.budget.epsilon, 6)}, of which "
            f"{at_most(self.spent)} is spent and {rest_of(self.budget.epsilon, self.spent)}; "
            f"with {name_charges(self.unpaid)} it would be about {at_most(self.after)}; {remedy}, "
            "or put back in params.yaml what the last run had. Nothing was charged"
        )

    def refuse_unpayable(self) -> None:
        """Refuse a run before DVC deletes the results that are there.

        Raises:
            PipelineError: see `refuse_beyond_budget` and `refuse_lost`. Nothing was charged.
        """
        self.refuse_beyond_budget()
        if self.unpaid:  # else DVC may have the results
            self.refuse_lost()

    def refuse_lost(self) -> None:
        """Refuse to pay for one job where another one is paid for and cannot be restored here.

        Raises:
            PipelineError: see `lost`. Nothing was charged.
        """
        if self.lost:
            raise PipelineError(f"this run needs {self._name_lost()}. Nothing was charged for it")

    def _name_lost(self) -> str:
        """List charges whose checkpoints are not here, and what to do."""
        lost = self.lost
        files = ", ".join(
            f"{each.id}.safetensors ({each.stage}, paid for on {each.time[:10]})" for each in lost
        )
        draws = "; ".join(dict.fromkeys(each.another_draw for each in lost))
        return (
            f"what was paid for and is not in {self.checkpoints}: {files}. If the clone that paid "
            "still works on it, wait; then copy these files from there (clones can share the "
            "folder) or from a backup, or bring the results by `dvc checkout`, `dvc pull` or `dvc "
            f"repro`; {draws}"
        )


def stage_of(charge: str) -> str:
    """Return the stage that a charge of this name is paid in."""
    return charge.partition(":")[0]  # a question's is "evaluate_private: behaviour"


def name_charges(prices: Sequence[Price]) -> str:
    """List names of charges, with the ε of each alone."""
    names = [
        each.name if each.epsilon is None else f"{each.name} ({at_most(each.epsilon)})"
        for each in prices
    ]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
