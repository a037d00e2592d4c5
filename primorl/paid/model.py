"""The training of the model as paid work: its settings, identity and set-up, and those shared with
the clone.

Reads no private byte; everything that can be refused without private data is refused here. Loading
it needs no torch.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from primorl.base.errors import PipelineError
from primorl.config.params import Params, plain
from primorl.config.suggestions import FITTED
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine.settings import LEAST_UNITS, LocalTraining
from primorl.model.architecture import Architecture
from primorl.model.features import Polynomials, one_hot_inputs
from primorl.model.termination import LEARNED, NONE, RULES
from primorl.paid.accounts import digest, noise_of_share, solved_noise
from primorl.paid.partitions import Partitions
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler

if TYPE_CHECKING:
    from primorl.engine.queries import ObservationColumns
    from primorl.engine.setup import TrainingSetup
    from primorl.model.ensemble import Bounds


Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PrivateStage:
    """A stage that pays for one private training.

    Attributes:
        name: of the stage, as the ledger, errors and processes name it.
        output: folder of the trained model or clone.
        what: name of the result in errors: model or clone.
        setup: makes the training from params.yaml, the manifest and the public split, or refuses
            it.
        identity: a digest of everything that determines the result but chance and code. Equal
            digests are one piece of paid work.
        diverged: the error for weights that are not finite: the key, and the remedy.
        must_learn: whether a result that is no better than a constant is refused.
    """

    name: str
    output: Path
    what: str
    setup: "Callable[[Params, Manifest, UnitStore], TrainingSetup]"
    identity: Callable[[Params, Partitions], str]
    diverged: str
    must_learn: bool


def from_public(setup: "TrainingSetup", public: UnitStore) -> "TrainingSetup":
    """Begin the rounds with weights that the public split makes; see
    `primorl.engine.public_start`.
    """
    from primorl.engine.public_start import public_start

    normaliser = setup.make_normaliser(setup.public_of(public.flat()), {})
    source, beta = setup.source_of(public), setup.local.beta_nll
    return replace(
        setup, start=public_start(setup.architecture, normaliser, source, setup.seed, beta)
    )


def observation_bounds(
    params: Params, manifest: Manifest, public: UnitStore
) -> tuple[Floats, Floats]:
    """Bound model states, [S] each: as declared, or by the environment or the public split; never
    by private data.

    Raises:
        PipelineError: the bounds are infinite, or of another number of dimensions.
    """
    declared = params.chosen.bounds.observation
    spaces = manifest.info.spaces
    size = public.observation_size
    key = f"datasets/{params.dataset}.yaml: bounds.observation"
    if declared == "public":
        inputs, targets = public.arrays()
        seen = np.concatenate((inputs[:, :size], inputs[:, :size] + targets[:, :size]))
        low, high = seen.min(0), seen.max(0)
    else:
        own = (spaces.observation_low, spaces.observation_high)
        low, high = (
            np.asarray(side, np.float32)
            for side in (own if declared == "space" else (declared.low, declared.high))
        )
    if len(low) != size:
        raise PipelineError(f"{key}: found {len(low)} dimensions, the data has {size}")
    if not np.isfinite((low, high)).all():
        raise PipelineError(
            f"{key}: found an unbounded observation space, allowed are finite bounds; set it to "
            "public, or declare "
            "{low: [..], high: [..]}"
        )
    return low, high


def model_bounds(params: Params, manifest: Manifest, public: UnitStore) -> "Bounds":
    """Bound model states (see `observation_bounds`), actions and rewards, those as declared or by
    the public split.
    """
    import torch

    from primorl.model.ensemble import Bounds

    spaces, reward = manifest.info.spaces, params.chosen.bounds.reward
    low, high = map(torch.from_numpy, observation_bounds(params, manifest, public))
    if reward == "public":
        rewards = public.flat()[1][:, public.observation_size]
        reward = (float(rewards.min()), float(rewards.max()))
    actions = (torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return Bounds(low, high, *actions, *reward, discrete_actions=spaces.discrete_actions)


def observation_columns(manifest: Manifest) -> "ObservationColumns":
    """Tell how the normaliser treats each dimension of an observation."""
    from primorl.engine.queries import ObservationColumns

    spaces = manifest.info.spaces
    return ObservationColumns(spaces.observation_size, spaces.one_hot, spaces.discrete_actions)


def check_declared(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse parts of different datasets, public statistics where no unit is public, and infinite
    bounds of actions.

    Raises:
        PipelineError: names the first such choice.
    """
    if public.info != manifest.info:
        raise PipelineError(
            "data/partitions: its parts are of different datasets; run `dvc repro partition`"
        )
    declared, normaliser = params.chosen.bounds, params.privacy.statistics.normaliser
    dataset = f"datasets/{params.dataset}.yaml"
    sides = (*manifest.info.spaces.action_low, *manifest.info.spaces.action_high)
    if normaliser != "public" and not all(map(math.isfinite, sides)):
        raise PipelineError(
            f"params.yaml: privacy.statistics.normaliser: found {normaliser}, which needs finite "
            f"bounds of actions, and those of dataset {params.dataset} are infinite; declare "
            "them, or use public"
        )
    for key, found, allowed in (
        ("params.yaml: privacy.statistics.normaliser", normaliser, "private (charged)"),
        (f"{dataset}: bounds.observation", declared.observation, "space, {low, high}"),
        (f"{dataset}: bounds.reward", declared.reward, "[low, high]"),
    ):
        if found == "public" and not manifest.public_units:
            raise needs_public(key, found, allowed)


