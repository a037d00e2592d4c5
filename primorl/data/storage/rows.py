"""Rows of whole units: written to and read from one Parquet file in batches, and the store of a
partition in memory: arrays for the statistics of its rows, tensors for training.

Loading this module needs no torch: it is imported when tensors are first asked for.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from primorl.base import PipelineError
from primorl.base.dvc import Status
from primorl.base.files import MANIFEST, MODEL, TRAJECTORIES, read_json
from primorl.data.storage.schema import (
    IDS,
    Array,
    DatasetInfo,
    Floats,
    Ints,
    action_vectors,
    numbers,
    run_starts,
    trajectory_starts,
    vectors,
)

if TYPE_CHECKING:
    from torch import Tensor


FILE = "rows.parquet"
ROWS_PER_GROUP = ROWS_PER_BATCH = 2**16
_PAGE_BYTES = 2**23  # pages of the usual size cost a third of the time to write


class PartWriter(ExitStack):
    """Writes tables of whole units into ``folder``.

    The file carries the dataset's facts, which may be known only after the last row: `finish`
    writes them.

    Args:
        folder: an empty folder.
        schema: of the dataset.
        rows_per_group: how many rows a row group has, unless it is the last.
    """

    def __init__(self, folder: Path, schema: pa.Schema, rows_per_group: int = ROWS_PER_GROUP):
        super().__init__()  # of the open file
        self._schema, self._rows_per_group = schema, rows_per_group
        self._waiting: list[pa.Table] = []
        self._file = self.enter_context(
            pq.ParquetWriter(
                folder / FILE,
                schema,
                use_dictionary=list(IDS),
                # measured numbers hardly shrink
                compression="none",
                write_statistics=False,
                data_page_size=_PAGE_BYTES,
                write_page_checksum=True,
            )
        )

    def write(self, table: pa.Table) -> None:
        """Append a table of whole units."""
        self._waiting.append(table)
        if sum(table.num_rows for table in self._waiting) >= self._rows_per_group:
            self._encode(rest=False)

    def finish(self, info: DatasetInfo) -> None:
        """Write what waits and the dataset's facts; without this the file is not complete."""
        self._encode(rest=True)
        self._file.add_key_value_metadata(info.to_metadata())

    def _encode(self, *, rest: bool) -> None:
        """Write what waits, without the ``rest`` that fills no row group yet.

        Where groups end depends on the rows alone, not on the tables they come in: those of public
        rows tell how many private ones lie between them.
        """
        batch = pa.concat_tables([self._schema.empty_table(), *self._waiting]).combine_chunks()
        rows = batch.num_rows
        if not rest:
            rows -= rows % self._rows_per_group
        self._waiting = [batch.slice(rows)]
        if rows > 0:
            self._file.write_table(batch.slice(0, rows), row_group_size=self._rows_per_group)


def whole_units(batches: Iterable[pa.Table], unit: str) -> Iterator[pa.Table]:
    """Cut rows where a unit ends: no unit is in two tables."""
    waiting: list[pa.Table] = []
    for batch in batches:
        starts = run_starts(batch[unit])
        if waiting and batch[unit][0] != waiting[-1][unit][-1]:
            yield pa.concat_tables(waiting)
            waiting = []
        if starts[-1] > 0:
            yield pa.concat_tables([*waiting, batch.slice(0, starts[-1])])
            waiting = []
        waiting.append(batch.slice(starts[-1]))
    if waiting:
        yield pa.concat_tables(waiting)


def read_fingerprint() -> str | None:
    """Read the fingerprint of ``data/trajectories``; None: they are not here, as on a remote."""
    if not (TRAJECTORIES / FILE).exists():
        return None
    return PartReader(TRAJECTORIES, "ingest").info.dataset_fingerprint


def data_changed(status: Status | None = None) -> bool:
    """Tell whether trajectories or partitions are of other data than the model; with a status, also
    whether they will be.
    """
    with suppress(PipelineError):  # DVC cannot say, as while a run is under way
        if status is not None and status.has_other_people():
            return True
    files, key = (MANIFEST, MODEL / "privacy.json"), "dataset_fingerprint"
    known = {read_json(file).get(key) for file in files if file.exists()}
    return len((known | {read_fingerprint()}) - {None}) > 1


