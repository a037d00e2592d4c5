"""Stage: train the ensemble on the private partition, through a plan (variant mopo: without one, not private)."""

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from dp_accounting import dp_event

from pipeline.runner import run_stage
from pipeline.workers import join, joined, run_worker
from primorl.config.params import Params
from primorl.dynamics.ensemble import Architecture, Bounds, GaussianEnsemble, Normaliser
from primorl.dynamics.starts import StartModel
from primorl.privacy.ledger.charges import Payment, pay_or_resume
from primorl.privacy.ledger.ledger import Version
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import home, replaced_directory
from primorl.project.progress import Bar, progress_bar
from primorl.setup import accounts, mechanism, refusals
from primorl.setup.accounts import dataset_version, project_ledger
from primorl.setup.compute import ALONE, Place, chosen_device, execution, is_worker, kept_bytes
from primorl.setup.horizon import declared_horizon
from primorl.setup.model_bounds import model_bounds
from primorl.setup.statement import privacy_statement
from primorl.tracking import StageRun
from primorl.training.distributed import Group, cover, grant, granted, serve, shared_totals
from primorl.training.local_update import LocalTraining
from primorl.training.pooled import PooledTraining, train_pooled
from primorl.training.rounds import Execution, Rounds
from primorl.training.start_query import STARTS, StartQuery
from primorl.training.statistics import NORMALISER, Columns, NormaliserQuery, normaliser_of_bounds
from primorl.training.training import Look, Progress, ServerTraining, Trained, ask, train
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import ShardedStore, UnitStore

PARTITIONS = Path("data/partitions")
OUTPUT = Path("models/dynamics")
# What a model's bytes depend on: an edit here is another mechanism, and what was paid for no longer answers for it.
_CODE = (
    "training/cuda_graph.py",
    "training/cohort.py",
    "dynamics/ensemble.py",
    "training/local_update.py",
    "training/distributed.py",
    "training/rounds.py",
    "training/start_query.py",
    "dynamics/starts.py",
    "training/statistics.py",
    "training/training.py",
    "privacy/mechanism/clipping.py",
    "privacy/mechanism/entropy.py",
    "privacy/mechanism/noise.py",
    "privacy/mechanism/plan.py",
    "privacy/mechanism/queries.py",
    "privacy/mechanism/sampling.py",
    "trajectories/storage/parquet.py",
    "trajectories/storage/schema.py",
    "trajectories/storage/store.py",
)


def body(params: Params, run: StageRun) -> None:
    """Pay, train, then write ``models/dynamics`` with its privacy statement.

    What can be refused without private data is refused before the ledger is asked; the ledger is asked before the
    private partition is opened.
    """
    manifest = Manifest.load(PARTITIONS / "manifest.json")
    shape = mechanism.architecture(params, manifest)
    refusals.refuse_what_needs_public_units(params, manifest)
    refusals.refuse_policies_without_a_start(params, manifest)
    if manifest.info.environment is None:
        declared_horizon(params, manifest)
    mechanism.warn_of_delta(params, manifest)
    plan = None if params.dynamics.variant == "mopo" else mechanism.make_plan(params, manifest, shape)
    place = Place.of(params.compute) if plan else ALONE  # variant mopo is one process's work
    device = chosen_device(params.compute, place)
    public = UnitStore.open(PARTITIONS / "public")
    if public.info != manifest.info:
        raise PipelineError(f"{PARTITIONS}: its parts are of different datasets; run `dvc repro partition`")
    bounds = model_bounds(params, manifest, public)
    columns = mechanism.columns(manifest)
    refusals.check_termination(params, manifest, public)
    run.params({"seed": params.seed, "privacy": params.privacy.model_dump(), "dynamics": params.dynamics.model_dump()})

    version = dataset_version(manifest, PARTITIONS)
    statement = privacy_statement(plan, manifest)
    wanted = accounts.request(
        params,
        run,
        manifest,
        version,
        stage="train_model",
        event=plan.event if plan else dp_event.NonPrivateDpEvent(),
        identity=_identity(params, manifest, version, shape, plan),
    )
    begin = Progress.begin(shape.initial_weights(params.seed)) if plan is not None and plan.is_private else None
    with (
        closing(project_ledger(params)) as ledger,
        pay_or_resume(
            ledger,
            wanted,
            accounts.budget(params, manifest),
            accounts.checkpoints(),
            begin,
            partial(Progress.restore, shape),
        ) as paid,
    ):
        run.tag("charge", paid.charge.id)
        if paid.finished:
            print(
                f"train_model: charge {paid.charge.id} of {paid.charge.time} has paid for exactly this model: it is "
                "restored, and nothing is spent; for another draw of the noise change `seed`",
                file=sys.stderr,
            )
        starts = None
        if plan is not None:
            progress = paid.state or Progress.begin(shape.initial_weights(params.seed))
            with joined(place, device, needed=not paid.finished) as group:
                plan = plan.of_process(place.process, place.processes)
                if group is not None and not paid.finished:
                    grant(group, wanted.identity)
                private = None if paid.finished else _private(params, manifest, version, place, plan)
                totals = _totals(columns, bounds, private)
                if group is not None and private is not None:
                    cover(group, plan.units, private.numbers)
                    totals = shared_totals(group, totals)
                progress = ask(plan, totals, progress, paid.save_checkpoint)
                normaliser = _normaliser(params, shape, plan, columns, bounds, public, progress)
                how = execution(params.compute, device, place)
                trained = _train(params, shape, plan, private, public, normaliser, how, paid, progress, run, group)
            if STARTS in progress.answers:
                starts = StartQuery(columns, bounds).model(progress.answers[STARTS])
        else:
            rows = accounts.open_private(manifest, version, PARTITIONS, sys.maxsize)
            assert isinstance(rows, UnitStore)
            raw = params.privacy.statistics.normaliser == "private"  # this variant promises nothing
            normaliser = _normaliser(params, shape, None, columns, bounds, rows if raw else public, None)
            trained = _train_mopo(params, shape, rows, public, normaliser, device, run)
        if not all(bool(w.isfinite().all()) for w in trained.weights):
            ledger.abort(paid.charge.id, "training diverged")
            raise PipelineError(
                "params.yaml: dynamics: training diverged (weights that are not finite); lower dynamics.learning_rate "
                "or privacy.clipping_norm. The last good model is untouched; the rounds that ran are spent"
            )
        statement = accounts.with_payment(statement, params, ledger, paid.charge, version)
        ensemble = GaussianEnsemble(shape, trained.weights, normaliser, bounds, manifest.info.termination)
        _write(ensemble, starts, params, manifest, trained.rounds, statement, run)
        ledger.commit(paid.charge.id)
    for key in ("private", "epsilon", "delta", "noise_multiplier", "unit", "dataset_fingerprint"):
        run.tag(key, str(getattr(statement, key)))
    if statement.epsilon is not None:
        run.metric("epsilon", statement.epsilon)  # the reservation, also when stopped early


