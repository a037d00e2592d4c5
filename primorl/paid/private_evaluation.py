"""Private evaluation: charge the ledger, ask the private units, and write the answers with their statements."""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256
from primorl.base.paths import BEHAVIOUR, MODEL, POLICY
from primorl.base.reporting import progress_bar
from primorl.config.blocks import EstimatorName
from primorl.config.params import Params, plain
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import DatasetInfo, Manifest
from primorl.evaluate.private.behaviour import Behaviour
from primorl.evaluate.private.doubly_robust import BehaviourFit, Cloned, DoublyRobust
from primorl.evaluate.private.dptd import Dptd
from primorl.evaluate.private.estimator import Estimator, EvaluationState, run
from primorl.evaluate.private.lstd import Lstd
from primorl.evaluate.private.model_check import ModelCheck
from primorl.evaluate.private.model_values import Clone
from primorl.evaluate.private.problem import (
    Act,
    Problem,
    PublicTrajectories,
    check_blocks,
    in_float64,
    mean_change,
    public_return_bounds,
)
from primorl.evaluate.private.results import MEAN_RETURN, Answer, Histogram, PrivateEvaluation
from primorl.model.ensemble import GaussianEnsemble, SeedGenerators
from primorl.model.starts import StartModel, asked_of_private, survival_of
from primorl.model.termination import NONE
from primorl.paid import accounts
from primorl.paid.accounts import digest, plan_identity
from primorl.paid.answers import nothing_asked
from primorl.paid.compute import chosen_device, kept_bytes
from primorl.paid.estimators import EVALUATE_PRIVATE, MEAN_SHARE, check_question
from primorl.paid.partitions import Partitions, assumptions
from primorl.paid.private import open_private
from primorl.paid.work import Work, paid_work_in
from primorl.policy.behaviour import BehaviourPolicy, SampledClone, released
from primorl.policy.config import BehaviourConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.gaussian import gaussian_mean
from primorl.privacy.ledger.charges import Payment
from primorl.privacy.ledger.history import Request
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from primorl.tracking import StageRun

_GONE: dict[str, dict[str, Any]] = {
    "model_check": {"bins": 16, "histogram_share": 0.1},
    "lstd": {"features": 0, "lengthscale": 2.0},
    "dptd": {"privacy_unit": "dataset", "output": "average"},
    "doubly_robust": {"lookback": 1},
}
"""Settings that are gone, each with its only value: they are part of the identity of what was paid for."""
_CLOSE = 0.99  # of the ε that is asked for
_BOUNDS = " bounds "


BEHAVIOUR_RETURNS = Behaviour(levels=9, mean_share=MEAN_SHARE)
ROLLOUTS = 512
"""In each member of the model, of every policy whose value there is free."""
MODEL_CHECK = ModelCheck(horizons=(1, 5, 20), starts=8, cap=1.5)
DPTD = Dptd(
    of="policy",
    hidden=(16,),
    members=4,
    rounds=300,
    sampling_probability=0.01,
    clipping_norm=0.01,
    alpha=3.0,
    beta=3.0,
    kappa=2.0,
    eta=20.0,
    query_share=0.1,
)
_STARTS = 4096  # drawn from the released first states
_FIT = BehaviourFit(
    sampling_probability=0.02, rounds=40, clipping_norm=0.5, learning_rate=0.1, budget_share=0.5
)


def estimator(name: EstimatorName, info: DatasetInfo, *, cloned: bool) -> Estimator:
    """Make the estimator of a name, for a dataset.

    Probabilities of the behaviour's actions come from the log if it has them, else from the clone, else from a fit.
    """
    behaviour = None if info.behaviour_probabilities else Cloned() if cloned else _FIT
    match name:
        case "behaviour":
            return BEHAVIOUR_RETURNS
        case "model_check":
            return MODEL_CHECK
        case "lstd":
            return Lstd(
                model_features=64, rollouts=512, rows=8, clipping_norm=0.05, query_share=0.3
            )
        case "dptd":
            return DPTD
        case "doubly_robust":
            return DoublyRobust(
                largest_weight=50.0,
                behaviour=behaviour,
                model_features=64,
                rollouts=512,
                largest_correction=20.0,
            )


