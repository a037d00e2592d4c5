"""Private evaluation: charge the ledger, ask the private units, and write the answers with their
statements.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from dp_accounting.dp_event import ComposedDpEvent
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256
from primorl.base.paths import BEHAVIOUR, MODEL, POLICY
from primorl.config.blocks import EstimatorName
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.evaluate.private.behaviour import Behaviour
from primorl.evaluate.private.model_check import ModelCheck
from primorl.evaluate.private.model_values import Clone, signs_against
from primorl.evaluate.private.problem import (
    Act,
    Problem,
    PublicTrajectories,
    check_blocks,
    in_float64,
    mean_change,
    public_return_bounds,
)
from primorl.evaluate.private.question import Asked, Question, ask, noise_of
from primorl.evaluate.private.results import Answer, PrivateEvaluation, Verdict, Veto, unasked
from primorl.model.architecture import ModelConfig
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.numerics import SeedGenerators
from primorl.model.starts import StartModel, asked_of_private, survival_of
from primorl.model.termination import NONE
from primorl.policy.behaviour import BehaviourPolicy, SampledClone, released
from primorl.policy.config import BehaviourConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.ledger.charges import Payment
from primorl.privacy.ledger.history import paid_identities
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from primorl.tracking import StageRun
from primorl.work import accounts
from primorl.work.compute import chosen_device, kept_bytes
from primorl.work.desk import Work, paid_work_in
from primorl.work.jobs import EVALUATE_PRIVATE, MEAN_SHARE, QuestionJob, identity_of
from primorl.work.partitions import Partitions, assumptions
from primorl.work.private import open_private

BEHAVIOUR_RETURNS = Behaviour(levels=9, mean_share=MEAN_SHARE)
MODEL_CHECK = ModelCheck(horizons=(1, 5, 20), starts=8, cap=1.5)
QUESTIONS: Mapping[EstimatorName, Question] = {
    "behaviour": BEHAVIOUR_RETURNS,
    "model_check": MODEL_CHECK,
}
ROLLOUTS = 512
"""In each member of the model, of every policy whose value there is free."""
_STARTS = 4096  # drawn from the released first states


def evaluation_problem(
    job: QuestionJob,
    partitions: Partitions,
    policy: Act,
    seed: int,
    ends: str | None = None,
) -> Problem:
    """Set up the subject of the questions: a policy and the released model. Reads no private byte.

    Args:
        job: of a question: δ, the discount and the bounds of a trajectory's return, which all
            questions of a run share.
        partitions: first states and lengths come from their public split where there is one.
        policy: the one in question.
        seed: of rollouts.
        ends: how rollouts end, as the policy's ``config.json`` says: ``none``, or None for how the
            model says.

    Raises:
        PipelineError: the model is missing or broken.
    """
    manifest, public = partitions.manifest, partitions.public
    info = manifest.info
    ensemble = GaussianEnsemble.load(MODEL, torch.device("cpu")).with_ends(ends)
    problem = Problem(
        units=manifest.private_units,
        unit=info.unit,
        delta=job.delta,
        horizon=info.horizon,
        discount=job.discount,
        policy=policy,
        ensemble=ensemble,
        starts=first_states(public, seed),
        seed=seed,
    )
    declared = job.return_bounds
    problem = problem.with_return_bounds(None if isinstance(declared, str) else declared)
    if public.units == 0:
        return replace(problem, survival=survival_of(MODEL, by_model=ends != NONE))
    recorded = PublicTrajectories.of(public).in_rollouts(ends)
    if declared == "public":
        problem = problem.with_return_bounds(public_return_bounds(recorded, problem))
    if asked_of_private(MODEL):
        return replace(problem, survival=survival_of(MODEL, by_model=ends != NONE))
    if info.horizon is None:
        return problem
    return replace(problem, survival=recorded.survival(info.horizon))


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
    )


def act_of(policy: DeterministicPolicy | SampledClone) -> Act:
    """Wrap one policy as a function of observations; an exported one computes in float64."""
    exact = in_float64(policy) if isinstance(policy, DeterministicPolicy) else policy
    return lambda observation: exact.act(observation.double()[None])[0]


def first_states(public: UnitStore, seed: int) -> Tensor:
    """Collect first states ``[n, S]`` of public trajectories, or draw them from the released model
    of first states.
    """
    if public.units > 0 and not asked_of_private(MODEL):
        return public.first_observations()
    return StartModel.load(MODEL, torch.device("cpu")).sample(
        _STARTS, torch.Generator().manual_seed(seed)
    )


@dataclass(frozen=True)
class EvaluatedFiles:
    """The model that questions are about, and the policy and the clone whose values in it are free.

    Attributes:
        model_sha256: of the model's file.
        policy_sha256: of the policy's file.
        clone_sha256: of the clone's file; None: none was made.
    """

    model_sha256: str
    policy_sha256: str
    clone_sha256: str | None

    @classmethod
    def read(cls, *, cloned: bool) -> "EvaluatedFiles":
        """Read the files in ``models/``; ``cloned`` tells whether there is a clone."""
        return cls(
            model_sha256=file_sha256(MODEL / "model.safetensors"),
            policy_sha256=file_sha256(POLICY / "policy.safetensors"),
            clone_sha256=file_sha256(BEHAVIOUR / "policy.safetensors") if cloned else None,
        )


@dataclass(frozen=True)
class PaidAnswer:
    """A question's release; its charge is open.

    Attributes:
        question: that was asked.
        plan: its mechanism.
        released: the release ``[n]``.
        work: the charge, to be committed with the digest of the answer.
    """

    question: Question
    plan: Plan
    released: Tensor
    work: Work[Asked]


@contextmanager
def paid_evaluation(
    params: Params,
    problem: Problem,
    jobs: Sequence[QuestionJob],
    partitions: Partitions,
    files: EvaluatedFiles,
    log: StageRun,
) -> Iterator[list[PaidAnswer]]:
    """Pay for every question and ask it. The block writes the results and commits the charges.

    Work that was paid for under the same identity is resumed or restored at no cost, after any edit
    of code. If the budget does not allow all that is still to be paid for, nothing is charged. Each
    charge is reserved before a private row is read for it. The charges stay open until the block
    commits them, so a kill costs nothing: the next call finds the finished states.

    Raises:
        PipelineError: see `check_blocks`; or the budget does not allow it, or the model is another
            one than was paid for under the same settings.
    """
    device = chosen_device(params.compute)
    exact = in_float64(problem.ensemble, device)
    check_blocks(
        partial(mean_change, exact), problem.observation_size + problem.action_size, device
    )
    with closing(accounts.project_ledger(params)) as ledger:
        known = paid_identities(ledger.charges())
        asked = []
        for job in jobs:
            question = QUESTIONS[job.question]
            plan = question.plan(problem, job.noise_multiplier)
            units = (partitions.manifest.info.dataset, partitions.version)
            identity = identity_of(job, partitions.identity)
            request = accounts.request(log, *units, job.name, plan.event, job.delta, identity)
            asked.append((question, plan, request))
        pending = [request for *_, request in asked if request.identity not in known]
        if pending:
            together = ComposedDpEvent(tuple(request.event for request in pending))
            limit = accounts.budget(params, partitions.manifest.private_units)
            ledger.dry_run(replace(pending[0], event=together), limit)
        answered, rows = [], None
        rewards = (problem.bounds.reward_low, problem.bounds.reward_high)
        ends = (*rewards, problem.return_low, problem.return_high)
        bounds = f"bounds {' '.join(f'{end:.9g}' for end in ends)}"
        for question, plan, request in asked:
            about = f"model {files.model_sha256} {bounds}" if question.about_model else bounds
            about += f" {question}"
            begin = Asked(torch.empty(0, dtype=torch.float64), about)
            with paid_work_in(params, ledger, request, begin, Asked.restore) as work:
                state = _checked_state(question.name, work.payment, about)
                if not work.payment.finished:
                    if rows is None:
                        kept = kept_bytes(params.compute)
                        rows = open_private(partitions, work.payment.charge, kept)
                    state = ask(
                        question,
                        problem,
                        plan,
                        rows,
                        state,
                        save_checkpoint=work.payment.save_checkpoint,
                        device=device,
                    )
                answered.append(PaidAnswer(question, plan, state.released, work))
        yield answered


def _checked_state(name: str, payment: Payment[Asked], about: str) -> Asked:
    """Check the state that is begun, resumed or restored, and return it.

    Raises:
        PipelineError: it is about another model or other bounds, or its answer is lost.
    """
    state, paid = payment.state, f"charge {payment.charge.id} of {payment.charge.time}"
    assert state is not None
    remedy = "to pay for another answer, set evaluation.private.draw in params.yaml to a new number"
    if state.about != about:
        raise PipelineError(
            f"models: {name}: {paid} paid for its answer about another model that was made with "
            "the same numbers, or other bounds of rewards or returns, or by another version; "
            f"{remedy}"
        )
    if state.started and not state.finished:
        raise PipelineError(
            f"{name}: {paid}: the run died while it drew its answer, and a charge pays for one "
            f"answer only; it stays spent; {remedy}"
        )
    if state.finished:
        print(
            f"{EVALUATE_PRIVATE}: {name}: {paid} has paid for this answer: it is restored",
            file=sys.stderr,
        )
    return state


def evaluation_record(
    problem: Problem,
    partitions: Partitions,
    files: EvaluatedFiles,
    answered: Sequence[PaidAnswer],
    free: Sequence[Answer],
) -> PrivateEvaluation:
    """Make the file's content."""
    info = partitions.manifest.info
    record = unasked(info.dataset, info.unit, problem.units, info.horizon, problem.discount)
    spent, check = answered[-1].work.spent, None
    statements: dict[str, Statement] = {}
    answers: list[Answer] = []
    for each in answered:
        question, noise, charge = each.question, noise_of(each.plan), each.work.payment.charge
        statement = _statement(partitions, each).with_payment(charge.id, spent)
        statements[question.name] = statement
        for answer in question.estimates(problem, noise, each.released):
            answers.append(replace(answer, epsilon=statement.epsilon, delta=statement.delta))
        if isinstance(question, Behaviour):
            record = replace(record, histograms=(question.histogram(problem, each.released),))
        if isinstance(question, ModelCheck):
            check = question.verdict(problem, noise, each.released)
    warned = [Veto(kind="warned", reason=line) for line in ModelConfig.read(MODEL).warnings]
    vetoes = (*signs_against(problem, free), *warned)
    return replace(
        record,
        estimates=(*answers, *(each for each in free if each.finite)),
        statements=statements,
        verdict=Verdict(check=check, vetoes=vetoes),
        total=spent,
        model_sha256=files.model_sha256,
        policy_sha256=files.policy_sha256,
        clone_sha256=files.clone_sha256,
    )


def _statement(partitions: Partitions, each: PaidAnswer) -> Statement:
    info = partitions.manifest.info
    statement = each.plan.statement(
        dataset_fingerprint=info.dataset_fingerprint,
        public_assumptions=assumptions(partitions.manifest),
    )
    void = statement.void
    # The question itself holds the model: where it is not private, neither is the whole.
    if not Statement.read(MODEL).sound:
        void = (*void, "the model in the question has no sound guarantee of its own")
    return replace(
        statement,
        void=void,
        public_units=partitions.manifest.public_units,
        trajectories_per_person=info.trajectories_per_person,
    )