def needs_public(key: str, found: object, allowed: str) -> PipelineError:
    """Build the refusal of a choice that needs public units where there are none."""
    return PipelineError(
        f"{key}: found {found}, which needs public units, and data/partitions has none (where "
        "partition in params.yaml was changed since, run `dvc repro partition`); allowed: "
        f"{allowed}"
    )


TRAIN_MODEL = "train_model"
TRAINING_KEYS = frozenset(key for key in FITTED if key.startswith(("privacy.", "dynamics.")))
"""Keys that `primorl.paid.fitting` fits."""
_QUERY_NOISE = 14.0  # of a query, where no ε is given
_MOST_ROWS = 256  # of a unit and round of linear heads


def architecture(params: Params, manifest: Manifest) -> Architecture:
    """Size the ensemble that params.yaml describes, for the data of the manifest.

    Of linear heads one set is trained; the members of the released ensemble are made of it.
    """
    low, high = params.dynamics.log_variance_bounds
    spaces, linear, features = manifest.info.spaces, params.dynamics.model == "linear", None
    if linear:
        size, actions = spaces.observation_size, spaces.action_size
        one_hot = one_hot_inputs(spaces.one_hot, size, actions, discrete=spaces.discrete_actions)
        features = Polynomials(size + actions, one_hot, params.dynamics.degree)
    return Architecture(
        observation_size=spaces.observation_size,
        action_size=spaces.action_size,
        members=1 if linear else params.dynamics.ensemble_size,
        hidden=() if linear else params.dynamics.hidden,
        log_variance_low=low,
        log_variance_high=high,
        learned_termination=manifest.info.termination == LEARNED,
        features=features,
        spread=not linear,
    )


def make_plan(params: Params, manifest: Manifest) -> Plan:
    """Plan the mechanism that params.yaml and the manifest describe.

    Raises:
        ValueError: something is still to be fitted to the data.
        PipelineError: no noise multiplier reaches the target.
    """
    if unfitted := sorted(params.unfitted & TRAINING_KEYS):
        raise ValueError(f"fit these first, see primorl.paid.fitting: {unfitted}")
    privacy, variant = params.privacy, params.dynamics.variant
    shape, queries = architecture(params, manifest), _queries(params, manifest)
    multiplier, target = privacy.noise_multiplier, privacy.target_epsilon
    if variant != "private":
        multiplier = 0.0
    elif target is not None:
        q, noises = privacy.sampling_probability, tuple(query.noise_multiplier for query in queries)
        multiplier = solved_noise(
            params.target_key, target, privacy.delta, q, privacy.rounds, noises
        )
    if multiplier is None:
        raise PipelineError("params.yaml: privacy: give target_epsilon or noise_multiplier")
    norm = math.inf if variant == "no_clip" else privacy.clipping_norm
    return Plan(
        units=manifest.private_units,
        unit=manifest.info.unit,
        sampler=PoissonSampler(privacy.sampling_probability),
        clip=EnsembleClip(norm, privacy.clipping, shape.members, len(shape.layers)),
        noise_multiplier=multiplier,
        rounds=privacy.rounds,
        delta=privacy.delta,
        queries=queries,
    )


