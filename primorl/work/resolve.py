"""The stage ``plan``: decide every number of a run's paid jobs, once.

Reads settings, declared facts and the public split, never a private byte, and charges nothing. What
`params.yaml` leaves open rules decide, of the model (`model_rules`) and of the clone
(`clone_rules`).
"""

from collections.abc import Set
from contextlib import suppress
from dataclasses import replace

from primorl.base import PipelineError
from primorl.config.params import DEFAULT, Params, Policy, flat, plain
from primorl.data.storage.schema import Manifest
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.history import BudgetExceeded, paid_identities
from primorl.work import jobs
from primorl.work.clone_rules import clone_job
from primorl.work.data import Partitions
from primorl.work.model_rules import (
    USUAL_LENGTH,
    doubt_scales,
    epsilon_of,
    fit_model,
    model_job,
)
from primorl.work.objections import find_objections

_EPOCHS, _UPDATES, _HIDDEN = 24, 250, (64, 64)  # of the policy
_LONG_UPDATES, _LONG_HIDDEN = 1600, (128, 128)
"""Of a policy that begins at random, where trajectories are long."""
_MADE_OF = ("privacy.", "dynamics.", "behaviour.", "evaluation.private.")  # settings of jobs
_LEFT, _LEFT_PER_EPSILON, _LEAST_LEFT, _TRIES = 0.985, 0.01, 0.9, 8  # see `resolve`


def decide_plan(params: Params, partitions: Partitions) -> jobs.RunPlan:
    """Decide the run's plan; numbers that were paid for with these settings and data stay.

    A version of the code that would decide other numbers must not charge the same people again
    without being asked to. The verdict and the warnings are this version's.

    Raises:
        PipelineError: see `resolve`.
    """
    decided = resolve(params, partitions)
    with suppress(PipelineError):  # there is none, or one that this version cannot read
        kept = jobs.RunPlan.read(params, partitions, jobs.paid_plan(params, partitions))
        known = paid_identities(partitions.account.charges)
        paid = any(job.identity in known for job in kept.jobs)
        # One that was edited before it was paid, to cost more or to lack a job, must not come back.
        dear = cost_of(kept, partitions.manifest) > params.privacy.target_epsilon
        whole = [job.name for job in kept.jobs] == [job.name for job in decided.jobs]
        if paid and whole and not (dear and kept.model.variant == "private"):
            angles = params.chosen.bounds.angles  # nothing paid for depends on them
            model = replace(kept.model, bounds=replace(kept.model.bounds, angles=angles))
            return replace(
                kept,
                model=model,
                can_learn=decided.can_learn,
                reason=decided.reason,
                warnings=decided.warnings,
                policy=decided.policy,
                jobs=tuple(jobs.Price.of(job, partitions) for job in kept.paid_jobs),
            )
    return decided


def next_plan(params: Params, partitions: Partitions, changed: Set[str]) -> jobs.RunPlan:
    """Read what the stage ``plan`` decided, or decide where it will run again; ``changed`` names
    the stages that DVC will run.
    """
    if "plan" not in changed:
        with suppress(PipelineError):
            return jobs.RunPlan.read(params, partitions)
    return decide_plan(params, partitions)


def resolve(params: Params, partitions: Partitions) -> jobs.RunPlan:
    """Decide every number of the run's paid jobs on these partitions.

    Several jobs get a little less than the whole, as the ledger may count sampled rounds higher
    than `epsilon_of` does; where that is not enough, less again.

    Raises:
        PipelineError: the choices fit neither each other nor the data, or no noise multiplier
            reaches the ε of a job.
    """
    total, left = params.privacy.target_epsilon, 1.0
    if len(params.privacy.shares) > 1:
        left = max(_LEFT - _LEFT_PER_EPSILON * total, _LEAST_LEFT)
    for attempt in range(1, _TRIES + 1):
        found = _decide(params, partitions, left * total)
        together = cost_of(found, partitions.manifest)
        if together <= total or found.model.variant != "private":
            return found
        left *= (0.99 * total / together) ** attempt
    raise BudgetExceeded(
        f"params.yaml: privacy.target_epsilon: found {at_most(total, 6)}, and the jobs cost "
        f"about {at_most(together, 4)} together; lower privacy.shares. Nothing was charged"
    )


def cost_of(plan: jobs.RunPlan, manifest: Manifest) -> float:
    """Compute the ε of all jobs of a plan together, as the ledger counts."""
    return total_of(plan.events(manifest), plan.model.delta)


