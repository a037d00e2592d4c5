"""What the next `dvc repro` charges: model, clone and questions, and what of them is paid. Reads no private byte.

The three are paid one after the other by the same people. A budget that allows the first and not all would leave a run
without its answers, so it is refused before the first.
"""

import math
from collections.abc import Callable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache

from dp_accounting import dp_event

from primorl.base.dvc import changed_stages
from primorl.base.errors import PipelineError
from primorl.base.paths import MANIFEST, PARAMS, PARTITIONS
from primorl.config import suggestions
from primorl.config.blocks import EstimatorName
from primorl.config.params import Params
from primorl.data.storage.schema import Manifest
from primorl.paid import accounts, questions
from primorl.paid.clone import CLONE_BEHAVIOUR, check_actions, clone_asked, clone_event, clone_identity
from primorl.paid.fitting import check_verdict, fitted
from primorl.paid.model import TRAIN_MODEL, check_choices, make_plan, model_identity
from primorl.paid.partitions import Partitions
from primorl.paid.public_checks import check_public
from primorl.paid.questions import EVALUATE_PRIVATE, question_event
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.history import BudgetExceeded, Charge
from primorl.privacy.ledger.ledger import Budget
from primorl.privacy.ledger.refusals import advice
from primorl.privacy.mechanism.plan import Plan

MAKE_DATA = {"collect", "ingest", "partition"}
UNKNOWN = (
    "what `dvc repro` charges is known once the data are partitioned with these settings: `dvc repro partition` "
    "charges nothing"
)
"""What is said where one of `MAKE_DATA` will run: it may make other units or another horizon."""
_POLICY_STAGE = "optimize_policy"  # charges nothing, but questions are about what it makes
_CLOSE = 0.98  # an estimator's ε over what is asked for, at least
_TRIES, _LEAST = 6, 0.1  # steps of the search for a smaller ε, and the least share of the ε asked for that is tried
_NEAR = 0.8  # of a budget


@dataclass(frozen=True)
class PendingCharge:
    """One charge of a run of the pipeline.

    Attributes:
        stage: as the ledger names it.
        epsilon: that is asked for; None: the model's, whose mechanism says it.
        event: of the accountant.
        question: the estimator that is asked; None: it is a training.
        paid: whether a charge pays for it already.
    """

    stage: str
    epsilon: float | None
    event: dp_event.DpEvent
    question: EstimatorName | None = None
    paid: bool = False


def beside_model(params: Params, epsilon: float | None, manifest: Manifest | None) -> list[PendingCharge]:
    """List the clone, then the questions, which are charged beside a model of this ε.

    Raises:
        PipelineError: no noise is enough for the ε of one of them.
    """
    if params.dynamics.variant != "private":
        return []
    epsilon = epsilon if params.privacy.train_on == "private" else None  # of which a share would be nothing
    clone = params.behaviour.target_epsilon
    found = [] if clone is None else [PendingCharge(CLONE_BEHAVIOUR, clone, clone_event(params, clone, manifest))]
    for name, share in params.estimators(epsilon).items():
        event = question_event(params, name, share, manifest)
        found.append(PendingCharge(f"{EVALUATE_PRIVATE}: {name}", share, event, name))
    return found


def check_clone(params: Params, manifest: Manifest) -> None:
    """Refuse a clone that is asked for and cannot be made; see `primorl.paid.check_actions`."""
    if clone_asked(params):
        check_actions(params, manifest)


def same_questions(changed: Set[str] | None = None) -> bool:
    """Tell whether `dvc repro` would leave model, clone, policy and what is asked about them as they are."""
    stages = {TRAIN_MODEL, CLONE_BEHAVIOUR, _POLICY_STAGE, EVALUATE_PRIVATE}
    return not (changed_stages() if changed is None else changed) & stages


