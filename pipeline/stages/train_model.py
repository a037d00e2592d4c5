"""Stage: train the ensemble on the private partition, through a plan (variant mopo: without one, not private)."""

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dp_accounting import dp_event

from pipeline.accounts import dataset_version, project_ledger
from pipeline.dynamics.baseline import PooledTraining, train_pooled
from pipeline.dynamics.ensemble import Architecture, Bounds, GaussianEnsemble, Normaliser
from pipeline.dynamics.local_update import LocalTraining
from pipeline.dynamics.rounds import Execution
from pipeline.dynamics.start_query import StartQuery
from pipeline.dynamics.starts import StartModel
from pipeline.dynamics.statistics import MOST_NOISE, Columns, NormaliserQuery, normaliser_of_bounds
from pipeline.dynamics.termination import LEARNED, NONE, RULES
from pipeline.dynamics.training import Look, Progress, ServerTraining, Trained, ask, train
from pipeline.errors import PipelineError
from pipeline.files import replaced_directory, write_json
from pipeline.params import Params
from pipeline.privacy import accounting
from pipeline.privacy.ledger import Version
from pipeline.privacy.plan import Plan
from pipeline.privacy.queries import GaussianQuery
from pipeline.progress import Bar, progress_bar
from pipeline.stages import charges, refusals
from pipeline.stages.compute import chosen_device, kept_bytes
from pipeline.stages.horizon import declared_horizon
from pipeline.stages.model_bounds import model_bounds
from pipeline.stages.runner import run_stage
from pipeline.tracking import StageRun
from pipeline.trajectories.manifest import Manifest
from pipeline.trajectories.store import ShardedStore, UnitStore

PARTITIONS = Path("data/partitions")
OUTPUT = Path("models/dynamics")
# What a model's bytes depend on: an edit here is another mechanism, and what was paid for no longer answers for it.
_CODE = (
    "dynamics/cohort.py",
    "dynamics/ensemble.py",
    "dynamics/local_update.py",
    "dynamics/rounds.py",
    "dynamics/start_query.py",
    "dynamics/starts.py",
    "dynamics/statistics.py",
    "dynamics/training.py",
    "privacy/clipping.py",
    "privacy/entropy.py",
    "privacy/plan.py",
    "privacy/queries.py",
    "privacy/sampling.py",
    "trajectories/parquet.py",
    "trajectories/schema.py",
    "trajectories/store.py",
)
_NORMALISER, _STARTS = "normaliser", "starts"  # queries
# Chunks that stay in a core's share of the cache run fastest; a GPU wants its memory filled.
_CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 2 << 30}


