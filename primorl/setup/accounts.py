"""The project's ledger, what a stage asks of it, and the private units that were charged."""

from pathlib import Path

from dp_accounting import dp_event
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from primorl.config.params import Params, Reading
from primorl.privacy.ledger.ledger import Budget, Ledger, Request, Version
from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.project.paths import STATE
from primorl.tracking import StageRun, git_commit
from primorl.trajectories.identity.fingerprint import project_secret
from primorl.trajectories.identity.membership import DIGEST_BYTES, Membership
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import EVERY, ShardedStore, UnitStore, open_units


def project_ledger(params: Params | Reading) -> Ledger:
    """Open the project's ledger, or begin it: ``ledger.url``, by default ``.primorl/ledger.db`` in the project.

    A relative path of a SQLite file starts at the project, also inside DVC's temporary copies.

    Raises:
        PipelineError: it cannot be used; the message holds no credentials.
    """
    file, url = _sqlite_file(params), params.ledger.url or ""
    own = URL.create("sqlite", database=str(file)).render_as_string() if file else url
    return Ledger.open(own, secret=project_secret(), anchor=_own("ledger.head"))


def begun_ledger(params: Params | Reading) -> Ledger | None:
    """Open the project's ledger to read it; None where none was begun yet, and then nothing is created.

    Raises:
        PipelineError: it cannot be used, or the secret that it was written under is gone.
    """
    file = _sqlite_file(params)
    if file and not file.exists() and not _own("ledger.head").exists():
        return None
    if not _own("secret").exists():
        raise PipelineError(
            f"{_own('secret')}: not there, and without it the ledger cannot be read; put back the secret it was "
            "written under (a run of the pipeline would make a new one)"
        )
    return project_ledger(params)


def dataset_version(manifest: Manifest, partitions: Path) -> Version:
    """The units of ``partitions`` as the ledger knows them.

    Raises:
        PipelineError: ``units.bin`` or ``public_units.bin`` is missing, or is of another partition.
    """
    info = manifest.info
    several = info.unit != "trajectory" or info.population not in ("", info.dataset)  # digests of a trajectory
    members = _digests(partitions / "units.bin", manifest.private_units, several)
    public = _digests(partitions / "public_units.bin", manifest.public_units, several)
    return Version(
        info.dataset_fingerprint, info.unit, manifest.private_units, members, public, info.trajectories_per_person
    )


def request(
    params: Params,
    run: StageRun,
    manifest: Manifest,
    version: Version,
    *,
    stage: str,
    event: dp_event.DpEvent,
    identity: str,
) -> Request:
    """What the ledger is asked for.

    Args:
        params: names the δ of this run.
        run: its MLflow run.
        manifest: of the partitions.
        version: whose budget this is, from `dataset_version`.
        stage: who asks.
        event: what it will do.
        identity: of the result, of the paid work.
    """
    return Request(
        version=version,
        dataset=manifest.info.dataset,
        stage=stage,
        identity=identity,
        event=event,
        delta=params.privacy.delta,
        git_commit=git_commit(),
        mlflow_run=run.run_id,
    )


def budget(params: Params, manifest: Manifest) -> Budget | None:
    """What all runs may spend together; None without a limit.

    Raises:
        PipelineError: its δ is so large that it bounds nothing.
    """
    declared = params.privacy.budget
    if declared.delta >= 1 / manifest.private_units:
        raise PipelineError(
            f"params.yaml: privacy.budget.delta: found {declared.delta:g}, allowed is below "
            f"1/{manifest.private_units}, one over the number of units: at it everything would seem to cost nothing"
        )
    return None if declared.epsilon is None else Budget(declared.epsilon, declared.delta)


def checkpoints() -> Path:
    """Folder of the checkpoints of paid work."""
    return _own("checkpoints")


def open_private(
    manifest: Manifest, version: Version, partitions: Path, keep_bytes: int, own: slice = EVERY
) -> UnitStore | ShardedStore:
    """The private units, which are those that were charged.

    Args:
        manifest: of the partitions.
        version: whose account was charged.
        partitions: their folder.
        keep_bytes: how much of the rows may stay in memory.
        own: which of them are this process's; all are read, and held against the account.

    Raises:
        PipelineError: a file is missing or broken, or the rows are not of the units in the account.
    """
    folder = partitions / "private"
    found = Membership(project_secret(), manifest.info.dataset, manifest.info.population)
    store = open_units(folder, keep_bytes, found.update, own)
    if store.info != manifest.info or found.to_bytes() != version.members:
        raise PipelineError(f"{partitions}: its parts are of different partitions; run `dvc repro partition`")
    return store


def _digests(file: Path, units: int, several: bool) -> bytes:
    """The digests of ``units`` units: two of a trajectory, and more where a unit may have ``several``."""
    content = file.read_bytes() if file.exists() else b""
    least = 2 * DIGEST_BYTES * units
    if len(content) < least or (len(content) > least and not several) or len(content) % DIGEST_BYTES:
        raise PipelineError(
            f"{file}: missing, or not of {units} units as manifest.json says; "
            "run `dvc repro partition` to make it again"
        )
    return content


def _own(name: str) -> Path:
    return home() / STATE / name


def _sqlite_file(params: Params | Reading) -> Path | None:
    """The ledger's SQLite file; None if it is somewhere else."""
    if params.ledger.url is None:
        return _own("ledger.db")
    try:
        url = make_url(params.ledger.url)
    except (ArgumentError, ValueError):
        return None  # `Ledger.open` says what is wrong with it
    plain = url.get_backend_name() == "sqlite" and url.database and not url.query
    return home() / str(url.database) if plain and url.database != ":memory:" else None