def mark_paid(
    params: Params,
    partitions: Partitions,
    account: Account,
    wanted: Sequence[PendingCharge],
    *,
    questions_stay: Callable[[], bool] = same_questions,
) -> list[PendingCharge]:
    """Mark the charges that are paid.

    Model and clone are looked up by the identity of their paid work. What a question is about is known only when it is
    asked, so questions are paid only where nothing before them will run again and they themselves will not: then those
    in the ledger with the same name and ε, after the model and the clone that they are about, are meant. Else they
    count as unpaid, though the same answer may be found after all.
    """
    charges = [charge for charge in account.charges if charge.state != "aborted"]
    known = {charge.identity: charge for charge in charges}
    info, stay = partitions.manifest.info, cache(questions_stay)
    public_alone = params.privacy.train_on == "public"
    cloned = info.spaces.discrete_actions and any(each.stage == CLONE_BEHAVIOUR for each in wanted)
    trainings: dict[str, Charge | None] = {}
    found = []
    for each in wanted:
        candidates = [charge for charge in charges if charge.stage == each.stage]
        if each.stage == TRAIN_MODEL and public_alone:
            paid = True  # there is nothing to pay for
        elif not candidates:
            paid = False
        elif each.question is None:
            part, identity = ("clone", clone_identity) if each.stage == CLONE_BEHAVIOUR else ("model", model_identity)
            trainings[part] = known.get(identity(params, partitions))
            paid = trainings[part] is not None
        else:
            about: set[str] = set(questions.about(each.question, info, cloned=cloned))
            if "policy" in about and params.behaviour.chosen_network() is not None:
                about.add("clone")  # its policy begins as the clone
            free = {"policy", "model"} if public_alone else {"policy"}
            needed = [trainings.get(part) for part in sorted(about - free)]
            after, most = max((charge.sequence for charge in needed if charge), default=0), each.epsilon or 0.0
            answered = (c for c in candidates if c.sequence > after and _CLOSE * most <= (c.epsilon or 0.0) <= most)
            paid = None not in needed and any(answered) and stay()
        found.append(replace(each, paid=paid))
    return found


def check_all_fits(params: Params, plan: Plan, partitions: Partitions) -> None:
    """Refuse to pay for a model where the clone or the questions that follow could not be made or paid for any more.

    A model that is paid for is restored at no cost, and is not refused for the budget; a total of the run holds for it
    too. A model that is charged alone is left to the ledger, whose advice counts nothing else.

    Raises:
        BudgetExceeded: the budget does not allow the model and all that is asked with it. Nothing was charged.
        PipelineError: no clone can be made of these actions, or no noise is enough for the ε of a clone or a question.
    """
    manifest = partitions.manifest
    check_clone(params, manifest)
    if params.dynamics.variant != "private":
        return
    epsilon = None
    if (
        params.origins.get(suggestions.ESTIMATORS) == suggestions.STATED
    ):  # questions are a share of what the noise comes to
        spent = plan.spent()
        epsilon = None if spent is None else spent.epsilon_pld
    wanted = [PendingCharge(TRAIN_MODEL, None, plan.event), *beside_model(params, epsilon, manifest)]
    check_total(params, plan.event, wanted[1:])
    budget = accounts.budget(params, manifest.private_units)
    if budget is None:
        return
    account = accounts.account_of(params, partitions.version)
    model, *others = mark_paid(params, partitions, account, wanted, questions_stay=lambda: False)
    beside = [each for each in others if not each.paid]
    if model.paid or not beside:
        return
    together = account.with_events([model.event, *(each.event for each in beside)], budget.delta)
    if together > budget.epsilon:
        before = account.epsilon(budget.delta)
        raise BudgetExceeded(
            f"params.yaml: privacy.budget is ε {at_most(budget.epsilon, 6)}, of which {at_most(before, 6)} is spent "
            f"and {left_of(budget.epsilon, before, 6)} is left; with the model, {said(beside)} it would be about "
            f"{at_most(together, 4)}; {still_fitting(params, account, model.event, beside, budget, manifest)}. "
            "Nothing was charged"
        )


