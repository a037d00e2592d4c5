"""The bill: charges of the next `dvc repro`, those that are paid, and whether the budget allows the
rest.

Model, clone and questions are paid one after the other by the same people. A budget that allows the
first and not all would leave a run without its answers, so it is refused before the first. Reads no
private byte.
"""

import math
from collections.abc import Callable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, cached_property

from dp_accounting import dp_event

from primorl.base.dvc import changed_stages
from primorl.base.paths import MANIFEST, PARTITIONS
from primorl.config.blocks import EstimatorName
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.paid import accounts
from primorl.paid.clone import CLONE_BEHAVIOUR, check_clone, clone_event, clone_identity
from primorl.paid.fitting import Fit, fitted
from primorl.paid.model import TRAIN_MODEL, check_choices, make_plan, model_identity
from primorl.paid.partitions import Partitions
from primorl.paid.questions import EVALUATE_PRIVATE, question_event
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.history import Budget, BudgetExceeded
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import RELATION_NAME

MAKE_DATA = {"collect", "ingest", "partition"}
UNKNOWN = (
    "what `dvc repro` charges is known once the data are partitioned with these settings: `dvc "
    "repro partition` charges nothing"
)
"""Message if one of `MAKE_DATA` will run, which may make other units or another horizon."""
_POLICY_STAGE = "optimize_policy"  # charges nothing, but questions are about what it makes
_CLOSE = 0.98  # an estimator's ε over what is asked for, at least


@dataclass(frozen=True)
class PendingCharge:
    """One charge of a run of the pipeline.

    Attributes:
        stage: as the ledger names it.
        epsilon: of the charge; None: no guarantee.
        event: of the accountant.
        question: the estimator that is asked; None: it is a training.
        identity: of the paid work; empty: not known before it begins.
        paid: whether a charge pays for it already.
    """

    stage: str
    epsilon: float | None
    event: dp_event.DpEvent
    question: EstimatorName | None = None
    identity: str = ""
    paid: bool = False


