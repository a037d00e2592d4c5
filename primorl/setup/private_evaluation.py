"""Private evaluation: charge the ledger, ask the private units, and write the answers with their statements."""

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from primorl.config.params import Params, plain
from primorl.evaluation.figures import draw_evaluation
from primorl.evaluation.private.behaviour import Behaviour
from primorl.evaluation.private.estimator import Estimator, EvaluationState, run
from primorl.evaluation.private.model_check import ModelCheck
from primorl.evaluation.private.problem import EpisodeSource, Problem, check_blocks, in_float64, mean_change
from primorl.evaluation.private.results import MEAN_RETURN, Answer, Histogram, PrivateEvaluation
from primorl.privacy.accounting.gaussian import gaussian_mean
from primorl.privacy.ledger.charges import Payment
from primorl.privacy.ledger.history import Request
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, replaced_file
from primorl.project.paths import BEHAVIOUR, MANIFEST, MODEL, POLICY
from primorl.project.progress import progress_bar
from primorl.setup import accounts
from primorl.setup.accounts import digest, plan_identity
from primorl.setup.compute import chosen_device, kept_bytes
from primorl.setup.partitions import Partitions, assumptions
from primorl.setup.questions import STAGE
from primorl.setup.work import Work, work_of
from primorl.tracking import StageRun
from primorl.trajectories.storage.manifest import Manifest

_GONE: dict[str, dict[str, Any]] = {
    "model_check": {"bins": 16, "histogram_share": 0.1},
    "lstd": {"features": 0, "lengthscale": 2.0},
    "dptd": {"privacy_unit": "dataset", "output": "average"},
    "doubly_robust": {"lookback": 1},
}
"""Settings that are gone, each with its only value: they are part of the identity of what was paid for."""
_CLOSE = 0.99  # of the ε that is asked for
_BOUNDS = " bounds "


@dataclass(frozen=True)
class Asked:
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
class Answered:
    """An estimator's finished work, whose charge is open.

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
class Subject:
    """The model and the policy that the estimators evaluate, and the clone, whose weights some of them use.

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
    def read(cls, *, cloned: bool) -> "Subject":
        """Read what lies in ``models/``; ``cloned`` tells whether there is a clone."""
        return cls(
            model_charge=Statement.read(MODEL).charge,
            model_sha256=file_sha256(MODEL / "model.safetensors"),
            policy_sha256=file_sha256(POLICY / "policy.safetensors"),
            clone_charge=Statement.read(BEHAVIOUR).charge if cloned else None,
            clone_sha256=file_sha256(BEHAVIOUR / "policy.safetensors") if cloned else None,
        )


def plan_at(estimator: Estimator, problem: Problem, epsilon: float) -> Plan:
    """The estimator's mechanism at the largest cost that is at most ε, to 1%.

    Raises:
        PipelineError: no noise is enough.
    """
    mean = gaussian_mean(epsilon, problem.delta)
    for _ in range(12):
        mean = float(f"{mean * (1 - 5e-4):.3e}")  # few digits: another version of the accountant finds the same
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


@contextmanager
def paid_evaluation(
    params: Params, problem: Problem, asked: Sequence[Asked], partitions: Partitions, subject: Subject, log: StageRun
) -> Iterator[list[Answered]]:
    """Pay for every estimator and run it. The block writes the results and commits the charges.

    What was paid for under the same identity is resumed or restored at no cost, whatever code made it. If the budget
    does not allow all that is still to be paid for, nothing is charged. Each charge is reserved before a private row is
    read for it. The charges stay open until the block commits them, so a kill costs nothing: the next call finds the
    finished states.

    Raises:
        PipelineError: see `check_blocks`; or the budget does not allow it, or the policy is another one than was paid
            for under the same settings.
    """
    device, size = chosen_device(params.compute), problem.observation_size
    check_blocks(partial(mean_change, in_float64(problem.ensemble, device)), size + problem.action_size, device)
    for act in filter(None, (problem.policy, problem.clone)):
        check_blocks(act, size)

    @cache
    def rows() -> EpisodeSource:
        return partitions.open_private(kept_bytes(params.compute), episodes=True)

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
        answered = []
        for each, request in zip(asked, requests, strict=True):
            about = _about(each.estimator, problem, subject)
            begin = EvaluationState.begin(each.estimator, problem, each.plan, about)
            with work_of(params, ledger, request, begin, EvaluationState.restore) as work:
                state = _checked_state(each.estimator.name, work.payment, about)
                if not work.payment.finished:
                    with progress_bar(each.plan.rounds, f"{STAGE} {each.estimator.name}", "round") as bar:
                        bar.update(state.started)
                        state = run(
                            each.estimator,
                            problem,
                            each.plan,
                            rows(),
                            state,
                            save_checkpoint=work.payment.save_checkpoint,
                            on_round=lambda started, bar=bar: bar.update(),  # type: ignore[misc]
                            device=device,
                        )
                answered.append(Answered(each.estimator, each.plan, state, work))
        yield answered