def worker(params: Params) -> None:
    """The part of every process but the first: sums over its own units, once the ledger has granted them to the first.

    Raises:
        PipelineError: this process would train another model than the first one has paid for.
    """
    if params.dynamics.variant == "mopo":
        return  # one process's work
    place = Place.of(params.compute)
    device = chosen_device(params.compute, place)
    with join(place, device) as group:
        identity = granted(group)
        if identity is None:
            return
        if not (home() / ".primorl" / "secret").exists():
            raise PipelineError(
                ".primorl/secret: not there; all processes need the project's secret and data/partitions as the first "
                "has them: share the project's folder, or copy both (inside the trust boundary)"
            )
        manifest = Manifest.load(PARTITIONS / "manifest.json")
        shape = mechanism.architecture(params, manifest)
        plan = mechanism.make_plan(params, manifest, shape).of_process(place.process, place.processes)
        version = dataset_version(manifest, PARTITIONS)
        if _identity(params, manifest, version, shape, plan) != identity:
            raise PipelineError(
                "params.yaml, data/partitions, the project's code or its packages differ from those of the first "
                "process; give all processes the same"
            )
        bounds = model_bounds(params, manifest, UnitStore.open(PARTITIONS / "public"))
        private = _private(params, manifest, version, place, plan)
        cover(group, plan.units, private.numbers)

        def rounds(normaliser: Normaliser) -> Rounds:
            return Rounds(
                plan,
                shape,
                private,
                normaliser,
                _local(params),
                max_transitions=params.dynamics.max_transitions_per_unit,
                execution=execution(params.compute, device, place),
            )

        serve(group, _totals(mechanism.columns(manifest), bounds, private), shape, device, rounds)


def _private(
    params: Params, manifest: Manifest, version: Version, place: Place, plan: Plan
) -> UnitStore | ShardedStore:
    """The private units that are this process's."""
    own = slice(plan.process, None, plan.processes)
    return accounts.open_private(manifest, version, PARTITIONS, kept_bytes(params.compute, place), own)


def _local(params: Params) -> LocalTraining:
    chosen = params.dynamics
    return LocalTraining(chosen.learning_rate, chosen.batch_size, chosen.local_epochs, chosen.weight_decay)


def _train(
    params: Params,
    shape: Architecture,
    plan: Plan,
    private: UnitStore | ShardedStore | None,
    public: UnitStore,
    normaliser: Normaliser,
    how: Execution,
    paid: Payment[Progress],
    progress: Progress,
    run: StageRun,
    group: Group | None,
) -> Trained:
    chosen = params.dynamics
    with progress_bar(plan.rounds, "train_model", "round") as bar:
        bar.update(progress.started)
        return train(
            plan,
            shape,
            private,
            public.flat() if public.units else None,
            normaliser=normaliser,
            local=_local(params),
            server=ServerTraining(
                momentum=chosen.server_momentum,
                averaging=chosen.server_averaging,
                look_every=chosen.early_stopping.every,
                patience=chosen.early_stopping.patience,
            ),
            max_transitions=chosen.max_transitions_per_unit,
            seed=params.seed,
            execution=how,
            progress=progress,
            keep=paid.save_checkpoint,
            on_round=_reporter(run, bar, plan, shape),
            group=group,
        )


