"""Private evaluation: pay for questions, ask them of the private units, and make the record of the
answers with their statements.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256
from primorl.base.paths import BEHAVIOUR, MODEL, POLICY
from primorl.config.datasets import AnyDataset, TabularDataset
from primorl.config.params import EstimatorName
from primorl.engine.heads import SCALES
from primorl.evaluate.private import model_values
from primorl.evaluate.private.behaviour import Behaviour
from primorl.evaluate.private.model_check import ModelCheck
from primorl.evaluate.private.problem import (
    Problem,
    PublicTrajectories,
    Recordings,
    check_blocks,
    in_float64,
    mean_change,
    public_return_bounds,
)
from primorl.evaluate.private.question import Asked, Question, ask, noise_of
from primorl.evaluate.private.results import (
    Answer,
    Conduct,
    PrivateEvaluation,
    Verdict,
    Veto,
)
from primorl.model.architecture import ModelConfig
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.termination import NONE, Ends
from primorl.policy.config import BehaviourConfig, PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.statement import Statement
from primorl.work.data import Partitions
from primorl.work.desk import Desk, Paid
from primorl.work.jobs import EVALUATE_PRIVATE, QuestionJob

BEHAVIOUR_RETURNS = Behaviour(levels=9)
MODEL_CHECK = ModelCheck(horizons=(1, 5, 20), starts=8, cap=1.5)
QUESTIONS: Mapping[EstimatorName, Question] = {
    "behaviour": BEHAVIOUR_RETURNS,
    "model_check": MODEL_CHECK,
}
ROLLOUTS = 512
"""In each member of the model, of every policy whose value there is free."""


def evaluation_problem(
    job: QuestionJob,
    partitions: Partitions,
    policy: DeterministicPolicy,
    seed: int,
    ends: Ends = None,
) -> Problem:
    """Set up the subject of the questions: a policy and the released model. Reads no private byte.

    Args:
        job: of a question: δ, the discount and the bounds of a trajectory's return, which all
            questions of a run share.
        partitions: first states and lengths come from their public split where there is one.
        policy: the one in question.
        seed: of rollouts.
        ends: how rollouts end, as the policy's ``config.json`` says.

    Raises:
        PipelineError: the model is missing or broken.
    """
    manifest, public = partitions.manifest, partitions.public
    recordings = Recordings.of(MODEL, public)
    problem = Problem(
        units=manifest.private_units,
        unit=manifest.info.unit,
        delta=job.delta,
        horizon=manifest.info.horizon,
        discount=job.discount,
        policy=model_values.act_of(policy),
        ensemble=GaussianEnsemble.load(MODEL, torch.device("cpu")).with_ends(ends),
        starts=recordings.first_states(seed),
        seed=seed,
        survival=recordings.survival(manifest.info.horizon, ends),
    )
    bounds = None if isinstance(job.return_bounds, str) else job.return_bounds
    problem = problem.with_return_bounds(bounds)
    if job.return_bounds == "public" and public.units > 0:
        returned = PublicTrajectories.of(public).in_rollouts(ends)
        problem = problem.with_return_bounds(public_return_bounds(returned, problem))
    if not problem.return_low < problem.return_high:
        raise PipelineError(
            f"datasets/{manifest.info.dataset}.yaml: bounds.reward: returns lie between "
            f"{problem.return_low:g} and {problem.return_high:g}, so there is nothing to ask; "
            "declare [low, high] of the reward"
        )
    return problem


def read_paid_actions(problem: Problem) -> model_values.PaidActions | None:
    """Read what people do, as the model's queries say; None: they were not asked."""
    shares = ModelConfig.read(MODEL)
    if shares.action_shares is not None:
        return model_values.PaidActions(
            torch.tensor(shares.action_shares), shares.action_shares_error
        )
    asked = any(each.what == SCALES for each in Statement.read(MODEL).queries)
    if problem.bounds.discrete_actions or not asked:
        return None
    return model_values.PaidActions(
        problem.ensemble.normaliser.input_mean[problem.observation_size :], None
    )


def compare_in_model(
    problem: Problem, dataset: AnyDataset, config: PolicyConfig
) -> tuple[tuple[Answer, ...], Conduct | None]:
    """Compare the policy with random actions and with the clone in the released model, for free.

    Returns:
        Their values, and what policy and clone do; None: no clone was made.
    """
    own = model_values.roll_out(problem, problem.policy, ROLLOUTS)
    random = model_values.roll_out(problem, problem.random_policy(), ROLLOUTS)
    clone = model_values.load_clone(BEHAVIOUR, problem.seed)
    if clone is None:
        return model_values.values_in_model(own, random, None), None
    today = model_values.roll_out(problem, clone, ROLLOUTS)
    names = config.observation_names, config.action_names
    # where rollouts do not end, nothing tells an outcome
    ends_known = problem.ensemble.termination != NONE
    outcomes = (dataset.bounds.outcomes or ()) if ends_known else ()
    ends = isinstance(dataset, TabularDataset) and dataset.options.end == "outcome"
    paid = read_paid_actions(problem)
    conduct = model_values.compare_actions(
        problem, own, today, names, paid, outcomes, always_ends=ends
    )
    return model_values.values_in_model(own, random, today), conduct


def hash_files() -> dict[str, str | None]:
    """Hash the files that questions and free values are about; None: there is no clone."""
    cloned = BehaviourConfig.read(BEHAVIOUR).made
    return {
        "model_sha256": file_sha256(MODEL / "model.safetensors"),
        "policy_sha256": file_sha256(POLICY / "policy.safetensors"),
        "clone_sha256": file_sha256(BEHAVIOUR / "policy.safetensors") if cloned else None,
    }


