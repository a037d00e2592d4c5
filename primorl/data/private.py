"""One partition, ready for gathers: in memory, or on disk with the row groups used last in
memory.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding

from primorl.base.errors import PipelineError
from primorl.data.storage.parquet import PartReader
from primorl.data.storage.rows import EVERY, UnitStore, Watch, checked_tables, memory_for, row_bytes
from primorl.data.storage.schema import action_vectors, vectors

__all__ = ["ShardedStore", "UnitStore", "open_units"]

_COLUMNS = ["observation", "action", "reward", "next_observation", "terminated", "step"]
_READERS = 2  # decoding lets go of Python's lock


def open_units(
    folder: Path, keep_bytes: int, watch: Watch, own: slice = EVERY
) -> "UnitStore | ShardedStore":
    """Open the partition in ``folder``: in memory where it fits into ``keep_bytes``, else read as
    it is needed.

    Args:
        folder: of one partition.
        keep_bytes: how much of it may stay in memory.
        watch: is shown every batch of rows once.
        own: which units are handed out.

    Raises:
        PipelineError: if files are missing, corrupt or out of order, or memory runs out; it quotes
            no value.
    """
    reader = PartReader(folder, made_by="partition")
    rows = int(reader.index().lengths[own].sum())
    if rows * row_bytes(reader.info) <= keep_bytes:
        return UnitStore(reader, watch, own)
    return ShardedStore(reader, keep_bytes, watch, own)


class ShardedStore:
    """The same units on disk: a cohort touches only the row groups it lies in; the latest of them
    stay in memory.

    They stay in a ring of rows of fixed size: a row group that comes in overwrites the oldest.
    Which ones are there depends on earlier cohorts, so the time of a round does too: the wall time
    of a run is among what `privacy.json` assumes public.

    Args:
        reader: of one partition.
        keep_bytes: the size of the ring; one cohort's row groups are held even if they need more.
        watch: is shown every batch of rows once, before the store is used, and every number is
            checked.
        own: which units are handed out.

    Raises:
        PipelineError: if files are missing, corrupt or out of order, or memory runs out; it quotes
            no value.
    """

    def __init__(self, reader: PartReader, keep_bytes: int, watch: Watch, own: slice = EVERY):
        self._reader = reader
        self.info, spaces = reader.info, reader.info.spaces
        self.observation_size, self.action_size = S, A = spaces.observation_size, spaces.action_size
        index = reader.index()
        self._groups = index.groups
        self._group_of, self._start = index.group_of[own], index.start_in_group[own]
        self._lengths = torch.from_numpy(index.lengths[own].copy())
        self.numbers = torch.arange(len(index.lengths))[own]
        self.units = len(self.numbers)
        self._group_rows = np.bincount(index.group_of, index.lengths, len(index.groups)).astype(int)
        with memory_for(reader.folder):
            rows = min(keep_bytes // row_bytes(self.info), reader.rows)
            self._ring = Ring(rows, S + A, S + 2, 1)
            for table in checked_tables(reader):
                watch(table)

    def lengths(self, units: Tensor) -> Tensor:
        """See `UnitStore.lengths`."""
        return self._lengths[units]

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `UnitStore.transitions`; a corrupt row group, or memory that runs out, is a
        `PipelineError`.
        """
        rows = self._chosen(units, steps)
        inputs, targets, _ = self._ring.matrices
        return embedding(rows, inputs), embedding(rows, targets)  # three times as fast as an index

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        """See `UnitStore.begins`."""
        return embedding(self._chosen(units, steps), self._ring.matrices[2])[..., 0] > 0

    def _chosen(self, units: Tensor, steps: Tensor) -> Tensor:
        """Bring the chosen transitions into the ring; return their places in it, int64 [U, M]."""
        numbers = units.numpy()
        groups, place = np.unique(self._group_of[numbers], return_inverse=True)
        with memory_for(self._reader.folder):
            self._fetch(groups)
        begins = np.array([self._ring.held[group][0] for group in groups.tolist()], dtype=np.int64)
        first = torch.from_numpy(begins[place] + self._start[numbers])
        return first[:, None] + torch.minimum(steps, self._lengths[units, None] - 1)

    def _fetch(self, groups: npt.NDArray[np.int64]) -> None:
        """Bring row groups into the ring, those of one part in one read."""
        missing = self._ring.place(groups, self._group_rows[groups])
        by_part: dict[int, list[int]] = {}
        for group in missing:
            by_part.setdefault(self._groups[group][0], []).append(group)
        with ThreadPoolExecutor(_READERS) as pool:
            try:
                for _ in pool.map(self._decode, by_part.items()):
                    pass
            except (PipelineError, MemoryError):
                self._ring.forget(missing)
                raise

    def _decode(self, job: tuple[int, list[int]]) -> None:
        part, groups = job
        own_groups = [self._groups[group][1] for group in groups]
        table = self._reader.row_groups(part, own_groups, _COLUMNS)
        begin, S = self._ring.held[groups[0]][0], self.observation_size
        # Ascending, so they lie one after the other in the ring too.
        own = slice(begin, begin + table.num_rows)
        inputs, targets, begins = (matrix[own].numpy() for matrix in self._ring.matrices)
        observation = vectors(table["observation"])
        inputs[:, :S] = observation
        inputs[:, S:] = action_vectors(table, self.info.spaces)
        np.subtract(vectors(table["next_observation"]), observation, out=targets[:, :S])
        targets[:, S] = table["reward"].to_numpy()
        targets[:, S + 1] = table["terminated"].to_numpy()
        begins[:, 0] = table["step"].to_numpy() == 0  # ingest has checked that steps count from 0


