"""Private evaluation: pay for today's returns, ask the private units, and make the record of the
answers with its statement.
"""

import json
from dataclasses import replace

import torch
from torch import Tensor

from primorl.base import PipelineError
from primorl.base.files import BEHAVIOUR, MODEL, POLICY, file_sha256
from primorl.config.datasets import AnyDataset, TabularDataset
from primorl.engine.heads import SCALES
from primorl.evaluate.private import model_values
from primorl.evaluate.private.behaviour import NAME, Asked, Behaviour, ask, noise_of
from primorl.evaluate.private.problem import (
    Problem,
    PublicTrajectories,
    Recordings,
    public_return_bounds,
)
from primorl.evaluate.private.results import (
    RARE_END,
    Conduct,
    PrivateEvaluation,
    Verdict,
    Veto,
)
from primorl.model.architecture import ModelConfig
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.numerics import SeedGenerators
from primorl.model.termination import NONE, Ends
from primorl.policy.behaviour import BehaviourPolicy, SampledClone
from primorl.policy.config import BehaviourConfig, PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.statement import Statement
from primorl.work.data import Partitions
from primorl.work.desk import Paid
from primorl.work.jobs import QuestionJob

QUESTION = Behaviour(levels=9)
ROLLOUTS = 512
"""In each member of the model, of every policy whose value there is free."""


def evaluation_problem(
    job: QuestionJob,
    partitions: Partitions,
    policy: DeterministicPolicy,
    seed: int,
    ends: Ends = None,
) -> Problem:
    """Set up the subject: today's returns, a policy and the released model. Reads no private byte.

    Args:
        job: the bounds of a trajectory's return.
        partitions: first states and lengths come from their public split where there is one.
        policy: the one in question.
        seed: of rollouts.
        ends: how rollouts end, as the policy's ``config.json`` says.

    Raises:
        PipelineError: the model is missing or broken, or no horizon is declared.
    """
    manifest, public = partitions.manifest, partitions.public
    horizon = manifest.declared_horizon()
    recordings = Recordings.of(MODEL, public)
    problem = Problem(
        units=manifest.private_units,
        horizon=horizon,
        policy=policy,
        ensemble=GaussianEnsemble.load(MODEL, torch.device("cpu")).with_ends(ends),
        starts=recordings.first_states(seed),
        seed=seed,
        survival=recordings.survival(horizon, ends),
    )
    bounds = None if isinstance(job.return_bounds, str) else job.return_bounds
    problem = problem.with_return_bounds(bounds)
    if job.return_bounds == "public" and public.units > 0:
        returned = PublicTrajectories.of(public).in_rollouts(ends)
        problem = problem.with_return_bounds(public_return_bounds(returned, problem))
    if not problem.return_low < problem.return_high:
        raise PipelineError(
            f"datasets/{manifest.info.dataset}.yaml: bounds.reward: all returns lie at "
            f"{problem.return_low:g}, so there is nothing to ask; declare [low, high]"
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
    problem: Problem, partitions: Partitions, dataset: AnyDataset, config: PolicyConfig
) -> PrivateEvaluation:
    """Compare the policy with random actions and with the clone in the released model, for free.
    A learned termination that rollouts do without bars a trial.

    Returns:
        The record, without what is paid for.
    """
    own = model_values.roll_out(problem, problem.policy, ROLLOUTS)
    random = model_values.roll_out(problem, model_values.RandomPolicy(problem), ROLLOUTS)
    today, conduct, clone_sha256 = None, None, None
    if BehaviourConfig.read(BEHAVIOUR).made:
        cpu = torch.device("cpu")
        drawn = SeedGenerators.of([problem.seed], cpu)
        clone = SampledClone(BehaviourPolicy.load(BEHAVIOUR, cpu), drawn)
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
        clone_sha256 = file_sha256(BEHAVIOUR / "policy.safetensors")
    values = model_values.values_in_model(own, random, today)
    nobody = Recordings.of(MODEL, partitions.public).public is None
    bars = find_bars(problem, conduct, nobody=nobody)
    warned = [Veto(kind="warned", reason=line) for line in bars]
    vetoes = (*model_values.signs_against(problem, values), *warned)
    info = partitions.manifest.info
    return PrivateEvaluation(
        dataset=info.dataset,
        unit=info.unit,
        units=problem.units,
        discount=1.0,
        horizon=info.horizon,
        estimates=tuple(each for each in values if each.finite),
        verdict=Verdict(vetoes=vetoes),
        conduct=conduct,
        return_bounds=(problem.return_low, problem.return_high),
        model_sha256=file_sha256(MODEL / "model.safetensors"),
        policy_sha256=file_sha256(POLICY / "policy.safetensors"),
        clone_sha256=clone_sha256,
    )


def begin(problem: Problem) -> Asked:
    """Return the state before the first release; a paid answer is restored for the same bounds
    only.
    """
    rewards = (problem.bounds.reward_low, problem.bounds.reward_high)
    ends = (*rewards, problem.return_low, problem.return_high)
    about = f"bounds {' '.join(f'{end:.9g}' for end in ends)}"
    if problem.return_is_sum:
        about += ", sums of rewards"
    about += f" {NAME} {json.dumps(vars(QUESTION), sort_keys=True)}"
    return Asked(torch.empty(0, dtype=torch.float64), about)


def ask_for(paid: Paid[Asked], problem: Problem, mechanism: Mechanism) -> Tensor:
    """Ask what a charge has left to ask, or restore what was answered; return the releases."""
    if paid.finished:
        return paid.state.released
    rows = paid.open_rows(mechanism)
    state = ask(QUESTION, problem, mechanism, rows, paid.state, save_checkpoint=paid.save)
    return state.released


def add_answers(
    compared: PrivateEvaluation,
    paid: Paid[Asked],
    problem: Problem,
    mechanism: Mechanism,
    released: Tensor,
) -> PrivateEvaluation:
    """Add the people's answers, with their statement, to what was compared in the model."""
    statement = paid.state_privacy(mechanism)
    if not Statement.read(MODEL).sound:  # free values of the model stand beside the answer
        why = "the model whose values stand beside the answer has no sound guarantee of its own"
        statement = replace(statement, void=(*statement.void, why))
    estimates = QUESTION.estimates(problem, noise_of(mechanism), released)
    epsilon, delta = statement.epsilon, statement.delta
    answers = [replace(each, epsilon=epsilon, delta=delta) for each in estimates]
    return replace(
        compared,
        estimates=(*answers, *compared.estimates),
        statements={NAME: statement},
        total=paid.spent,
    )


def find_bars(problem: Problem, conduct: Conduct | None, *, nobody: bool) -> list[str]:
    """List what bars a trial beside the model's values: what was warned of, and ends that the model
    lacks or may not have learned.

    Args:
        problem: with the model as rollouts take it.
        conduct: what the policy does in it; None: no clone was made.
        nobody: whether nobody who is public stands for the private people.
    """
    config = ModelConfig.read(MODEL)
    lines = [*config.warnings, *BehaviourConfig.read(BEHAVIOUR).warnings]
    if config.termination != problem.ensemble.termination:
        lines.append(
            "how the model ends episodes is not supported: its rollouts have no such ends, and no "
            "outcomes; ends at a time need a column of the time since the beginning"
        )
    if conduct is not None and nobody and (rare := conduct.find_rare_ends()):
        lines.append(
            f"the model may not have learned how trajectories end: if all goes on as today, {rare} "
            f"in it (a trial needs {RARE_END:.0%}), which does not say how many end in truth; a "
            "larger ε or more people may teach it"
        )
    return lines
