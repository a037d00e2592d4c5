"""One partition, ready for gathers: what training reads its cohorts from, in memory or row group by row group."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import embedding

from primorl.project.errors import PipelineError
from primorl.trajectories.storage.parquet import Index, PartReader
from primorl.trajectories.storage.schema import DatasetInfo, Spaces, action_vectors, run_starts, vectors

Floats = npt.NDArray[np.float32]

_COLUMNS = ["observation", "action", "reward", "next_observation", "terminated"]
_READERS = 2  # decoding lets go of Python's lock
EVERY = slice(None)
"""All units, where a store may be of some: of several processes each holds its own."""


class UnitStore:
    """The units of one partition in memory, ragged: contiguous float32 rows and the offset of each unit.

    U units, R transitions, observations of size S and actions of size A. Units are numbered 0 … U - 1 in
    the order of their ids. An input row is (observation, action), a target row is
    (next_observation - observation, reward, terminated).

    Attributes:
        info: the dataset's public facts.
        units: U.
        observation_size: S.
        action_size: A.
        numbers: which of the partition's units these are, int64 [U], ascending.
    """

    def __init__(
        self,
        info: DatasetInfo,
        inputs: Tensor,
        targets: Tensor,
        unit_starts: Tensor,
        trajectory_starts: Tensor,
        numbers: Tensor | None = None,
    ):
        self.info = info
        self.units = len(unit_starts)
        self.numbers = torch.arange(self.units) if numbers is None else numbers
        self.observation_size = info.spaces.observation_size
        self.action_size = info.spaces.action_size
        self._inputs = inputs
        self._targets = targets
        self._starts = unit_starts
        self._lengths = torch.diff(unit_starts, append=torch.tensor([len(inputs)]))
        self._trajectory_starts = trajectory_starts

    @classmethod
    def open(cls, folder: Path, watch: Callable[[pa.Table], None] = lambda table: None, own: slice = EVERY) -> Self:
        """Load the partition in ``folder``, batch by batch.

        Args:
            folder: of one partition.
            watch: is shown every batch of rows on its way, also those that are not kept.
            own: which units are kept.

        Raises:
            PipelineError: files are missing, corrupt or out of order; the message quotes no value.
        """
        reader = PartReader(folder, made_by="partition")
        S, A = reader.info.spaces.observation_size, reader.info.spaces.action_size
        lengths = reader.index().lengths
        kept_units = np.zeros(len(lengths), dtype=bool)
        kept_units[own] = True
        numbers, rows = np.flatnonzero(kept_units), int(lengths[own].sum())
        ends = np.cumsum(lengths)
        inputs = np.empty((rows, S + A), dtype=np.float32)
        targets = np.empty((rows, S + 2), dtype=np.float32)
        everybody, units, trajectories = _Runs("unit_id"), _Runs("unit_id"), _Runs("trajectory_id")
        seen = row = 0
        for table in reader.tables():
            everybody.add(table, seen)
            watch(table)
            if rows < reader.rows:
                unit = np.searchsorted(ends, np.arange(seen, seen + table.num_rows), side="right")
                kept = table.filter(pa.array(kept_units[unit]))
            else:
                kept = table
            _fill(kept, reader.info.spaces, inputs[row : row + kept.num_rows], targets[row : row + kept.num_rows])
            units.add(kept, row)
            trajectories.add(kept, row)
            seen += table.num_rows
            row += kept.num_rows
        _check_order(everybody, seen, lengths, folder)
        if not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
            raise _not_finite(folder)
        unit_starts = units.starts()
        trajectory_starts = np.union1d(trajectories.starts(), unit_starts)
        found = map(torch.from_numpy, (inputs, targets, unit_starts, trajectory_starts, numbers))
        return cls(reader.info, *found)

    def lengths(self, units: Tensor) -> Tensor:
        """How many transitions each unit has: int64 [U] of unit numbers to int64 [U]."""
        return self._lengths[units]

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen transitions of each unit.

        A step past a unit's end gives the unit's own last transition: padding, which the caller's mask
        drops, never touches another unit's data.

        Args:
            units: int64 [U], unit numbers.
            steps: int64 [U, M], from 0, within each unit.

        Returns:
            Inputs [U, M, S + A] and targets [U, M, S + 2], float32.
        """
        rows = self._starts[units, None] + torch.minimum(steps, self._lengths[units, None] - 1)
        return embedding(rows, self._inputs), embedding(rows, self._targets)  # three times as fast as an index

    def flat(self) -> tuple[Tensor, Tensor]:
        """All inputs [R, S + A] and targets [R, S + 2]: views, not copies."""
        return self._inputs, self._targets

    def first_observations(self) -> Tensor:
        """The first observation of every trajectory, float32 [trajectories, S]."""
        return self._inputs[self._trajectory_starts, : self.observation_size]

    def terminated(self) -> Tensor:
        """Whether each transition ended in a terminal state, bool [R]; a truncation is no such end."""
        return self._targets[:, -1] > 0


