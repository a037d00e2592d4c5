"""The project's ledger: opening it, requests to it, and the public split, which it must allow to be
read.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent

from primorl.base.dvc import REMAKE, recorded_outputs
from primorl.base.errors import PipelineError
from primorl.base.files import home, read_json, workspace
from primorl.base.paths import LEDGER_HEAD, LOCK, MODELS, PARTITIONS, PRIVATE_EVALUATION, SECRET
from primorl.base.processes import git_commit
from primorl.config.params import Params, Reading
from primorl.data.identity.membership import (
    DIGEST_BYTES,
    NOBODY,
    Membership,
    population_digest,
    project_secret,
    secret_check,
)
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import DatasetInfo, Manifest
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.history import Request, Version
from primorl.privacy.ledger.ledger import Budget, Ledger
from primorl.privacy.ledger.store import Store
from primorl.tracking import StageRun
from primorl.work.ledger_place import ledger_url


def project_ledger(params: Params | Reading) -> Ledger:
    """Open the project's ledger to charge, or begin it: ``ledger.url``, by default
    ``.primorl/ledger.db``.

    A relative path of a SQLite file starts at the project, also inside DVC's temporary copies.

    Raises:
        PipelineError: it cannot be used, has lost its head, or lacks a charge that a model or
            ``dvc.lock`` names; the message holds no credentials.
    """
    begun = begun_ledger(params)
    with nullcontext() if begun is None else closing(begun):
        # Before it is opened to write, which would begin a lost one again.
        refuse_missing_charges(begun)
    return open_ledger(params, read_only=False)


def refuse_missing_charges(ledger: Ledger | None) -> None:
    """Check that the ledger has its head, and every charge that models and private answers name.

    Raises:
        PipelineError: the head or a charge is missing: the ledger was deleted, cut, or is another
            one.
    """
    known = set() if ledger is None else {charge.id for charge in ledger.charges()}
    for root in dict.fromkeys((workspace().resolve(), home())):
        for file in (*sorted((root / MODELS).glob("*/privacy.json")), root / PRIVATE_EVALUATION):
            for charge in _named(read_json(file)) if file.exists() else ():
                if charge not in known:
                    raise PipelineError(
                        f"{file}: charge {charge} is not in the ledger; restore .primorl (or the "
                        "database of ledger.url) from its backup; or, if the charge is in "
                        "another ledger, move this file away"
                    )
    if not known and recorded_outputs("train_model"):
        raise PipelineError(
            f"{LOCK}: train_model has run, and the ledger is empty; restore .primorl (or the "
            "database of ledger.url) from its backup, or delete dvc.lock if nobody was ever "
            "charged here"
        )
    if ledger is not None:
        ledger.check_head()


def _named(content: Any) -> Iterator[str]:
    """Yield the charges that a statement and its mechanisms, or private answers, name."""
    if not isinstance(content, dict):
        return
    statements = content.get("statements")
    for part in (statements or {}).values() if isinstance(statements, dict | None) else ():
        yield from _named(part)
    mechanisms = content.get("mechanisms")
    for part in mechanisms if isinstance(mechanisms, list) else ():
        yield from _named(part)
    if isinstance(content.get("charge"), str):
        yield content["charge"]


def begun_ledger(params: Params | Reading) -> Ledger | None:
    """Open the project's ledger with read access only; None where none was begun yet.

    Creates and changes nothing.

    Raises:
        PipelineError: it cannot be used, or the secret that it was written under is gone.
    """
    head = home() / LEDGER_HEAD
    if not head.exists() and not Store(ledger_url(params), read_only=True).read():
        return None
    if not (home() / SECRET).exists():
        raise PipelineError(
            f"{home() / SECRET}: not there, and without it the ledger cannot be read; restore "
            ".primorl from its backup"
        )
    return open_ledger(params, read_only=True)


def open_ledger(params: Params | Reading, *, read_only: bool) -> Ledger:
    """Open the project's ledger as it is; raises the errors of `Ledger.open`."""
    return Ledger.open(
        ledger_url(params),
        secret=project_secret(),
        anchor=home() / LEDGER_HEAD,
        read_only=read_only,
    )


def check_secret(manifest: Manifest, partitions: Path) -> None:
    """Check that the partitions were made under the project's secret, before anything is charged to
    their units.

    Under another one the ledger would not recognise the units.

    Raises:
        PipelineError: the secret is another one, or is not there.
    """
    if not (home() / SECRET).exists():
        raise PipelineError(
            f"{home() / SECRET}: not there, and {partitions} was made under it; restore .primorl "
            "from its backup"
        )
    if manifest.secret_check != secret_check(project_secret()):
        raise PipelineError(
            f"{partitions / 'manifest.json'}: secret_check: made under another secret than "
            f"{home() / SECRET}, so the ledger would recognise nobody; restore .primorl from its "
            f"backup, or make them anew: {REMAKE}"
        )


def dataset_version(manifest: Manifest, partitions: Path) -> Version:
    """The units of ``partitions`` as the ledger knows them.

    Raises:
        PipelineError: ``units.bin`` or ``public_units.bin`` is missing, or is of another partition.
    """
    members = _digests(partitions / "units.bin", manifest.private_units, manifest.info)
    return version_of(manifest, members, _public_digests(manifest, partitions))


def _public_digests(manifest: Manifest, partitions: Path) -> bytes:
    return _digests(partitions / "public_units.bin", manifest.public_units, manifest.info)


def version_of(manifest: Manifest, members: bytes, public: bytes) -> Version:
    """The units of a partition as the ledger knows them, by the digests of its two sides
    (`Membership`).
    """
    info = manifest.info
    return Version(
        info.dataset_fingerprint,
        info.unit,
        manifest.private_units,
        members,
        public,
        population=population_digest(project_secret(), info.population),
        simulated=info.environment is not None,
    )


