"""One partition, ready for gathers: training reads its cohorts from memory, or row group by row group."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from primorl.trajectories.storage.loading import EVERY, memory_for, row_bytes
from primorl.trajectories.storage.memory import UnitStore
from primorl.trajectories.storage.parquet import PartReader
from primorl.trajectories.storage.sharded import Ring, ShardedStore

__all__ = ["EVERY", "Ring", "ShardedStore", "UnitStore", "open_units", "row_bytes"]


def open_units(
    folder: Path, keep_bytes: int, watch: Callable[[pa.Table], None], own: slice = EVERY, *, episodes: bool = False
) -> UnitStore | ShardedStore:
    """The partition in ``folder``: in memory where it fits into ``keep_bytes``, else read as it is needed.

    Args:
        folder: of one partition.
        keep_bytes: how much of it may stay in memory.
        watch: is shown every batch of rows once.
        own: which units are handed out.
        episodes: whether `begins` and `behaviour_probabilities` will be asked for.

    Raises:
        PipelineError: if files are missing, corrupt or out of order, or memory runs out; it quotes no value.
    """
    reader = PartReader(folder, made_by="partition")
    with memory_for(folder):
        if int(reader.index().lengths[own].sum()) * row_bytes(reader.info, episodes=episodes) <= keep_bytes:
            return UnitStore.read(reader, watch, own)
        return ShardedStore(folder, keep_bytes, watch, own, reader, episodes=episodes)
