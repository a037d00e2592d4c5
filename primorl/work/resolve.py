"""The stage ``plan``: decide every number of a run's paid jobs, once.

Reads settings, declared facts and the public split, never a private byte, and charges nothing. What
`params.yaml` leaves open a rule decides: the noise of all rounds over what all rounds can move, s =
z √d / (q K √T), must be small, or of linear heads the variance that the noise adds to predictions
(docs/fitted-plan.md).
"""

import math
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from primorl.base.errors import PipelineError
from primorl.config.blocks import JobName, Policy
from primorl.config.datasets import TabularDataset
from primorl.config.params import DEFAULT, RULED, Params, flat, found_in, plain
from primorl.data.description import cuts_last_rows, list_bounds
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine.settings import LEAST_UNITS, EarlyStopping, LocalTraining, ServerTraining
from primorl.model.architecture import CanLearn, Network
from primorl.model.termination import LEARNED, NONE, RULES
from primorl.privacy.accounting.epsilon import gaussian_epsilon, gaussian_mean
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.history import BudgetExceeded, paid_identities
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.work.data import Floats, Partitions, observation_bounds
from primorl.work.jobs import (
    RELEASES,
    AnyJob,
    CloneJob,
    MechanismNumbers,
    ModelJob,
    Price,
    QuestionJob,
    RunPlan,
    Setting,
    digest_of_settings,
    identity_of,
    noise_of_share,
    paid_plan,
    solve_noise,
)

_COMMON: dict[str, Any] = {
    "dynamics.ensemble_size": 3,
    "dynamics.log_variance_bounds": (-5.0, 3.0),
    "dynamics.server_momentum": 0.6,
    "dynamics.server_averaging": 0.9,
}
_SMALL = ((64, 64), (32, 32), (32,), (16,))
_FROM_SCRATCH: dict[str, Any] = {
    "dynamics.start": "random",
    "dynamics.beta_nll": 0.0,
    "dynamics.log_variance_bounds": (-10.0, 0.5),
    "privacy.rounds": 200,
}
"""Where no public split tells more; the network is the largest of `_SMALL` that the noise leaves
room for.
"""
_COHORT, _LONGEST = 300, 250  # people of a round, and rows of each
_WAY, _SHORT_WAY = 0.12, 0.06
"""Learning rate times local steps of a unit, where there is little noise and where there is
much."""
_NOISE_OF_CLIP = 0.12
"""s C, of which C is made: at most 1."""
_FROM_PUBLIC: dict[str, Any] = {
    "dynamics.start": "public",
    "dynamics.beta_nll": 1.0,
    "dynamics.learning_rate": 0.0003,
    "privacy.rounds": 20,
    "privacy.clipping_norm": 0.02,
}
"""Where public units make first weights: a few small steps from there."""
_MOST_TRANSITIONS = 6e6  # that all rounds of a training read: some twenty seconds on two cores
_MOST_ROUNDS, _ROWS = 60, 64  # of a training, of one unit and round
_LINEAR: dict[str, Any] = {
    "dynamics.start": "random",
    "dynamics.hidden": (),
    "dynamics.beta_nll": 0.0,
    "dynamics.learning_rate": heads.RATE,
    "dynamics.ensemble_size": 5,
    "dynamics.log_variance_bounds": (-12.0, 4.0),
    "dynamics.server_momentum": heads.MOMENTUM,
    "dynamics.server_averaging": heads.AVERAGING,
    "dynamics.max_transitions_per_unit": heads.ROWS,
    "privacy.rounds": heads.ROUNDS,
    "privacy.clipping_norm": heads.NORM,
}
"""Settings of linear heads; their degree is the largest whose noise is small enough."""
_MOST_ROWS_OF_HEADS = 1.2e8  # that all rounds read
_SHARES = 0.05, 0.5
_BLURRED_YES, _BLURRED_NO = 0.35, 1.0
"""Noise of the variances that scale the features, as a share of them: up to which heads learn, and
from which not.
"""
_LOST_NO = 1.0
"""Share of a target's variance that the noise adds to predictions, from which heads do not learn
(`heads.LOST_YES`).
"""
_MANY_ROWS = 1e6
"""Rows of all people from which on networks learned more than linear heads, where s is small."""
_NOISE_YES, _NOISE_SOME, _NOISE_NO = 0.2, 0.37, 0.55
"""s up to which runs learned, up to which most did, and from which none did."""
_FULL_ROWS = 32  # of a unit that counts in full where trajectories end, at most
_MOST_ROWS = 256  # of a unit and round of linear heads