class ShardedStore:
    """The same units on disk: a cohort touches only the row groups it lies in; the latest of them stay in memory.

    They stay in a ring of rows of fixed size: a row group that comes in overwrites the oldest. Which ones are there
    depends on earlier cohorts, so the time of a round does too: the wall time of a run is among what `privacy.json`
    assumes public.

    Args:
        folder: of one partition.
        keep_bytes: the size of the ring; one cohort's row groups are held even if they need more.
        watch: is shown every batch of rows once, before the store is used, and every number is checked.
        own: which units are handed out.

    Raises:
        PipelineError: files are missing, corrupt or out of order; the message quotes no value.
    """

    def __init__(
        self, folder: Path, keep_bytes: int, watch: Callable[[pa.Table], None] | None = None, own: slice = EVERY
    ):
        self._reader = PartReader(folder, made_by="partition")
        self._folder = folder
        self.info = self._reader.info
        self.observation_size = self.info.spaces.observation_size
        self.action_size = self.info.spaces.action_size
        whole = self._reader.index()
        self._index: Index = replace(
            whole,
            lengths=whole.lengths[own],
            group_of=whole.group_of[own],
            start_in_group=whole.start_in_group[own],
        )
        self.numbers = torch.arange(len(whole.lengths))[own]
        self.units = len(self.numbers)
        self._lengths = torch.from_numpy(self._index.lengths.copy())
        self._group_rows = np.bincount(whole.group_of, whole.lengths, len(whole.groups)).astype(int)
        rows = min(keep_bytes // row_bytes(self.info.spaces), self._reader.rows)
        self._ring = Ring(rows, self.observation_size + self.action_size, self.observation_size + 2)
        if watch is not None:
            self._show(watch, whole.lengths)

    def lengths(self, units: Tensor) -> Tensor:
        """See `UnitStore.lengths`."""
        return self._lengths[units]

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `UnitStore.transitions`.

        Raises:
            PipelineError: a row group is corrupt.
        """
        numbers = units.numpy()
        groups, place = np.unique(self._index.group_of[numbers], return_inverse=True)
        self._fetch(groups)
        begins = self._ring.begin_of(groups)[place] + self._index.start_in_group[numbers]
        rows = torch.from_numpy(begins)[:, None] + torch.minimum(steps, self._lengths[units, None] - 1)
        return embedding(rows, self._ring.inputs), embedding(rows, self._ring.targets)

    def _fetch(self, groups: npt.NDArray[np.int64]) -> None:
        """Bring row groups into the ring, those of one part in one read."""
        missing = self._ring.place(groups, self._group_rows[groups])
        by_part: dict[int, list[int]] = {}
        for group in missing:
            by_part.setdefault(self._index.groups[group][0], []).append(group)
        with ThreadPoolExecutor(_READERS) as pool:
            try:
                for _ in pool.map(self._decode, by_part.items()):
                    pass
            except PipelineError:
                self._ring.forget(missing)
                raise

    def _decode(self, job: tuple[int, list[int]]) -> None:
        part, groups = job
        table = self._reader.row_groups(part, [self._index.groups[group][1] for group in groups], _COLUMNS)
        # Ascending, so they lie one after the other in the ring too.
        _fill(table, self.info.spaces, *self._ring.slices(groups[0], table.num_rows))

    def _show(self, watch: Callable[[pa.Table], None], lengths: npt.NDArray[np.int64]) -> None:
        units, row = _Runs("unit_id"), 0
        for table in self._reader.tables():
            for name in ("observation", "next_observation", "reward"):
                numbers = vectors(table[name]) if name != "reward" else table[name].to_numpy()
                if not np.isfinite(numbers).all():
                    raise _not_finite(self._folder)
            units.add(table, row)
            watch(table)
            row += table.num_rows
        _check_order(units, row, lengths, self._folder)


class Ring:
    """Row groups in two matrices of rows, the oldest overwritten by the newest.

    Args:
        rows: how many there is room for at least.
        width: columns of ``inputs``.
        target_width: columns of ``targets``.

    Attributes:
        inputs: [rows, width].
        targets: [rows, target_width].
    """

    def __init__(self, rows: int, width: int, target_width: int):
        self.inputs = torch.empty(rows, width)
        self.targets = torch.empty(rows, target_width)
        self._next = 0
        self._held: OrderedDict[int, tuple[int, int]] = (
            OrderedDict()
        )  # row group: first row, and the row after its last

    def __len__(self) -> int:
        return len(self._held)

    def begin_of(self, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first row of each row group, all of which are held."""
        return np.array([self._held[group][0] for group in groups.tolist()], dtype=np.int64)

    def slices(self, group: int, rows: int) -> tuple[Floats, Floats]:
        """Where ``rows`` rows go, of a row group and those that were placed after it."""
        begin = self._held[group][0]
        return self.inputs[begin : begin + rows].numpy(), self.targets[begin : begin + rows].numpy()

    def place(self, groups: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> list[int]:
        """Make room for all of ``groups`` at once, ascending; return those whose rows are still to be filled in."""
        missing = [
            (group, n) for group, n in zip(groups.tolist(), rows.tolist(), strict=True) if group not in self._held
        ]
        wanted = set(groups.tolist())
        needed = sum(n for _, n in missing)
        begin = self._next if self._next + needed <= len(self.inputs) else 0
        end = begin + needed
        gone = [group for group, (a, b) in self._held.items() if a < end and b > begin]
        if end > len(self.inputs) or any(group in wanted for group in gone):
            # What this cohort wants would overwrite itself: begin again with room for all of it.
            self._held.clear()
            missing = list(zip(groups.tolist(), rows.tolist(), strict=True))
            begin, total = 0, int(rows.sum())
            if total > len(self.inputs):
                self.inputs = torch.empty(total, self.inputs.shape[1])
                self.targets = torch.empty(total, self.targets.shape[1])
        else:
            self.forget(gone)
        for group, n in missing:
            self._held[group] = (begin, begin + n)
            begin += n
        self._next = begin
        return [group for group, _ in missing]

    def forget(self, groups: list[int]) -> None:
        """Hold these no longer."""
        for group in groups:
            self._held.pop(group, None)


def row_bytes(spaces: Spaces) -> int:
    """Memory of one transition."""
    return 4 * (2 * spaces.observation_size + spaces.action_size + 2)


def open_units(
    folder: Path, keep_bytes: int, watch: Callable[[pa.Table], None], own: slice = EVERY
) -> UnitStore | ShardedStore:
    """The partition in ``folder``: in memory where it fits into ``keep_bytes``, else read as it is needed.

    Args:
        folder: of one partition.
        keep_bytes: how much of it may stay in memory.
        watch: is shown every batch of rows once.
        own: which units are handed out.

    Raises:
        PipelineError: files are missing, corrupt or out of order; the message quotes no value.
    """
    reader = PartReader(folder, made_by="partition")
    if int(reader.index().lengths[own].sum()) * row_bytes(reader.info.spaces) <= keep_bytes:
        return UnitStore.open(folder, watch, own)
    return ShardedStore(folder, keep_bytes, watch, own)


def _fill(table: pa.Table, spaces: Spaces, inputs: Floats, targets: Floats) -> None:
    """Write the rows of ``table`` into ``inputs`` [R, S + A] and ``targets`` [R, S + 2]."""
    S = spaces.observation_size
    observation = vectors(table["observation"])
    inputs[:, :S] = observation
    inputs[:, S:] = action_vectors(table, spaces)
    np.subtract(vectors(table["next_observation"]), observation, out=targets[:, :S])
    targets[:, S] = table["reward"].to_numpy()
    targets[:, S + 1] = table["terminated"].to_numpy()


def _check_order(units: "_Runs", rows: int, lengths: npt.NDArray[np.int64], folder: Path) -> None:
    """Refuse units that are out of order, or whose index is another's: it says whose rows are whose."""
    if not units.ascending() or not np.array_equal(np.diff([*units.starts(), rows]), lengths):
        raise _disordered(folder)


def _disordered(folder: Path) -> PipelineError:
    return PipelineError(
        f"{folder}: units are out of order or appear twice; run `dvc repro partition` to make it again"
    )


def _not_finite(folder: Path) -> PipelineError:
    return PipelineError(
        f"{folder}: found non-finite numbers, allowed none; run `dvc repro ingest` to check the data again"
    )


class _Runs:
    """Where the value of a text column changes, over all batches."""

    def __init__(self, column: str):
        self._column = column
        self._starts: list[npt.NDArray[np.int64]] = []
        self._names: list[npt.NDArray[np.object_]] = []

    def add(self, table: pa.Table, row: int) -> None:
        column = table[self._column]
        starts = run_starts(column)
        names = column.take(starts).to_numpy()
        if self._names and len(names) > 0 and names[0] == self._names[-1][-1]:
            starts, names = starts[1:], names[1:]
        if len(names) > 0:
            self._starts.append(starts + row)
            self._names.append(names)

    def starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate([np.empty(0, dtype=np.int64), *self._starts])

    def ascending(self) -> bool:
        names = np.concatenate([np.empty(0, dtype=object), *self._names])
        return bool((names[1:] > names[:-1]).all())
