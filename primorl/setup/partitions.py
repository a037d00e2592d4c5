"""What a stage knows of ``data/partitions`` before it opens the private rows."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.privacy.ledger.ledger import Version
from primorl.setup.accounts import check_secret, dataset_version
from primorl.setup.charged_units import open_public
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitRows

if TYPE_CHECKING:
    from primorl.trajectories.storage.store import UnitStore


@dataclass(frozen=True)
class Partitions:
    """The partitioned dataset without its private rows.

    Attributes:
        folder: ``data/partitions``.
        manifest: facts and counts that are declared public.
        rows: of the public split; there may be none.
        version: the units, as the ledger knows them.
    """

    folder: Path
    manifest: Manifest
    rows: UnitRows
    version: Version

    @classmethod
    def open(cls, folder: Path) -> "Partitions":
        """Read the manifest, the public split and the digests of the units, and check what can be without private rows.

        Raises:
            PipelineError: a file is missing, broken or of another partition, or was made under another secret.
        """
        manifest = Manifest.load(folder / "manifest.json")
        check_secret(manifest, folder)
        version = dataset_version(manifest, folder)
        return cls(folder, manifest, open_public(manifest, version, folder), version)

    @cached_property
    def public(self) -> "UnitStore":
        """The public split; it may be empty."""
        return self.rows

    @property
    def identity(self) -> dict[str, Any]:
        """All that tells these data and what is declared of them from others, for the identity of paid work."""
        info, spaces = self.manifest.info, self.manifest.info.spaces
        return {
            "dataset": info.dataset,
            "fingerprint": info.dataset_fingerprint,
            "unit": info.unit,
            "units": [self.manifest.private_units, self.manifest.public_units],
            "members": hashlib.sha256(self.version.members).hexdigest(),
            "horizon": info.horizon,
            "termination": info.termination,
            "environment": info.environment,
            "spaces": str((spaces.observation_low, spaces.observation_high, spaces.action_low, spaces.action_high)),
            "one_hot": str((spaces.one_hot, spaces.discrete_actions)),
        }