# Of the clone.
_CLONE_Q, _CLONE_ROUNDS = 0.3, 40
_SMALLEST_NORM = 1e-6  # of a clip, as in params.yaml
_LARGEST_NORM, _LARGEST_WALK, _WALK_FROM_PUBLIC = 0.2, 5.0, 0.3
"""Of an update, and of what the noise of all rounds adds up to, from random weights and from those
of the public split; see `clipping_norm`."""
# One step on all rows of a unit: with several, each unit moves towards its own habits, and their
# mean is too sure.
_CLONE_LOCAL = LocalTraining(
    learning_rate=1.0,
    batch_size=_MOST_ROWS,
    local_epochs=1,
    weight_decay=0.0,
    max_transitions_per_unit=_MOST_ROWS,
    beta_nll=0.0,
)
_CLONE_SERVER = ServerTraining(
    server_momentum=0.9, server_averaging=0.9, early_stopping=EarlyStopping(every=10, patience=None)
)
_HEADS_LOCAL = replace(
    _CLONE_LOCAL,
    learning_rate=heads.RATE,
    batch_size=heads.ROWS,
    max_transitions_per_unit=heads.ROWS,
)
_LOGIT_RATE = 4 * heads.RATE  # the curvature of a softmax is a quarter of a square's, at most
_NOISE_OF_LOGITS, _NORMS_OF_LOGITS = 0.01, (0.05, 1.0)
"""s C, of which C of logits is made, and its range. Nearly every update is clipped, so C is how far
rounds go."""
_NOISE_OF_SQUARES = 0.01
"""s up to which logits have features of degree 2: with more noise, those of degree 1 cloned better.
"""
_HEADS_SERVER = replace(
    _CLONE_SERVER, server_momentum=heads.MOMENTUM, server_averaging=heads.AVERAGING
)
_LOGITS_SERVER = replace(_HEADS_SERVER, server_momentum=0.9)
"""The squares' momentum left a clone of nine doses half way after all rounds."""
_RESIDUALS_SHARE = 0.1
_EPOCHS, _UPDATES, _HIDDEN = 24, 250, (64, 64)  # of the policy
_USUAL_LENGTH, _LONG_UPDATES, _LONG_HIDDEN = 200, 1600, (128, 128)
"""Steps of a trajectory from which on a policy that begins at random has more of both."""
_MADE_OF = ("privacy.", "dynamics.", "behaviour.", "evaluation.private.")  # settings of jobs
_LEFT, _LEFT_PER_EPSILON, _LEAST_LEFT, _TRIES = 0.985, 0.01, 0.9, 8  # see `resolve`


def decide_plan(params: Params, partitions: Partitions) -> RunPlan:
    """Decide the run's plan; numbers that were paid for with these settings and data stay.

    A version of the code that would decide other numbers must not charge the same people again
    without being asked to. The verdict and the warnings are this version's.

    Raises:
        PipelineError: see `resolve`.
    """
    decided = resolve(params, partitions)
    with suppress(PipelineError):  # there is none, or one that this version cannot read
        kept = RunPlan.read(params, partitions, paid_plan(params, partitions))
        known = paid_identities(partitions.account.charges)
        paid = any(job.identity in known for job in kept.jobs)
        # A plan that was edited before it was paid must not come back for the jobs that are due.
        dear = cost_of(kept, partitions.manifest) > params.privacy.target_epsilon
        if paid and not (dear and kept.model.variant == "private"):
            angles = params.chosen.bounds.angles  # nothing paid for depends on them
            model = replace(kept.model, bounds=replace(kept.model.bounds, angles=angles))
            return replace(
                kept,
                model=model,
                can_learn=decided.can_learn,
                reason=decided.reason,
                warnings=decided.warnings,
                policy=decided.policy,
                jobs=tuple(Price.of(job, partitions) for job in kept.paid_jobs),
            )
    return decided


def next_plan(params: Params, partitions: Partitions, changed: Set[str]) -> RunPlan:
    """Read what the stage ``plan`` decided, or decide where it will run again; ``changed`` names
    the stages that DVC will run.
    """
    if "plan" not in changed:
        with suppress(PipelineError):
            return RunPlan.read(params, partitions)
    return decide_plan(params, partitions)


def resolve(params: Params, partitions: Partitions) -> RunPlan:
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


def cost_of(plan: RunPlan, manifest: Manifest) -> float:
    """Compute the ε of all jobs of a plan together, as the ledger counts."""
    return total_of(plan.events(manifest), plan.model.delta)