@dataclass(frozen=True, repr=False)
class Bill:
    """Charges of the next run of the stages, and the account before them. As text, it is one line.

    Attributes:
        params: the choices.
        manifest: of the partitions; None: the data are not here yet.
        charges: the model's, then those of the clone and the questions.
        account: everything that was charged to the same units.
        budget: the limit of all of it; None: there is none.
        online: words about users of the stage ``online``, who have an account of their own.
    """

    params: Params
    manifest: Manifest | None
    charges: tuple[PendingCharge, ...]
    account: Account
    budget: Budget | None
    online: str = ""

    def __str__(self) -> str:
        """List the unpaid charges, and ε before and after them."""
        if not self.unpaid:
            return f"the next `dvc repro` charges nothing: all of it is paid{self.online}"
        if self.model.epsilon is None:
            variant = self.params.dynamics.variant
            return (
                f"the next `dvc repro` has no guarantee (variant {variant}): all ε then counts as "
                "spent"
            )
        most = "at most " if any(each.question is not None for each in self.unpaid) else ""
        line = (
            f"the next `dvc repro` charges {most}{list_charges(self.unpaid)}: ε "
            f"{_shown(self.spent)} is spent, "
        )
        line += f"{_shown(self.after)} afterwards"
        if self.budget is None:
            return f"{line}, without a budget{self.online}"
        line += f", of a budget of {at_most(self.budget.epsilon, 6)}"
        if not self.fits:
            line += ": what does not fit is refused before it reads a private row"
        return line + self.online

    __repr__ = __str__

    @classmethod
    def of(
        cls,
        params: Params,
        manifest: Manifest | None,
        event: dp_event.DpEvent,
        account: Account | None = None,
    ) -> "Bill":
        """Make the bill of a model that is charged as ``event``.

        Nothing of it counts as paid; see `mark_paid`.

        Raises:
            PipelineError: no noise is enough for the ε of the clone or of a question, or the
                budget's δ bounds nothing.
        """
        training = Training.of(event)
        epsilon = None
        if training is not None:
            epsilon = training.spent(params.privacy.delta, RELATION_NAME).epsilon_pld
        model = PendingCharge(TRAIN_MODEL, epsilon, event)
        charges = (model, *beside_model(params, epsilon, manifest))
        budget = None if manifest is None else accounts.budget(params, manifest.private_units)
        return cls(params, manifest, charges, account or Account(()), budget)

    @property
    def model(self) -> PendingCharge:
        """The model's charge."""
        return self.charges[0]

    @property
    def unpaid(self) -> list[PendingCharge]:
        """The charges that no earlier one pays for."""
        return [each for each in self.charges if not each.paid]

    @property
    def beside(self) -> list[PendingCharge]:
        """The unpaid charges beside the model's."""
        return [each for each in self.charges[1:] if not each.paid]

    @cached_property
    def spent(self) -> float:
        """ε of everything before, at the budget's δ."""
        return self.account.epsilon(self.params.privacy.budget.delta)

    @cached_property
    def after(self) -> float:
        """ε of everything before and of all that is unpaid, at the budget's δ."""
        return self.account.with_events(
            [each.event for each in self.unpaid], self.params.privacy.budget.delta
        )

    @property
    def fits(self) -> bool:
        """Whether the budget allows all that is unpaid."""
        return self.budget is None or not self.unpaid or self.after <= self.budget.epsilon

    def mark_paid(self, partitions: Partitions, questions_stay: Callable[[], bool]) -> "Bill":
        """Mark the charges that are paid.

        Model and clone are looked up by the identity of their paid work. The subject of a question
        is known only when it is asked. So questions are paid only where ``questions_stay``: nothing
        before them will run again, and they themselves will not. Then those in the ledger with the
        same name and ε, after the model and the clone that they are about, are meant. Otherwise
        they count as unpaid, although the same answer may be found after all.
        """
        known = {
            charge.identity: charge for charge in self.account.charges if charge.state != "aborted"
        }
        stay = cache(questions_stay)
        sequences: dict[str, int | None] = {}  # of the charges that paid for model and clone
        found = []
        for each in self.charges:
            if each.question is None:
                part, identity_of = "model", model_identity
                if each.stage == CLONE_BEHAVIOUR:
                    part, identity_of = "clone", clone_identity
                identity = identity_of(self.params, partitions)
                charge = known.get(identity)
                sequences[part] = None if charge is None else charge.sequence
                found.append(replace(each, identity=identity, paid=charge is not None))
                continue
            needed = sequences.get("model") if each.question == "model_check" else 0
            after, most = needed or 0, each.epsilon or 0.0
            candidates = [c for c in known.values() if c.stage == each.stage and c.sequence > after]
            answered = any(_CLOSE * most <= (c.epsilon or 0.0) <= most for c in candidates)
            found.append(replace(each, paid=answered and needed is not None and stay()))
        return replace(self, charges=tuple(found))

    def refuse(self) -> None:
        """Refuse to pay for a model where the clone or the questions after it could not be paid for
        any more.

        A model that is paid for is restored at no cost, and is not refused for the budget; a total
        of the run holds for it too. A model that is charged alone is left to the ledger.

        Raises:
            BudgetExceeded: budget or total do not allow the model and all that is asked with it.
                Nothing was charged.
        """
        if self.params.dynamics.variant != "private":
            return
        self.refuse_total()
        if self.model.paid or not self.beside or self.fits:
            return
        assert self.budget is not None
        raise BudgetExceeded(
            f"params.yaml: privacy.budget is ε {at_most(self.budget.epsilon, 6)}, of which "
            f"{at_most(self.spent, 6)} is spent and {left_of(self.budget.epsilon, self.spent, 6)} "
            f"is left; with the model, {list_charges(self.beside)} it would be about "
            f"{at_most(self.after, 4)}; ask for a smaller ε. Nothing was charged"
        )

    def refuse_total(self) -> None:
        """Refuse a model, a clone and questions that cost more than a total that is a limit.

        `Params` counts each as one Gaussian release; here all are counted as the ledger does.

        Raises:
            BudgetExceeded: they do. Nothing was charged.
        """
        total, delta = self.params.privacy.total_epsilon, self.params.privacy.delta
        if total is None or not self.params.holds_total:
            return
        together = Account(()).with_events([each.event for each in self.charges], delta)
        if together > total:
            raise BudgetExceeded(
                f"params.yaml: privacy.total_epsilon: found {at_most(total, 6)}, and the model "
                f"with {list_charges(self.charges[1:])} costs about {at_most(together, 4)}; ask "
                "for less in behaviour and evaluation.private; with a larger total the model is "
                "another one, which is charged anew. Nothing was charged"
            )