def refuse_published(params: Params | Reading, dataset: str, version: Version) -> None:
    """Refuse a version with public units that were private before, or the other way round.

    Raises:
        Refused: there is such a unit (`Ledger.publish`). Nothing was written.
    """
    ledger = begun_ledger(params)
    if ledger is not None:
        with closing(ledger):
            ledger.check_published(dataset, version)


def publish(params: Params, dataset: str, version: Version, *, people: bool) -> None:
    """Refuse a split that the ledger does not allow and, of people, record the public units, also
    where there are none.

    Raises:
        Refused: as `refuse_published`; or units become public that were private, and
            ``partition.publish`` does not confirm it. Nothing was written.
    """
    if people or params.partition.publish is not None:
        with closing(project_ledger(params)) as ledger:
            ledger.publish(dataset, version, params.partition.publish)
    else:
        refuse_published(params, dataset, version)


def open_public(params: Params | Reading | None, partitions: Path = PARTITIONS) -> UnitStore:
    """Read the public split, once the ledger knows of no charge for one of its units as private.

    Such a split can be there without a charge of its own, brought back by DVC. Outside the trust
    boundary, without the project's secret, this cannot be told.

    Args:
        params: name the ledger; None: it is not asked.
        partitions: folder of the partitions.

    Raises:
        Refused: a unit was charged for as private.
        PipelineError: a file is missing or broken, the ledger cannot be read, or the rows are not
            of the units in ``public_units.bin``.
    """
    if not (home() / SECRET).exists():
        if (workspace() / SECRET).exists():
            raise PipelineError(
                f"DVC_ROOT: names {home()}, and this project is {workspace()}: its ledger would "
                "not be asked; unset it"
            )
        return UnitStore.open(partitions / "public")
    manifest = Manifest.load(partitions / "manifest.json")
    info, public = manifest.info, _public_digests(manifest, partitions)
    if params is not None and public:
        there = (partitions / "units.bin").exists()  # a remote need not have it
        members = _digests(partitions / "units.bin", manifest.private_units, info) if there else b""
        refuse_published(params, info.dataset, version_of(manifest, members, public))
    return read_public(manifest, partitions, public)


def read_public(manifest: Manifest, partitions: Path, public: bytes) -> UnitStore:
    """Read the public split and compare its units with the digests in ``public_units.bin``.

    Raises:
        PipelineError: a file is missing or broken, or the rows are of other units.
    """
    info = manifest.info
    found = Membership(project_secret(), info.population, by_rows=info.duplicates == "refuse")
    rows = UnitStore.open(partitions / "public", found.update)
    if found.to_bytes() != public:
        raise PipelineError(
            f"{partitions / 'public_units.bin'}: not of the units in {partitions / 'public'} "
            "under this project's secret; by it the ledger knows who must not be published; run "
            f"{REMAKE} to make it again"
        )
    return rows


def request(
    run: StageRun,
    dataset: str,
    version: Version,
    stage: str,
    event: DpEvent,
    delta: float,
    identity: str,
) -> Request:
    """Build the request of a stage that pays for work on the units of a version."""
    return Request(
        version=version,
        dataset=dataset,
        stage=stage,
        identity=identity,
        event=event,
        delta=delta,
        git_commit=git_commit(),
        mlflow_run=run.run_id,
    )


def solved_noise(
    key: str,
    epsilon: float,
    delta: float,
    q: float,
    rounds: int,
    queries: tuple[float, ...] = (),
    remedy: str = "",
) -> float:
    """Solve for the noise multiplier at which a mechanism costs the ε of a key of params.yaml.

    Raises:
        PipelineError: none is enough.
    """
    try:
        return solve_noise_multiplier(epsilon, delta, q, rounds, queries)
    except ValueError as impossible:
        remedy = remedy or "set it to null"
        raise PipelineError(
            f"params.yaml: {key} = {epsilon:.12g}: {impossible}; raise it, or {remedy}"
        ) from None


def noise_of_share(key: str, epsilon: float, delta: float, share: float) -> float:
    """Compute the noise multiplier of a query of all units that takes a share of the ε of a key of
    params.yaml.

    The share is of 1/z² of one Gaussian release at the whole ε, which adds up over queries and
    rounds of all units.

    Raises:
        PipelineError: no noise is enough.
    """
    return float(f"{solved_noise(key, epsilon, delta, 1.0, 1) / math.sqrt(share):.4g}")


def digest(content: dict[str, Any]) -> str:
    """Digest plain values, as identities of paid work are made; the order of keys does not
    matter.
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def budget(params: Params, units: int) -> Budget | None:
    """Read the budget of all runs on K ``units`` together; None without a limit.

    Raises:
        PipelineError: its δ is so large that it bounds nothing.
    """
    declared = params.privacy.budget
    if declared.delta >= 1 / units:
        raise PipelineError(
            f"params.yaml: privacy.budget.delta: found {declared.delta!r}, allowed is below "
            f"1/{units}, one over the number of units: at it everything would seem to cost nothing"
        )
    return None if declared.epsilon is None else Budget(declared.epsilon, declared.delta)


def _digests(file: Path, units: int, info: DatasetInfo) -> bytes:
    """The digests of ``units`` units (see `Membership`).

    A trajectory has two. A unit of another kind has at least as many.
    """
    content = file.read_bytes() if file.exists() else b""
    content = b"" if content == NOBODY else content
    least = 2 * DIGEST_BYTES * units
    too_many = info.unit == "trajectory" and len(content) > least
    if len(content) < least or too_many or len(content) % DIGEST_BYTES:
        raise PipelineError(
            f"{file}: missing, or not of {units} units as manifest.json says; run {REMAKE} to "
            "make it again"
        )
    return content