def _decide(params: Params, partitions: Partitions, epsilon: float) -> jobs.RunPlan:
    """Decide jobs whose parts are of this ε."""
    manifest, public = partitions.manifest, partitions.public
    shared = replace(params, privacy=replace(params.privacy, target_epsilon=epsilon))
    chosen, fit = fit_model(shared, manifest, public)
    model = model_job(chosen, manifest)
    identity = jobs.identity_of(model, partitions.identity)
    clone, question = clone_job(chosen, manifest, public, identity), question_job(shared)
    beside = [job for job in (clone, question) if job is not None]
    stops, looked_at = find_objections(params, manifest, public)
    fit = doubt_scales(fit, params, model.build_mechanism(manifest))
    answer, reason = fit.answer, fit.reason
    warnings = (*stops, *looked_at)
    if answer == "no":
        warnings = (*warnings, reason)
    if stops:
        answer, reason = "no", "; ".join(stops)
    return jobs.RunPlan(
        dataset=manifest.info.dataset,
        asked=jobs.digest_of_settings(params),
        can_learn=answer if model.variant == "private" else None,
        reason=reason,
        warnings=warnings,
        model=model,
        clone=clone,
        question=question,
        policy=_policy(params, manifest, clone),
        jobs=tuple(jobs.Price.of(job, partitions) for job in (model, *beside)),
        settings=_settings(chosen, params.privacy.target_epsilon),
    )


def is_refused(params: Params, plan: jobs.RunPlan) -> bool:
    """Whether the stage ``plan`` refuses to go on to a training that cannot learn."""
    return plan.can_learn == "no" and not params.dynamics.train_anyway


def refuse_useless(params: Params, plan: jobs.RunPlan) -> None:
    """Refuse to pay for a private training that cannot learn, unless params.yaml says to train
    anyway.

    Raises:
        PipelineError: the verdict is no.
    """
    if is_refused(params, plan):
        raise PipelineError(
            f"params.yaml: privacy.target_epsilon: {plan.reason}. Nothing was charged; a larger ε "
            "or more people help, narrower bounds too; to train all the same, set "
            "dynamics.train_anyway: true"
        )


def _settings(chosen: Params, epsilon: float) -> dict[str, jobs.Setting]:
    """List the decided settings that the jobs are made of, with their origins."""
    values = dict(flat(plain(chosen))) | {"privacy.target_epsilon": epsilon}
    return {
        key: jobs.Setting(value=value, origin=chosen.origins.get(key, DEFAULT))
        for key, value in sorted(values.items())
        if key.startswith(_MADE_OF) and not key.startswith("privacy.budget")
    }


# ---- the policy


def _policy(params: Params, manifest: Manifest, clone: jobs.CloneJob | None) -> Policy:
    """Decide the settings of the policy that need no released model; the others are None.

    With a clone it has the clone's hidden layers, and begins with its weights. Without one epochs
    are twice as many, as entropy starts high and falls slowly, or longer where trajectories are
    long.
    """
    long = clone is None and (manifest.info.horizon or 0) > USUAL_LENGTH
    usual = _LONG_HIDDEN if long else _HIDDEN
    starts = "reset" if params.partition.public_fraction == 0 else "public"
    if params.asks_starts:
        starts = "released"
    chosen = params.with_decided(
        {
            "policy.uncertainty": "standardised_difference",
            "policy.penalty": 1.0,
            "policy.starts": starts,
            "policy.learning_rate": 1e-3 if clone is None else 3e-4,
            "policy.epochs": 2 * _EPOCHS if clone is None and not long else _EPOCHS,
            "policy.updates_per_epoch": _LONG_UPDATES if long else _UPDATES,
            "policy.hidden": usual if clone is None else clone.widened or clone.hidden,
            "policy.target_entropy": -float(manifest.info.spaces.action_size),
        }
    )
    return chosen.policy


# ---- the question


def question_job(params: Params) -> jobs.QuestionJob | None:
    """Make the job of the question for today's returns; None: it has no share of ε.

    Raises:
        PipelineError: no noise is enough for its ε.
    """
    if not params.asks_today:
        return None
    chosen, delta = params.evaluation.private, params.privacy.delta
    epsilon = epsilon_of(params, "behaviour")
    return jobs.QuestionJob(
        noise_multiplier=jobs.solve_noise(epsilon, delta, 1.0, jobs.RELEASES),
        delta=delta,
        discount=chosen.discount,
        return_bounds=chosen.return_bounds,
        draw=chosen.draw,
    )