def evaluation_problem(
    params: Params,
    partitions: Partitions,
    policy: Act,
    *,
    discount: float,
    return_bounds: Sequence[float] | Literal["public"] | None,
    ends: str | None = None,
    clone: Clone | None = None,
) -> Problem:
    """Set up the problem that the estimators solve for a policy and the released model. Reads no private byte.

    Args:
        params: δ at which costs are stated, and the seed of features and initial weights.
        partitions: first states and lengths come from their public split where there is one.
        policy: the one in question.
        discount: γ.
        return_bounds: declared bounds of a trajectory's return, or from the public returns, if there are any; None:
            the bounds that follow from those of rewards.
        ends: how rollouts end, as the policy's ``config.json`` says: ``none``, or None for how the model says.
        clone: of the behaviour, if there is one.

    Raises:
        PipelineError: neither a horizon nor a discount bounds the return, or the model is missing or broken.
    """
    manifest, public = partitions.manifest, partitions.public
    info = manifest.info
    if info.horizon is None and discount == 1.0:
        raise PipelineError(
            f"datasets/{info.dataset}.yaml: horizon: not declared, while evaluation.private.discount is 1, so nothing "
            "bounds a return; declare a horizon, or set a discount below 1"
        )
    ensemble = GaussianEnsemble.load(MODEL, torch.device("cpu")).with_ends(ends)
    bounds, size = ensemble.bounds, ensemble.architecture.observation_size
    problem = Problem(
        units=manifest.private_units,
        unit=info.unit,
        delta=params.privacy.delta,
        horizon=info.horizon,
        discount=discount,
        observation_low=bounds.observation_low,
        observation_high=bounds.observation_high,
        observation_mean=ensemble.normaliser.input_mean[:size],
        observation_scale=ensemble.normaliser.input_scale[:size],
        action_low=bounds.action_low,
        action_high=bounds.action_high,
        discrete_actions=info.spaces.discrete_actions,
        reward_low=bounds.reward_low,
        reward_high=bounds.reward_high,
        return_low=0.0,
        return_high=0.0,
        policy=policy,
        ensemble=ensemble,
        starts=first_states(public, params.seed),
        seed=params.seed,
        clone=None if clone is None else clone.probabilities,
    )
    problem = problem.with_return_bounds(None if return_bounds == "public" else return_bounds)
    if return_bounds == "public" and public.units > 0:
        recorded = PublicTrajectories.of(public).in_rollouts(ends)
        problem = problem.with_return_bounds(public_return_bounds(recorded, problem))
    if public.units == 0 or asked_of_private(MODEL):
        return replace(problem, survival=survival_of(MODEL, by_model=ends != NONE))
    trajectories = PublicTrajectories.of(public).in_rollouts(ends)
    if info.horizon is None:
        return problem
    return replace(problem, survival=trajectories.survival(info.horizon))


def clone_of(folder: Path, seed: int) -> Clone | None:
    """Load the clone of the behaviour from ``folder``; None: none was made.

    Args:
        folder: ``models/behaviour``.
        seed: of actions that are drawn.

    Raises:
        PipelineError: a file is missing or broken.
    """
    if not BehaviourConfig.read(folder).made:
        return None
    cpu = torch.device("cpu")
    behaviour, generators = BehaviourPolicy.load(folder, cpu), SeedGenerators.of([seed], cpu)
    return Clone(
        released=act_of(released(behaviour, generators)),
        drawn=act_of(SampledClone(behaviour, generators)),
        probabilities=_probabilities(behaviour) if behaviour.discrete_actions else None,
    )