@dataclass(frozen=True)
class Answered:
    """A question's release, whose charge is open until the answers are written.

    Attributes:
        question: that was asked.
        mechanism: of its releases.
        released: the release ``[n]``.
        paid: for it.
    """

    question: Question
    mechanism: Mechanism
    released: Tensor
    paid: Paid[Asked]


def ask_for(
    desk: Desk,
    charges: ExitStack,
    jobs: Sequence[QuestionJob],
    problem: Problem,
    model_sha256: str | None,
    device: torch.device,
) -> list[Answered]:
    """Pay for every question and ask it; the charges stay open, so that a kill costs nothing.

    Work that was paid for under the same identity is resumed or restored at no cost, after any edit
    of code. If the budget does not allow all that is still to be paid for, nothing is charged.

    Args:
        desk: where they are paid.
        charges: holds them open until the answers are written.
        jobs: the questions.
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
    answered = []
    for job in jobs:
        question = QUESTIONS[job.question]
        mechanism = question.build_mechanism(problem, job.noise_multiplier, job.releases)
        about = _describe_subject(question, problem, model_sha256)
        begin = Asked(torch.empty(0, dtype=torch.float64), about)
        paid = charges.enter_context(desk.pay(desk.request(job), begin, Asked.restore))
        _check_state(question.name, paid, about)
        state = paid.state
        if not paid.finished:
            rows = paid.open_rows(mechanism)
            state = ask(
                question, problem, mechanism, rows, state, save_checkpoint=paid.save, device=device
            )
        answered.append(Answered(question, mechanism, state.released, paid))
    return answered


def _describe_subject(question: Question, problem: Problem, model_sha256: str | None) -> str:
    """Say what a question is about: a paid answer is restored for the same subject only."""
    rewards = (problem.bounds.reward_low, problem.bounds.reward_high)
    ends = (*rewards, problem.return_low, problem.return_high)
    about = f"bounds {' '.join(f'{end:.9g}' for end in ends)}"
    if problem.return_is_sum:
        about += ", sums of rewards"
    if question.about_model:
        model = f"model {model_sha256}"
        if problem.bounds.angles:
            model += f" angles {problem.bounds.angles}"
        about = f"{model} {about}"
    about += f" {question.name} {json.dumps(vars(question), sort_keys=True)}"
    if isinstance(question, ModelCheck) and problem.bounds.before_end is not None:
        about += ", rewards within their range"
    return about


def _check_state(name: str, own: Paid[Asked], about: str) -> None:
    """Check the state that is begun, resumed or restored.

    Raises:
        PipelineError: it is about another model or other bounds, or its answer is lost.
    """
    state, paid = own.state, f"charge {own.charge.id} of {own.charge.time}"
    remedy = "to pay for another answer, set evaluation.private.draw in params.yaml to a new number"
    if state.about != about:
        raise PipelineError(
            f"models: {name}: {paid} paid for its answer about another model that was made with "
            "the same numbers, or other bounds of rewards or returns, or other angles, or by "
            "another version; "
            f"{remedy}"
        )
    if not state.finished and state.started > state.made:
        raise PipelineError(
            f"{name}: {paid}: the run died after it announced this answer, and a charge pays for "
            f"one answer only; it stays spent; {remedy}"
        )
    if state.finished:
        print(
            f"{EVALUATE_PRIVATE}: {name}: {paid} has paid for this answer: it is restored",
            file=sys.stderr,
        )


def evaluation_record(
    problem: Problem,
    partitions: Partitions,
    files: Mapping[str, Any],
    answered: Sequence[Answered],
    free: Sequence[Answer],
    conduct: Conduct | None = None,
) -> PrivateEvaluation:
    """Make the file's content. A learned termination that rollouts do without bars a trial."""
    check = None
    statements: dict[str, Statement] = {}
    answers: list[Answer] = []
    for each in answered:
        question, noise = each.question, noise_of(each.mechanism)
        statement = _state_privacy(each)
        statements[question.name] = statement
        for answer in question.estimates(problem, noise, each.released):
            answers.append(replace(answer, epsilon=statement.epsilon, delta=statement.delta))
        if isinstance(question, ModelCheck):
            check = question.verdict(problem, noise, each.released)
    config = ModelConfig.read(MODEL)
    lines = [*config.warnings]
    if config.termination != problem.ensemble.termination:
        lines.append(
            "how the model ends episodes is not supported, so its rollouts do not end by it; "
            "where they end at a time, the time since their beginning has to be observed"
        )
    warned = [Veto(kind="warned", reason=line) for line in lines]
    vetoes = (*model_values.signs_against(problem, free), *warned)
    info = partitions.manifest.info
    return PrivateEvaluation(
        dataset=info.dataset,
        unit=info.unit,
        units=problem.units,
        horizon=info.horizon,
        discount=problem.discount,
        estimates=(*answers, *(each for each in free if each.finite)),
        statements=statements,
        verdict=Verdict(check=check, vetoes=vetoes),
        total=answered[-1].paid.spent,
        conduct=conduct,
        return_bounds=(problem.return_low, problem.return_high),
        **files,
    )


def _state_privacy(each: Answered) -> Statement:
    statement = each.paid.state_privacy(each.mechanism)
    # The question itself holds the model: where it is not private, neither is the whole.
    if Statement.read(MODEL).sound:
        return statement
    why = "the model in the question has no sound guarantee of its own"
    return replace(statement, void=(*statement.void, why))
