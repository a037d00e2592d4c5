"""The project's ledger: what a stage asks of it, and what the project's files say it must hold."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dp_accounting.dp_event import DpEvent
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from primorl.base.dvc import REMAKE, is_recorded, recorded_file
from primorl.base.errors import PipelineError
from primorl.base.files import home, parse_json, read_json, workspace
from primorl.base.paths import (
    BEHAVIOUR,
    LEDGER,
    LEDGER_HEAD,
    LOCK,
    MODEL,
    MODELS,
    PARTITIONS,
    PRIVATE_EVALUATION,
    SECRET,
)
from primorl.base.processes import git_commit
from primorl.base.records import printable
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
from primorl.paid.questions import check_question
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.history import Request, Version
from primorl.privacy.ledger.ledger import Budget, Ledger
from primorl.privacy.ledger.store import Store
from primorl.privacy.mechanism.plan import Plan
from primorl.tracking import StageRun

_L = TypeVar("_L", bound=Ledger)


def project_ledger(params: Params | Reading) -> Ledger:
    """Open the project's ledger to charge, or begin it: ``ledger.url``, by default ``.primorl/ledger.db``.

    A relative path of a SQLite file starts at the project, also inside DVC's temporary copies.

    Raises:
        PipelineError: it cannot be used, has lost its head, or lacks a charge that a model or ``dvc.lock`` names; the
            message holds no credentials.
    """
    begun = begun_ledger(params)
    with nullcontext() if begun is None else closing(begun):
        refuse_losses(begun)
    return open_ledger(params, Ledger, read_only=False)


def begun_ledger(params: Params | Reading) -> Ledger | None:
    """Open the project's ledger with read access only; see `begun`."""
    return begun(params, Ledger)


def begun(params: Params | Reading, kind: type[_L]) -> _L | None:
    """Open the project's ledger with read access only; None where none was begun yet. Creates and changes nothing.

    Raises:
        PipelineError: it cannot be used, or the secret that it was written under is gone.
    """
    head = home() / LEDGER_HEAD
    if not head.exists() and not Store(ledger_url(params), read_only=True).read():
        return None
    if not (home() / SECRET).exists():
        file = _sqlite_file(params)
        away = "name another database in ledger.url, move" if file is None else f"move {file} and"
        raise PipelineError(
            f"{home() / SECRET}: not there, and without it the ledger cannot be read; put back the secret it was "
            f"written under. If it is lost for good, so is the ledger: {away} {head} aside, and run `primorl ledger "
            "repair`, which says what is lost"
        )
    return open_ledger(params, kind, read_only=True)


def open_ledger(params: Params | Reading, kind: type[_L], *, read_only: bool) -> _L:
    """Open the project's ledger as it is; raises what ``kind.open`` raises."""
    return kind.open(ledger_url(params), secret=project_secret(), anchor=home() / LEDGER_HEAD, read_only=read_only)