def act_of(policy: DeterministicPolicy | SampledClone) -> Act:
    """Wrap one policy as a function of observations; an exported one computes in float64."""
    exact = in_float64(policy) if isinstance(policy, DeterministicPolicy) else policy
    return lambda observation: exact.act(observation.double()[None])[0]


def _probabilities(behaviour: BehaviourPolicy) -> Act:
    exact = replace(behaviour, policy=in_float64(behaviour.policy))
    return lambda observation: exact.log_probabilities(observation.double()).exp()


def first_states(public: UnitStore, seed: int) -> Tensor:
    """Collect first states ``[n, S]`` of public trajectories, or draw them from the released model of first states."""
    if public.units > 0 and not asked_of_private(MODEL):
        return public.first_observations()
    return StartModel.load(MODEL, torch.device("cpu")).sample(
        _STARTS, torch.Generator().manual_seed(seed)
    )


@dataclass(frozen=True)
class PlannedEstimator:
    """An estimator that is asked, and its mechanism.

    Attributes:
        estimator: with its settings.
        plan: at the ε that params.yaml gives it.
        earlier: another way to answer the same question, with a fitted behaviour; its answer stands where it was paid
            for. None: there is no other way.
    """

    estimator: Estimator
    plan: Plan
    earlier: Self | None = None


@dataclass(frozen=True)
class PaidEstimator:
    """An estimator's finished work; its charge is open.

    Attributes:
        estimator: that was asked.
        plan: its mechanism.
        state: released.
        work: the charge, to be committed with the digest of the answer.
    """

    estimator: Estimator
    plan: Plan
    state: EvaluationState
    work: Work[EvaluationState]


@dataclass(frozen=True)
class EvaluatedFiles:
    """The model and the policy that the estimators evaluate, and the clone that some of them use.

    Attributes:
        model_charge: id of the charge that paid for the model; None: it has none.
        model_sha256: of the model's file.
        policy_sha256: of the policy's file.
        clone_charge: id of the charge that paid for the clone; None: it has none, or there is none.
        clone_sha256: of the clone's file; None: none was made.
    """

    model_charge: str | None
    model_sha256: str
    policy_sha256: str
    clone_charge: str | None
    clone_sha256: str | None

    @classmethod
    def read(cls, *, cloned: bool) -> "EvaluatedFiles":
        """Read the files in ``models/``; ``cloned`` tells whether there is a clone."""
        return cls(
            model_charge=Statement.read(MODEL).charge,
            model_sha256=file_sha256(MODEL / "model.safetensors"),
            policy_sha256=file_sha256(POLICY / "policy.safetensors"),
            clone_charge=Statement.read(BEHAVIOUR).charge if cloned else None,
            clone_sha256=file_sha256(BEHAVIOUR / "policy.safetensors") if cloned else None,
        )


def plan_at(estimator: Estimator, problem: Problem, epsilon: float) -> Plan:
    """Plan the estimator's mechanism at the largest cost that is at most ε, to 1%.

    Raises:
        PipelineError: no noise is enough.
    """
    mean = gaussian_mean(epsilon, problem.delta)
    for _ in range(12):
        mean = float(
            f"{mean * (1 - 5e-4):.3e}"
        )  # few digits: another version of the accountant finds the same
        plan = estimator.plan(problem, mean)
        spent = plan.spent()
        assert spent is not None, "a plan of an estimator adds noise"
        if _CLOSE * epsilon <= spent.epsilon_pld <= epsilon:
            return plan
        mean *= min(max(epsilon / max(spent.epsilon_pld, 1e-12), 0.2), 5.0)
    raise PipelineError(
        f"params.yaml: evaluation.private.estimators.{estimator.name}: found {epsilon:g}, and found no noise for it; "
        "raise it, or lower the estimator's rounds or sampling probability"
    )


