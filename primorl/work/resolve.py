"""The stage ``plan``: decide every number of a run's paid jobs, once.

Reads settings, declared facts and the public split, never a private byte, and charges nothing. What
`params.yaml` leaves open rules decide, of model and clone (`rules`).
"""

from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from primorl.base import PipelineError
from primorl.base.dvc import MAKE_DATA
from primorl.base.files import MANIFEST, finite
from primorl.config.datasets import TabularDataset
from primorl.config.params import DEFAULT, Params, Policy, flat, plain
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.heads import least_spread
from primorl.engine.settings import LEAST_UNITS
from primorl.model.termination import LEARNED, NONE, RULES
from primorl.privacy.accounting.figures import right_guesses
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.history import BudgetExceeded
from primorl.work import jobs
from primorl.work.bill import Bill
from primorl.work.data import (
    Floats,
    Partitions,
    observation_bounds,
    read_ledger,
    refuse_missing_charges,
    refuse_stale,
)
from primorl.work.rules import (
    USUAL_LENGTH,
    clone_job,
    doubt_scales,
    epsilon_of,
    fit_model,
    model_job,
)

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
        PipelineError: what was paid for is of a version that this one cannot read; see `resolve`,
            too.
    """
    decided = resolve(params, partitions)
    kept = _find_paid(decided, params, partitions)
    return add_figures(decided if kept is None else kept, partitions.manifest)


def add_figures(plan: jobs.RunPlan, manifest: Manifest) -> jobs.RunPlan:
    """Compute what all jobs of a plan cost, for readers."""
    figures = jobs.Figures(
        epsilon=finite(cost_of(plan)),
        right_guesses=right_guesses(plan.events),
        model=plan.model.mechanism.training.epsilons(plan.model.delta),
        least_spread=least_spread(plan.model.build_mechanism(manifest)),
    )
    plan = replace(plan, figures=figures)
    return replace(plan, figures=replace(figures, key=plan.key()))


def _find_paid(
    decided: jobs.RunPlan, params: Params, partitions: Partitions
) -> jobs.RunPlan | None:
    """Find the plan that was paid for with these settings and data, with the verdict and the
    warnings of the one that is ``decided`` now; None: nothing was.
    """
    path = jobs.paid_plan(params, partitions)
    known = partitions.account.paid
    if not known or not path.exists():
        return None
    try:
        kept = jobs.RunPlan.read_for(params, partitions, path).price(partitions)
    except PipelineError as unreadable:
        said = str(unreadable).partition("; ")[0]
        raise PipelineError(
            f"{said}: what was paid for with these settings and data cannot be read; bring the "
            "version back that paid, or set privacy.draw to a new number to pay for another draw"
        ) from None
    paid = any(job.identity in known for job in kept.jobs)
    # One that was edited before it was paid, to cost more or to lack a job, must not come back.
    dear = cost_of(kept) > params.privacy.target_epsilon
    whole = [job.name for job in kept.jobs] == [job.name for job in decided.jobs]
    if not paid or not whole or (dear and kept.model.variant == "private"):
        return None
    angles = params.chosen.bounds.angles  # nothing paid for depends on them
    model = replace(kept.model, bounds=replace(kept.model.bounds, angles=angles))
    return replace(
        kept,
        model=model,
        can_learn=decided.can_learn,
        reason=decided.reason,
        warnings=decided.warnings,
        policy=decided.policy,
    )


def next_plan(params: Params, partitions: Partitions, changed: Set[str]) -> jobs.RunPlan:
    """Read what the stage ``plan`` decided; decide where it will run again, or where the file is of
    other settings or data. What the desk would charge is priced anew where the file is edited or of
    other versions.

    Args:
        params: every choice.
        partitions: the data.
        changed: stages that DVC will run.
    """
    found = None
    with suppress(PipelineError):
        found = jobs.RunPlan.read_for(params, partitions)
    if found is None or "plan" in changed:
        return decide_plan(params, partitions)
    if found.intact:
        return found
    return add_figures(found.price(partitions), partitions.manifest)


@dataclass(frozen=True)
class NextRun:
    """The run that settings describe, on the data that are here.

    Attributes:
        params: its settings.
        partitions: its data.
        plan: its numbers.
        changed: stages that DVC will run.
    """

    params: Params
    partitions: Partitions
    plan: jobs.RunPlan
    changed: Set[str]

    @classmethod
    def read(cls, params: Params, changed: Set[str]) -> "NextRun | None":
        """Read the run's plan, or decide it where DVC will make another; nothing is written or
        charged. None: no data of the dataset are here.

        Raises:
            PipelineError: the data do not fit the settings, or are of other rows than
                ``data/trajectories`` has, and will not be made anew.
        """
        if not MANIFEST.exists() or Manifest.load(MANIFEST).info.dataset != params.dataset:
            return None
        partitions = Partitions.open(params)
        if not changed & MAKE_DATA:
            refuse_stale(partitions)
        return cls(params, partitions, next_plan(params, partitions, changed), changed)

    @property
    def figures(self) -> jobs.Figures:
        """What all jobs of the plan cost."""
        assert self.plan.figures is not None, "`next_plan` computes them"
        return self.plan.figures

    def bill(self) -> Bill:
        """Make the bill of the run.

        Raises:
            PipelineError: the ledger lacks a charge.
        """
        refuse_missing_charges(read_ledger(self.params))
        return Bill.of(self.params, self.plan, self.partitions, self.changed)


def preview(params: Params, changed: Set[str]) -> Bill | None:
    """Make the bill of the next run on the partitioned units; None: they will be made, or made
    anew.

    Args:
        params: every choice.
        changed: stages whose inputs changed.

    Raises:
        PipelineError: see `NextRun`.
    """
    found = None if changed & MAKE_DATA else NextRun.read(params, changed)
    if found is None:
        return None
    bill = found.bill()
    if not (params.online.asked and changed):
        return bill
    return replace(bill, online="; the stage `online` charges its users, an account of their own")


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
        together = cost_of(found)
        if together <= total or found.model.variant != "private":
            return found
        left *= (0.99 * total / together) ** attempt
    raise BudgetExceeded(
        f"params.yaml: privacy.target_epsilon: found {at_most(total, 6)}, and the jobs cost "
        f"about {at_most(together, 4)} together; lower privacy.shares. Nothing was charged"
    )


def cost_of(plan: jobs.RunPlan) -> float:
    """Compute the ε of all jobs of a priced plan together, as the ledger counts."""
    return total_of(plan.events, plan.model.delta)


def _decide(params: Params, partitions: Partitions, epsilon: float) -> jobs.RunPlan:
    """Decide jobs whose parts are of this ε."""
    manifest, public = partitions.manifest, partitions.public
    shared = replace(params, privacy=replace(params.privacy, target_epsilon=epsilon))
    chosen, fit = fit_model(shared, manifest, public)
    check_choices(chosen, manifest, public)
    model = model_job(chosen, manifest)
    identity = jobs.identity_of(model, partitions.identity)
    clone = clone_job(chosen, manifest, public, identity) if params.clones else None
    question = question_job(shared) if params.asks_today else None
    stops, looked_at = find_objections(params, manifest, public)
    fit = doubt_scales(fit, params, model.build_mechanism(manifest))
    answer, reason = fit.answer, fit.reason
    warnings = (*stops, *looked_at)
    if answer == "no":
        warnings = (*warnings, reason)
    if stops:
        answer, reason = "no", "; ".join(stops)
    decided = jobs.RunPlan(
        dataset=manifest.info.dataset,
        asked=jobs.digest_of_settings(params),
        can_learn=answer if model.variant == "private" else None,
        reason=reason,
        warnings=warnings,
        model=model,
        clone=clone,
        question=question,
        policy=_policy(params, manifest),
        jobs=(),
        settings=_settings(chosen, params.privacy.target_epsilon),
    )
    return decided.price(partitions)


def refuse_useless(params: Params, plan: jobs.RunPlan) -> None:
    """Refuse to pay for a private training that cannot learn, unless params.yaml says to train
    anyway.

    Raises:
        PipelineError: the verdict is no.
    """
    if plan.is_refused(train_anyway=params.dynamics.train_anyway):
        raise PipelineError(
            f"params.yaml: privacy.target_epsilon: {plan.reason}. Nothing was charged; a larger ε "
            "or more people help; to train all the same, set dynamics.train_anyway: true"
        )


def _settings(chosen: Params, epsilon: float) -> dict[str, jobs.Setting]:
    """List the decided settings that the jobs are made of, with their origins."""
    values = dict(flat(plain(chosen))) | {"privacy.target_epsilon": epsilon}
    return {
        key: jobs.Setting(value=value, origin=chosen.origins.get(key, DEFAULT))
        for key, value in sorted(values.items())
        if key.startswith(_MADE_OF) and not key.startswith("privacy.budget")
    }


# ---- what is against a run, before it is paid for

_STOP, _WARNING = 0.2, 0.01
"""Shares of public values outside a column's bounds from which a training is refused, and from
which it is warned.
"""


def check_choices(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse choices that fit neither each other nor the data, and facts that the dataset's file
    lacks.

    Raises:
        PipelineError: names the first of them.
    """
    info, units, bounds = manifest.info, manifest.private_units, params.chosen.bounds
    dataset, normaliser = f"datasets/{params.dataset}.yaml", params.normaliser
    if public.info != info:
        mixed = "its parts are of different datasets; run `dvc repro plan`"
        raise PipelineError(f"data/partitions: {mixed}")
    patience = params.dynamics.early_stopping.patience
    asking = {
        "params.yaml: partition.public_fraction": (normaliser, "0"),
        "params.yaml: dynamics.early_stopping.patience": (patience and "public", "null"),
        f"{dataset}: bounds.observation": (bounds.observation, "space, {low, high}"),
        f"{dataset}: bounds.reward": (bounds.reward, "[low, high]"),
    }
    for key, (asked, allowed) in asking.items():
        if asked == "public" and not manifest.public_units:
            found = "data/partitions has none; after a change of partition, run `dvc repro plan`"
            raise PipelineError(f"{key}: needs public units, {found}; allowed: {allowed}")
    q = params.privacy.sampling_probability
    if q is not None and q * units < 1:
        raise PipelineError(
            f"params.yaml: privacy.sampling_probability: found {q:g}; allowed is at least 1/{units}"
        )
    drawn = normaliser == "public" and public.units >= LEAST_UNITS
    if params.dynamics.start == "public" and not drawn:
        raise PipelineError(
            f"params.yaml: dynamics.start: public needs {LEAST_UNITS} drawn units; allowed: random"
        )
    size = public.observation_size
    allowed_ends = [NONE, LEARNED]
    allowed_ends += [name for name, rule in sorted(RULES.items()) if rule.observation_size == size]
    if info.termination not in allowed_ends:
        raise PipelineError(
            f"{dataset}: termination: found {info.termination!r}; allowed at size {size}: "
            f"{', '.join(allowed_ends)}"
        )
    if info.environment is None or params.asks_today:
        manifest.declared_horizon()
    observation_bounds(bounds, manifest, public)