def check_total(params: Params, event: dp_event.DpEvent, beside: Sequence[PendingCharge]) -> None:
    """Refuse a clone and questions that, beside the model of ``event``, cost more than a total that is a limit.

    `Params` has done so already for what is charged as one Gaussian release; here all is counted as the ledger does.

    Raises:
        BudgetExceeded: they do. Nothing was charged.
    """
    total, delta = params.privacy.total_epsilon, params.privacy.delta
    if total is None or not params.holds_total:
        return
    together = Account(()).with_events([event, *(each.event for each in beside)], delta)
    if together > total:
        raise BudgetExceeded(
            f"params.yaml: privacy.total_epsilon: found {at_most(total, 6)}, and the model with {said(beside)} costs "
            f"about {at_most(together, 4)}; ask for less in behaviour and evaluation.private; with a larger total the "
            "model is another one, which is charged anew. Nothing was charged"
        )


def check_next(params: Params) -> None:
    """Refuse what the next run of the stages would be refused for, before any of it is run. Charges and reads nothing.

    Whether the device is there is seen when the stage begins, also before it charges.
    What `primorl.paid.arrivals` brings has an account of its own and is asked for by the stage ``online``.

    Raises:
        Refused: by the ledger: the charges that are not paid yet would not be granted.
        PipelineError: the settings fit neither each other nor the data, or cannot learn.
    """
    partitions = Partitions.open(PARTITIONS, params)
    manifest, public = partitions.manifest, partitions.public
    check_public(params, manifest, public)
    chosen, fit = fitted(params, manifest, public)
    if params.privacy.train_on == "public":
        check_choices(chosen, manifest, public)
        return
    check_verdict(params, fit)
    check_choices(chosen, manifest, public)
    plan, identity = make_plan(chosen, manifest), model_identity(params, partitions)
    check_all_fits(params, plan, partitions)
    request = accounts.request(
        params, None, manifest.info.dataset, partitions.version, TRAIN_MODEL, plan.event, identity
    )
    with closing(accounts.project_ledger(params)) as ledger:
        if not any(charge.identity == identity and charge.state != "aborted" for charge in ledger.charges()):
            ledger.dry_run(request, accounts.budget(params, manifest.private_units))


def still_fitting(
    params: Params,
    account: Account,
    event: dp_event.DpEvent,
    beside: Sequence[PendingCharge],
    budget: Budget,
    manifest: Manifest | None,
) -> str:
    """Advise what fits the budget with everything that is charged beside the model."""
    events, run, target = [each.event for each in beside], Training.of(event), params.privacy.target_epsilon
    if not beside or run is None or target is None:
        return advice(account, event, budget, events)

    def fits(epsilon: float) -> bool:
        other, delta = _at(params, epsilon), params.privacy.delta
        stages = {each.stage for each in beside}
        try:
            multiplier = solve_noise_multiplier(epsilon, delta, run.sampling_probability, run.rounds, run.queries)
            rest = [each.event for each in beside_model(other, epsilon, manifest) if each.stage in stages]
        except (ValueError, PipelineError):
            return False
        return account.fits_all([replace(run, noise_multiplier=multiplier).event, *rest], budget)

    found = _largest(fits, target)
    if found is None:
        return (
            "nothing fits any more together with them: ask for less (behaviour.target_epsilon, "
            f"evaluation.private.estimators in {PARAMS}), or raise privacy.budget.epsilon"
        )
    words = f"-S privacy.total_epsilon=null -S privacy.target_epsilon={found!r}"
    return f"still fitting with {said(beside, numbers=False)}: `dvc exp run {words}`"