def event_of_plan(
    params: Params, name: EstimatorName, epsilon: float, manifest: Manifest
) -> DpEvent:
    """Build the event of an estimator at an ε before there is a model or a policy: it depends on public numbers alone.

    Raises:
        PipelineError: no noise is enough.
    """
    info = manifest.info
    cloned = info.spaces.discrete_actions and params.behaviour.target_epsilon is not None
    return plan_at(
        estimator(name, info, cloned=cloned), _unasked_problem(params, manifest), epsilon
    ).event


def _unasked_problem(params: Params, manifest: Manifest) -> Problem:
    """Set up a problem for planning a mechanism. Bounds are 0 and 1: noise multipliers do not depend on them."""
    spaces = manifest.info.spaces
    states, actions = len(spaces.observation_low), len(spaces.action_low)
    return Problem(
        units=manifest.private_units,
        unit=manifest.info.unit,
        delta=params.privacy.delta,
        horizon=manifest.info.horizon,
        discount=params.evaluation.private.discount,
        observation_low=torch.zeros(states),
        observation_high=torch.ones(states),
        observation_mean=torch.zeros(states),
        observation_scale=torch.ones(states),
        action_low=torch.zeros(actions),
        action_high=torch.ones(actions),
        discrete_actions=spaces.discrete_actions,
        reward_low=0.0,
        reward_high=1.0,
        return_low=0.0,
        return_high=1.0,
        policy=lambda states: states,
        ensemble=cast("GaussianEnsemble", None),  # no plan looks at it
        starts=torch.zeros(1, states),
    )


def asked_for(
    epsilons: Mapping[EstimatorName, float], problem: Problem, info: DatasetInfo
) -> tuple[PlannedEstimator, ...]:
    """Plan the estimators that params.yaml names, each at its ε.

    Raises:
        PipelineError: an estimator does not fit the data, or no noise is enough for its ε.
    """
    cloned, found = problem.clone is not None, []
    for name, epsilon in epsilons.items():
        check_question(name, info)
        made = estimator(name, info, cloned=cloned)
        asked = PlannedEstimator(made, plan_at(made, problem, epsilon))
        if (
            "clone" in made.about
        ):  # who paid for an answer with a fitted behaviour does not pay again
            fitted = estimator(name, info, cloned=False)
            asked = replace(
                asked, earlier=PlannedEstimator(fitted, plan_at(fitted, problem, epsilon))
            )
        found.append(asked)
    return tuple(found)


@contextmanager
def paid_evaluation(
    params: Params,
    problem: Problem,
    asked: Sequence[PlannedEstimator],
    partitions: Partitions,
    subject: EvaluatedFiles,
    log: StageRun,
) -> Iterator[list[PaidEstimator]]:
    """Pay for every estimator and run it. The block writes the results and commits the charges.

    Work that was paid for under the same identity is resumed or restored at no cost, after any edit of code. If the
    budget does not allow all that is still to be paid for, nothing is charged. Each charge is reserved before a private
    row is read for it. The charges stay open until the block commits them, so a kill costs nothing: the next call finds
    the finished states.

    Raises:
        PipelineError: see `check_blocks`; or the budget does not allow it, or the policy is another one than was paid
            for under the same settings.
    """
    device, size = chosen_device(params.compute), problem.observation_size
    check_blocks(
        partial(mean_change, in_float64(problem.ensemble, device)),
        size + problem.action_size,
        device,
    )
    for act in filter(None, (problem.policy, problem.clone)):
        check_blocks(act, size)

    with closing(accounts.project_ledger(params)) as ledger:
        known = {charge.identity for charge in ledger.charges() if charge.state != "aborted"}
        asked = [_as_paid(params, partitions, each, subject, known) for each in asked]
        requests = [_request(params, log, partitions, each, subject) for each in asked]
        if pending := [request for request in requests if request.identity not in known]:
            events: list[DpEvent] = []
            for request in pending:
                event = request.event
                events += event.events if isinstance(event, ComposedDpEvent) else [event]
            together = replace(pending[0], event=ComposedDpEvent(tuple(events)))
            ledger.dry_run(together, accounts.budget(params, partitions.manifest.private_units))
        answered, rows = [], None
        for each, request in zip(asked, requests, strict=True):
            about = _about(each.estimator, problem, subject)
            begin = EvaluationState.begin(each.estimator, problem, each.plan, about)
            with paid_work_in(params, ledger, request, begin, EvaluationState.restore) as work:
                state = _checked_state(each.estimator.name, work.payment, about)
                if not work.payment.finished:
                    if rows is None:
                        rows = open_private(
                            partitions,
                            work.payment.charge,
                            kept_bytes(params.compute),
                            episodes=True,
                        )
                    with progress_bar(
                        each.plan.rounds, f"{EVALUATE_PRIVATE} {each.estimator.name}", "round"
                    ) as bar:
                        bar.update(state.started)
                        state = run(
                            each.estimator,
                            problem,
                            each.plan,
                            rows,
                            state,
                            save_checkpoint=work.payment.save_checkpoint,
                            on_round=lambda started, bar=bar: bar.update(),  # type: ignore[misc]
                            device=device,
                        )
                answered.append(PaidEstimator(each.estimator, each.plan, state, work))
        yield answered