def find_objections(
    params: Params, manifest: Manifest, public: UnitStore
) -> tuple[list[str], list[str]]:
    """Find objections to a run that the public split shows or, where it is empty, the entry.

    Returns:
        Why the run is not to be paid for, and what is to be looked at; lines with the finding and
        the remedy.
    """
    file = f"datasets/{params.dataset}.yaml"
    stops, warnings = list[str](), list[str]()
    if public.units == 0:
        dataset = params.chosen
        log = dataset.options if isinstance(dataset, TabularDataset) else None
        if log is not None and log.cuts_last_rows and not log.columns.terminated:
            warnings.append(
                f"{file}: options.end: {_CUT}, and nobody is public to tell if any is left; "
                f"{_OUTCOME}"
            )
        if manifest.info.termination == LEARNED and dataset.bounds.before_end is None:
            warnings.append(
                f"{file}: bounds.before_end: not declared, so nothing tells an outcome from "
                "rewards of every row, and nobody is public to judge the model's ends; declare "
                "what a row that does not end its trajectory can earn"
            )
        return stops, warnings
    inputs, targets = public.arrays()
    size = public.observation_size
    values = np.concatenate((inputs[:, :size], targets[:, size : size + 1]), axis=1)
    if (line := _find_no_reward(params, manifest, public, values[:, -1])) is not None:
        stops.append(line)
    declared = _list_bounds(params, manifest, public)
    for (key, name, low, high), seen in zip(declared, values.T, strict=True):
        share = float(((seen < low) | (seen > high)).mean())
        if share >= _WARNING:
            (stops if share > _STOP else warnings).append(
                f"{file}: {key}: {100 * share:.3g}% of the public values of {name!r} lie outside "
                f"[{low:g}, {high:g}], at {seen.min():.4g} to {seen.max():.4g}; correct these "
                f"bounds, or set {key} to public"
            )
    return stops, warnings


