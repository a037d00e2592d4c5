"""How model and clone are decided where settings leave it open: class, sizes, clip and noise.

The noise of all rounds over what all rounds can move, s = z √d / (q K √T), must be small, or of
linear heads the variance that the noise adds to predictions (docs/fitted-plan.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from primorl.base import PipelineError
from primorl.config.params import JobName, Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine.settings import LEAST_UNITS, EarlyStopping, LocalTraining, ServerTraining
from primorl.model.architecture import CanLearn, Network
from primorl.model.termination import LEARNED
from primorl.privacy.accounting.epsilon import gaussian_epsilon, gaussian_mean
from primorl.privacy.accounting.figures import estimate_noise_multiplier
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.work.jobs import (
    CloneJob,
    MechanismNumbers,
    ModelJob,
    columns_of,
    noise_of_share,
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
_USUAL_SPREAD = 1 / 16
"""Standard deviation of a column, as a share of its declared range, that is to be seen: of one that
was declared twice as wide as nearly all values lie, which is 8 deviations.
"""
_MOST_RARER = 0.5  # of trajectories, that can have the rarer of two outcomes
_MANY_ROWS = 1e6
"""Rows of all people from which on networks learned more than linear heads, where s is small."""
_NOISE_YES, _NOISE_SOME, _NOISE_NO = 0.2, 0.37, 0.55
"""s up to which runs learned, up to which most did, and from which none did."""
_FULL_ROWS = 32  # of a unit that counts in full where trajectories end, at most
USUAL_LENGTH = 200  # steps of a trajectory, beyond which it is long


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


class Fit(NamedTuple):
    """The expected success of a training.

    Attributes:
        answer: whether these settings can learn.
        why: in one line.
    """

    answer: CanLearn
    why: str

    @property
    def reason(self) -> str:
        """The answer in words, and why."""
        words = {"yes": "can learn", "marginal": "may learn little", "no": "cannot learn"}
        return f"these settings {words[self.answer]}: {self.why}"


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
        return _doubt_policy(*_of_heads(heads_instead, manifest), manifest)
    network = params.with_decided({"dynamics.model": "network"})
    chosen, noise = _of_network(network, manifest, public)
    # At 0.36 two of two networks lost a pendulum that heads swing up.
    allowed = _NOISE_SOME if chosen.dynamics.start == "public" else _NOISE_YES
    if left_open and noise > allowed:
        why = (
            f"enough rows for a network, but its noise is {noise:.2f} of what rounds can move "
            + _limits(noise, allowed)
        )
        return _of_heads(heads_instead, manifest, instead=why)
    answer: CanLearn = "yes" if noise <= _NOISE_YES else "marginal" if noise < _NOISE_NO else "no"
    limits = _limits(noise, _NOISE_YES, _NOISE_NO)
    why = f"the noise is {noise:.2f} of what the rounds can move {limits}"
    return _doubt_policy(chosen, Fit(answer, why), manifest)


def _doubt_policy(params: Params, fit: Fit, manifest: Manifest) -> tuple[Params, Fit]:
    """Doubt policies of several continuous actions over long trajectories with nobody public: of
    the one such task that was measured, they left what people did at every ε, near a clone or not.
    """
    spaces, length = manifest.info.spaces, manifest.info.horizon or 0
    several = not spaces.discrete_actions and spaces.action_size > 1
    if fit.answer != "yes" or not several or length <= USUAL_LENGTH or manifest.public_units:
        return params, fit
    why = (
        f"{fit.why}; that is of the model: policies of several continuous actions over "
        f"{length} steps left what people did where nobody was public (HalfCheetah)"
    )
    return params, Fit("marginal", why)


def model_job(params: Params, manifest: Manifest) -> ModelJob:
    """Make the job of a model whose settings are decided.

    Raises:
        PipelineError: no noise multiplier reaches the target.
    """
    privacy: Any = params.privacy  # all of both is decided
    dynamics: Any = params.dynamics
    linear = dynamics.model == "linear"
    names = [heads.SCALES, heads.FINER_SCALES] if params.normaliser == "private" else []
    names += [heads.RESIDUALS] if linear else []
    names += [heads.EXPLAINED]
    # A simulator measures returns, and an outcome at the end is the reward of few rows.
    if linear and params.chosen.environment is None and params.chosen.bounds.before_end is None:
        names += [heads.REWARD_OFFSET]
    names += [heads.FIRST_STATES] if params.asks_starts else []
    names += [heads.LENGTHS] if params.asks_starts and params.chosen.horizon is not None else []
    mechanism = MechanismNumbers(
        sampling_probability=privacy.sampling_probability,
        noise_multiplier=0.0,
        clipping_norm=None if dynamics.variant == "no_clip" else privacy.clipping_norm,
        clipping=privacy.clipping,
        rounds=privacy.rounds,
        delta=privacy.delta,
        queries=dict.fromkeys(names, 0.0),
    )
    if dynamics.variant == "private":
        mechanism = _with_noise(params, mechanism)
    rows = dynamics.max_transitions_per_unit
    local = LocalTraining(  # of linear heads one step, on all rows that take part
        learning_rate=dynamics.learning_rate,
        batch_size=rows if linear else dynamics.batch_size,
        local_epochs=1 if linear else dynamics.local_epochs,
        weight_decay=dynamics.weight_decay,
        max_transitions_per_unit=rows,
        beta_nll=0.0 if linear else dynamics.beta_nll,
    )
    return ModelJob(
        variant=dynamics.variant,
        seed=params.seed,
        draw=privacy.draw,
        bounds=params.chosen.bounds,
        model=dynamics.model,
        degree=dynamics.degree if linear else None,
        hidden=() if linear else dynamics.hidden,
        members=dynamics.ensemble_size,
        log_variance_bounds=dynamics.log_variance_bounds,
        start=dynamics.start,
        normaliser=params.normaliser,
        local=count_rows(local, manifest),
        server=ServerTraining(
            server_momentum=dynamics.server_momentum,
            server_averaging=dynamics.server_averaging,
            early_stopping=dynamics.early_stopping,
        ),
        mechanism=mechanism,
    )


def _with_noise(params: Params, mechanism: MechanismNumbers) -> MechanismNumbers:
    """Solve for the noise of a model's rounds and queries."""
    epsilon, delta = epsilon_of(params, "model"), params.privacy.delta
    queries = {
        name: noise_of_share(epsilon, delta, heads.SHARES[name]) for name in mechanism.queries
    }
    q, rounds = mechanism.sampling_probability, mechanism.rounds
    solved = solve_noise(epsilon, delta, q, rounds, tuple(queries.values()))
    return replace(mechanism, noise_multiplier=solved, queries=queries)


