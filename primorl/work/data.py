"""The partitioned data and the account of their units, as far as they are known before a charge.

Reads no private row.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from primorl.base import PipelineError
from primorl.base.dvc import REMAKE, recorded_outputs
from primorl.base.files import (
    LEDGER_HEAD,
    LOCK,
    MANIFEST,
    MODELS,
    PARTITIONS,
    PRIVATE_EVALUATION,
    PUBLIC,
    SECRET,
    TRAJECTORIES,
    home,
    read_json,
    workspace,
)
from primorl.config.datasets import Bounds
from primorl.config.params import Params
from primorl.data.identity import membership
from primorl.data.storage.rows import UnitStore, read_fingerprint
from primorl.data.storage.schema import PUBLIC_BY, Manifest, Spaces
from primorl.evaluate.wording import label
from primorl.model.termination import NONE, RULES
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.history import Budget, Version
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.ledger.store import Store

Floats = npt.NDArray[np.floating]
_MOST_NAMED = 12
_UNITS, _PUBLIC_UNITS = PARTITIONS / "units.bin", PARTITIONS / "public_units.bin"

# ---- the ledger, to be read


def read_ledger(params: Params) -> Ledger | None:
    """Open the project's ledger with read access only; None where none was begun yet.

    Creates and changes nothing.

    Raises:
        PipelineError: it cannot be used; see `ledger_is_begun`.
    """
    return _open_ledger(params, read_only=True) if ledger_is_begun(params) else None


def ledger_is_begun(params: Params) -> bool:
    """Whether the project's ledger holds a record, or its head says that it did.

    Raises:
        PipelineError: it does, and the secret that it was written under is gone.
    """
    begun = (home() / LEDGER_HEAD).exists()
    begun = begun or bool(Store(params.ledger.url, read_only=True).read())
    if begun and not (home() / SECRET).exists():
        raise PipelineError(
            f"{home() / SECRET}: not there: needed by the ledger; restore .primorl from its backup"
        )
    return begun


def _open_ledger(params: Params, *, read_only: bool) -> Ledger:
    """Open the project's ledger as it is; raises the errors of `Ledger`."""
    secret, head = membership.project_secret(), home() / LEDGER_HEAD
    return Ledger(params.ledger.url, secret=secret, anchor=head, read_only=read_only)


def open_to_charge(params: Params) -> Ledger:
    """Open the project's ledger to charge, or begin it.

    Raises:
        PipelineError: it cannot be used, has lost its head, or lacks a charge that a model or
            ``dvc.lock`` names; the message holds no credentials.
    """
    if not ledger_is_begun(params):
        refuse_missing_charges(None)  # before a lost one is begun again
    ledger = _open_ledger(params, read_only=False)
    refuse_missing_charges(ledger)
    return ledger


def refuse_missing_charges(ledger: Ledger | None) -> None:
    """Check that the ledger has its head, and every charge that models and private answers name.

    Raises:
        PipelineError: the head or a charge is missing: the ledger was deleted, cut, or is another
            one.
    """
    known = set() if ledger is None else {charge.id for charge in ledger.charges()}
    for root in dict.fromkeys((workspace().resolve(), home())):
        for file, charge in find_charges(root):
            if charge not in known:
                raise PipelineError(
                    f"{file}: charge {charge} is not in the ledger; restore .primorl (or its "
                    "database), or move this file away if another ledger has it"
                )
    if not known and recorded_outputs("train_model"):
        raise PipelineError(
            f"{LOCK}: train_model has run, and the ledger is empty; restore .primorl (or its "
            "database), in a clone share the ledger of the project that paid; only if nobody was "
            "ever charged there, delete dvc.lock"
        )
    if ledger is not None:
        ledger.check_head()