def _list_bounds(
    params: Params, manifest: Manifest, public: UnitStore
) -> Iterator[tuple[str, str, np.floating, np.floating]]:
    """Yield key, name and bounds of every dimension of an observation, then of the reward;
    rounded as values are, infinite where none are declared.
    """
    dataset, reward = params.chosen, params.chosen.bounds.reward
    ends = observation_bounds(dataset.bounds, manifest, public)
    for name, low, high in zip(manifest.info.spaces.observation_names, *ends, strict=True):
        yield "bounds.observation", name, low, high
    name = dataset.options.columns.reward if isinstance(dataset, TabularDataset) else "reward"
    least, most = (-np.inf, np.inf) if isinstance(reward, str) else reward
    yield "bounds.reward", name, np.float32(least), np.float32(most)


_CUT = "the last row of a trajectory that does not terminate is dropped, and its reward with it"
_OUTCOME = (
    "if an outcome score is there, set options.end: outcome and termination: learned; if not, "
    "leave these rewards empty and set options.end: observed; or name next_observation columns"
)


def _find_no_reward(
    params: Params, manifest: Manifest, public: UnitStore, reward: Floats
) -> str | None:
    """Say that every step earns the same, and no episode can end sooner or later; else None."""
    dataset, ends = params.chosen, manifest.info.termination
    may_end = public.terminates if ends == LEARNED else ends != NONE
    if reward.min() < reward.max() or (reward[0] != 0 and may_end):
        return None
    log = isinstance(dataset, TabularDataset) and dataset.options.cuts_last_rows
    cut = log and not public.terminates
    key = "options.end" if cut else "reward"
    why = f"{_CUT}; {_OUTCOME}" if cut else "correct options.columns.reward, or the log"
    return f"datasets/{params.dataset}.yaml: {key}: every public reward is {reward[0]:g}: {why}"