def count_rows(local: LocalTraining, manifest: Manifest, share: float = 1.0) -> LocalTraining:
    """Let units count by their rows where trajectories end by themselves, and in full from a share
    of the horizon on.

    Those that end early have few rows, of which one is an end. If all counted alike, a model would
    have twice as many ends as there are.
    """
    if manifest.info.termination != LEARNED:
        return local
    most = math.ceil(share * (manifest.info.horizon or _FULL_ROWS))
    return replace(local, full_rows=min(most, _FULL_ROWS))


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
    allowed = "dynamics.start" in params.undecided or params.dynamics.start == "public"
    from_public = public.units >= LEAST_UNITS and params.normaliser == "public" and allowed
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
        common["dynamics.learning_rate"] = round_to_two(_WAY / steps)
        common["privacy.clipping_norm"] = 1.0
    common["dynamics.max_transitions_per_unit"] = rows
    common["privacy.sampling_probability"] = round_to_two(share)
    chosen, noise = params, math.inf
    for hidden in _SMALL if "dynamics.hidden" in params.undecided else (params.dynamics.hidden,):
        chosen = params.with_decided(common | {"dynamics.hidden": hidden})
        job = model_job(chosen, manifest)
        noise = noise_share(job.build_mechanism(manifest), job.network(manifest))
        if noise <= _NOISE_SOME:
            break
    if not from_public:  # the noise does not depend on these
        common["dynamics.hidden"] = chosen.dynamics.hidden
        if noise > _NOISE_YES:
            common["dynamics.learning_rate"] = round_to_two(_SHORT_WAY / steps)
        common["privacy.clipping_norm"] = round_to_two(_NOISE_OF_CLIP / max(noise, _NOISE_OF_CLIP))
        chosen = params.with_decided(common)
    return chosen, noise


