"""The private clone of the behaviour as paid work: its settings, which were measured
(docs/privacy.md), and identity.

Loading this module needs no torch.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from dp_accounting import dp_event

from primorl.base.errors import PipelineError
from primorl.base.paths import BEHAVIOUR, MODEL
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine.settings import LEAST_UNITS, EarlyStopping, LocalTraining, ServerTraining
from primorl.model.architecture import ModelConfig
from primorl.model.features import Polynomials
from primorl.paid.accounts import digest, noise_of_share, solved_noise
from primorl.paid.model import (
    PrivateStage,
    check_declared,
    from_public,
    model_bounds,
    model_identity,
    observation_columns,
)
from primorl.paid.partitions import Partitions
from primorl.privacy.accounting.epsilon import Training, training_event
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.privacy.statement import Statement

if TYPE_CHECKING:
    from primorl.engine.policy_network import PolicyNetwork
    from primorl.engine.setup import TrainingSetup
    from primorl.model.ensemble import Normaliser

CLONE_BEHAVIOUR = "clone_behaviour"
SAMPLING_PROBABILITY, ROUNDS = 0.3, 40
_SMALLEST_NORM = 1e-6  # of a clip, as in params.yaml
_LARGEST_NORM, _LARGEST_WALK, _WALK_FROM_PUBLIC = 0.2, 5.0, 0.3
"""Of an update, and of what the noise of all rounds adds up to, from random weights and from those
of the public split; see `clipping_norm`."""
# One step on all rows of a unit: with several, each unit moves towards its own habits, and their
# mean is too sure.
_ROWS = 256
LOCAL = LocalTraining(
    learning_rate=1.0,
    batch_size=_ROWS,
    local_epochs=1,
    weight_decay=0.0,
    max_transitions_per_unit=_ROWS,
    beta_nll=0.0,
)
LOCAL_FROM_PUBLIC = replace(LOCAL, learning_rate=0.1)
SERVER = ServerTraining(
    server_momentum=0.9, server_averaging=0.9, early_stopping=EarlyStopping(every=10, patience=None)
)
# of what cubes see of an observation: where people seldom are, a clone must not act wildly
_TAILS = 2.0
_HEADS = replace(
    LOCAL, learning_rate=heads.RATE, batch_size=heads.ROWS, max_transitions_per_unit=heads.ROWS
)
_LOGIT_RATE = 4 * heads.RATE  # the curvature of a softmax is a quarter of a square's, at most
_HEADS_SERVER = replace(SERVER, server_momentum=heads.MOMENTUM, server_averaging=heads.AVERAGING)
_RESIDUALS_SHARE = 0.1


def noise_for(epsilon: float, delta: float) -> float:
    """Solve for the noise multiplier of a clone at ε; see `solved_noise`."""
    return solved_noise("behaviour.target_epsilon", epsilon, delta, SAMPLING_PROBABILITY, ROUNDS)


def clone_event(params: Params, epsilon: float, manifest: Manifest | None) -> dp_event.DpEvent:
    """Build the event that a clone at ε is charged as.

    Args:
        params: every choice.
        epsilon: of the clone.
        manifest: of the data; None: they are not known yet, and discrete actions are assumed.

    Raises:
        PipelineError: no noise is enough.
    """
    delta = params.privacy.delta
    if params.dynamics.model == "network":
        return training_event(SAMPLING_PROBABILITY, noise_for(epsilon, delta), ROUNDS)
    noises = heads_noises(
        epsilon, delta, discrete=manifest is None or manifest.info.spaces.discrete_actions
    )
    return Training(1.0, noises[0], heads.ROUNDS, noises[1:]).event


def heads_noises(epsilon: float, delta: float, *, discrete: bool) -> tuple[float, ...]:
    """Noise multipliers of the rounds of a linear clone at ε, and of the query of its spread, which
    logits lack.
    """
    key = "behaviour.target_epsilon"
    queries = () if discrete else (noise_of_share(key, epsilon, delta, _RESIDUALS_SHARE),)
    return solved_noise(key, epsilon, delta, 1.0, heads.ROUNDS, queries), *queries


def check_clone(params: Params, manifest: Manifest) -> None:
    """Refuse a clone of actions that cannot be scaled to [-1, 1].

    Raises:
        PipelineError: a bound is infinite.
    """
    if not params.clones:
        return
    spaces = manifest.info.spaces
    sides = zip(spaces.action_low, spaces.action_high, strict=True)
    if not all(math.isfinite(high - low) and low < high for low, high in sides):
        raise PipelineError(
            "params.yaml: behaviour.target_epsilon: found a value, and a clone needs finite "
            f"bounds of actions, which dataset {params.dataset} does not have; declare them, or "
            "set it to null"
        )


def normaliser_of_clone(params: Params) -> Literal["public", "model"]:
    """Choose the normaliser: of the public split, or of the released model where the people were
    asked for it.
    """
    linear = params.dynamics.model == "linear"
    return "public" if params.privacy.statistics.normaliser == "public" and not linear else "model"


def clone_identity(params: Params, partitions: Partitions) -> str:
    """Digest the settings that were asked for.

    Constants of this module are left out, as in `model_identity`.

    So a version with other constants does not charge the same people again: `TrainingSetup.digest`
    tells a plan from another, and a charge is neither resumed nor restored under another one.
    """
    normaliser = normaliser_of_clone(params)
    content = {
        "stage": CLONE_BEHAVIOUR,
        "data": partitions.identity,
        "seed": params.seed,
        "variant": params.dynamics.variant,
        "epsilon": [params.behaviour.target_epsilon, params.privacy.delta],
        "network": [params.behaviour.hidden, params.behaviour.log_variance_bounds],
        "normaliser": normaliser,
        "draw": params.privacy.draw,
    }
    if normaliser == "model":
        content["model"] = model_identity(params, partitions)
    return digest(content)


def policy_network(params: Params, manifest: Manifest) -> "PolicyNetwork":
    """Size the clone's network, or linear heads, for the data of the manifest."""
    from primorl.engine.policy_network import PolicyNetwork

    behaviour, spaces = params.behaviour, manifest.info.spaces
    linear = params.dynamics.model == "linear"
    low, high = behaviour.log_variance_bounds
    size = spaces.observation_size
    network = PolicyNetwork(
        observation_size=size,
        action_size=spaces.action_size,
        discrete_actions=spaces.discrete_actions,
        hidden=() if linear else behaviour.hidden,
        log_variance_low=low,
        log_variance_high=high,
    )
    if not linear:
        return network
    # Logits of discrete actions gained nothing from cubes, and noise is no share of their variance:
    # degree 2, always.
    for degree in (
        (2,) if spaces.discrete_actions else heads.degrees(size, spaces.one_hot, cubes=True)
    ):
        network = replace(network, features=Polynomials(size, spaces.one_hot, degree, _TAILS))
        plan = _heads_plan(params, manifest, network)
        if heads.affords(heads.lost_to_noise(plan, _HEADS_SERVER, heads.RATE, network), network):
            break
    return network


