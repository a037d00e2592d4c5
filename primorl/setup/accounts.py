"""The project's ledger, as ``params.yaml`` names it, and whose account a partition is."""

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from primorl.config.params import Params
from primorl.privacy.ledger.ledger import Ledger, Version
from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.trajectories.identity.fingerprint import project_secret
from primorl.trajectories.identity.membership import DIGEST_BYTES
from primorl.trajectories.storage.manifest import Manifest


def project_ledger(params: Params) -> Ledger:
    """Open the project's ledger, or begin it: ``ledger.url``, by default ``.primorl/ledger.db`` in the project.

    A relative path of a SQLite file starts at the project, also inside DVC's temporary copies.

    Raises:
        PipelineError: it cannot be used; the message holds no credentials.
    """
    file, url = _sqlite_file(params), params.ledger.url or ""
    own = URL.create("sqlite", database=str(file)).render_as_string() if file else url
    return Ledger.open(own, secret=project_secret(), anchor=_own("ledger.head"))


def begun_ledger(params: Params) -> Ledger | None:
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
    several = manifest.info.unit != "trajectory"
    members = _digests(partitions / "units.bin", manifest.private_units, several)
    public = _digests(partitions / "public_units.bin", manifest.public_units, several)
    return Version(manifest.info.dataset_fingerprint, manifest.info.unit, manifest.private_units, members, public)


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
    return home() / ".primorl" / name


def _sqlite_file(params: Params) -> Path | None:
    """The ledger's SQLite file; None if it is somewhere else."""
    if params.ledger.url is None:
        return _own("ledger.db")
    try:
        url = make_url(params.ledger.url)
    except (ArgumentError, ValueError):
        return None  # `Ledger.open` says what is wrong with it
    plain = url.get_backend_name() == "sqlite" and url.database and not url.query
    return home() / str(url.database) if plain and url.database != ":memory:" else None
