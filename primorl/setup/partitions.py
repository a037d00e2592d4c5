"""What a stage knows of ``data/partitions`` before it opens the private rows."""

from dataclasses import dataclass
from pathlib import Path

from primorl.privacy.ledger.ledger import Version
from primorl.project.dvc import REMAKE
from primorl.project.errors import PipelineError
from primorl.setup.accounts import check_secret, dataset_version
from primorl.trajectories.identity.fingerprint import project_secret
from primorl.trajectories.identity.membership import Membership
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore


@dataclass(frozen=True)
class Partitions:
    """The partitioned dataset without its private rows.

    Attributes:
        folder: ``data/partitions``.
        manifest: facts and counts that are declared public.
        public: the public split; it may be empty.
        version: the units, as the ledger knows them.
    """

    folder: Path
    manifest: Manifest
    public: UnitStore
    version: Version

    @classmethod
    def open(cls, folder: Path) -> "Partitions":
        """Read the manifest, the public split and the digests of the units, and check what can be without private rows.

        Raises:
            PipelineError: a file is missing, broken or of another partition, or was made under another secret.
        """
        manifest = Manifest.load(folder / "manifest.json")
        check_secret(manifest, folder)
        shown = Membership(project_secret(), manifest.info.dataset, by_rows=manifest.info.duplicates == "refuse")
        public = UnitStore.open(folder / "public", shown.update)
        version = dataset_version(manifest, folder)
        if shown.to_bytes() != version.public:
            raise PipelineError(
                f"{folder / 'public_units.bin'}: not of the units in {folder / 'public'} under this project's secret; "
                f"by it the ledger knows who must not be published; run {REMAKE} to make it again"
            )
        if manifest.secret_check is None and not version.public:
            raise PipelineError(
                f"{folder / 'manifest.json'}: secret_check: not there, as an older version wrote it, so nobody can "
                f"tell whether it was made under this project's secret; run {REMAKE} to make it again"
            )
        return cls(folder, manifest, public, version)
