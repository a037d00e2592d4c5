"""Open private rows, for a granted charge only.

No other module may: see the import contracts in pyproject.toml.
"""

from primorl.base.dvc import REMAKE
from primorl.base.errors import PipelineError
from primorl.data.identity.membership import Membership, project_secret
from primorl.data.private import open_units
from primorl.data.storage.rows import EVERY, UnitStore
from primorl.privacy.ledger.history import Charge
from primorl.work.partitions import Partitions

ALLOWED_STAGES = ("train_model", "clone_behaviour", "evaluate_private")
"""Stages that may open private rows, each for a charge of its own."""


def open_private(
    partitions: Partitions,
    charge: Charge | None,
    keep_bytes: int,
    own: slice = EVERY,
) -> UnitStore:
    """Open the private units, which must be those that the charge was made on.

    Args:
        partitions: of the units.
        charge: that the ledger granted; None: this is not the first of several processes, and the
            first one, which holds the charge, has announced the grant.
        keep_bytes: how much of the rows may stay in memory.
        own: the units of this process; all are read, and compared with the account.

    Raises:
        ValueError: the charge is not of a stage in `ALLOWED_STAGES`, or it was aborted.
        PipelineError: a file is missing or broken, or the rows are not of the units in the account.
    """
    if charge is not None and (
        charge.stage.partition(":")[0] not in ALLOWED_STAGES or charge.state == "aborted"
    ):
        raise ValueError(
            f"charge {charge.id} of {charge.stage} ({charge.state}) opens no private rows"
        )
    info = partitions.manifest.info
    found = Membership(project_secret(), info.population)
    store = open_units(partitions.folder / "private", keep_bytes, found.update, own)
    if store.info != info or found.to_bytes() != partitions.version.members:
        raise PipelineError(
            f"{partitions.folder}: its parts are of different partitions; run {REMAKE}"
        )
    return store