def body(params: Params, run: StageRun) -> None:
    """Pay, train, then write ``models/dynamics`` with its privacy statement.

    What can be refused without private data is refused before the ledger is asked; the ledger is asked before the
    private partition is opened.
    """
    manifest = Manifest.load(PARTITIONS / "manifest.json")
    device = chosen_device(params.compute)
    shape = architecture(params, manifest)
    refusals.refuse_what_needs_public_units(params, manifest)
    refusals.refuse_policies_without_a_start(params, manifest)
    if manifest.info.environment is None:
        declared_horizon(params, manifest)
    plan = None if params.dynamics.variant == "mopo" else make_plan(params, manifest, shape)
    public = UnitStore.open(PARTITIONS / "public")
    if public.info != manifest.info:
        raise PipelineError(f"{PARTITIONS}: its parts are of different datasets; run `dvc repro partition`")
    bounds = model_bounds(params, manifest, public)
    columns = _columns(manifest)
    refusals.check_termination(params, manifest, public)
    run.params({"seed": params.seed, "privacy": params.privacy.model_dump(), "dynamics": params.dynamics.model_dump()})

    version = dataset_version(manifest, PARTITIONS)
    statement = _statement(plan, manifest)
    wanted = charges.request(
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
        charges.paid(ledger, wanted, charges.budget(params, manifest), shape, begin) as paid,
    ):
        run.tag("charge", paid.charge.id)
        if paid.finished:
            print(
                f"train_model: charge {paid.charge.id} of {paid.charge.time} has paid for exactly this model: it is "
                "restored, and nothing is spent; for another draw of the noise change `seed`",
                file=sys.stderr,
            )
        private = None if paid.finished else _private(params, manifest, version)
        starts = None
        if plan is not None:
            progress = paid.progress or Progress.begin(shape.initial_weights(params.seed))
            progress = ask(plan, _totals(columns, bounds, private), progress, paid.keep)
            normaliser = _normaliser(params, shape, plan, columns, bounds, public, progress)
            trained = _train(params, shape, plan, private, public, normaliser, device, paid, progress, run)
            if _STARTS in progress.answers:
                starts = StartQuery(columns, bounds).model(progress.answers[_STARTS])
        else:
            assert isinstance(private, UnitStore)
            raw = params.privacy.statistics.normaliser == "private"  # this variant promises nothing
            normaliser = _normaliser(params, shape, None, columns, bounds, private if raw else public, None)
            trained = _train_mopo(params, shape, private, public, normaliser, device, run)
        if not all(bool(w.isfinite().all()) for w in trained.weights):
            ledger.abort(paid.charge.id, "training diverged")
            raise PipelineError(
                "params.yaml: dynamics: training diverged (weights that are not finite); lower dynamics.learning_rate "
                "or privacy.clipping_norm. The last good model is untouched; the rounds that ran are spent"
            )
        statement |= charges.account(params, ledger, paid.charge, version)
        ensemble = GaussianEnsemble(shape, trained.weights, normaliser, bounds, manifest.info.termination)
        _write(ensemble, starts, params, manifest, trained.rounds, statement, run)
        ledger.commit(paid.charge.id)
    for key in ("private", "epsilon", "delta", "noise_multiplier", "unit", "dataset_fingerprint"):
        run.tag(key, str(statement[key]))
    if statement["epsilon"] is not None:
        run.metric("epsilon", statement["epsilon"])  # the reservation, also when stopped early


def _private(params: Params, manifest: Manifest, version: Version) -> UnitStore | ShardedStore:
    """The private units; the non-private baseline draws from all rows at once, and so wants them all in memory."""
    keep = sys.maxsize if params.dynamics.variant == "mopo" else kept_bytes(params.compute)
    return charges.open_private(manifest, version, PARTITIONS, keep)


def _train(
    params: Params,
    shape: Architecture,
    plan: Plan,
    private: UnitStore | ShardedStore | None,
    public: UnitStore,
    normaliser: Normaliser,
    device: torch.device,
    paid: charges.Paid,
    progress: Progress,
    run: StageRun,
) -> Trained:
    local = params.dynamics
    with progress_bar(plan.rounds, "train_model", "round") as bar:
        bar.update(progress.started)
        return train(
            plan,
            shape,
            private,
            public.flat() if public.units else None,
            normaliser=normaliser,
            local=LocalTraining(local.learning_rate, local.batch_size, local.local_epochs, local.weight_decay),
            server=ServerTraining(
                momentum=local.server_momentum,
                averaging=local.server_averaging,
                look_every=local.early_stopping.every,
                patience=local.early_stopping.patience,
            ),
            max_transitions=local.max_transitions_per_unit,
            seed=params.seed,
            execution=Execution(device, chunk_bytes(params, device)),
            progress=progress,
            keep=paid.keep,
            on_round=_reporter(run, bar, plan, shape),
        )


def _columns(manifest: Manifest) -> Columns:
    spaces = manifest.info.spaces
    return Columns(spaces.observation_size, spaces.one_hot, spaces.discrete_actions)


