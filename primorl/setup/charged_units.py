"""The rows of the public and private units, held against what the ledger knows of them."""

from pathlib import Path
from typing import TYPE_CHECKING

from primorl.privacy.ledger.ledger import Version
from primorl.project.dvc import REMAKE
from primorl.project.errors import PipelineError
from primorl.trajectories.identity.fingerprint import project_secret
from primorl.trajectories.identity.membership import Membership
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import EVERY, UnitRows

if TYPE_CHECKING:
    from primorl.trajectories.storage.store import ShardedStore, UnitStore


def open_public(manifest: Manifest, version: Version, partitions: Path) -> UnitRows:
    """The public units, which are those that the ledger is told to be public.

    Raises:
        PipelineError: a file is missing or broken, or the rows are not of these units under this project's secret.
    """
    info = manifest.info
    found = Membership(project_secret(), info.dataset, info.population, by_rows=info.duplicates == "refuse")
    rows = UnitRows.open(partitions / "public", found.update)
    if found.to_bytes() != version.public:
        raise PipelineError(
            f"{partitions / 'public_units.bin'}: not of the units in {partitions / 'public'} under this project's "
            f"secret; by it the ledger knows who must not be published; run {REMAKE} to make it again"
        )
    if manifest.secret_check is None and not version.public:
        raise PipelineError(
            f"{partitions / 'manifest.json'}: secret_check: not there, as an older version wrote it, so nobody can "
            f"tell whether it was made under this project's secret; run {REMAKE} to make it again"
        )
    return rows


def open_private(
    manifest: Manifest,
    version: Version,
    partitions: Path,
    keep_bytes: int,
    own: slice = EVERY,
    *,
    episodes: bool = False,
) -> "UnitStore | ShardedStore":
    """The private units, which are those that were charged.

    Args:
        manifest: of the partitions.
        version: whose account was charged.
        partitions: their folder.
        keep_bytes: how much of the rows may stay in memory.
        own: which of them are this process's; all are read, and held against the account.
        episodes: whether the store also tells where trajectories begin and what the log says of its behaviour.

    Raises:
        PipelineError: a file is missing or broken, or the rows are not of the units in the account.
    """
    from primorl.trajectories.storage.store import open_units

    folder = partitions / "private"
    found = Membership(project_secret(), manifest.info.dataset, manifest.info.population)
    store = open_units(folder, keep_bytes, found.update, own, episodes=episodes)
    if store.info != manifest.info or found.to_bytes() != version.members:
        raise PipelineError(f"{partitions}: its parts are of different partitions; run {REMAKE}")
    return store