def _totals(
    columns: Columns, bounds: Bounds, private: UnitStore | ShardedStore | None
) -> dict[str, Callable[[], torch.Tensor]]:
    """What makes the sum of each query; without units there is none to make."""
    if private is None:
        return {}
    return {
        NORMALISER: partial(NormaliserQuery(columns, bounds).total, private),
        STARTS: partial(StartQuery(columns, bounds).total, private),
    }


def _normaliser(
    params: Params,
    shape: Architecture,
    plan: Plan | None,
    columns: Columns,
    bounds: Bounds,
    units: UnitStore,
    progress: Progress | None,
) -> Normaliser:
    """The one that ``privacy.statistics.normaliser`` names: of the rows of ``units``, bounds, or the query's answer."""
    flag, chosen = shape.learned_termination, params.privacy.statistics.normaliser
    if chosen == "bounds":
        return replace(normaliser_of_bounds(columns, bounds), flag=flag)
    if chosen == "private" and plan is not None and progress is not None:
        (query,) = (query for query in plan.queries if query.what == NORMALISER)
        answer, noise = progress.answers[NORMALISER], query.standard_deviation / plan.units
        return replace(NormaliserQuery(columns, bounds).normaliser(answer, noise), flag=flag)
    inputs, targets = units.flat()
    return Normaliser.from_public(inputs, targets[:, : shape.columns], flag)


def _write(
    ensemble: GaussianEnsemble,
    starts: StartModel | None,
    params: Params,
    manifest: Manifest,
    rounds: int,
    statement: Statement,
    run: StageRun,
) -> None:
    with replaced_directory(OUTPUT) as fresh:
        ensemble.save(fresh, environment=manifest.info.environment, variant=params.dynamics.variant, rounds=rounds)
        if starts is not None:
            starts.save(fresh)
        statement.write(fresh)
        for file in ("config.json", "privacy.json"):
            run.artifact(fresh / file)


def _identity(params: Params, manifest: Manifest, version: Version, shape: Architecture, plan: Plan | None) -> str:
    """What a model is made of, but for chance. δ is left out: it reads the same release's ε elsewhere on its curve."""
    mechanism = ("sampling_probability", "noise_multiplier", "clip", "rounds", "queries")
    statistics = params.privacy.statistics
    uses_bounds = statistics.normaliser != "public" or statistics.starts
    return accounts.identity(
        manifest,
        version,
        _CODE,
        seed=params.seed,
        shape=vars(shape),
        dynamics=params.dynamics.model_dump(mode="json", exclude={"mopo"}),
        plan=None if plan is None else {name: str(getattr(plan, name)) for name in mechanism},
        normaliser=statistics.normaliser,
        bounds=params.chosen.bounds.model_dump(mode="json") if uses_bounds else None,
    )


def _train_mopo(
    params: Params,
    shape: Architecture,
    private: UnitStore,
    public: UnitStore,
    normaliser: Normaliser,
    device: torch.device,
    run: StageRun,
) -> Trained:
    mopo = params.dynamics.mopo
    with progress_bar(mopo.max_epochs, "train_model (mopo, not private)", "epoch") as bar:

        def on_epoch(look: Look | None) -> None:
            bar.update()
            if look is not None:
                _log_look(run, shape, look)

        return train_pooled(
            shape,
            private.flat(),
            public.flat() if public.units else None,
            normaliser=normaliser,
            pooled=PooledTraining(**mopo.model_dump()),
            seed=params.seed,
            device=device,
            on_epoch=on_epoch,
        )


def _reporter(run: StageRun, bar: Bar, plan: Plan, shape: Architecture) -> Callable[[int, Look | None], None]:
    """What is said of a round; ε at looks, but no more often than takes a 200th of the time, and at the end."""
    due = 0.0

    def on_round(done: int, look: Look | None) -> None:
        nonlocal due
        bar.update()
        if look is not None:
            _log_look(run, shape, look)
            bar.set_postfix(public_loss=f"{look.loss:.3f}", refresh=False)
        started = time.monotonic()
        if done < plan.rounds and (look is None or started < due):
            return
        spent = plan.spent(done)
        if spent is not None:
            run.metric("epsilon_so_far", spent.epsilon_pld, done)
        due = started + 200 * (time.monotonic() - started)

    return on_round


def _log_look(run: StageRun, shape: Architecture, look: Look) -> None:
    run.metric("public_loss", look.loss, look.round)
    for name, error in zip(shape.target_names, look.error, strict=True):
        run.metric(f"public_error.{name}", error, look.round)


if __name__ == "__main__":
    description = "Train the dynamics ensemble under trajectory-level differential privacy."
    sys.exit(run_worker("train_model", worker) if is_worker() else run_stage("train_model", description, body))