def _of_heads(params: Params, manifest: Manifest, instead: str | None = None) -> tuple[Params, Fit]:
    """Decide for linear heads: features of the largest degree at which the noise is small enough,
    or else of degree 1.

    Where they stand in for a network, ``instead`` says why. They may learn little then: long tasks
    of so many rows were beyond polynomials.

    Degree 3 makes members disagree away from the data, which holds policies back: it is tried where
    no environment can tell a wrong policy from a good one.
    """
    everybody = min(1.0, _MOST_ROWS_OF_HEADS / (manifest.private_units * heads.ROWS * heads.ROUNDS))
    common = _LINEAR | {"privacy.sampling_probability": round_to_two(everybody)}
    chosen, lost, blurred = params, math.inf, None
    spaces = manifest.info.spaces
    sizes = spaces.observation_size + spaces.action_size, spaces.one_hot
    degrees = heads.degrees(*sizes, cubes=params.chosen.environment is None)
    for degree in degrees if "dynamics.degree" in params.undecided else (params.dynamics.degree,):
        chosen = params.with_decided(common | {"dynamics.degree": degree})
        job = model_job(chosen, manifest)
        mechanism, shape = job.build_mechanism(manifest), job.network(manifest)
        blurred = heads.noise_in_scales(mechanism)
        rate, cubes = job.local.learning_rate, degree is not None and degree > 2
        # the variance of a prediction that the noise causes beside people's own: σ² (F + 1)
        noise = heads.noise_beside_people(mechanism, job.server, rate, shape)
        lost = noise**2 * (shape.inputs + 1)
        fast = not cubes or shape.inputs <= heads.MOST_CUBES
        if fast and lost <= (heads.LOST_OF_CUBES if cubes else heads.LOST_YES):
            break
    why = (
        f"the noise in what linear heads of degree {chosen.dynamics.degree} predict has "
        f"{lost:.2g} of the variance of the target "
        f"{_limits(lost, heads.LOST_YES, _LOST_NO)}, before small weights are shrunk; "
        "whether polynomials fit these data is known after training"
    )
    if blurred is not None:
        limits = _limits(blurred, _BLURRED_YES, _BLURRED_NO, ".0%")
        why += f"; the variances that scale their features have a noise of {blurred:.0%} {limits}"
    blur = blurred or 0.0
    answer: CanLearn = "marginal" if lost < _LOST_NO and blur < _BLURRED_NO else "no"
    if instead is not None:
        why = f"{instead}; {why}"
    elif lost <= heads.LOST_YES and blur <= _BLURRED_YES:
        answer = "yes"
    return chosen, Fit(answer, why)


def _limits(
    found: float, yes: float, no: float | None = None, form: str = "g", of: str = ""
) -> str:
    """Say up to where a figure is a yes and from where a no, and whether this is above a yes."""
    beyond = "" if no is None else f", a no from {no:{form}}"
    return f"({'too much: ' * (found > yes)}at most {yes:{form}}{of} is a yes{beyond})"