def _totals(
    columns: Columns, bounds: Bounds, private: UnitStore | ShardedStore | None
) -> dict[str, Callable[[], torch.Tensor]]:
    """What makes the sum of each query; without units there is none to make."""
    if private is None:
        return {}
    return {
        _NORMALISER: partial(NormaliserQuery(columns, bounds).total, private),
        _STARTS: partial(StartQuery(columns, bounds).total, private),
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
        (query,) = (query for query in plan.queries if query.what == _NORMALISER)
        answer, noise = progress.answers[_NORMALISER], query.standard_deviation / plan.units
        return replace(NormaliserQuery(columns, bounds).normaliser(answer, noise), flag=flag)
    inputs, targets = units.flat()
    return Normaliser.from_public(inputs, targets[:, : shape.columns], flag)


def _write(
    ensemble: GaussianEnsemble,
    starts: StartModel | None,
    params: Params,
    manifest: Manifest,
    rounds: int,
    statement: Mapping[str, Any],
    run: StageRun,
) -> None:
    with replaced_directory(OUTPUT) as fresh:
        ensemble.save(fresh, environment=manifest.info.environment, variant=params.dynamics.variant, rounds=rounds)
        if starts is not None:
            starts.save(fresh)
        write_json(fresh / "privacy.json", dict(statement))
        for file in ("config.json", "privacy.json"):
            run.artifact(fresh / file)


def _identity(params: Params, manifest: Manifest, version: Version, shape: Architecture, plan: Plan | None) -> str:
    """What a model is made of, but for chance. δ is left out: it reads the same release's ε elsewhere on its curve."""
    mechanism = ("sampling_probability", "noise_multiplier", "clipping_norm", "clipping", "rounds", "queries")
    statistics = params.privacy.statistics
    uses_bounds = statistics.normaliser != "public" or statistics.starts
    return charges.identity(
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


def make_plan(params: Params, manifest: Manifest, shape: Architecture) -> Plan:
    """The plan that params.yaml and the manifest describe; reads no private byte.

    Raises:
        PipelineError: no noise multiplier reaches the target.
    """
    privacy, variant = params.privacy, params.dynamics.variant
    units = manifest.private_units
    if variant == "private" and privacy.delta >= 1 / units:
        print(
            f"warning: params.yaml: privacy.delta = {privacy.delta:g} is not below 1/{units}, one over the number of "
            "units: a mechanism that publishes a whole unit would pass; choose a smaller delta",
            file=sys.stderr,
        )
    multiplier = 0.0
    queries = _queries(params, manifest)
    if variant == "private":
        multiplier = privacy.noise_multiplier or _solved(params, queries)
    return Plan(
        units=units,
        unit=manifest.info.unit,
        sampling_probability=privacy.sampling_probability,
        noise_multiplier=multiplier,
        clipping_norm=math.inf if variant == "no_clip" else privacy.clipping_norm,
        clipping=privacy.clipping,
        rounds=privacy.rounds,
        delta=privacy.delta,
        members=shape.members,
        layers=len(shape.layers),
        queries=queries,
    )


def _queries(params: Params, manifest: Manifest) -> tuple[GaussianQuery, ...]:
    """What ``privacy.statistics`` asks of the private units; without noise in variants that promise nothing.

    Raises:
        PipelineError: the normaliser's answer would be nothing but noise.
    """
    asked, columns = params.privacy.statistics, _columns(manifest)
    multiplier = asked.noise_multiplier if params.dynamics.variant == "private" else 0.0
    queries = []
    if asked.normaliser == "private":
        sensitivity = columns.fractions.sensitivity
        most = MOST_NOISE * manifest.private_units / sensitivity
        if multiplier > most:
            raise PipelineError(
                f"params.yaml: privacy.statistics.noise_multiplier: found {multiplier:g}, which drowns the "
                f"normaliser's answer of {manifest.private_units} units; allowed is up to {most:.3g} for them, or "
                "privacy.statistics.normaliser: bounds"
            )
        queries.append(GaussianQuery(_NORMALISER, sensitivity, multiplier))
    if asked.starts:
        queries.append(GaussianQuery(_STARTS, StartQuery.moments(columns).sensitivity, multiplier))
    return tuple(queries)


def _solved(params: Params, queries: tuple[GaussianQuery, ...]) -> float:
    privacy = params.privacy
    if privacy.target_epsilon is None:
        raise PipelineError("params.yaml: privacy: give target_epsilon or noise_multiplier")
    try:
        return accounting.solve_noise_multiplier(
            privacy.target_epsilon,
            privacy.delta,
            privacy.sampling_probability,
            privacy.rounds,
            tuple(query.noise_multiplier for query in queries),
        )
    except ValueError as impossible:
        remedy = "lower sampling_probability or rounds" + (", or raise statistics.noise_multiplier" if queries else "")
        raise PipelineError(
            f"params.yaml: privacy.target_epsilon = {privacy.target_epsilon:g}: {impossible}; raise it, or {remedy}"
        ) from None


def architecture(params: Params, manifest: Manifest) -> Architecture:
    """The ensemble that params.yaml describes, for the data of the manifest."""
    low, high = params.dynamics.log_variance_bounds
    return Architecture(
        observation_size=manifest.info.spaces.observation_size,
        action_size=manifest.info.spaces.action_size,
        members=params.dynamics.ensemble_size,
        hidden=params.dynamics.hidden,
        log_variance_low=low,
        log_variance_high=high,
        learned_termination=manifest.info.termination == LEARNED,
    )


def _statement(plan: Plan | None, manifest: Manifest) -> dict[str, Any]:
    """``privacy.json``; a run without a plan (variant mopo) states that nothing is guaranteed."""
    fingerprint = manifest.info.dataset_fingerprint
    termination = manifest.info.termination
    if plan is not None:
        statement = plan.statement(dataset_fingerprint=fingerprint, public_assumptions=_assumptions(manifest))
        return statement | {"termination": termination}
    statement = accounting.no_guarantee(
        unit=manifest.info.unit,
        units=manifest.private_units,
        dataset_fingerprint=fingerprint,
        reason="variant mopo: trained on raw private transitions, and its policy's rollouts start from them",
    )
    return statement | {"termination": termination}


def _assumptions(manifest: Manifest) -> list[str]:
    """What the guarantee takes for granted: nothing here may be read off private rows."""
    info = manifest.info
    simulated = info.environment is not None
    assumptions = [
        f"the number of private units, {manifest.private_units}",
        f"every unit of the public split ({manifest.public_units} units, drawn by a hash of the id)"
        if manifest.public_units
        else "no unit: there is no public split",
        "observation and action sizes, "
        + ("the environment and its declared spaces" if simulated else "the declared columns, categories and bounds"),
        "the bounds of observations and rewards named in params.yaml",
        "the wall time of the run",
        "which versions of the data share units, and how many charges there were on them",
    ]
    if info.horizon is not None:
        by_whom = "as declared or by the environment" if simulated else "as declared"
        assumptions.append(f"episodes of at most {info.horizon} steps, {by_whom}")
    if info.termination == NONE:
        assumptions.append("that no episode terminates")
    elif info.termination in RULES:
        assumptions.append(f"when an episode ends: the declared rule {info.termination}")
    return assumptions


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
    def on_round(done: int, look: Look | None) -> None:
        bar.update()
        if look is None and done < plan.rounds:
            return
        spent = plan.spent(done)
        if spent is not None:
            run.metric("epsilon_so_far", spent.epsilon_pld, done)
        if look is not None:
            _log_look(run, shape, look)
            bar.set_postfix(public_loss=f"{look.loss:.3f}", refresh=False)

    return on_round


def _log_look(run: StageRun, shape: Architecture, look: Look) -> None:
    run.metric("public_loss", look.loss, look.round)
    for name, error in zip(shape.target_names, look.error, strict=True):
        run.metric(f"public_error.{name}", error, look.round)


def chunk_bytes(params: Params, device: torch.device) -> int:
    """Bound on the buffers of one chunk of a cohort."""
    megabytes = params.compute.memory_mb
    return megabytes << 20 if megabytes is not None else _CHUNK_BYTES[device.type]


if __name__ == "__main__":
    sys.exit(run_stage("train_model", "Train the dynamics ensemble under trajectory-level differential privacy.", body))