def clipping_norm(
    parameters: int, units: int, noise_multiplier: float, walk: float = _LARGEST_WALK
) -> float:
    """Choose C: the largest at which the noise of all rounds moves the weights by at most ``walk``,
    up to 0.2.

    T rounds of noise z C √d / (qK), each carried on by the momentum β, end z C √(dT) / (qK (1 - β))
    away from where they began. K, the number of units, is public.

    Args:
        parameters: d, of the network.
        units: K.
        noise_multiplier: z.
        walk: the norm of the noise of all rounds.
    """
    carried = 1 / (1 - SERVER.server_momentum)
    of_one = (
        noise_multiplier * math.sqrt(parameters * ROUNDS) / (SAMPLING_PROBABILITY * units) * carried
    )
    return float(f"{min(_LARGEST_NORM, walk / of_one if of_one else math.inf):.4g}")


def clone_plan(
    shape: "PolicyNetwork",
    manifest: Manifest,
    noise_multiplier: float,
    delta: float,
    norm: float | None = None,
    walk: float = _LARGEST_WALK,
) -> Plan:
    """Plan the clone's mechanism on the units of the manifest; its clip is that of `clipping_norm`
    where none is given.

    Raises:
        PipelineError: the noise of so many weights leaves no clip.
    """
    if norm is None:
        norm = clipping_norm(shape.parameters, manifest.private_units, noise_multiplier, walk)
        if norm < _SMALLEST_NORM:
            raise PipelineError(
                f"params.yaml: behaviour.hidden: found {list(shape.hidden)}, {shape.parameters} "
                f"weights, whose noise leaves a clip of {norm:g} with {manifest.private_units} "
                "units; make it smaller, or raise behaviour.target_epsilon"
            )
    return Plan(
        units=manifest.private_units,
        unit=manifest.info.unit,
        sampler=PoissonSampler(SAMPLING_PROBABILITY),
        clip=EnsembleClip(norm, "flat", shape.members, len(shape.layers)),
        noise_multiplier=noise_multiplier,
        rounds=ROUNDS,
        delta=delta,
    )