def _checked_state(name: str, payment: Payment[EvaluationState], about: str) -> EvaluationState:
    """Check the state that is begun, resumed or restored, and return it.

    Raises:
        PipelineError: it is about another policy, model or clone, or its answer is lost.
    """
    state = payment.state
    assert state is not None
    if state.about not in (about, about.partition(_BOUNDS)[0]):  # states had no bounds at first
        raise PipelineError(
            f"models: {name}: charge {payment.charge.id} of {payment.charge.time} paid for its answer about another "
            "policy or clone that was made with the same settings (an edit of code, or another machine), or about "
            "other bounds of rewards or returns; to pay for an answer about these, set evaluation.private.draw in "
            "params.yaml to a new number"
        )
    if state.missing:
        raise PipelineError(
            f"{name}: charge {payment.charge.id} of {payment.charge.time}: the run died while it drew its answer, and "
            "a charge pays for one answer only; it stays spent; to pay for another, set evaluation.private.draw in "
            "params.yaml to a new number"
        )
    if payment.finished:
        paid = f"charge {payment.charge.id} has paid for this answer"
        print(f"{EVALUATE_PRIVATE}: {name}: {paid}: it is restored", file=sys.stderr)
    return state


def _as_paid(
    params: Params,
    partitions: Partitions,
    asked: PlannedEstimator,
    subject: EvaluatedFiles,
    known: Collection[str],
) -> PlannedEstimator:
    if asked.earlier is None or _identity(params, partitions, asked, subject) in known:
        return asked
    return (
        asked.earlier if _identity(params, partitions, asked.earlier, subject) in known else asked
    )


def _request(
    params: Params,
    log: StageRun,
    partitions: Partitions,
    asked: PlannedEstimator,
    subject: EvaluatedFiles,
) -> Request:
    dataset, stage = partitions.manifest.info.dataset, f"{EVALUATE_PRIVATE}: {asked.estimator.name}"
    identity = _identity(params, partitions, asked, subject)
    return accounts.request(
        params, log, dataset, partitions.version, stage, asked.plan.event, identity
    )


def _identity(
    params: Params, partitions: Partitions, asked: PlannedEstimator, subject: EvaluatedFiles
) -> str:
    """Hash everything that determines an answer except chance and code, like `model_identity` for a model.

    A key that is added here charges every project again, so other things that matter stand in `_about`.
    """
    estimator, chosen = asked.estimator, params.evaluation.private
    content = {
        "data": partitions.identity,
        "estimator": estimator.name,
        "settings": asdict(estimator) | _GONE.get(estimator.name, {}),  # type: ignore[call-overload]
        "plan": plan_identity(asked.plan),
        "discount": chosen.discount,
        "return_bounds": chosen.return_bounds,
        "seed": params.seed,
        "model": subject.model_charge if "model" in estimator.about else None,
        "policy": _asked_of_policy(params) if "policy" in estimator.about else None,
        "draw": chosen.draw,
    }
    if "clone" in estimator.about:
        content["clone"] = subject.clone_charge
    if "policy" in estimator.about and (network := params.behaviour.chosen_network()) is not None:
        content["clone_network"] = network  # the policy is held near the clone
    return digest(content)


