"""The private rows, opened for `primorl.work.desk` alone: see the import contracts."""

from pathlib import Path

from primorl.data.storage.rows import EVERY, PartReader, UnitStore, Watch

__all__ = ["UnitStore", "open_units"]


def open_units(folder: Path, keep_bytes: int, watch: Watch, own: slice = EVERY) -> UnitStore:
    """Open the partition in ``folder``; see `UnitStore` for arguments and errors."""
    return UnitStore(PartReader(folder, made_by="partition"), watch, own, keep_bytes)