def beside_model(
    params: Params, epsilon: float | None, manifest: Manifest | None
) -> list[PendingCharge]:
    """List the clone, then the questions, which are charged beside a model of this ε.

    Raises:
        PipelineError: no noise is enough for the ε of one of them.
    """
    if params.dynamics.variant != "private":
        return []
    clone, found = params.behaviour.target_epsilon, []
    if clone is not None:
        event = clone_event(params, clone, manifest)
        found.append(PendingCharge(CLONE_BEHAVIOUR, clone, event))
    for name, share in params.estimators(epsilon).items():
        event = question_event(name, share, params.privacy.delta)
        found.append(PendingCharge(f"{EVALUATE_PRIVATE}: {name}", share, event, name))
    return found


def next_run(params: Params, partitions: Partitions) -> tuple[Params, Fit, Plan]:
    """Fit the settings that are to be fitted, and plan the mechanism of the next model.

    Returns:
        The choices with fitted values in place, the fit, and the plan.

    Raises:
        PipelineError: the choices fit neither each other nor the data, no clone can be made of
            these actions, or no noise multiplier reaches the target ε.
    """
    manifest, public = partitions.manifest, partitions.public
    chosen, fit = fitted(params, manifest, public)
    check_choices(chosen, manifest, public)
    check_clone(params, manifest)
    accounts.check_evaluation(params, manifest)
    return chosen, fit, make_plan(chosen, manifest)


def next_bill(
    params: Params, partitions: Partitions, plan: Plan, questions_stay: Callable[[], bool]
) -> Bill:
    """Make the bill of a planned run on partitions, with the charges marked that are paid; see
    `Bill.mark_paid`.

    The account is read again: another process may have charged since the partitions were opened, as
    fits take a while.
    """
    account, ledger = Account(()), accounts.begun_ledger(params)
    if ledger is not None:
        with closing(ledger):
            account = ledger.account(partitions.version)
    return Bill.of(params, partitions.manifest, plan.event, account).mark_paid(
        partitions, questions_stay
    )


def never() -> bool:
    """Tell `mark_paid` that all questions will be asked again, as after a new model."""
    return False


def same_questions(changed: Set[str] | None = None) -> bool:
    """Tell whether `dvc repro` would leave model, clone, policy and the questions about them as
    they are.
    """
    stages = {TRAIN_MODEL, CLONE_BEHAVIOUR, _POLICY_STAGE, EVALUATE_PRIVATE}
    return not (changed_stages() if changed is None else changed) & stages


def list_charges(charges: Sequence[PendingCharge]) -> str:
    """List names of charges, with their ε."""
    names = []
    for each in charges:
        names.append(f"{each.stage} ({at_most(each.epsilon, 4)})" if each.epsilon else each.stage)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def preview(params: Params) -> Bill | None:
    """Make the bill of the next run on the partitioned units; None: they will be made, or made
    anew.

    Raises:
        PipelineError: the settings do not fit the data, or `dvc status` fails.
    """
    changed = changed_stages()
    if not MANIFEST.exists() or changed & MAKE_DATA:
        return None
    partitions = Partitions.open(PARTITIONS, params)
    if partitions.manifest.info.dataset != params.dataset:
        return None
    _, _, plan = next_run(params, partitions)
    bill = next_bill(params, partitions, plan, lambda: same_questions(changed))
    return replace(bill, online=_online(params)) if params.online.asked and changed else bill


def _online(params: Params) -> str:
    from primorl.paid.arrivals import share_ids, whose_account  # which import torch

    shared = share_ids(params)
    uncounted = ", and what they are charged is not counted here" if shared else ""
    return (
        "; the stage `online` charges the users who arrive: "
        f"{whose_account(shared=shared)}{uncounted}"
    )


def _shown(epsilon: float) -> str:
    return at_most(epsilon, 4) if math.isfinite(epsilon) else "infinite"
