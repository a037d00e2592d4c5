"""What the next `dvc repro` charges: model, clone and questions, and what of them is paid. Reads no private byte.

The three are paid one after the other by the same people. A budget that allows the first and not all would leave a run
without its answers, so it is refused before the first.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from dp_accounting import dp_event

from primorl.config import shares
from primorl.config.blocks import EstimatorName
from primorl.config.params import Params
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_most, left_of
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.budget_advice import advice
from primorl.privacy.ledger.ledger import Budget, BudgetExceeded, Request
from primorl.project.errors import PipelineError
from primorl.project.paths import PARAMS, PARTITIONS
from primorl.setup import accounts
from primorl.setup.cloning import CLONING, clone_event, cloning_setup
from primorl.setup.estimators import estimator
from primorl.setup.fitting import check_verdict, fitted
from primorl.setup.model_training import MODEL_TRAINING
from primorl.setup.partitions import Partitions
from primorl.setup.private_evaluation import STAGE, gaussian_mean
from primorl.setup.public_checks import check_public
from primorl.setup.training import training_setup
from primorl.training.setup import TrainingSetup

_CLOSE = 0.98  # an estimator's ε over what is asked for, at least
_TRIES, _LEAST = 6, 0.1
"""Steps of the search for a smaller ε, and the least share of the ε asked for that is looked at."""


@dataclass(frozen=True)
class Next:
    """Something that a run of the pipeline pays for.

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


def beside_model(params: Params, epsilon: float | None) -> list[Next]:
    """The clone, then the questions, which are charged beside the model.

    Args:
        params: every choice.
        epsilon: of the model.
    """
    if params.dynamics.variant != "private":
        return []
    delta, clone = params.privacy.delta, params.behaviour.target_epsilon
    found = [] if clone is None else [Next(CLONING.name, clone, clone_event(clone, delta))]
    for name, share in params.estimators(epsilon).items():
        found.append(Next(f"{STAGE}: {name}", share, dp_event.GaussianDpEvent(1 / gaussian_mean(share, delta)), name))
    return found


def marked(
    params: Params, setup: TrainingSetup, partitions: Partitions, account: Account, wanted: Sequence[Next]
) -> list[Next]:
    """The same charges, with what is paid marked.

    Model and clone are looked up by the identity of their paid work. Questions are looked up by name and ε; one about
    the model must be of the model that is paid, one with the clone's weights of the clone that is paid. Another policy,
    or another draw of theirs, makes them questions of their own, which shows only when they are asked.

    Args:
        params: every choice.
        setup: of the model's training.
        partitions: of the data.
        account: what was spent on the same units.
        wanted: the model, then what is charged beside it.
    """
    charges = [charge for charge in account.charges if charge.state != "aborted"]
    known = {charge.identity: charge for charge in charges}
    model = known.get(MODEL_TRAINING.identity(params, setup, partitions))
    paid_by, info = {"model": model}, partitions.manifest.info
    found = [replace(wanted[0], paid=model is not None)]
    for each in wanted[1:]:
        candidates = [charge for charge in charges if charge.stage == each.stage]
        if not candidates:
            found.append(each)
        elif each.question is None:
            clone = cloning_setup(params, partitions.manifest, partitions.public, start=False)
            paid_by["clone"] = known.get(CLONING.identity(params, clone, partitions))
            found.append(replace(each, paid=paid_by["clone"] is not None))
        else:
            most = each.epsilon or 0.0
            cloned = info.spaces.discrete_actions and wanted[1].question is None
            about = estimator(each.question, info, cloned=cloned).about
            near_another = "policy" in about and params.behaviour.chosen_network() is not None
            parts = [part for part in ("model", "clone") if part in about or (part == "clone" and near_another)]
            needed = [paid_by.get(part) for part in parts]
            after = max((charge.sequence for charge in needed if charge is not None), default=0)
            answered = any(
                charge.sequence > after and _CLOSE * most <= (charge.epsilon or 0.0) <= most for charge in candidates
            )
            found.append(replace(each, paid=answered and None not in needed))
    return found


def check_all_fits(params: Params, setup: TrainingSetup, partitions: Partitions) -> None:
    """Refuse to pay for a model where the clone and the questions that follow would not fit the budget any more.

    A model that is paid for is restored at no cost, and is not refused. A model that is charged alone is left to the
    ledger, whose advice counts nothing else.

    Raises:
        BudgetExceeded: the budget does not allow the model and all that is asked with it. Nothing was charged.
    """
    budget = accounts.budget(params, partitions.manifest.private_units)
    if budget is None or params.dynamics.variant != "private":
        return
    ledger = accounts.begun_ledger(params)
    account = Account(())
    if ledger is not None:
        with closing(ledger):
            account = ledger.account(partitions.version)
    wanted = [Next("train_model", None, setup.plan.event), *beside_model(params, _spent(params, setup))]
    model, *others = marked(params, setup, partitions, account, wanted)
    beside = [each for each in others if not each.paid]
    if model.paid or not beside:
        return
    together = account.with_events([model.event, *(each.event for each in beside)], budget.delta)
    if together > budget.epsilon:
        spent = account.epsilon(budget.delta)
        raise BudgetExceeded(
            f"params.yaml: privacy.budget is ε {at_most(budget.epsilon, 6)}, of which {at_most(spent, 6)} is spent and "
            f"{left_of(budget.epsilon, spent, 6)} is left; with the model, {said(beside)} it would be about "
            f"{at_most(together, 4)}; {still_fitting(params, account, model.event, beside, budget)}. "
            "Nothing was charged"
        )