def _queries(params: Params, manifest: Manifest) -> tuple[GaussianQuery, ...]:
    """Plan the queries beside the rounds; variants without a guarantee add no noise."""
    spaces = manifest.info.spaces
    sizes = spaces.observation_size, spaces.action_size, spaces.one_hot
    asked = heads.contributions(*sizes, discrete=spaces.discrete_actions)
    private = params.dynamics.variant == "private"
    return tuple(
        GaussianQuery(name, asked[name].sensitivity, noise if private else 0.0)
        for name, noise in query_noises(params).items()
    )


def query_noises(params: Params) -> dict[str, float]:
    """Return noise multipliers of the queries beside the rounds, by name: each takes its share of
    the ε.

    Raises:
        PipelineError: no noise multiplier reaches the target.
    """
    asked, privacy = params.privacy.statistics, params.privacy
    names = []
    if asked.normaliser == "private":
        names += [heads.SCALES, heads.FINER_SCALES]
    if params.dynamics.model == "linear":
        names.append(heads.RESIDUALS)
    if asked.starts:
        names.append(heads.FIRST_STATES)
    if asked.starts and params.chosen.horizon is not None:
        names.append(heads.LENGTHS)
    if privacy.target_epsilon is None:
        return dict.fromkeys(names, _QUERY_NOISE)
    target, delta = privacy.target_epsilon, privacy.delta
    return {
        name: noise_of_share(params.target_key, target, delta, heads.SHARES[name]) for name in names
    }


def local_training(params: Params) -> LocalTraining:
    """Return a unit's local steps; of linear heads one, on all rows that take part."""
    dynamics = params.dynamics
    if dynamics.model == "network":
        return dynamics
    rows = dynamics.max_transitions_per_unit or _MOST_ROWS
    return LocalTraining(
        learning_rate=dynamics.learning_rate,
        batch_size=rows,
        local_epochs=1,
        weight_decay=dynamics.weight_decay,
        max_transitions_per_unit=rows,
        beta_nll=0.0,
    )


