"""Private evaluation: pay for questions, ask them of the private units, and make the record of the
answers with their statements.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256
from primorl.base.paths import BEHAVIOUR, MODEL, POLICY
from primorl.config.blocks import EstimatorName
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
from primorl.evaluate.private.results import (
    Answer,
    PrivateEvaluation,
    Verdict,
    Veto,
    empty_evaluation,
)
from primorl.model.architecture import ModelConfig
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.numerics import SeedGenerators
from primorl.model.starts import StartModel, asked_of_private, survival_of
from primorl.model.termination import NONE
from primorl.policy.behaviour import BehaviourPolicy, SampledClone, released
from primorl.policy.config import BehaviourConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from primorl.work.data import Partitions
from primorl.work.desk import Desk, Paid
from primorl.work.jobs import EVALUATE_PRIVATE, MEAN_SHARE, Order, QuestionJob

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
class Answered:
    """A question's release, whose charge is open until the answers are written.

    Attributes:
        question: that was asked.
        plan: its mechanism.
        released: the release ``[n]``.
        paid: for it.
    """

    question: Question
    plan: Plan
    released: Tensor
    paid: Paid[Asked]


def ask_for(
    desk: Desk,
    orders: Sequence[tuple[QuestionJob, Order]],
    problem: Problem,
    model_sha256: str,
    device: torch.device,
) -> list[Answered]:
    """Pay for every question and ask it; the charges stay open, so that a kill costs nothing.

    Work that was paid for under the same identity is resumed or restored at no cost, after any edit
    of code. If the budget does not allow all that is still to be paid for, nothing is charged.

    Args:
        desk: where they are paid.
        orders: the questions, and what each is charged as.
        problem: their subject.
        model_sha256: of the model in question.
        device: that asks.

    Raises:
        PipelineError: see `check_blocks`; or the budget does not allow it, or the model is another
            one than was paid for under the same settings.
    """
    exact = in_float64(problem.ensemble, device)
    inputs = problem.observation_size + problem.action_size
    check_blocks(partial(mean_change, exact), inputs, device)
    desk.refuse_beyond_budget([order for _, order in orders])
    rewards = (problem.bounds.reward_low, problem.bounds.reward_high)
    ends = (*rewards, problem.return_low, problem.return_high)
    bounds = f"bounds {' '.join(f'{end:.9g}' for end in ends)}"
    answered = []
    for job, order in orders:
        question = QUESTIONS[job.question]
        plan = question.plan(problem, job.noise_multiplier)
        about = f"model {model_sha256} {bounds}" if question.about_model else bounds
        about += f" {question.name} {json.dumps(vars(question), sort_keys=True)}"
        begin = Asked(torch.empty(0, dtype=torch.float64), about)
        with desk.pay(order, begin, Asked.restore) as paid:
            state = _check_state(question.name, paid, about)
            if not paid.finished:
                state = ask(
                    question,
                    problem,
                    plan,
                    paid.open_rows(plan),
                    state,
                    save_checkpoint=paid.save,
                    device=device,
                )
            answered.append(Answered(question, plan, state.released, paid))
    return answered


def _check_state(name: str, own: Paid[Asked], about: str) -> Asked:
    """Check the state that is begun, resumed or restored, and return it.

    Raises:
        PipelineError: it is about another model or other bounds, or its answer is lost.
    """
    state, paid = own.state, f"charge {own.charge.id} of {own.charge.time}"
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
    answered: Sequence[Answered],
    free: Sequence[Answer],
) -> PrivateEvaluation:
    """Make the file's content."""
    info = partitions.manifest.info
    record = empty_evaluation(
        info.dataset, info.unit, problem.units, info.horizon, problem.discount
    )
    check = None
    statements: dict[str, Statement] = {}
    answers: list[Answer] = []
    for each in answered:
        question, noise = each.question, noise_of(each.plan)
        statement = _state_privacy(each)
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
        total=answered[-1].paid.spent,
        model_sha256=files.model_sha256,
        policy_sha256=files.policy_sha256,
        clone_sha256=files.clone_sha256,
    )


def _state_privacy(each: Answered) -> Statement:
    statement = each.paid.state_privacy(each.plan)
    # The question itself holds the model: where it is not private, neither is the whole.
    if Statement.read(MODEL).sound:
        return statement
    why = "the model in the question has no sound guarantee of its own"
    return replace(statement, void=(*statement.void, why))