def _decide(params: Params, partitions: Partitions, epsilon: float) -> RunPlan:
    """Decide jobs whose parts are of this ε."""
    manifest, public = partitions.manifest, partitions.public
    shared = replace(params, privacy=replace(params.privacy, target_epsilon=epsilon))
    chosen, fit = fit_model(shared, manifest, public)
    model = model_job(chosen, manifest)
    identity = identity_of(model, partitions.identity)
    clone = clone_job(chosen, manifest, public, identity)
    questions = question_jobs(shared, identity)
    beside: tuple[AnyJob, ...] = questions if clone is None else (clone, *questions)
    objected = find_objections(params, manifest, public)
    answer, reason = (
        fit.answer,
        fit.reason + _say_least_spread(params, model.build_mechanism(manifest)),
    )
    warnings = (*objected.stops, *objected.warnings)
    if answer == "no":
        warnings = (*warnings, reason)
    if objected.stops:
        answer, reason = "no", "; ".join(objected.stops)
    return RunPlan(
        dataset=manifest.info.dataset,
        asked=digest_of_settings(params),
        can_learn=answer if model.variant == "private" else None,
        reason=reason,
        warnings=warnings,
        model=model,
        clone=clone,
        questions=questions,
        policy=_policy(params, manifest),
        jobs=tuple(Price.of(job, partitions) for job in (model, *beside)),
        settings=_settings(chosen, params.privacy.target_epsilon),
    )


def is_refused(params: Params, plan: RunPlan) -> bool:
    """Whether the stage ``plan`` refuses to go on to a training that cannot learn."""
    return plan.can_learn == "no" and not params.dynamics.train_anyway


def refuse_useless(params: Params, plan: RunPlan) -> None:
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


def _settings(chosen: Params, epsilon: float) -> dict[str, Setting]:
    """List the decided settings that the jobs are made of, with their origins."""
    values = dict(flat(plain(chosen))) | {"privacy.target_epsilon": epsilon}
    return {
        key: Setting(value=value, origin=chosen.origins.get(key, DEFAULT))
        for key, value in sorted(values.items())
        if key.startswith(_MADE_OF) and not key.startswith("privacy.budget")
    }


def epsilon_of(params: Params, job: JobName) -> float:
    """Compute the ε of a job: its share of `Privacy.target_epsilon`.

    A Gaussian release of mean μ costs ε(μ, δ), and means add in squares: a share s of ε(μ, δ) is
    ε(√s μ, δ).
    """
    epsilon, delta = params.privacy.target_epsilon, params.privacy.delta
    share = params.privacy.shares[job]
    if share == 1:
        return epsilon
    return float(f"{gaussian_epsilon(math.sqrt(share) * gaussian_mean(epsilon, delta), delta):.6g}")


# ---- checks of the settings and of declared facts

_STOP, _WARNING = 0.2, 0.01
"""Shares of public values outside a column's bounds from which a training is refused, and from
which it is warned.
"""