def check_choices(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse choices that fit neither each other nor the data; warn where δ promises nothing.

    Raises:
        PipelineError: names the first such choice.
    """
    check_declared(params, manifest, public)
    patience = params.dynamics.early_stopping.patience
    if patience is not None and not manifest.public_units:
        raise needs_public(
            "params.yaml: dynamics.early_stopping.patience", patience, "null: all rounds are run"
        )
    if patience is not None and params.dynamics.model == "linear":
        raise PipelineError(
            f"params.yaml: dynamics.early_stopping.patience: found {patience}, with linear heads, "
            "which nobody public judges; allowed: null, all rounds are run"
        )
    if manifest.info.environment is None:
        _check_starts(params, manifest)
        manifest.declared_horizon()
    _check_termination(params, manifest, public)
    if params.dynamics.start == "public":
        _check_public_start(params, public)
    observation_bounds(params, manifest, public)
    delta, units = params.privacy.delta, manifest.private_units
    if params.dynamics.variant == "private" and delta >= 1 / units:
        print(
            f"warning: params.yaml: privacy.delta = {delta:g} is not below 1/{units}, one over "
            "the number of units: a mechanism that publishes a whole unit would pass; choose a "
            "smaller delta",
            file=sys.stderr,
        )


def _check_public_start(params: Params, public: UnitStore) -> None:
    """Refuse weights from a public split that is too small, or where the normaliser is not known
    beforehand.
    """
    key = "params.yaml: dynamics.start: found public"
    if public.units < LEAST_UNITS:
        raise PipelineError(f"{key}, and {public.units} units are; needed are {LEAST_UNITS}")
    if params.privacy.statistics.normaliser == "private":
        raise PipelineError(
            f"{key}, with privacy.statistics.normaliser: private, whose answer comes later; "
            "allowed: random"
        )


def _check_starts(params: Params, manifest: Manifest) -> None:
    """Refuse a model without an environment in which no policy could start: without public or
    released states.
    """
    if manifest.public_units:
        return
    if not params.privacy.statistics.starts:
        raise PipelineError(
            "params.yaml: privacy.statistics.starts: found false, and policies have nowhere to "
            f"start: nobody is public and datasets/{params.dataset}.yaml says environment: null; "
            "allowed is true (charged), or public units"
        )


def _check_termination(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse a termination rule that is unknown, or of another task, or contradicted by the public
    split.
    """
    chosen, size = manifest.info.termination, public.observation_size
    key = f"datasets/{params.dataset}.yaml: termination"
    fitting = sorted(name for name, rule in RULES.items() if rule.observation_size == size)
    if chosen not in (NONE, LEARNED, *fitting):
        allowed = ", ".join((NONE, LEARNED, *fitting))
        raise PipelineError(
            f"{key}: found {chosen!r}; allowed for observations of size {size} are {allowed}"
        )
    if chosen == NONE and public.terminates:
        raise PipelineError(
            f"{key}: found none, but episodes of data/partitions/public terminate; allowed is "
            f"{LEARNED} or a rule"
        )


def model_identity(params: Params, partitions: Partitions) -> str:
    """Digest everything that determines a model but chance and code.

    Equal digests are one piece of paid work.

    Code is left out: an edited comment or an upgrade must not charge the same people again. δ is
    left out too where the noise is given: it reads the same release's ε elsewhere on its curve.
    `privacy.draw` is in it: another number pays for another draw. For fitted settings the digest
    holds the inputs of the fit, not its results.
    """
    privacy, unfitted = params.privacy, params.unfitted & TRAINING_KEYS
    of_noise: tuple[str, ...] = ("noise_multiplier",)
    if privacy.target_epsilon is not None:
        of_noise = ("target_epsilon", "delta")
    of_mechanism = ("sampling_probability", "rounds", "clipping_norm", "clipping", "draw")
    asked = {f"privacy.{key}": getattr(privacy, key) for key in (*of_noise, *of_mechanism)}
    asked["privacy.statistics"] = plain(privacy.statistics)
    dynamics = plain(params.dynamics)
    del dynamics["train_anyway"]
    asked |= {f"dynamics.{key}": value for key, value in dynamics.items()}
    content = {
        "data": partitions.identity,
        "seed": params.seed,
        "bounds": plain(params.chosen.bounds),
        "asked": {key: value for key, value in asked.items() if key not in unfitted},
        "fitted": sorted(unfitted),
    }
    return digest(content)


def training_setup(params: Params, manifest: Manifest, public: UnitStore) -> "TrainingSetup":
    """Set up the training that params.yaml describes, on the data that the manifest describes.

    Reads no private byte.

    Args:
        params: every choice.
        manifest: of the partitions.
        public: the public split; it may be empty.

    Raises:
        PipelineError: the choices fit neither each other nor the data, or no noise multiplier
            reaches the target ε.
    """
    from primorl.engine.setup import TrainingSetup
    from primorl.paid.compute import execution

    check_choices(params, manifest, public)
    setup = TrainingSetup(
        plan=make_plan(params, manifest),
        architecture=architecture(params, manifest),
        bounds=model_bounds(params, manifest, public),
        columns=observation_columns(manifest),
        normaliser=params.privacy.statistics.normaliser,
        local=local_training(params),
        server=params.dynamics,
        seed=params.seed,
        execution=execution(params.compute),
        horizon=manifest.info.horizon,
    )
    return from_public(setup, public) if params.dynamics.start == "public" else setup