def said(charges: Sequence[PendingCharge], *, numbers: bool = True) -> str:
    """List names of charges, with their ε."""
    names = []
    for each in charges:
        names.append(f"{each.stage} ({at_most(each.epsilon, 4)})" if numbers and each.epsilon else each.stage)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _largest(fits: Callable[[float], bool], target: float) -> float | None:
    """The largest ε below the target, to about 4% and two digits, that fits."""
    low, high = float(f"{_LEAST * target:.2g}"), target
    if not fits(low):
        return None
    for _ in range(_TRIES):
        middle = float(f"{(low * high) ** 0.5:.2g}")
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _at(params: Params, epsilon: float) -> Params:
    """The same choices at another ε of the model; what is a share of it follows."""
    target, own = params.privacy.target_epsilon, str(PARAMS)
    assert target is not None
    behaviour, evaluation = params.behaviour, params.evaluation
    if behaviour.target_epsilon == suggestions.clone(target) and params.origins.get(suggestions.CLONE) != own:
        behaviour = replace(behaviour, target_epsilon=suggestions.clone(epsilon))
    if (
        evaluation.private.estimators == suggestions.estimators(target)
        and params.origins.get(suggestions.ESTIMATORS) != own
    ):
        evaluation = replace(
            evaluation, private=replace(evaluation.private, estimators=suggestions.estimators(epsilon))
        )
    privacy = replace(params.privacy, target_epsilon=epsilon)
    return replace(params, privacy=privacy, behaviour=behaviour, evaluation=evaluation)


@dataclass(frozen=True)
class Preview:
    """What the next `dvc repro` would charge.

    Attributes:
        line: to be printed.
        near: whether more than 80% of the budget would be spent afterwards.
    """

    line: str
    near: bool


def preview(params: Params) -> Preview | None:
    """Preview the most that the next run charges to the partitioned units; None: they will be made, or made anew.

    Raises:
        PipelineError: the settings do not fit the data, or `dvc status` fails.
    """
    changed = changed_stages()
    if not MANIFEST.exists() or changed & MAKE_DATA:
        return None
    partitions = Partitions.open(PARTITIONS, params)
    if partitions.manifest.info.dataset != params.dataset:
        return None
    manifest, public = partitions.manifest, partitions.public
    chosen, _ = fitted(params, manifest, public)
    check_choices(chosen, manifest, public)
    check_clone(chosen, manifest)
    plan = make_plan(chosen, manifest)
    spent, account = plan.spent(), accounts.account_of(params, partitions.version)
    epsilon = None if spent is None else spent.epsilon_pld
    wanted = [PendingCharge(TRAIN_MODEL, epsilon, plan.event), *beside_model(params, epsilon, manifest)]
    new = [each for each in mark_paid(params, partitions, account, wanted) if not each.paid]
    budget, near, online = params.privacy.budget, False, ""
    if params.online.asked and changed:
        online = _online(params)
    if not new:
        line = "the next `dvc repro` charges nothing: all of it is paid"
    elif spent is None:
        line = f"the next `dvc repro` has no guarantee (variant {params.dynamics.variant}): all ε then counts as spent"
        return Preview(line, near=budget.epsilon is not None)
    else:
        before, after = account.epsilon(budget.delta), account.with_events([each.event for each in new], budget.delta)
        most = "at most " if any(each.question is not None for each in new) else ""
        line = (
            f"the next `dvc repro` charges {most}{said(new)}: ε {_shown(before)} is spent, {_shown(after)} afterwards"
        )
        if budget.epsilon is None:
            line += ", without a budget"
        else:
            near = after > _NEAR * budget.epsilon
            line += f", of a budget of {at_most(budget.epsilon, 6)}"
            if after > budget.epsilon:
                line += ": what does not fit is refused before it reads a private row"
    return Preview(line + online, near)


def _online(params: Params) -> str:
    from primorl.paid.arrivals import share_ids, whose_account  # which import torch

    shared = share_ids(params)
    uncounted = ", and what they are charged is not counted here" if shared else ""
    return f"; the stage `online` charges the users who arrive: {whose_account(shared=shared)}{uncounted}"


def _shown(epsilon: float) -> str:
    return at_most(epsilon, 4) if math.isfinite(epsilon) else "infinite"