def doubt_scales(fit: Fit, params: Params, mechanism: Mechanism) -> Fit:
    """Say how much numbers must vary to be seen beside the noise, and doubt a training that sees
    few; where public rows tell scales, nothing hides.
    """
    least, reward = heads.least_spread(mechanism), params.chosen.bounds.reward
    if least is None or isinstance(reward, str):
        return fit
    noise, horizon, span = heads.noise_of_queries(mechanism), params.chosen.horizon, least / 2
    narrow = span > _USUAL_SPREAD
    limits = _limits(span, _USUAL_SPREAD, form=".1%")
    found = [
        fit.why,
        f"the noise may hide a reward whose standard deviation is below "
        f"{span * (reward[1] - reward[0]):.2g}, or more where few rows (deaths) make it, and "
        f"a column below {span:.1%} of its declared range {limits}",
    ]
    if horizon is not None and params.chosen.bounds.before_end == (0, 0):
        # The rarer outcome is cut at the edge of the second answer's window, where its variance is
        # its share of the rows; twice the noise is seen 9 times in 10.
        rows = 2 * noise[heads.FINER_SCALES]
        ends = rows * horizon
        narrow |= ends > _MOST_RARER
        share = f"as {ends:.0%} of trajectories of {horizon} steps"
        if ends > 1:
            share = f"more than trajectories of {horizon} steps can have ({1 / horizon:.1%})"
        limits = _limits(ends, _MOST_RARER, form=".0%", of=" of trajectories")
        seen = f"surely seen where {rows:.1%} of all rows have the rarer one, {share}"
        found.append(f"an outcome at the end is {seen} {limits}")
    if params.chosen.environment is None:
        needed = heads.SURELY_EXPLAINED * math.sqrt(2) * noise[heads.EXPLAINED]
        found.append(
            f"no trial where the model then explains less than about {needed:.0%} of the reward"
        )
    return Fit("marginal" if narrow and fit.answer == "yes" else fit.answer, "; ".join(found))


def round_to_two(number: float) -> float:
    """Round a number to two significant digits, as plans state settings."""
    return float(f"{number:.2g}")


# ---- the clone

_ROWS_OF_CLONE = 256  # of a unit and round
_MOST_PRODUCTS = 10_000  # that are worth their time
_TOLD_OF_PRODUCTS = 0.5  # share of what a clone leaves that must be told, if it is asked about
_NOISE_OF_HIDDEN = 0.03
"""s, about, up to which logits of discrete actions have hidden layers: with more noise, linear ones
act more like people."""
_FULL_SHARE = 0.5
"""Of the horizon, from which on a unit's rows count in full: a model must know how often
trajectories end, a clone need not, and the fewer units count in full, the more noise."""
_SMALLEST_NORM = 1e-6  # of a clip, as in params.yaml


@dataclass(frozen=True)
class _Rounds:
    """The rounds of a clone.

    Attributes:
        q: with which a unit joins a round.
        rounds: T.
        learning_rate: of the one step on all rows of a unit. With several steps, each unit would
            move towards its own habits, and their mean is too sure.
        server_momentum: β.
        server_averaging: of the released iterates.
        walk: the norm of what the noise of all rounds adds up to; over 1 + s from random weights.
        norm: the largest C.
    """

    q: float
    rounds: int
    learning_rate: float
    server_momentum: float
    server_averaging: float
    walk: float
    norm: float


_CLONE_OF_NETWORK = _Rounds(0.1, 120, 1.0, 0.9, 0.9, walk=5.0, norm=0.2)
# Linear logits are convex: the loss draws them back from where the noise takes them, so that they
# may walk farther.
_CLONE_OF_LOGITS = _Rounds(0.1, 240, 5.0, 0.5, 0.98, walk=12.0, norm=0.5)
_CLONE_FROM_PUBLIC = _Rounds(0.3, 40, 0.1, 0.9, 0.9, walk=0.3, norm=0.2)