def check_choices(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse choices that fit neither each other nor the data.

    Raises:
        PipelineError: names the first such choice.
    """
    if (line := next(_find_misfits(params, manifest, public), None)) is not None:
        raise PipelineError(line)
    if manifest.info.environment is None:
        manifest.declared_horizon()
    observation_bounds(params.chosen.bounds, manifest, public)


def _find_misfits(params: Params, manifest: Manifest, public: UnitStore) -> Iterator[str]:
    """Yield settings that the data do not allow, and facts that the dataset's file lacks."""
    info, units, bounds = manifest.info, manifest.private_units, params.chosen.bounds
    dataset, normaliser = f"datasets/{params.dataset}.yaml", params.normaliser
    if public.info != info:
        yield "data/partitions: its parts are of different datasets; run `dvc repro partition`"
    patience = params.dynamics.early_stopping.patience
    asking = {
        "params.yaml: partition.public_fraction": (normaliser, "0"),
        "params.yaml: dynamics.early_stopping.patience": (patience and "public", "null"),
        f"{dataset}: bounds.observation": (bounds.observation, "space, {low, high}"),
        f"{dataset}: bounds.reward": (bounds.reward, "[low, high]"),
    }
    for key, (asked, allowed) in asking.items():
        if asked == "public" and not manifest.public_units:
            yield (
                f"{key}: needs public units, and data/partitions has none (where partition in "
                f"params.yaml was changed since, run `dvc repro partition`); allowed: {allowed}"
            )
    q = params.privacy.sampling_probability
    if q is not None and q * units < 1:
        yield (
            f"params.yaml: privacy.sampling_probability: found {q:g}, at which less than one of "
            f"{units} units joins a round; allowed is at least 1/{units}"
        )
    drawn = normaliser == "public" and public.units >= LEAST_UNITS
    if params.dynamics.start == "public" and not drawn:
        yield (
            f"params.yaml: dynamics.start: found public, with {public.units} public units; needed "
            f"are {LEAST_UNITS} that a hash drew; allowed: random"
        )
    if params.questions and info.horizon is None and params.evaluation.private.discount == 1.0:
        yield (
            f"{dataset}: horizon: not declared, while evaluation.private.discount is 1, so nothing "
            "bounds a return; declare a horizon, or set a discount below 1"
        )
    size = public.observation_size
    allowed_ends = [NONE, LEARNED]
    allowed_ends += [name for name, rule in sorted(RULES.items()) if rule.observation_size == size]
    if info.termination not in allowed_ends:
        yield (
            f"{dataset}: termination: found {info.termination!r}; allowed for observations of size "
            f"{size} are {', '.join(allowed_ends)}"
        )


class Objections(NamedTuple):
    """Lines about a run, each with the finding in the public split and the remedy.

    Attributes:
        stops: why it is not to be paid for.
        warnings: to be looked at.
    """

    stops: list[str]
    warnings: list[str]


def find_objections(params: Params, manifest: Manifest, public: UnitStore) -> Objections:
    """Find objections to a run that the public split shows or, where it is empty, the entry."""
    file = f"datasets/{params.dataset}.yaml"
    found = Objections([], [])
    if public.units == 0:
        dataset = params.chosen
        flagged = isinstance(dataset, TabularDataset) and dataset.options.columns.terminated
        if cuts_last_rows(dataset) and not flagged:
            found.warnings.append(
                f"{file}: options.end: {_CUT}, and nobody is public to tell whether any is left; "
                f"{_OUTCOME}"
            )
        if manifest.info.termination == LEARNED and dataset.bounds.before_end is None:
            found.warnings.append(
                f"{file}: bounds.before_end: not declared, so nothing tells an outcome, which is "
                "earned once, from rewards of every row, and nobody is public to tell whether the "
                "model's ends are right; declare what a row that does not end its trajectory can "
                "earn"
            )
        return found
    inputs, targets = public.arrays()
    size = public.observation_size
    values = np.concatenate((inputs[:, :size], targets[:, size : size + 1]), axis=1)
    if (line := _find_no_reward(params, manifest, public, values[:, -1])) is not None:
        found.stops.append(line)
    bounds = list_bounds(params.chosen, manifest.info.spaces)
    for column, seen in zip(bounds, values.T, strict=True):
        share = column.outside(seen)
        if share >= _WARNING:
            (found.stops if share > _STOP else found.warnings).append(
                f"{file}: {column.key}: {100 * share:.3g}% of the public values of "
                f"{column.name!r} lie outside its bounds [{column.low:g}, {column.high:g}] (public "
                f"minimum {seen.min():.4g}, maximum {seen.max():.4g}); correct them to what is "
                f"possible, or set {column.key} to public"
            )
    return found


_CUT = "the last row of a trajectory that does not terminate is dropped, and its reward with it"
_OUTCOME = (
    "if an outcome score is there, set options.end: outcome and termination: learned; if not, "
    "leave these rewards empty and set options.end: observed; or name next_observation columns"
)


def _find_no_reward(
    params: Params, manifest: Manifest, public: UnitStore, reward: Floats
) -> str | None:
    """Say that every step earns the same, and no episode can end sooner or later; else None."""
    ends = manifest.info.termination
    may_end = public.terminates if ends == LEARNED else ends != NONE
    if reward.min() < reward.max() or (reward[0] != 0 and may_end):
        return None
    cut = cuts_last_rows(params.chosen) and not public.terminates
    key = "options.end" if cut else "reward"
    why = f"{_CUT}; {_OUTCOME}" if cut else "correct options.columns.reward, or the log"
    return (
        f"datasets/{params.dataset}.yaml: {key}: every public reward is {reward[0]:g}, so nothing "
        f"can be learned: {why}"
    )


# ---- the model


class Fit(NamedTuple):
    """The expected success of a training.

    Attributes:
        answer: whether these settings can learn.
        reason: why, in one line.
    """

    answer: CanLearn
    reason: str


def fit_model(params: Params, manifest: Manifest, public: UnitStore) -> tuple[Params, Fit]:
    """Decide the model's class and its settings where they are left open, and judge all of them.

    The class is an ensemble of networks where the noise leaves room for one and the people have
    many rows, as far as is declared; else linear heads, which are made of far fewer noised numbers.

    Returns:
        The choices with decided values in place, and their expected success.

    Raises:
        PipelineError: the choices fit neither each other nor the data, or no noise multiplier
            reaches the target ε.
    """
    left_open = params.dynamics.model is None
    heads_instead = params.with_decided({"dynamics.model": "linear"})
    rows = manifest.private_units * (manifest.info.horizon or 0)
    if params.dynamics.model == "linear" or (left_open and rows < _MANY_ROWS):
        return _of_heads(heads_instead, manifest, public)
    network = params.with_decided({"dynamics.model": "network"})
    chosen, noise = _of_network(network, manifest, public)
    if left_open and noise > _NOISE_SOME:
        return _of_heads(heads_instead, manifest, public, noise_of_network=noise)
    answer: CanLearn = "yes" if noise <= _NOISE_YES else "marginal" if noise < _NOISE_NO else "no"
    why = (
        f"the noise is {noise:.2f} of what the rounds can move (yes to {_NOISE_YES}, no from "
        f"{_NOISE_NO})"
    )
    return chosen, _judge(answer, why)


def model_job(params: Params, manifest: Manifest) -> ModelJob:
    """Make the job of a model whose settings are decided.

    Raises:
        PipelineError: no noise multiplier reaches the target.
    """
    privacy, dynamics = params.privacy, params.dynamics
    decided = _list_decided(params)
    linear = decided["dynamics.model"] == "linear"
    names = [heads.SCALES, heads.FINER_SCALES] if params.normaliser == "private" else []
    names += [heads.RESIDUALS] if linear else []
    names += [heads.EXPLAINED]
    names += [heads.FIRST_STATES] if params.asks_starts else []
    names += [heads.LENGTHS] if params.asks_starts and params.chosen.horizon is not None else []
    mechanism = MechanismNumbers(
        sampling_probability=decided["privacy.sampling_probability"],
        noise_multiplier=0.0,
        clipping_norm=None if dynamics.variant == "no_clip" else decided["privacy.clipping_norm"],
        clipping=privacy.clipping,
        rounds=decided["privacy.rounds"],
        delta=privacy.delta,
        queries=dict.fromkeys(names, 0.0),
    )
    if dynamics.variant == "private":
        mechanism = _with_noise(params, mechanism)
    return ModelJob(
        variant=dynamics.variant,
        seed=params.seed,
        draw=privacy.draw,
        bounds=params.chosen.bounds,
        model=decided["dynamics.model"],
        degree=decided["dynamics.degree"] if linear else None,
        hidden=() if linear else decided["dynamics.hidden"],
        members=decided["dynamics.ensemble_size"],
        log_variance_bounds=decided["dynamics.log_variance_bounds"],
        start=decided["dynamics.start"],
        normaliser=params.normaliser,
        local=count_rows(_local_training(params), manifest),
        server=ServerTraining(
            server_momentum=decided["dynamics.server_momentum"],
            server_averaging=decided["dynamics.server_averaging"],
            early_stopping=dynamics.early_stopping,
        ),
        mechanism=mechanism,
    )


def _list_decided(params: Params) -> dict[str, Any]:
    """Return what rules may decide, by dotted key."""
    return {key: found_in(params, key) for key in RULED}


def _with_noise(params: Params, mechanism: MechanismNumbers) -> MechanismNumbers:
    """Solve for the noise of a model's rounds and queries."""
    epsilon, delta = epsilon_of(params, "model"), params.privacy.delta
    queries = {
        name: noise_of_share(epsilon, delta, heads.SHARES[name]) for name in mechanism.queries
    }
    q, rounds = mechanism.sampling_probability, mechanism.rounds
    solved = solve_noise(epsilon, delta, q, rounds, tuple(queries.values()))
    return replace(mechanism, noise_multiplier=solved, queries=queries)


def count_rows(local: LocalTraining, manifest: Manifest) -> LocalTraining:
    """Let units count by their rows where trajectories end by themselves.

    Those that end early have few rows, of which one is an end. If all counted alike, a model would
    have twice as many ends as there are.
    """
    if manifest.info.termination != LEARNED:
        return local
    return replace(local, full_rows=min(manifest.info.horizon or _FULL_ROWS, _FULL_ROWS))


def _local_training(params: Params) -> LocalTraining:
    """Return a unit's local steps; of linear heads one, on all rows that take part."""
    dynamics, decided = params.dynamics, _list_decided(params)
    rows = decided["dynamics.max_transitions_per_unit"]
    linear = dynamics.model == "linear"
    return LocalTraining(
        learning_rate=decided["dynamics.learning_rate"],
        batch_size=rows if linear else dynamics.batch_size,
        local_epochs=1 if linear else dynamics.local_epochs,
        weight_decay=dynamics.weight_decay,
        max_transitions_per_unit=rows,
        beta_nll=0.0 if linear else decided["dynamics.beta_nll"],
    )


def noise_share(mechanism: Mechanism, shape: Network) -> float:
    """Return the noise norm of all rounds over the most that all rounds can move: s = z √d / (q K
    √T).
    """
    return (
        mechanism.noise_multiplier
        * math.sqrt(shape.parameters / mechanism.rounds)
        / mechanism.expected_cohort
    )


def _of_network(params: Params, manifest: Manifest, public: UnitStore) -> tuple[Params, float]:
    """Decide for the largest network that the noise leaves room for; return its `noise_share`,
    too.
    """
    from_public = (
        public.units >= LEAST_UNITS
        and params.normaliser == "public"
        and ("dynamics.start" in params.undecided or params.dynamics.start == "public")
    )
    units = manifest.private_units
    if from_public:
        usual = min(_ROWS, math.ceil(public.size / public.units))
        rows, share = _ROWS, _MOST_TRANSITIONS / (units * usual * _MOST_ROUNDS)
        common = _COMMON | _FROM_PUBLIC
        share = min(max(share, _SHARES[0]), _SHARES[1])
    else:
        rows = min(_LONGEST, manifest.info.horizon or _ROWS)
        common, share = _COMMON | _FROM_SCRATCH, min(_COHORT / units, _SHARES[1])
        steps = math.ceil(rows / params.dynamics.batch_size) * params.dynamics.local_epochs
        common["dynamics.learning_rate"] = _round(_WAY / steps, 2)
        common["privacy.clipping_norm"] = 1.0
    common["dynamics.max_transitions_per_unit"] = rows
    common["privacy.sampling_probability"] = _round(share, 2)
    check_choices(params.with_decided(common), manifest, public)
    chosen, noise = params, math.inf
    for hidden in _SMALL if "dynamics.hidden" in params.undecided else (params.dynamics.hidden,):
        chosen = params.with_decided(common | {"dynamics.hidden": hidden})
        job = model_job(chosen, manifest)
        noise = noise_share(job.build_mechanism(manifest), job.architecture(manifest))
        if noise <= _NOISE_SOME:
            break
    if not from_public:  # the noise does not depend on these
        common["dynamics.hidden"] = chosen.dynamics.hidden
        if noise > _NOISE_YES:
            common["dynamics.learning_rate"] = _round(_SHORT_WAY / steps, 2)
        common["privacy.clipping_norm"] = _round(_NOISE_OF_CLIP / max(noise, _NOISE_OF_CLIP), 2)
        chosen = params.with_decided(common)
    return chosen, noise


def _of_heads(
    params: Params, manifest: Manifest, public: UnitStore, noise_of_network: float | None = None
) -> tuple[Params, Fit]:
    """Decide for linear heads: features of the largest degree at which the noise is small enough,
    or else of degree 1.

    Where they stand in for a network, for which there are rows and too much noise, they may learn
    little: long tasks of so many rows were beyond polynomials.

    Degree 3 makes members disagree away from the data, which holds policies back: it is tried where
    no environment can tell a wrong policy from a good one.
    """
    everybody = min(1.0, _MOST_ROWS_OF_HEADS / (manifest.private_units * heads.ROWS * heads.ROUNDS))
    common = _LINEAR | {"privacy.sampling_probability": _round(everybody, 2)}
    check_choices(params.with_decided(common), manifest, public)
    chosen, lost, blurred = params, math.inf, None
    spaces = manifest.info.spaces
    sizes = spaces.observation_size + spaces.action_size, spaces.one_hot
    degrees = heads.degrees(*sizes, cubes=params.chosen.environment is None)
    for degree in degrees if "dynamics.degree" in params.undecided else (params.dynamics.degree,):
        chosen = params.with_decided(common | {"dynamics.degree": degree})
        job = model_job(chosen, manifest)
        mechanism, shape = job.build_mechanism(manifest), job.architecture(manifest)
        blurred = heads.noise_in_scales(mechanism)
        lost = heads.lost_to_noise(mechanism, job.server, job.local.learning_rate, shape)
        if heads.affords(lost, shape):
            break
    why = (
        f"the noise in what linear heads predict has {lost:.2g} of the variance of the target "
        f"(yes to {heads.LOST_YES:g}, no from {_LOST_NO:g}), before small weights are shrunk; "
        "whether polynomials fit these data is known after training"
    )
    blur = 0.0
    if blurred is not None:
        blur = blurred
        why += (
            f"; the variances that scale their features have a noise of {blur:.0%} (yes to "
            f"{_BLURRED_YES:.0%}, no from {_BLURRED_NO:.0%})"
        )
    answer: CanLearn = "marginal" if lost < _LOST_NO and blur < _BLURRED_NO else "no"
    if noise_of_network is not None:
        why = (
            f"the people have rows for a network, and its noise would be {noise_of_network:.2f} of "
            f"what the rounds can move (allowed to {_NOISE_SOME}); {why}"
        )
    elif lost <= heads.LOST_YES and blur <= _BLURRED_YES:
        answer = "yes"
    return chosen, _judge(answer, why)


def _say_least_spread(params: Params, mechanism: Mechanism) -> str:
    """Say how much numbers must vary to be seen beside the noise; nothing where public rows tell
    scales.
    """
    least, reward = heads.least_spread(mechanism), params.chosen.bounds.reward
    if least is None or isinstance(reward, str):
        return ""
    return (
        "; the noise hides a reward whose standard deviation is below "
        f"{least * (reward[1] - reward[0]) / 2:.2g}, and a column below {least / 2:.1%} of its "
        "declared range"
    )


def _judge(answer: CanLearn, why: str) -> Fit:
    words = {"yes": "can learn", "marginal": "may learn little", "no": "cannot learn"}
    return Fit(answer, f"these settings {words[answer]}: {why}")


def _round(number: float, digits: int) -> float:
    return float(f"{number:.{digits}g}")


# ---- the clone


def clone_job(
    params: Params, manifest: Manifest, public: UnitStore, model_identity: str
) -> CloneJob | None:
    """Make the job of the clone; None: none is asked for.

    Raises:
        PipelineError: no noise is enough for its ε, or leaves a clip.
    """
    if not params.clones:
        return None
    public_scales = params.normaliser == "public"
    make = _clone_of_network if public_scales else _clone_of_heads
    job = make(params, manifest, public)
    if params.dynamics.variant != "private":
        silent = dict.fromkeys(job.mechanism.queries, 0.0)
        norm = None if params.dynamics.variant == "no_clip" else job.mechanism.clipping_norm
        mechanism = replace(job.mechanism, noise_multiplier=0.0, queries=silent, clipping_norm=norm)
        job = replace(job, mechanism=mechanism)
    return replace(job, scaled_by=model_identity) if job.normaliser == "model" else job


def _clone(params: Params, **own: Any) -> CloneJob:
    """Make a clone's job of what is decided for its class, and of the settings."""
    return CloneJob(
        variant=params.dynamics.variant,
        seed=params.seed,
        draw=params.privacy.draw,
        bounds=params.chosen.bounds,
        log_variance_bounds=params.behaviour.log_variance_bounds,
        scaled_by=None,
        **own,
    )


def _clone_of_network(params: Params, manifest: Manifest, public: UnitStore) -> CloneJob:
    """Decide for a network in public scales, whose clip is what its noise leaves room for."""
    epsilon, delta = epsilon_of(params, "clone"), params.privacy.delta
    begun = public.units >= LEAST_UNITS
    noise = solve_noise(epsilon, delta, _CLONE_Q, _CLONE_ROUNDS)
    mechanism = MechanismNumbers(
        sampling_probability=_CLONE_Q,
        noise_multiplier=noise,
        clipping_norm=1.0,
        clipping="flat",
        rounds=_CLONE_ROUNDS,
        delta=delta,
        queries={},
    )
    job = _clone(
        params,
        model="network",
        degree=None,
        hidden=params.behaviour.hidden,
        taught=(),
        start="public" if begun else "random",
        normaliser="public",
        local=replace(_CLONE_LOCAL, learning_rate=0.1) if begun else _CLONE_LOCAL,
        server=_CLONE_SERVER,
        mechanism=mechanism,
    )
    walk = _WALK_FROM_PUBLIC if begun else _LARGEST_WALK
    network = job.network(manifest)
    norm = clipping_norm(network.parameters, manifest.private_units, noise, walk)
    if norm < _SMALLEST_NORM:
        raise PipelineError(
            f"params.yaml: behaviour.hidden: found {list(network.hidden)}, {network.parameters} "
            f"weights, whose noise leaves a clip of {norm:g} with {manifest.private_units} "
            "units; make it smaller, or raise privacy.target_epsilon"
        )
    return replace(job, mechanism=replace(mechanism, clipping_norm=norm))


def clipping_norm(parameters: int, units: int, noise_multiplier: float, walk: float) -> float:
    """Choose a clone's C: the largest at which the noise of all rounds moves the weights by at most
    ``walk``, up to 0.2.

    T rounds of noise z C √d / (qK), each carried on by the momentum β, end z C √(dT) / (qK (1 - β))
    away from where they began. K, the number of units, is public.

    Args:
        parameters: d, of the network.
        units: K.
        noise_multiplier: z.
        walk: the norm of the noise of all rounds.
    """
    carried = 1 / (1 - _CLONE_SERVER.server_momentum)
    of_one = noise_multiplier * math.sqrt(parameters * _CLONE_ROUNDS) / (_CLONE_Q * units) * carried
    return float(f"{min(_LARGEST_NORM, walk / of_one):.4g}")


def _clone_of_heads(params: Params, manifest: Manifest, public: UnitStore) -> CloneJob:
    """Decide for linear heads in the scales of the released model, of the largest degree that the
    noise leaves room for.

    Logits of discrete actions gained nothing from cubes, and noise is no share of their variance.
    They have no spread to ask for.
    """
    epsilon, delta = epsilon_of(params, "clone"), params.privacy.delta
    spaces = manifest.info.spaces
    discrete, (least, most) = spaces.discrete_actions, _NORMS_OF_LOGITS
    queries = {}
    if not discrete:
        queries = {heads.RESIDUALS: noise_of_share(epsilon, delta, _RESIDUALS_SHARE)}
    noise = solve_noise(epsilon, delta, 1.0, heads.ROUNDS, tuple(queries.values()))
    job = _clone(
        params,
        model="linear",
        degree=2,
        hidden=(),
        taught=params.behaviour.hidden,
        start="random",
        normaliser="model",
        local=replace(_HEADS_LOCAL, learning_rate=_LOGIT_RATE) if discrete else _HEADS_LOCAL,
        server=_LOGITS_SERVER if discrete else _HEADS_SERVER,
        mechanism=MechanismNumbers(
            sampling_probability=1.0,
            noise_multiplier=noise,
            clipping_norm=heads.NORM,
            clipping="flat",
            rounds=heads.ROUNDS,
            delta=delta,
            queries=queries,
        ),
    )
    if discrete:
        share = noise_share(job.build_mechanism(manifest), job.network(manifest))
        if share > _NOISE_OF_SQUARES:
            job = replace(job, degree=1)
            share = noise_share(job.build_mechanism(manifest), job.network(manifest))
        norm = min(max(_NOISE_OF_LOGITS / max(share, 1e-9), least), most)
        return replace(job, mechanism=replace(job.mechanism, clipping_norm=_round(norm, 2)))
    for degree in heads.degrees(spaces.observation_size, spaces.one_hot, cubes=True):
        job = replace(job, degree=degree)
        network = job.network(manifest)
        lost = heads.lost_to_noise(job.build_mechanism(manifest), job.server, heads.RATE, network)
        if heads.affords(lost, network):
            break
    return job


# ---- the policy


def _policy(params: Params, manifest: Manifest) -> Policy:
    """Decide the settings of the policy that need no released model; the others are None.

    Without a clone epochs are twice as many, as entropy starts high and falls slowly, or longer
    where trajectories are long.
    """
    long = not params.clones and (manifest.info.horizon or 0) > _USUAL_LENGTH
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


# ---- the questions


def question_jobs(params: Params, model_identity: str) -> tuple[QuestionJob, ...]:
    """Make the jobs of the questions that have a share of ε.

    Raises:
        PipelineError: no noise is enough for the ε of one of them.
    """
    chosen, delta = params.evaluation.private, params.privacy.delta
    return tuple(
        QuestionJob(
            question=name,
            noise_multiplier=solve_noise(epsilon_of(params, name), delta, 1.0, RELEASES[name]),
            delta=delta,
            discount=chosen.discount,
            return_bounds=chosen.return_bounds,
            draw=chosen.draw,
            about=model_identity if name == "model_check" else None,
            releases=RELEASES[name],
        )
        for name in params.questions
    )