# ---- the policy


def _policy(params: Params, manifest: Manifest) -> Policy:
    """Decide the settings of the policy that need no released model; the others are None.

    Without a clone epochs are twice as many, as entropy starts high and falls slowly, or longer
    where trajectories are long.
    """
    long = not params.clones and (manifest.info.horizon or 0) > USUAL_LENGTH
    starts = "reset" if params.partition.public_fraction == 0 else "public"
    if params.asks_starts:
        starts = "released"
    chosen = params.with_decided(
        {
            "policy.uncertainty": "standardised_difference",
            "policy.penalty": 1.0,
            "policy.starts": starts,
            "policy.learning_rate": 3e-4 if params.clones else 1e-3,
            "policy.epochs": _EPOCHS if params.clones or long else 2 * _EPOCHS,
            "policy.updates_per_epoch": _LONG_UPDATES if long else _UPDATES,
            "policy.hidden": _LONG_HIDDEN if long else _HIDDEN,
            "policy.target_entropy": -float(manifest.info.spaces.action_size),
        }
    )
    return chosen.policy


# ---- the question


def question_job(params: Params) -> jobs.QuestionJob:
    """Make the job of the question for today's returns.

    Raises:
        PipelineError: no noise is enough for its ε.
    """
    chosen, delta = params.evaluation.private, params.privacy.delta
    epsilon = epsilon_of(params, "behaviour")
    return jobs.QuestionJob(
        noise_multiplier=jobs.solve_noise(epsilon, delta, 1.0, jobs.RELEASES),
        delta=delta,
        discount=1.0,
        return_bounds=chosen.return_bounds,
        draw=chosen.draw,
    )