NEWER = (
    "of the data as they were: people joined, left or withdrew since, or the entry changed; "
    "`primorl run` makes it anew, and says first what that charges"
)
"""What is said of results where `data_changed`."""


def describe_change(status: Status) -> str | None:
    """Say what results are to be warned of where `data_changed`, or where that cannot be told as
    private rows cannot be read; None: nothing.
    """
    try:
        return NEWER if data_changed(status) else None
    except (PipelineError, OSError) as error:  # no result needs the rows
        return f"whether people left since is not known: {error}"


class PartReader:
    """The rows in ``folder``.

    Args:
        folder: what ``PartWriter`` filled.
        made_by: the stage that makes it, for errors.

    Raises:
        PipelineError: if there is no file, or it is unreadable or no dataset's.
    """

    def __init__(self, folder: Path, made_by: str):
        self._repair = f"run `dvc repro {made_by}` to make it again"
        self.folder, self._path = folder, folder / FILE
        form = {"page_checksum_verification": True, "pre_buffer": False}
        try:
            self._file = pq.ParquetFile(self._path, **form)
        except (OSError, pa.ArrowException) as broken:
            there = not isinstance(broken, FileNotFoundError)
            found = "not a readable Parquet file" if there else "not there"
            raise PipelineError(f"{self._path}: {found}; {self._repair}") from None
        self.info = DatasetInfo.from_metadata(self._file.metadata.metadata, self._path)
        if not self._file.schema_arrow.equals(self.info.schema):
            raise PipelineError(f"{self._path}: columns are not the dataset's; {self._repair}")
        self.rows = self._file.metadata.num_rows

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Read whole units, about ``ROWS_PER_BATCH`` rows at a time.

        Args:
            columns: of the tables, ``unit_id`` among them; None: all.

        Raises:
            PipelineError: if they cannot be decoded.
        """
        return whole_units(self._batches(columns), "unit_id")

    def _batches(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        rows = 0
        try:
            for batch in self._file.iter_batches(ROWS_PER_BATCH, columns=columns):
                yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
                rows += batch.num_rows
        except pa.ArrowMemoryError:
            raise
        except (OSError, pa.ArrowException):
            raise PipelineError(
                f"{self._path}: found corrupt pages after row {rows}; {self._repair}"
            ) from None

    def lengths(self) -> Ints:
        """Count the rows of each unit, in order: no unit is in two tables."""
        found = [np.empty(0, np.int64)]
        for table in self.tables(["unit_id"]):
            found.append(np.diff(run_starts(table["unit_id"]), append=table.num_rows))
        return np.concatenate(found)


Watch = Callable[[pa.Table], None]

EVERY = slice(None)
"""All units. Of several processes each holds some of them."""


class UnitStore:
    """The units of one partition in memory, ragged: float32 rows one after the other, and the
    offset of each unit.

    U units, R transitions, observations of size S and actions of size A. Units are numbered 0 … U -
    1 in the order of their ids. An input row is (observation, action), a target row is
    (next_observation - observation, reward, terminated).

    Args:
        reader: of one partition.
        watch: is shown every batch of rows on its way, also those that are not kept.
        own: which units are kept.
        keep_bytes: how much may stay in memory; more lies in a file, of which the system keeps in
            memory what was used last. None: there is no bound.

    Attributes:
        info: the dataset's public facts.
        units: U.
        size: R.
        observation_size: S.
        action_size: A.
        trajectory_starts: the first transition of every trajectory.

    Raises:
        PipelineError: if files are missing or corrupt, or memory runs out; it quotes no value.
    """

    def __init__(
        self,
        reader: PartReader,
        watch: Watch,
        own: slice = EVERY,
        keep_bytes: int | None = None,
    ):
        self.info, spaces = reader.info, reader.info.spaces
        self.observation_size, self.action_size = S, A = spaces.observation_size, spaces.action_size
        lengths = reader.lengths()
        owned = np.zeros(len(lengths), dtype=bool)
        owned[own] = True
        self.units, self.size = int(owned.sum()), int(lengths[owned].sum())
        try:
            shape = self.size, S + A + S + 2
            small = keep_bytes is None or 4 * math.prod(shape) <= keep_bytes
            rows: Floats = np.empty(shape, np.float32) if small else _on_disk(reader.folder, shape)
            inputs, targets = rows[:, : S + A], rows[:, S + A :]
            starts = [np.empty(0, dtype=np.int64)]
            kept_rows = np.repeat(owned, lengths)
            seen = done = 0
            for table in reader.tables():
                watch(table)
                kept = kept_rows[seen : seen + table.num_rows]
                seen += table.num_rows
                table = table if kept.all() else table.filter(pa.array(kept))
                these = slice(done, done + table.num_rows)
                observation = vectors(table["observation"])
                inputs[these, :S] = observation
                inputs[these, S:] = action_vectors(table, spaces)
                targets[these, :S] = vectors(table["next_observation"]) - observation
                targets[these, S] = numbers(table["reward"])
                targets[these, S + 1] = numbers(table["terminated"])
                starts.append(done + trajectory_starts(table))
                done = these.stop
        except MemoryError:  # Arrow's own error is one too; the size of private data is not said
            raise PipelineError(
                f"{reader.folder}: not enough memory for its rows; free some"
            ) from None
        self.trajectory_starts = np.concatenate(starts)
        self._rows = rows
        self._lengths = lengths[owned]
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._numbers = np.flatnonzero(owned)

    @classmethod
    def open(cls, folder: Path, watch: Watch = lambda table: None, own: slice = EVERY) -> Self:
        """Load the partition in ``folder``; see the class."""
        return cls(PartReader(folder, made_by="partition"), watch, own)

    def arrays(self) -> tuple[Floats, Floats]:
        """Give all inputs [R, S + A] and targets [R, S + 2]; not to be written to."""
        return np.split(self._rows, [self.observation_size + self.action_size], axis=1)  # type: ignore[return-value]

    def flat(self) -> tuple["Tensor", "Tensor"]:
        """Give all inputs [R, S + A] and targets [R, S + 2], as copies."""
        inputs, targets = self.arrays()
        return _tensor(inputs.copy()), _tensor(targets.copy())

    @property
    def terminates(self) -> bool:
        """Whether any transition ended in a terminal state; a truncation is no such end."""
        return bool((self._rows[:, -1] > 0).any())

    @cached_property
    def numbers(self) -> "Tensor":
        """Which of the partition's units these are, int64 [U], ascending."""
        return _tensor(self._numbers)

    def lengths(self, units: "Tensor") -> "Tensor":
        """Count the transitions of each unit: int64 [U] of unit numbers to int64 [U]."""
        return _tensor(self._lengths[units.numpy()])

    def transitions(self, units: "Tensor", steps: "Tensor") -> tuple["Tensor", "Tensor"]:
        """Gather the chosen transitions of each unit.

        A step past a unit's end gives the unit's own last transition: padding, which the caller's
        mask drops, never touches another unit's data.

        Args:
            units: int64 [U], unit numbers.
            steps: int64 [U, M], from 0, within each unit.

        Returns:
            Inputs [U, M, S + A] and targets [U, M, S + 2], float32.
        """
        # NumPy takes short rows in half of torch's time.
        rows = _tensor(self._rows.take(self._find_rows(units, steps), axis=0))
        width = self.observation_size + self.action_size
        return rows[..., :width].contiguous(), rows[..., width:].contiguous()

    def begins(self, units: "Tensor", steps: "Tensor") -> "Tensor":
        """Say whether the chosen transitions each begin a trajectory, bool [U, M]; see
        `transitions`.
        """
        return _tensor(np.isin(self._find_rows(units, steps), self.trajectory_starts))

    def first_observations(self) -> "Tensor":
        """Give the first observation of every trajectory, float32 [trajectories, S]."""
        return _tensor(self._rows[self.trajectory_starts, : self.observation_size])

    def _find_rows(self, units: "Tensor", steps: "Tensor") -> Ints:
        """Find the rows of steps of units, int64 [U, M]."""
        which = units.numpy()
        rows: Ints = self._starts[which, None] + np.minimum(
            steps.numpy(), self._lengths[which, None] - 1
        )
        return rows


def _tensor(array: Array) -> "Tensor":
    import torch

    return torch.from_numpy(array)


def _on_disk(folder: Path, shape: tuple[int, int]) -> Floats:
    """Give room for rows in a file without a name, which is gone with the process.

    Raises:
        PipelineError: the disk is too full. The size of private data is not said.
    """
    if shutil.disk_usage(folder).free < 4 * math.prod(shape):
        raise PipelineError(f"{folder}: not enough space on its disk for its rows; free some")
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, np.float32, "w+", shape=shape)