def find_charges(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the charges that models and private answers in a folder name, each with its file."""
    for file in (*sorted((root / MODELS).glob("*/privacy.json")), root / PRIVATE_EVALUATION):
        for charge in _find_charges(read_json(file)) if file.exists() else ():
            yield file, charge


def _find_charges(content: Any) -> Iterator[str]:
    """Yield the charges that a statement and its mechanisms, or private answers, name anywhere."""
    if isinstance(content, dict):
        if isinstance(content.get("charge"), str):
            yield content["charge"]
        content = list(content.values())
    for part in content if isinstance(content, list) else ():
        yield from _find_charges(part)


def budget_of(params: Params, units: int) -> Budget | None:
    """Read the budget of all runs on K ``units`` together; None without a limit.

    Raises:
        PipelineError: δ is so large that it bounds nothing.
    """
    epsilon, delta = params.privacy.budget.epsilon, params.privacy.delta
    if delta >= 1 / units:
        raise PipelineError(
            f"params.yaml: privacy.delta: found {delta!r}, allowed is below 1/{units}"
        )
    return None if epsilon is None else Budget(epsilon, delta)


# ---- the partitions


@dataclass(frozen=True)
class Partitions:
    """The partitioned dataset; `primorl.work.desk` alone opens its private rows.

    Attributes:
        manifest: facts and counts that are declared public.
        public: the public split; it may be empty.
        version: the units, as the ledger knows them.
        account: everything that was charged to the same units when the partitions were opened.
    """

    manifest: Manifest
    public: UnitStore
    version: Version
    account: Account

    @classmethod
    def open(cls, params: Params) -> "Partitions":
        """Read as `read` does, with the ledger that ``params`` name."""
        return cls.read(read_ledger(params))

    @classmethod
    def read(cls, ledger: Ledger | None) -> "Partitions":
        """Read the manifest, the public split and the digests of the units; check all that needs no
        private row.

        Args:
            ledger: of the project, which knows the units that must not be public; None: none was
                begun, or another process has asked it.

        Raises:
            Refused: a public unit was charged for as private.
            PipelineError: a file is missing, broken or of another partition, or was made under
                another secret.
        """
        manifest = Manifest.load(MANIFEST)
        check_secret(manifest)
        version, account = read_version(manifest), Account(())
        if ledger is not None:
            ledger.check_published(manifest.info.dataset, version)
            account = ledger.account(version)
        public = _read_public(manifest, version.public)
        return cls(manifest, public, version, account)

    @property
    def identity(self) -> dict[str, Any]:
        """The dataset's part of the identity of paid work."""
        info, spaces = self.manifest.info, self.manifest.info.spaces
        observations = (spaces.observation_low, spaces.observation_high)
        return {
            "dataset": info.dataset,
            "fingerprint": info.dataset_fingerprint,
            "unit": info.unit,
            "units": [self.manifest.private_units, self.manifest.public_units],
            "members": hashlib.sha256(self.version.members).hexdigest(),
            "horizon": info.horizon,
            "termination": info.termination,
            "environment": info.environment,
            "spaces": str((*observations, spaces.action_low, spaces.action_high)),
            "one_hot": str((spaces.one_hot, spaces.discrete_actions)),
        }


def refuse_stale(partitions: Partitions) -> None:
    """Refuse partitions of other rows than ``data/trajectories`` has: somebody may have withdrawn.

    DVC does not run a stage again for files that a ``.dvcignore`` hides.
    """
    if read_fingerprint() not in (None, partitions.manifest.info.dataset_fingerprint):
        raise PipelineError(
            f"{PARTITIONS}: of other rows than {TRAJECTORIES}; run `dvc repro -f "
            "partition`, and see that no .dvcignore hides files of data/"
        )


def open_public(params: Params) -> UnitStore:
    """Read the public split, once the ledger knows of no charge for one of its units as private.

    Such a split can be there without a charge of its own, brought back by DVC. Outside the trust
    boundary, without the project's secret, this cannot be told.

    Raises:
        Refused: a unit was charged for as private.
        PipelineError: a file is missing or broken, the ledger cannot be read, or the rows are not
            of the units in ``public_units.bin``.
    """
    if not (home() / SECRET).exists():
        return UnitStore.open(PUBLIC)
    manifest = Manifest.load(MANIFEST)
    public = _digests(_PUBLIC_UNITS, manifest, manifest.public_units)
    if public:
        members = b""
        if _UNITS.exists():  # a remote need not have it
            members = _digests(_UNITS, manifest, manifest.private_units)
        refuse_published(params, manifest.info.dataset, version_of(manifest, members, public))
    return _read_public(manifest, public)


def refuse_published(params: Params, dataset: str, version: Version) -> None:
    """Refuse a version with public units that were private before, or the other way round.

    Raises:
        Refused: there is such a unit (`Ledger.publish`). Nothing was written.
    """
    ledger = read_ledger(params)
    if ledger is not None:
        ledger.check_published(dataset, version)


def check_secret(manifest: Manifest) -> None:
    """Check that the partitions were made under the project's secret, before anything is charged to
    their units.

    Under another one the ledger would not recognise the units.

    Raises:
        PipelineError: the secret is another one, or is not there.
    """
    if not (home() / SECRET).exists():
        raise PipelineError(
            f"{home() / SECRET}: not there, and {PARTITIONS} needs it; restore or share .primorl"
        )
    if manifest.secret_check != membership.secret_check(membership.project_secret()):
        raise PipelineError(
            f"{MANIFEST}: secret_check: made under another secret than "
            f"{home() / SECRET}; restore .primorl from its backup, or make them anew: {REMAKE}"
        )


def read_version(manifest: Manifest) -> Version:
    """Return the units of the partitions as the ledger knows them.

    Raises:
        PipelineError: ``units.bin`` or ``public_units.bin`` is missing, or is of another partition.
    """
    members = _digests(_UNITS, manifest, manifest.private_units)
    public = _digests(_PUBLIC_UNITS, manifest, manifest.public_units)
    return version_of(manifest, members, public)


def version_of(manifest: Manifest, members: bytes, public: bytes) -> Version:
    """Return the units of a partition as the ledger knows them, by the digests of its two sides
    (`Membership`).
    """
    info = manifest.info
    return Version(
        info.dataset_fingerprint,
        info.unit,
        manifest.private_units,
        members,
        public,
        population=membership.population_digest(membership.project_secret(), info.population),
        simulated=info.environment is not None,
    )


def _read_public(manifest: Manifest, public: bytes) -> UnitStore:
    """Read the public split and compare its units with the digests in ``public_units.bin``."""
    info = manifest.info
    found = membership.Membership(
        membership.project_secret(), info.population, by_rows=info.duplicates == "refuse"
    )
    rows = UnitStore.open(PUBLIC, found.update)
    if found.to_bytes() != public:
        raise PipelineError(
            f"{_PUBLIC_UNITS}: not of the units in {PUBLIC} under this "
            f"secret, by which the ledger knows them; run {REMAKE}"
        )
    return rows


def _digests(file: Path, manifest: Manifest, units: int) -> bytes:
    """Read the digests of ``units`` units (see `Membership`).

    A trajectory has two. A unit of another kind has at least as many.
    """
    content = file.read_bytes() if file.exists() else b""
    content = b"" if content == membership.NOBODY else content
    least = 2 * membership.DIGEST_BYTES * units
    too_many = manifest.info.unit == "trajectory" and len(content) > least
    if len(content) < least or too_many or len(content) % membership.DIGEST_BYTES:
        raise PipelineError(
            f"{file}: missing, or not of {units} units as manifest.json says; run {REMAKE}"
        )
    return content


def list_assumptions(manifest: Manifest) -> list[str]:
    """List the public facts that the guarantee assumes; none of them may be read off
    private rows.
    """
    info = manifest.info
    simulated = info.environment is not None
    declared = "declared columns, categories and bounds"
    if simulated:
        declared = "environment and its declared spaces"
    split = "that nobody is public"
    if manifest.public_units:
        how = PUBLIC_BY[manifest.public_by]
        split = f"every unit of the public split ({manifest.public_units} units, {how})"
    found = [
        f"the number of private units, {manifest.private_units}",
        split,
        f"observation and action sizes, the {declared}",
        "the declared bounds of observations and rewards",
        "the wall time of the run",
        "which versions of the data share units, and how many charges there were on them",
        "that this result was not picked among others on these units; else all spent counts",
    ]
    if info.horizon is not None:
        by_whom = "as declared or by the environment" if simulated else "as declared"
        found.append(f"episodes of at most {info.horizon} steps, {by_whom}")
    if info.trajectories_per_person is not None:
        most = info.trajectories_per_person
        noun = "trajectory" if most == 1 else "trajectories"
        found.append(f"at most {most} {noun} of one person, declared")
    if info.termination == NONE:
        found.append("that no episode terminates")
    elif info.termination in RULES:
        found.append(f"when an episode ends: the declared rule {info.termination}")
    return found


def observation_bounds(
    bounds: Bounds, manifest: Manifest, public: UnitStore
) -> tuple[Floats, Floats]:
    """Bound model states, [S] each: as declared, or by the environment or the public split; never
    by private data.

    Raises:
        PipelineError: the bounds are infinite, or of another number of dimensions.
    """
    declared = bounds.observation
    spaces = manifest.info.spaces
    size = public.observation_size
    key = f"datasets/{manifest.info.dataset}.yaml: bounds.observation"
    if declared == "public":
        inputs, targets = public.arrays()
        seen = np.concatenate((inputs[:, :size], inputs[:, :size] + targets[:, :size]))
        low, high = seen.min(0), seen.max(0)
    else:
        own = (spaces.observation_low, spaces.observation_high)
        sides = own if declared == "space" else (declared.low, declared.high)
        low, high = (np.asarray(side, np.float32) for side in sides)
    if len(low) != size:
        found = f"found bounds of {len(low)} columns, allowed are those of the data's {size}"
        remedy = "if the entry is right, the data were made with another: run `dvc repro plan`"
        raise PipelineError(f"{key}: {found}; {remedy}")
    if not np.isfinite((low, high)).all():
        raise PipelineError(
            f"{key}: found an unbounded space; set it to public, or declare "
            "{low: [..], high: [..]}"
        )
    for column in (column for pair in bounds.angles for column in pair):
        place = f"datasets/{manifest.info.dataset}.yaml: bounds.angles: found column {column}"
        if column >= size:
            raise PipelineError(f"{place}, allowed are columns from 0 to {size - 1}")
        if declared == "public":
            low[column], high[column] = min(low[column], -1), max(high[column], 1)
        if not low[column] <= -1 <= 1 <= high[column]:
            raise PipelineError(
                f"{place}, of {low[column]:g} to {high[column]:g}; allowed: bounds that hold -1 "
                "and 1"
            )
    return low, high


def check_labels(params: Params, spaces: Spaces) -> None:
    """Refuse declared words for a column, an action or a unit that the data do not have.

    Raises:
        PipelineError: names the key.
    """
    names = [*spaces.observation_names, *spaces.action_names, "reward", params.chosen.unit]
    labels, key = params.chosen.card.labels, f"datasets/{params.dataset}.yaml: card.labels"
    for name, text in labels.items():
        if not any(label(each, {name: ""}) != each for each in names):
            some = ", ".join(names[:_MOST_NAMED])
            found = f"found {name!r}, which is no column of an observation and no action"
            allowed = f"allowed are reward, for the reward's column, and names such as {some}"
            raise PipelineError(f"{key}: {found}; {allowed}")
        if text != name and (text in names or [*labels.values()].count(text) > 1):
            found = f"found {text!r} for {name!r}, which is another's"
            raise PipelineError(f"{key}: {found}; give each its own")