def _asked_of_policy(params: Params) -> dict[str, Any]:
    return {
        key: value
        for key, value in plain(params.policy).items()
        if f"policy.{key}" not in params.unfitted
    }


def _about(estimator: Estimator, problem: Problem, subject: EvaluatedFiles) -> str:
    digests = {
        "model": subject.model_sha256,
        "policy": subject.policy_sha256,
        "clone": subject.clone_sha256 or "",
    }
    ends = (problem.reward_low, problem.reward_high, problem.return_low, problem.return_high)
    return _BOUNDS.join(
        (
            " ".join(digests[part] for part in estimator.about),
            " ".join(f"{end:.9g}" for end in ends),
        )
    )


def evaluation_record(
    params: Params,
    problem: Problem,
    partitions: Partitions,
    subject: EvaluatedFiles,
    answered: Sequence[PaidEstimator],
    free: Sequence[Answer],
) -> PrivateEvaluation:
    """The file's content."""
    spent, record = answered[-1].work.spent, nothing_asked(params)
    statements: dict[str, Statement] = {}
    answers: list[Answer] = []
    for each in answered:
        name, estimator = each.estimator.name, each.estimator
        statements[name] = _statement(partitions, each).with_payment(
            each.work.payment.charge.id, spent
        )
        answers += [
            _answer(problem, found, statements[name])
            for found in estimator.estimates(problem, each.plan, each.state)
        ]
        if isinstance(estimator, Behaviour):
            edges, shares = (
                tuple(each.state.values[key].tolist()) for key in ("edges", "histogram")
            )
            spread = Histogram(estimator=name, what="return of a unit", edges=edges, shares=shares)
            record = replace(record, histograms=(spread,))
        if isinstance(estimator, ModelCheck):
            record = replace(record, verdict=estimator.verdict(problem, each.plan, each.state))
    return replace(
        record,
        estimates=(*answers, *(_answer(problem, found, None) for found in free)),
        statements=statements,
        total=spent,
        model_sha256=subject.model_sha256,
        policy_sha256=subject.policy_sha256,
        clone_sha256=subject.clone_sha256,
    )


def _statement(partitions: Partitions, each: PaidEstimator) -> Statement:
    info = partitions.manifest.info
    statement = each.plan.statement(
        dataset_fingerprint=info.dataset_fingerprint,
        public_assumptions=assumptions(partitions.manifest),
    )
    # The question itself holds the model, the policy and the clone: where they are not private, neither is the whole.
    parts = [("model", MODEL), *([("clone", BEHAVIOUR)] if "clone" in each.estimator.about else [])]
    unsound = [
        f"the {part} in the question has no sound guarantee of its own"
        for part, folder in parts
        if not Statement.read(folder).sound
    ]
    return replace(
        statement,
        void=(*statement.void, *unsound),
        public_units=partitions.manifest.public_units,
        trajectories_per_person=info.trajectories_per_person,
    )


def _answer(problem: Problem, found: Answer, statement: Statement | None) -> Answer:
    """Add its cost to an answer, and clamp a mean return and its interval to the return's bounds."""
    value, ends = found.value, found.ci95
    if found.what == MEAN_RETURN:
        value = problem.held_return(value)
        ends = (
            None if ends is None else (problem.held_return(ends[0]), problem.held_return(ends[1]))
        )
    epsilon, delta = (statement.epsilon, statement.delta) if statement else (None, None)
    return replace(found, value=value, ci95=ends, epsilon=epsilon, delta=delta)