class Ring:
    """Row groups in matrices of rows, the oldest overwritten by the newest.

    Args:
        rows: how many there is room for at least.
        widths: columns of each matrix.

    Attributes:
        matrices: inputs, targets, and whether the row begins a trajectory.
        held: of each row group its first row, and the row after its last.
    """

    def __init__(self, rows: int, *widths: int):
        self.matrices = [_matrix(rows, width) for width in widths]
        self.held: dict[int, tuple[int, int]] = {}
        self._next = 0

    def place(self, groups: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> list[int]:
        """Make room for all of ``groups`` at once, ascending; return those with rows still to be
        filled in.
        """
        wanted = dict(zip(groups.tolist(), rows.tolist(), strict=True))
        missing = {group: n for group, n in wanted.items() if group not in self.held}
        room, needed = len(self.matrices[0]), sum(missing.values())
        begin = self._next if self._next + needed <= room else 0
        end = begin + needed
        # Groups are held in the order in which they came, so those in the way are the first. Where
        # the ring begins anew, the groups behind the last one are older still, and go with them.
        wrapped = begin < self._next
        in_the_way = takewhile(
            lambda item: (
                (begin < item[1][1] and item[1][0] < end) or (wrapped and item[1][0] >= self._next)
            ),
            self.held.items(),
        )
        gone = [group for group, _ in in_the_way]
        if end > room or any(group in wanted for group in gone):
            # What this cohort wants would overwrite itself: begin again with room for all of it.
            needed = sum(wanted.values())
            if needed > room:
                self.matrices = [_matrix(needed, own.shape[1]) for own in self.matrices]
            self.held.clear()
            missing, begin = wanted, 0
        self.forget(gone)
        for group, n in missing.items():
            self.held[group] = (begin, begin + n)
            begin += n
        self._next = begin
        return list(missing)

    def forget(self, groups: list[int]) -> None:
        """Hold these no longer."""
        for group in groups:
            self.held.pop(group, None)


def _matrix(rows: int, columns: int) -> Tensor:
    """Memory that is not filled.

    Torch's own call would raise a bare RuntimeError where there is none left.
    """
    return torch.from_numpy(np.empty((rows, columns), dtype=np.float32))