def check_next(params: Params) -> None:
    """Refuse what the next run of the stages would be refused for, before any of it is run. Charges and reads nothing.

    What `primorl.setup.arrivals` brings has an account of its own and is asked for by the stage ``online``.

    Args:
        params: every choice, of the partitions in the working directory.

    Raises:
        Refused: by the ledger: the charges that are not paid yet would not be granted.
        PipelineError: the settings fit neither each other nor the data, or cannot learn.
    """
    partitions = Partitions.open(PARTITIONS)
    manifest, public = partitions.manifest, partitions.public
    check_public(params, manifest, public)
    chosen, fit = fitted(params, manifest, public)
    check_verdict(params, fit)
    setup = training_setup(chosen, manifest, public, start=False)
    check_all_fits(params, setup, partitions)
    identity = MODEL_TRAINING.identity(params, setup, partitions)
    baseline = params.dynamics.variant == "mopo"
    request = Request(
        version=partitions.version,
        dataset=manifest.info.dataset,
        stage=MODEL_TRAINING.name,
        identity=identity,
        event=dp_event.NonPrivateDpEvent() if baseline else setup.plan.event,
        delta=params.privacy.delta,
        git_commit=None,
        mlflow_run=None,
    )
    with closing(accounts.project_ledger(params)) as ledger:
        if not any(charge.identity == identity and charge.state != "aborted" for charge in ledger.charges()):
            ledger.dry_run(request, accounts.budget(params, manifest.private_units))


def still_fitting(
    params: Params, account: Account, event: dp_event.DpEvent, beside: Sequence[Next], budget: Budget
) -> str:
    """What fits the budget with everything that is charged beside the model.

    Args:
        params: as params.yaml has them.
        account: what was spent on the same units.
        event: of the model.
        beside: what is charged beside it and not paid yet.
        budget: what all of it would exceed.
    """
    events, run, target = [each.event for each in beside], Training.of(event), params.privacy.target_epsilon
    if not beside or run is None or target is None:
        return advice(account, event, budget, events)

    def fits(epsilon: float) -> bool:
        other = _at(params, epsilon)
        stages = {each.stage for each in beside}
        try:
            multiplier = solve_noise_multiplier(
                epsilon, params.privacy.delta, run.sampling_probability, run.rounds, run.queries
            )
            rest = [each.event for each in beside_model(other, epsilon) if each.stage in stages]
        except (ValueError, PipelineError):
            return False
        return account.fits_all([replace(run, noise_multiplier=multiplier).event, *rest], budget)

    found = _largest(fits, target)
    if found is None:
        return (
            "nothing fits any more together with them: ask for less (behaviour.target_epsilon, "
            f"evaluation.private.estimators in {PARAMS}), or raise privacy.budget.epsilon"
        )
    return f"still fitting with {said(beside, numbers=False)}: `dvc exp run -S privacy.target_epsilon={found!r}`"


def said(charges: Sequence[Next], *, numbers: bool = True) -> str:
    """Names of charges, with their ε."""
    names = [each.stage + (f" ({each.epsilon:g})" if numbers and each.epsilon is not None else "") for each in charges]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _spent(params: Params, setup: TrainingSetup) -> float | None:
    """The model's ε where questions are a share of what its noise comes to."""
    if params.origins.get(shares.ESTIMATORS) != shares.STATED:
        return None
    spent = setup.plan.spent()
    return None if spent is None else spent.epsilon_pld


def _largest(fits: Callable[[float], bool], target: float) -> float | None:
    """The largest ε below the target, to about 4% and two digits, that fits."""
    low, high = _LEAST * target, target
    if not fits(low := _rounded(low)):
        return None
    for _ in range(_TRIES):
        middle = _rounded((low * high) ** 0.5)
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _rounded(epsilon: float) -> float:
    return float(f"{epsilon:.2g}")


def _at(params: Params, epsilon: float) -> Params:
    """The same choices at another ε of the model; what is a share of it follows."""
    target, privacy = params.privacy.target_epsilon, replace(params.privacy, target_epsilon=epsilon)
    changed = replace(params, privacy=privacy)
    if target is None:
        return changed
    own = str(PARAMS)
    clone, questions = params.behaviour.target_epsilon, params.evaluation.private.estimators
    if clone is not None and params.origins.get(shares.CLONE) != own and clone == shares.clone(target):
        changed = replace(changed, behaviour=replace(params.behaviour, target_epsilon=shares.clone(epsilon)))
    if params.origins.get(shares.ESTIMATORS) != own and questions == shares.estimators(target):
        private = replace(params.evaluation.private, estimators=shares.estimators(epsilon))
        changed = replace(changed, evaluation=replace(params.evaluation, private=private))
    return changed
