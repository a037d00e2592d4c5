"""From params.yaml, the manifest and the public split to a `TrainingSetup`. Reads no private byte."""

from dataclasses import replace

from primorl.config.params import Params
from primorl.dynamics.ensemble import Weights
from primorl.setup.bounds import model_bounds, observation_columns
from primorl.setup.compute import ALONE, Place, chosen_device, execution
from primorl.setup.planning import architecture, check_choices, make_plan
from primorl.training.pooled import public_start
from primorl.training.setup import TrainingSetup
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore


def training_setup(
    params: Params, manifest: Manifest, public: UnitStore, place: Place = ALONE, *, start: bool = True
) -> TrainingSetup:
    """The training that params.yaml describes, on the data that the manifest describes.

    For variant ``mopo`` the plan adds no noise and is not used: that baseline trains without a mechanism.

    Args:
        params: every choice.
        manifest: of the partitions.
        public: the public split; it may be empty.
        place: which of several processes this is.
        start: whether weights are made of the public split, where ``dynamics.start`` asks for it.

    Raises:
        PipelineError: the choices fit neither each other nor the data, or no noise multiplier reaches the target ε.
    """
    check_choices(params, manifest, public)
    device = chosen_device(params.compute, place)
    setup = TrainingSetup(
        plan=make_plan(params, manifest),
        architecture=architecture(params, manifest),
        bounds=model_bounds(params, manifest, public),
        columns=observation_columns(manifest),
        normaliser=params.privacy.statistics.normaliser,
        local=params.dynamics,
        server=params.dynamics,
        seed=params.seed,
        execution=execution(params.compute, device),
    ).of_process(place.process, place.processes)
    return replace(setup, start=_public_start(setup, public)) if start and params.dynamics.start == "public" else setup


def _public_start(setup: TrainingSetup, public: UnitStore) -> Weights:
    """Weights that the public split makes; see `primorl.training.pooled`."""
    normaliser = setup.make_normaliser(public.flat(), {})
    return public_start(setup.ensemble, normaliser, public, setup.seed, setup.local.beta_nll)
