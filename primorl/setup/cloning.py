"""The private clone of the behaviour: its settings, which were measured (docs/privacy.md), and its paid training."""

import math
from dataclasses import replace

from primorl.config.blocks import Behaviour
from primorl.config.params import Params
from primorl.dynamics.ensemble import Weights
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from primorl.project.paths import BEHAVIOUR
from primorl.setup import clone_work
from primorl.setup.bounds import model_bounds, observation_columns
from primorl.setup.clone_work import STAGE, asked, check_actions, clone_identity, normaliser_of_clone
from primorl.setup.compute import ALONE, Place, chosen_device, execution
from primorl.setup.declared import check_declared, check_partitions
from primorl.setup.paid_training import PrivateStage
from primorl.training.cloning import CloningSetup
from primorl.training.policy_network import PolicyNetwork
from primorl.training.pooled import public_start
from primorl.training.settings import LEAST_UNITS, EarlyStopping, LocalTraining, ServerTraining
from primorl.training.training import Trained
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

_SMALLEST_NORM = 1e-6  # of a clip, as in params.yaml
_LARGEST_NORM, _LARGEST_WALK, _WALK_FROM_PUBLIC = 0.2, 5.0, 0.3
"""Of an update, and of what the noise of all rounds adds up to, from random weights and from those of the public split;
see `clipping_norm`."""
# One step on all rows of a unit: with several, each unit moves towards its own habits, and their mean is too sure.
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


def policy_network(behaviour: Behaviour, manifest: Manifest) -> PolicyNetwork:
    """The clone's network, for the data of the manifest."""
    spaces, (low, high) = manifest.info.spaces, behaviour.log_variance_bounds
    return PolicyNetwork(
        observation_size=spaces.observation_size,
        action_size=spaces.action_size,
        discrete_actions=spaces.discrete_actions,
        hidden=behaviour.hidden,
        log_variance_low=low,
        log_variance_high=high,
    )


def clipping_norm(parameters: int, units: int, noise_multiplier: float, walk: float = _LARGEST_WALK) -> float:
    """C: the largest at which the noise of all rounds moves the weights by ``walk`` at most, and no more than 0.2.

    T rounds of noise z C √d / (qK), each carried on by the momentum β, end z C √(dT) / (qK (1 - β)) away from where
    they began. K, the number of units, is public.

    Args:
        parameters: d, of the network.
        units: K.
        noise_multiplier: z.
        walk: the norm of the noise of all rounds.
    """
    carried = 1 / (1 - SERVER.server_momentum)
    of_one = (
        noise_multiplier
        * math.sqrt(parameters * clone_work.ROUNDS)
        / (clone_work.SAMPLING_PROBABILITY * units)
        * carried
    )
    return float(f"{min(_LARGEST_NORM, walk / of_one if of_one else math.inf):.4g}")


def clone_plan(
    shape: PolicyNetwork,
    manifest: Manifest,
    noise_multiplier: float,
    delta: float,
    norm: float | None = None,
    walk: float = _LARGEST_WALK,
) -> Plan:
    """The clone's mechanism on the units of the manifest; its clip is that of `clipping_norm` where none is given.

    Raises:
        PipelineError: the noise of so many weights leaves no clip.
    """
    if norm is None:
        norm = clipping_norm(shape.parameters, manifest.private_units, noise_multiplier, walk)
        if norm < _SMALLEST_NORM:
            raise PipelineError(
                f"params.yaml: behaviour.hidden: found {list(shape.hidden)}, {shape.parameters} weights, whose noise "
                f"leaves a clip of {norm:g} with {manifest.private_units} units; make it smaller, or raise "
                "behaviour.target_epsilon"
            )
    return Plan(
        units=manifest.private_units,
        unit=manifest.info.unit,
        sampler=PoissonSampler(clone_work.SAMPLING_PROBABILITY),
        clip=EnsembleClip(norm, "flat", shape.members, len(shape.layers)),
        noise_multiplier=noise_multiplier,
        rounds=clone_work.ROUNDS,
        delta=delta,
    )


def cloning_setup(params: Params, manifest: Manifest, public: UnitStore, place: Place = ALONE) -> CloningSetup:
    """The training of the clone that params.yaml asks for, on the data that the manifest describes.

    Args:
        params: every choice; `asked`.
        manifest: of the partitions.
        public: the public split; it may be empty.
        place: which of several processes this is.

    Raises:
        PipelineError: the choices do not fit the data, an action has no finite bounds, or no noise reaches the ε.
    """
    check_partitions(manifest, public)
    check_declared(params, manifest)
    check_actions(params, manifest)
    device = chosen_device(params.compute, place)
    normaliser = normaliser_of_clone(params)
    begun = normaliser == "public" and public.units >= LEAST_UNITS
    shape = policy_network(params.behaviour, manifest)
    setup = CloningSetup(
        plan=_plan(params, shape, manifest, _WALK_FROM_PUBLIC if begun else _LARGEST_WALK).of_process(
            place.process, place.processes
        ),
        architecture=shape,
        bounds=model_bounds(params, manifest, public),
        columns=observation_columns(manifest),
        normaliser=normaliser,
        local=LOCAL_FROM_PUBLIC if begun else LOCAL,
        server=SERVER,
        seed=params.seed,
        execution=execution(params.compute, device),
    )
    return replace(setup, start=_public_start(setup, public)) if begun else setup


def _public_start(setup: CloningSetup, public: UnitStore) -> Weights:
    """Weights that the public split makes; see `primorl.training.pooled`."""
    normaliser = setup.make_normaliser(setup.public_of(public.flat()), {})
    return public_start(setup.architecture, normaliser, setup.source_of(public), setup.seed, setup.local.beta_nll)


def _plan(params: Params, shape: PolicyNetwork, manifest: Manifest, walk: float) -> Plan:
    epsilon, delta, variant = params.behaviour.target_epsilon, params.privacy.delta, params.dynamics.variant
    assert epsilon is not None, "no clone is asked for"
    multiplier = clone_work.noise_for(epsilon, delta) if variant == "private" else 0.0
    return clone_plan(shape, manifest, multiplier, delta, math.inf if variant == "no_clip" else None, walk)


def _refusal(trained: Trained) -> str | None:
    """Refuses weights that are not finite. Of random actions no clone beats a constant, and it is one all the same."""
    if trained.finite:
        return None
    return (
        "params.yaml: behaviour: cloning diverged (weights that are not finite); raise behaviour.log_variance_bounds, "
        "or set behaviour.target_epsilon to null"
    )


CLONING = PrivateStage(
    name=STAGE,
    output=BEHAVIOUR,
    what="clone",
    setup=cloning_setup,
    identity=clone_identity,
    asked=asked,
    pooled=None,
    refusal=_refusal,
)