def cloning_setup(params: Params, manifest: Manifest, public: UnitStore) -> "TrainingSetup":
    """Set up the training of the clone that params.yaml asks for, on the data that the manifest
    describes.

    Raises:
        PipelineError: the choices do not fit the data, an action has no finite bounds, or no noise
            reaches the ε.
    """
    from primorl.engine.setup import CloningSetup
    from primorl.paid.compute import execution

    behaviour = params.behaviour
    check_declared(params, manifest, public)
    check_clone(params, manifest)
    normaliser = normaliser_of_clone(params)
    begun = normaliser == "public" and public.units >= LEAST_UNITS
    network = policy_network(params, manifest)
    assert behaviour.target_epsilon is not None, "no clone is asked for"
    private, clipped = params.dynamics.variant == "private", params.dynamics.variant != "no_clip"
    if network.features is None:
        noise = noise_for(behaviour.target_epsilon, params.privacy.delta) if private else 0.0
        walk = _WALK_FROM_PUBLIC if begun else _LARGEST_WALK
        own: dict[str, Any] = {
            "plan": clone_plan(
                network, manifest, noise, params.privacy.delta, None if clipped else math.inf, walk
            ),
            "local": LOCAL_FROM_PUBLIC if begun else LOCAL,
            "server": SERVER,
        }
    else:
        own = {
            "plan": _heads_plan(params, manifest, network),
            "local": replace(_HEADS, learning_rate=_LOGIT_RATE)
            if network.discrete_actions
            else _HEADS,
            "server": _HEADS_SERVER,
            "taught": behaviour.hidden,
        }
    setup = CloningSetup(
        architecture=network,
        bounds=model_bounds(params, manifest, public),
        columns=observation_columns(manifest),
        normaliser="public" if normaliser == "public" else _released_scales(params, manifest),
        seed=params.seed,
        execution=execution(params.compute),
        **own,
    )
    return from_public(setup, public) if begun and network.features is None else setup


def _released_scales(params: Params, manifest: Manifest) -> "Normaliser":
    """Read the normaliser of the released model, which must be of this variant and of these data.

    Raises:
        PipelineError: the model is missing or broken, or it is another one.
    """
    import torch

    from primorl.model.ensemble import GaussianEnsemble

    config, statement = ModelConfig.read(MODEL), Statement.read(MODEL)
    same = config.variant == params.dynamics.variant
    same = same and statement.private == (params.dynamics.variant == "private")
    if not same or statement.dataset_fingerprint != manifest.info.dataset_fingerprint:
        raise PipelineError(
            f"{MODEL}: of other settings or data, and the clone would take its scales; run `dvc "
            "repro train_model`"
        )
    return GaussianEnsemble.load(MODEL, torch.device("cpu")).normaliser


def _heads_plan(params: Params, manifest: Manifest, network: "PolicyNetwork") -> Plan:
    """Plan the mechanism of linear heads of the clone: rounds of all units, and the query of their
    spread.

    Raises:
        PipelineError: no noise reaches the ε.
    """
    epsilon, delta = params.behaviour.target_epsilon, params.privacy.delta
    assert epsilon is not None, "no clone is asked for"
    private, clipped = params.dynamics.variant == "private", params.dynamics.variant != "no_clip"
    noises = heads_noises(epsilon, delta, discrete=network.discrete_actions)
    sensitivity = heads.of_residuals(network.targets).sensitivity
    return Plan(
        units=manifest.private_units,
        unit=manifest.info.unit,
        sampler=PoissonSampler(1.0),
        clip=EnsembleClip(
            heads.NORM if clipped else math.inf, "flat", network.members, len(network.layers)
        ),
        noise_multiplier=noises[0] if private else 0.0,
        rounds=heads.ROUNDS,
        delta=delta,
        queries=tuple(
            GaussianQuery(heads.RESIDUALS, sensitivity, z if private else 0.0) for z in noises[1:]
        ),
    )


CLONING = PrivateStage(
    name=CLONE_BEHAVIOUR,
    output=BEHAVIOUR,
    what="clone",
    setup=cloning_setup,
    identity=clone_identity,
    diverged=(
        "params.yaml: behaviour: cloning diverged (weights that are not finite); raise "
        "behaviour.log_variance_bounds, or set behaviour.target_epsilon to null"
    ),
    must_learn=False,  # of random actions no clone beats a constant, and it is one all the same
)
