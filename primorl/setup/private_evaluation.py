"""Charge the ledger for private evaluation, ask the private units, and save checkpoints."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self

from dp_accounting import dp_event

from primorl.config.params import Params, plain
from primorl.evaluation.private.estimator import Estimator, EvaluationState, run
from primorl.evaluation.private.problem import EpisodeSource, Problem
from primorl.privacy.ledger.charges import Payment, pay_or_resume, spent_on_dataset
from primorl.privacy.ledger.ledger import Request
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256
from primorl.project.paths import BEHAVIOUR, MODEL, POLICY
from primorl.project.progress import progress_bar
from primorl.setup import accounts
from primorl.setup.accounts import digest, plan_identity
from primorl.setup.compute import ALONE, chosen_device, kept_bytes
from primorl.setup.partitions import Partitions
from primorl.setup.questions import STAGE, gaussian_mean
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
class Paid:
    """An estimator's finished work and its ledger entry.

    Attributes:
        asked: estimator and plan.
        state: released.
        charge: id of the charge that paid for it.
    """

    asked: Asked
    state: EvaluationState
    charge: str


@dataclass(frozen=True)
class PaidEvaluation:
    """What all estimators found, and their ledger entries.

    Attributes:
        paid: one for each estimator.
        spent: on the same units so far, all of these charges included.
        commit: records in the ledger that a charge's answer was written; takes its id and the SHA-256 of the answer by
            name.
    """

    paid: tuple[Paid, ...]
    spent: SpentOnDataset
    commit: Callable[[str, Mapping[str, str]], None]


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
) -> Iterator["PaidEvaluation"]:
    """Pay for every estimator and run it. The block writes the results and commits the charges.

    What was paid for under the same identity is resumed or restored at no cost, whatever code made it. If the budget
    does not allow all that is still to be paid for, nothing is charged. Each charge is reserved before a private row is
    read for it. The charges stay open until the block commits them, so a kill costs nothing: the next call finds the
    finished states.

    Args:
        params: every choice.
        problem: the question.
        asked: the estimators; where `Asked.earlier` was paid for and they were not, its answer stands.
        partitions: whose private rows are opened after the first charge is granted.
        subject: model and policy.
        log: the stage's MLflow run.

    Raises:
        PipelineError: the budget does not allow it, or the policy is another one than was paid for under the same
            settings.
    """
    budget = accounts.budget(params, partitions.manifest.private_units)
    rows = _Rows(params, partitions)
    with closing(accounts.project_ledger(params)) as ledger:
        known = {charge.identity for charge in ledger.charges() if charge.state != "aborted"}
        asked = [_as_paid(params, partitions, each, subject, known) for each in asked]
        requests = [_request(params, log, partitions, each, subject) for each in asked]
        if pending := [request for request in requests if request.identity not in known]:
            ledger.dry_run(_together(pending), budget)
        paid = []
        for each, request in zip(asked, requests, strict=True):
            about = _about(each.estimator, problem, subject)
            begin = EvaluationState.begin(each.estimator, problem, each.plan, about)
            with pay_or_resume(
                ledger, request, budget, accounts.checkpoints(), begin, EvaluationState.restore
            ) as payment:
                paid.append(Paid(each, _run(each, problem, rows, payment, about), payment.charge.id))
        spent = spent_on_dataset(ledger, partitions.version, params.privacy.budget.delta)
        yield PaidEvaluation(tuple(paid), spent, ledger.commit)


class _Rows:
    """The private units, opened when they are first asked for."""

    def __init__(self, params: Params, partitions: Partitions) -> None:
        self._params, self._partitions = params, partitions
        self.device = chosen_device(params.compute, ALONE)

    @cached_property
    def source(self) -> EpisodeSource:
        """The units that were charged."""
        return self._partitions.open_private(kept_bytes(self._params.compute), episodes=True)


def _run(asked: Asked, problem: Problem, rows: _Rows, payment: Payment[EvaluationState], about: str) -> EvaluationState:
    state, name = payment.state, asked.estimator.name
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
    with progress_bar(asked.plan.rounds, f"{STAGE} {name}", "round") as bar:
        bar.update(state.started)
        return run(
            asked.estimator,
            problem,
            asked.plan,
            rows.source,
            state,
            save_checkpoint=payment.save_checkpoint,
            on_round=lambda started: bar.update(),
            device=rows.device,
        )


def _as_paid(params: Params, partitions: Partitions, asked: Asked, subject: Subject, known: Collection[str]) -> Asked:
    if asked.earlier is None or _identity(params, partitions, asked, subject) in known:
        return asked
    return asked.earlier if _identity(params, partitions, asked.earlier, subject) in known else asked


def _together(requests: Sequence[Request]) -> Request:
    parts: list[dp_event.DpEvent] = []
    for request in requests:
        event = request.event
        parts += event.events if isinstance(event, dp_event.ComposedDpEvent) else [event]
    return replace(requests[0], event=dp_event.ComposedDpEvent(tuple(parts)))


def _request(params: Params, log: StageRun, partitions: Partitions, asked: Asked, subject: Subject) -> Request:
    return accounts.request(
        params,
        log,
        partitions.manifest,
        partitions.version,
        stage=f"{STAGE}: {asked.estimator.name}",
        event=asked.plan.event,
        identity=_identity(params, partitions, asked, subject),
    )


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
