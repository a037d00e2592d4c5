"""The partitioned data as a stage knows them before it pays, and privacy statements about them."""

import hashlib
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import PUBLIC_BY, Manifest
from primorl.model.termination import NONE, RULES
from primorl.privacy.ledger.account import Account
from primorl.privacy.ledger.history import Version
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import Statement
from primorl.tracking import StageRun
from primorl.work.accounts import begun_ledger, check_secret, dataset_version, read_public


@dataclass(frozen=True)
class Partitions:
    """The partitioned dataset; `primorl.work.private.open_private` alone opens its private rows.

    Attributes:
        folder: ``data/partitions``.
        manifest: facts and counts that are declared public.
        public: the public split; it may be empty.
        version: the units, as the ledger knows them.
        account: everything that was charged to the same units when the partitions were opened.
    """

    folder: Path
    manifest: Manifest
    public: UnitStore
    version: Version
    account: Account

    @classmethod
    def open(cls, folder: Path, params: Params | None) -> "Partitions":
        """Read the manifest, the public split and the digests of the units; check all that needs no
        private row.

        Args:
            folder: ``data/partitions``.
            params: name the ledger, which knows the units that must not be public; None: another
                process has asked it.

        Raises:
            PipelineError: see `read`; or the ledger cannot be read.
        """
        ledger = None if params is None else begun_ledger(params)
        with nullcontext() if ledger is None else closing(ledger):
            return cls.read(folder, ledger)

    @classmethod
    def read(cls, folder: Path, ledger: Ledger | None) -> "Partitions":
        """Read and check as `open` does, with the project's ledger open already; None: none was
        begun.

        Raises:
            Refused: a public unit was charged for as private.
            PipelineError: a file is missing, broken or of another partition, or was made under
                another secret.
        """
        manifest = Manifest.load(folder / "manifest.json")
        check_secret(manifest, folder)
        version, account = dataset_version(manifest, folder), Account(())
        if ledger is not None:
            ledger.check_published(manifest.info.dataset, version)
            account = ledger.account(version)
        return cls(
            folder, manifest, read_public(manifest, folder, version.public), version, account
        )

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


def privacy_statement(plan: Plan, manifest: Manifest) -> Statement:
    """State a model's privacy, before payment."""
    statement = plan.statement(
        dataset_fingerprint=manifest.info.dataset_fingerprint,
        public_assumptions=assumptions(manifest),
        termination=manifest.info.termination,
    )
    return replace(
        statement,
        public_units=manifest.public_units,
        trajectories_per_person=manifest.info.trajectories_per_person,
    )


def assumptions(manifest: Manifest) -> list[str]:
    """List the public facts that the guarantee assumes; none of them may be read off
    private rows.
    """
    info = manifest.info
    simulated = info.environment is not None
    declared = (
        "environment and its declared spaces"
        if simulated
        else "declared columns, categories and bounds"
    )
    assumptions = [
        f"the number of private units, {manifest.private_units}",
        f"every unit of the public split ({manifest.public_units} units, "
        f"{PUBLIC_BY[manifest.public_by]})"
        if manifest.public_units
        else "no unit: there is no public split",
        f"observation and action sizes, the {declared}",
        "the declared bounds of observations and rewards",
        "the wall time of the run",
        "which versions of the data share units, and how many charges there were on them",
    ]
    if info.horizon is not None:
        by_whom = "as declared or by the environment" if simulated else "as declared"
        assumptions.append(f"episodes of at most {info.horizon} steps, {by_whom}")
    if info.trajectories_per_person is not None:
        assumptions.append(
            f"at most {info.trajectories_per_person} trajectories of one person, as declared"
        )
    if info.termination == NONE:
        assumptions.append("that no episode terminates")
    elif info.termination in RULES:
        assumptions.append(f"when an episode ends: the declared rule {info.termination}")
    return assumptions


def log_statement(run: StageRun, statement: Statement) -> None:
    """Tag the run with the statement. ε is that of the reservation, also where training stopped
    early.

    It is no metric here: the pipeline's run has that, so that a search by ε lists every result
    once.
    """
    for key in ("private", "epsilon", "delta", "noise_multiplier", "unit", "dataset_fingerprint"):
        run.tag(key, str(getattr(statement, key)))