def check_secret(manifest: Manifest, partitions: Path) -> None:
    """Check that the partitions were made under the project's secret, before anything is charged to their units.

    Under another one the ledger would recognise nobody. Manifests of older versions hold no value to check; there
    `open_public` tells by the digests of the public units.

    Raises:
        PipelineError: the secret is another one, or is not there.
    """
    remedy = (
        f"if it is lost for good: {REMAKE} makes the partitions anew under a new one, and then `primorl ledger repair` "
        "says what is lost"
    )
    if not (home() / SECRET).exists():
        raise PipelineError(
            f"{home() / SECRET}: not there, and {partitions} was made under it; put .primorl back from its backup, or "
            + remedy
        )
    if manifest.secret_check not in (None, secret_check(project_secret())):
        raise PipelineError(
            f"{partitions / 'manifest.json'}: secret_check: made under another secret than {home() / SECRET}, so the "
            f"ledger would recognise nobody; put the right secret back from its backup, or {remedy}"
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
    """The units of a partition as the ledger knows them, by the digests of its two sides (`Membership`)."""
    info = manifest.info
    return Version(
        info.dataset_fingerprint,
        info.unit,
        manifest.private_units,
        members,
        public,
        trajectories_per_person=info.trajectories_per_person,
        population=population_digest(project_secret(), info.population or info.dataset),
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
    """Ask whether units may be split so and, where they are people, record who is public, be it nobody.

    Raises:
        Refused: as `refuse_published`; or units become public that were private, and ``partition.publish`` does not
            confirm it. Nothing was written.
    """
    if people or params.partition.publish is not None:
        with closing(project_ledger(params)) as ledger:
            ledger.publish(dataset, version, params.partition.publish)
    else:
        refuse_published(params, dataset, version)


def open_public(params: Params | Reading | None, partitions: Path = PARTITIONS) -> UnitStore:
    """Read the public split, once the ledger knows of no charge for one of its units as private.

    Such a split can be there without a charge of its own: made under another ``partition.salt``, or brought back by
    DVC. Outside the trust boundary, without the project's secret, nobody can tell.

    Args:
        params: name the ledger; None: another process has asked it.
        partitions: folder of the partitions.

    Raises:
        Refused: a unit was charged for as private.
        PipelineError: a file is missing or broken, the ledger cannot be read, or the rows are not of the units in
            ``public_units.bin``.
    """
    if not (home() / SECRET).exists():
        if (workspace() / SECRET).exists():
            raise PipelineError(
                f"DVC_ROOT: names {home()}, and this project is {workspace()}: its ledger would not be asked; unset it"
            )
        return UnitStore.open(partitions / "public")
    manifest = Manifest.load(partitions / "manifest.json")
    info, public = manifest.info, _public_digests(manifest, partitions)
    if params is not None and public:
        there = (partitions / "units.bin").exists()  # a remote need not have it
        members = _digests(partitions / "units.bin", manifest.private_units, info) if there else b""
        refuse_published(params, info.dataset, version_of(manifest, members, public))
    found = Membership(project_secret(), info.dataset, info.population, by_rows=info.duplicates == "refuse")
    rows = UnitStore.open(partitions / "public", found.update)
    if found.to_bytes() != public:
        raise PipelineError(
            f"{partitions / 'public_units.bin'}: not of the units in {partitions / 'public'} under this project's "
            f"secret; by it the ledger knows who must not be published; run {REMAKE} to make it again"
        )
    if manifest.secret_check is None and not public:
        raise PipelineError(
            f"{partitions / 'manifest.json'}: secret_check: not there, as an older version wrote it, so nobody can "
            f"tell whether it was made under this project's secret; run {REMAKE} to make it again"
        )
    return rows


def request(
    params: Params, run: StageRun | None, dataset: str, version: Version, stage: str, event: DpEvent, identity: str
) -> Request:
    """Build the request of a stage that pays for work on the units of a version; without a run, it is only tried."""
    return Request(
        version=version,
        dataset=dataset,
        stage=stage,
        identity=identity,
        event=event,
        delta=params.privacy.delta,
        git_commit=git_commit(),
        mlflow_run=None if run is None else run.run_id,
    )


def solved_noise(
    key: str, epsilon: float, delta: float, q: float, rounds: int, queries: tuple[float, ...] = (), remedy: str = ""
) -> float:
    """Solve for the noise multiplier at which a mechanism costs the ε of a key of params.yaml.

    Raises:
        PipelineError: none is enough.
    """
    try:
        return solve_noise_multiplier(epsilon, delta, q, rounds, queries)
    except ValueError as impossible:
        remedy = remedy or "set it to null"
        raise PipelineError(f"params.yaml: {key} = {epsilon:.12g}: {impossible}; raise it, or {remedy}") from None


def noise_of_share(key: str, epsilon: float, delta: float, share: float) -> float:
    """Noise multiplier of a query of everybody that takes a share of the ε of a key of params.yaml.

    The share is of 1/z² of one Gaussian release at the whole ε, which adds up over queries and rounds of everybody.

    Raises:
        PipelineError: no noise is enough.
    """
    return float(f"{solved_noise(key, epsilon, delta, 1.0, 1) / math.sqrt(share):.4g}")


def digest(content: dict[str, Any]) -> str:
    """Digest plain values, as identities of paid work are made; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def plan_identity(plan: Plan) -> list[Any]:
    """Return the mechanism's part of the identity of paid work."""
    queries = [[query.what, query.sensitivity, query.noise_multiplier] for query in plan.queries]
    return [plan.sampling_probability, plan.noise_multiplier, str(plan.clip), plan.rounds, queries]


def budget(params: Params, units: int) -> Budget | None:
    """Read what all runs on K ``units`` may spend together; None without a limit.

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


def check_evaluation(params: Params, info: DatasetInfo) -> None:
    """Refuse estimators of private evaluation that do not fit the data: before the model is paid for, not after."""
    for name in params.evaluation.private.estimators:
        check_question(name, info)


def account_of(params: Params, version: Version) -> Account:
    """Read what was spent on the same units; empty where no ledger was begun."""
    ledger = begun_ledger(params)
    if ledger is None:
        return Account(())
    with closing(ledger):
        return ledger.account(version)


def _digests(file: Path, units: int, info: DatasetInfo) -> bytes:
    """The digests of ``units`` units (see `Membership`).

    A trajectory has two, or three within a population of another name than the dataset's. A unit of another kind has
    at least as many.
    """
    content = file.read_bytes() if file.exists() else b""
    content = b"" if content == NOBODY else content
    least = (2 if info.population in ("", info.dataset) else 3) * DIGEST_BYTES * units
    too_many = info.unit == "trajectory" and len(content) > least
    if len(content) < least or too_many or len(content) % DIGEST_BYTES:
        raise PipelineError(
            f"{file}: missing, or not of {units} units as manifest.json says; run {REMAKE} to make it again"
        )
    return content


def ledger_url(params: Params | Reading) -> str:
    """SQLAlchemy's URL of the ledger's database."""
    file = _sqlite_file(params)
    return URL.create("sqlite", database=str(file)).render_as_string() if file else params.ledger.url or ""


def _sqlite_file(params: Params | Reading) -> Path | None:
    """The ledger's SQLite file; None if it is somewhere else."""
    if params.ledger.url is None:
        return home() / LEDGER
    try:
        url = make_url(params.ledger.url)
    except (ArgumentError, ValueError):
        return None  # `Ledger.open` says what is wrong with it
    plain = url.get_backend_name() == "sqlite" and url.database and not url.query
    return home() / str(url.database) if plain and url.database != ":memory:" else None


_STATEMENT = "privacy.json"
_OF_ONE = ("charge", "epsilon", "event")  # of a mechanism by itself; the other facts are those of the whole
UNKNOWN = "unknown"
"""Stands for the id of a charge that ``dvc.lock`` tells of without naming it."""


@dataclass(frozen=True)
class Loss:
    """A charge that the ledger should have and has not.

    Attributes:
        charge: its id.
        file: what names it.
        statement: the privacy statement there, as it stands; empty if there is none to read.
    """

    charge: str
    file: str
    statement: Mapping[str, Any] = field(default_factory=dict)

    @property
    def says(self) -> str:
        """One line without an advice."""
        if self.charge == UNKNOWN:
            return f"{self.file}: train_model has run, and its charge is not in the ledger, which is empty"
        return f"{self.file}: charge {self.charge} is not in the ledger"


def losses(ledger: Ledger | None) -> list[Loss]:
    """What models, private answers and ``dvc.lock`` name and the ledger lacks.

    Charges whose loss a repair has recorded are left out.

    Raises:
        PipelineError: the ledger or a statement cannot be read.
    """
    known: set[str] = set()
    if ledger is not None:
        known = {charge.id for charge in ledger.charges()} | ledger.lost().keys()
    named = list(_named())
    found = {loss.charge: loss for loss in reversed(named) if loss.charge not in known}
    if not known and not named and is_recorded("train_model"):
        return [Loss(UNKNOWN, str(LOCK))]
    return sorted(found.values(), key=lambda loss: (loss.file, loss.charge))


def refuse_losses(ledger: Ledger | None, *, head: bool = True) -> None:
    """Check that the ledger has its head, and every charge that models, private answers and ``dvc.lock`` name.

    Raises:
        PipelineError: the head or a charge is missing; says what to do.
    """
    found = losses(ledger)
    if found:
        raise PipelineError(
            f"{'; '.join(loss.says for loss in found)}: records were cut off, or it is another ledger; put back the "
            "one that has it (.primorl, or the database of ledger.url) from its backup, or run `primorl ledger "
            "repair`, which says what is lost"
        )
    if ledger is not None and head:
        ledger.check_head()


def _named() -> Iterator[Loss]:
    """Every charge that a file of the project names: models, and the answers of the private units.

    DVC deletes a stage's outputs before it runs the stage. So the statements of model and clone and the answers are
    also looked up in DVC's cache.
    """
    here = workspace().resolve()
    for root in dict.fromkeys((here, home())):
        answers = [root / PRIVATE_EVALUATION] if (root / PRIVATE_EVALUATION).exists() else []
        for file in (*sorted((root / MODELS).glob(f"*/{_STATEMENT}")), *answers):
            shown = file.relative_to(root) if root == here else file
            try:
                content = read_json(file)
            except PipelineError as broken:
                output = shown if file in answers else shown.parent
                raise PipelineError(
                    f"{str(broken).partition(';')[0]}, so nobody can tell which charge it names; bring {output} back "
                    "by `dvc checkout`, or delete it"
                ) from None
            yield from _of(content, str(shown))
    for output, name in ((MODEL, _STATEMENT), (BEHAVIOUR, _STATEMENT), (PRIVATE_EVALUATION, None)):
        recorded = recorded_file(output, name)
        if recorded is not None:
            yield from _of(parse_json(recorded, LOCK), f"{LOCK} ({output / (name or '')})")


def _of(statement: Mapping[str, Any], file: str) -> Iterator[Loss]:
    """The charge of a statement, and those of the mechanisms in it, each with its own event and ε; or of answers."""
    answers = statement.get("statements")
    for name, answer in answers.items() if isinstance(answers, dict) else ():
        if isinstance(answer, dict):
            yield from _of(answer, f"{file} ({printable(name)})")
    charge = statement.get("charge")
    if isinstance(charge, str):
        yield Loss(charge, file, statement)
    mechanisms = statement.get("mechanisms")
    for part in mechanisms if isinstance(mechanisms, list) else ():
        if isinstance(part, dict):
            whole = {key: value for key, value in statement.items() if key not in ("mechanisms", *_OF_ONE)}
            yield from _of({**whole, **part}, f"{file} ({printable(str(part.get('what')))})")