def _checked_state(name: str, payment: Payment[EvaluationState], about: str) -> EvaluationState:
    """The state to begin, to resume or to restore.

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
        print(f"{STAGE}: {name}: charge {payment.charge.id} has paid for this answer: it is restored", file=sys.stderr)
    return state


def _as_paid(params: Params, partitions: Partitions, asked: Asked, subject: Subject, known: Collection[str]) -> Asked:
    if asked.earlier is None or _identity(params, partitions, asked, subject) in known:
        return asked
    return asked.earlier if _identity(params, partitions, asked.earlier, subject) in known else asked


def _request(params: Params, log: StageRun, partitions: Partitions, asked: Asked, subject: Subject) -> Request:
    dataset, stage = partitions.manifest.info.dataset, f"{STAGE}: {asked.estimator.name}"
    identity = _identity(params, partitions, asked, subject)
    return accounts.request(params, log, dataset, partitions.version, stage, asked.plan.event, identity)


def _identity(params: Params, partitions: Partitions, asked: Asked, subject: Subject) -> str:
    """Everything that determines an answer but chance and code, as `model_identity` has it for a model.

    A key that is added charges everybody again, so what the question also depends on stands in `_about`.
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
    return {key: value for key, value in plain(params.policy).items() if f"policy.{key}" not in params.unfitted}


def _about(estimator: Estimator, problem: Problem, subject: Subject) -> str:
    digests = {"model": subject.model_sha256, "policy": subject.policy_sha256, "clone": subject.clone_sha256 or ""}
    ends = (problem.reward_low, problem.reward_high, problem.return_low, problem.return_high)
    return _BOUNDS.join((" ".join(digests[part] for part in estimator.about), " ".join(f"{end:.9g}" for end in ends)))


def nothing_asked(params: Params) -> PrivateEvaluation:
    """Make the file's content where no estimator was asked."""
    manifest = Manifest.load(MANIFEST)
    return PrivateEvaluation(
        dataset=params.dataset,
        unit=manifest.info.unit,
        units=manifest.private_units,
        discount=params.evaluation.private.discount,
        horizon=manifest.info.horizon,
        estimates=(),
        histograms=(),
        verdict=None,
        statements={},
        total=None,
        model_sha256=None,
        policy_sha256=None,
        clone_sha256=None,
    )


def evaluation_record(
    params: Params,
    problem: Problem,
    partitions: Partitions,
    subject: Subject,
    answered: Sequence[Answered],
    free: Sequence[Answer],
) -> PrivateEvaluation:
    """The file's content."""
    spent, record = answered[-1].work.spent, nothing_asked(params)
    statements: dict[str, Statement] = {}
    answers: list[Answer] = []
    for each in answered:
        name, estimator = each.estimator.name, each.estimator
        statements[name] = _statement(partitions, each).with_payment(each.work.payment.charge.id, spent)
        answers += [
            _answer(problem, found, statements[name]) for found in estimator.estimates(problem, each.plan, each.state)
        ]
        if isinstance(estimator, Behaviour):
            edges, shares = (tuple(each.state.values[key].tolist()) for key in ("edges", "histogram"))
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


def write_evaluation(path: Path, figure: Path, record: PrivateEvaluation) -> None:
    """Write the file and its figure, each atomically."""
    record.write(path)
    with replaced_file(figure) as fresh:
        draw_evaluation(fresh, record)


def _statement(partitions: Partitions, each: Answered) -> Statement:
    info = partitions.manifest.info
    statement = each.plan.statement(
        dataset_fingerprint=info.dataset_fingerprint, public_assumptions=assumptions(partitions.manifest)
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
    """An answer with its cost; a mean return and its interval are held within the return's bounds."""
    value, ends = found.value, found.ci95
    if found.what == MEAN_RETURN:
        value = problem.held_return(value)
        ends = None if ends is None else (problem.held_return(ends[0]), problem.held_return(ends[1]))
    epsilon, delta = (statement.epsilon, statement.delta) if statement else (None, None)
    return replace(found, value=value, ci95=ends, epsilon=epsilon, delta=delta)
