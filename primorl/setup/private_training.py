"""Private training that is paid for: the ledger grants it, one or several processes run it, a checkpoint keeps it."""

from collections.abc import Callable
from pathlib import Path

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.setup import charges
from primorl.setup.compute import Place, kept_bytes
from primorl.setup.partitions import Partitions
from primorl.setup.training import training_setup
from primorl.training.distributed import Group, announce_grant, check_coverage, serve, wait_for_grant
from primorl.training.public_evaluation import PublicEvaluation
from primorl.training.setup import TrainingSetup
from primorl.training.state import TrainingState
from primorl.training.training import Trained, train
from primorl.trajectories.storage.store import ShardedStore, UnitStore

OnRound = Callable[[int, PublicEvaluation | None], None]


def train_paid(
    params: Params,
    setup: TrainingSetup,
    partitions: Partitions,
    paid: charges.Paid,
    place: Place,
    group: Group | None,
    on_round: OnRound,
) -> Trained:
    """Run the rounds that ``paid`` has left, or restore what an earlier run finished.

    Args:
        params: where the rows may be kept.
        setup: of this process.
        partitions: whose private rows are opened, unless everything is finished.
        paid: the charge and its state so far.
        place: of this process among all that train together.
        group: of all processes; None: this is the only one.
        on_round: as `train` takes it.
    """
    private = None
    if not paid.finished:
        if group is not None:
            announce_grant(group, paid.charge.identity)
        private = open_private(params, setup, partitions, place)
        if group is not None:
            check_coverage(group, setup.plan.units, private.numbers)
    public = partitions.public.flat() if partitions.public.units else None
    state = paid.state or TrainingState.begin(setup.initial_weights())
    return train(
        setup,
        private,
        public,
        state=state,
        save_checkpoint=paid.save_checkpoint,
        on_round=on_round,
        group=group,
    )


def open_private(
    params: Params, setup: TrainingSetup, partitions: Partitions, place: Place
) -> UnitStore | ShardedStore:
    """The private units of this process, which are among those that were charged."""
    own = slice(setup.plan.process, None, setup.plan.processes)
    return charges.open_private(
        partitions.manifest, partitions.version, partitions.folder, kept_bytes(params.compute, place), own
    )


def work_for_first(params: Params, folder: Path, place: Place, group: Group) -> None:
    """The part of every process but the first: sums over its own units, once the ledger has granted them.

    Args:
        params: every choice; the first process has the same.
        folder: of the partitions.
        place: of this process.
        group: of all processes.

    Raises:
        PipelineError: this process would train another model than the first one has paid for.
    """
    identity = wait_for_grant(group)
    if identity is None:
        return
    if not (home() / ".primorl" / "secret").exists():
        raise PipelineError(
            ".primorl/secret: not there; all processes need the project's secret and data/partitions as the first has "
            "them: share the project's folder, or copy both (inside the trust boundary)"
        )
    partitions = Partitions.open(folder)
    setup = training_setup(params, partitions.manifest, partitions.public, place)
    if model_identity(params, setup, partitions) != identity:
        raise PipelineError(
            "params.yaml or data/partitions differ from those of the first process; give all processes the same"
        )
    private = open_private(params, setup, partitions, place)
    check_coverage(group, setup.plan.units, private.numbers)
    serve(group, setup, private)


def model_identity(params: Params, setup: TrainingSetup, partitions: Partitions) -> str:
    """A digest of what makes a model, but for chance and code. Equal digests are one piece of paid work.

    Code is left out: an edited comment or an upgrade must not charge the same people again. What the model was made
    by is in the charge's `engine version` and in the statement. δ is left out too: it reads the same release's ε
    elsewhere on its curve.
    """
    statistics, plan = params.privacy.statistics, setup.plan
    uses_bounds = statistics.normaliser != "public" or statistics.starts
    mechanism = {
        "sampling_probability": plan.sampling_probability,
        "noise_multiplier": plan.noise_multiplier,
        "clip": str(plan.clip),
        "rounds": plan.rounds,
        "queries": str(plan.queries),
    }
    return charges.identity(
        partitions.manifest,
        partitions.version,
        seed=params.seed,
        architecture=vars(setup.architecture),
        dynamics=charges.plain(params.dynamics, exclude={"mopo"}),
        plan=None if params.dynamics.variant == "mopo" else mechanism,
        normaliser=statistics.normaliser,
        bounds=charges.plain(params.chosen.bounds) if uses_bounds else None,
        draw=params.privacy.draw,
    )