def clone_job(params: Params, manifest: Manifest, public: UnitStore, model: str) -> CloneJob:
    """Make the job of the clone.

    Its scales are public, or those of the released model, whose identity it then has.

    Raises:
        PipelineError: no noise is enough for its ε, or leaves a clip.
    """
    begun = params.normaliser == "public" and public.units >= LEAST_UNITS
    rounds = _CLONE_FROM_PUBLIC if begun else _CLONE_OF_NETWORK
    if manifest.info.spaces.discrete_actions and not begun:
        hidden = _job_of(rounds, params, manifest, model, estimate_noise_multiplier)
        if _noise_of(hidden, manifest) > _NOISE_OF_HIDDEN:
            rounds = _CLONE_OF_LOGITS
    job = _job_of(rounds, params, manifest, model, solve_noise)
    noise = _noise_of(job, manifest)
    walk = rounds.walk if begun else rounds.walk / (1 + noise)
    network, norm = job.network(manifest), None
    if job.variant != "no_clip":
        # T rounds of noise z C √d / (qK), each carried on by the momentum β, end
        # z C √(dT) / (qK (1 - β)) = s C T / (1 - β) away from where they began: at most ``walk``.
        carried = 1 / (1 - job.server.server_momentum)
        norm = float(f"{min(rounds.norm, walk / (noise * rounds.rounds * carried)):.4g}")
        if norm < _SMALLEST_NORM:
            remedy = "make it smaller, or raise" if network.hidden else "raise"
            raise PipelineError(
                f"params.yaml: behaviour.hidden: found {list(network.hidden)}, whose noise leaves "
                f"a clip of {norm:g}; {remedy} privacy.target_epsilon"
            )
    mechanism = replace(job.mechanism, clipping_norm=norm)
    if job.variant != "private":
        asked = dict.fromkeys(mechanism.queries, 0.0)
        mechanism = replace(mechanism, noise_multiplier=0.0, queries=asked)
    return replace(job, mechanism=mechanism)


def _noise_of(job: CloneJob, manifest: Manifest) -> float:
    return noise_share(job.build_mechanism(manifest), job.network(manifest))


def _can_tell_products(manifest: Manifest, noise_multiplier: float) -> bool:
    """Whether `PRODUCTS` would be told of a half of what the clone leaves; it is not asked else."""
    columns, units = columns_of(manifest), manifest.private_units
    asked, actions = heads.contributions(columns)[heads.PRODUCTS], columns.actions
    noise = noise_multiplier * asked.sensitivity / units
    error = heads.error_of_products(asked.size, actions, noise) + asked.size / actions / units
    if not 0 < asked.size <= _MOST_PRODUCTS:
        return False
    return heads.SURELY_EXPLAINED * error <= _TOLD_OF_PRODUCTS


def _job_of(
    rounds: _Rounds,
    params: Params,
    manifest: Manifest,
    model: str,
    solve: Callable[..., float],
) -> CloneJob:
    """Make the job of these rounds, with C = 1 and the noise that its ε asks for."""
    delta, public = params.privacy.delta, params.normaliser == "public"
    epsilon = epsilon_of(params, "clone")
    asked = {
        name: noise_of_share(epsilon, delta, heads.SHARES[name])
        for name in (heads.PERSISTENCE, heads.PRODUCTS)
    }
    if not _can_tell_products(manifest, asked[heads.PRODUCTS]):
        del asked[heads.PRODUCTS]
    mechanism = MechanismNumbers(
        sampling_probability=rounds.q,
        noise_multiplier=solve(epsilon, delta, rounds.q, rounds.rounds, tuple(asked.values())),
        clipping_norm=1.0,
        clipping="flat",
        rounds=rounds.rounds,
        delta=delta,
        queries=asked,
    )
    local = LocalTraining(
        learning_rate=rounds.learning_rate,
        batch_size=_ROWS_OF_CLONE,
        max_transitions_per_unit=_ROWS_OF_CLONE,
        beta_nll=0.0,
    )
    return CloneJob(
        variant=params.dynamics.variant,
        seed=params.seed,
        draw=params.privacy.draw,
        bounds=params.chosen.bounds,
        hidden=() if rounds is _CLONE_OF_LOGITS else params.behaviour.hidden,
        log_variance_bounds=params.behaviour.log_variance_bounds,
        start="public" if rounds is _CLONE_FROM_PUBLIC else "random",
        normaliser="public" if public else "model",
        scaled_by=None if public else model,
        local=count_rows(local, manifest, _FULL_SHARE),
        server=ServerTraining(
            server_momentum=rounds.server_momentum,
            server_averaging=rounds.server_averaging,
            early_stopping=EarlyStopping(every=10),
        ),
        mechanism=mechanism,
    )
