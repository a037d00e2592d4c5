"""One partition in memory: arrays for the statistics of its rows, tensors for training.

Loading this module needs no torch: it is imported when tensors are first asked for.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base.errors import PipelineError
from primorl.data.storage.parquet import PartReader
from primorl.data.storage.schema import (
    action_vectors,
    numbers,
    row_numbers,
    run_starts,
    trajectory_starts,
    vectors,
    whole,
)

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float32]
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
        PipelineError: if files are missing, corrupt or out of order, or memory runs out; it quotes
            no value.
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
        with memory_for(reader.folder):
            shape = self.size, S + A + S + 2
            small = keep_bytes is None or 4 * math.prod(shape) <= keep_bytes
            rows: Floats = np.empty(shape, np.float32) if small else _on_disk(reader.folder, shape)
            inputs, targets = rows[:, : S + A], rows[:, S + A :]
            starts = [np.empty(0, dtype=np.int64)]
            kept_rows = np.repeat(owned, lengths)
            seen = done = 0
            for table in _check_tables(reader):
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
        import torch

        inputs, targets = self.arrays()
        return torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())

    @property
    def terminates(self) -> bool:
        """Whether any transition ended in a terminal state; a truncation is no such end."""
        return bool((self._rows[:, -1] > 0).any())

    @cached_property
    def numbers(self) -> "Tensor":
        """Which of the partition's units these are, int64 [U], ascending."""
        import torch

        return torch.from_numpy(self._numbers)

    def lengths(self, units: "Tensor") -> "Tensor":
        """Count the transitions of each unit: int64 [U] of unit numbers to int64 [U]."""
        import torch

        return torch.from_numpy(self._lengths[units.numpy()])

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
        import torch

        # NumPy takes short rows in half of torch's time.
        rows = torch.from_numpy(self._rows.take(self._chosen(units, steps), axis=0))
        width = self.observation_size + self.action_size
        return rows[..., :width].contiguous(), rows[..., width:].contiguous()

    def begins(self, units: "Tensor", steps: "Tensor") -> "Tensor":
        """Say whether the chosen transitions each begin a trajectory, bool [U, M]; see
        `transitions`.
        """
        import torch

        rows, starts = self._chosen(units, steps), self.trajectory_starts
        place = np.minimum(np.searchsorted(starts, rows), len(starts) - 1)
        return torch.from_numpy(starts[place] == rows)

    def first_observations(self) -> "Tensor":
        """Give the first observation of every trajectory, float32 [trajectories, S]."""
        import torch

        return torch.from_numpy(self._rows[self.trajectory_starts, : self.observation_size])

    def _chosen(self, units: "Tensor", steps: "Tensor") -> npt.NDArray[np.int64]:
        """Find the rows of steps of units, int64 [U, M]."""
        which = units.numpy()
        rows: npt.NDArray[np.int64] = self._starts[which, None] + np.minimum(
            steps.numpy(), self._lengths[which, None] - 1
        )
        return rows


def _on_disk(folder: Path, shape: tuple[int, int]) -> Floats:
    """Give room for rows in a file without a name, which is gone with the process.

    Raises:
        PipelineError: the disk is too full. The size of private data is not said.
    """
    if shutil.disk_usage(folder).free < 4 * math.prod(shape):
        raise PipelineError(f"{folder}: not enough space on its disk for its rows; free some")
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, np.float32, "w+", shape=shape)


def _check_tables(reader: PartReader) -> Iterator[pa.Table]:
    """Read all rows of a partition.

    Raises:
        PipelineError: if units are out of order, or a number is not finite; it quotes no value.
    """
    last = pa.nulls(0, pa.string())  # `pa.array` would import pandas
    for table in reader.tables():
        for column in table.columns:
            flat = whole(column).flatten() if pa.types.is_fixed_size_list(column.type) else column
            if pa.types.is_floating(flat.type) and not np.isfinite(numbers(flat)).all():
                raise PipelineError(
                    f"{reader.folder}: found a non-finite number; run `dvc repro ingest`"
                )
        names = whole(table["unit_id"]).take(row_numbers(run_starts(table["unit_id"])))
        chain = pa.concat_arrays([last, names])
        if pc.any(pc.less_equal(chain.slice(1), chain.slice(0, len(chain) - 1))).as_py():
            found = "units are out of order or appear twice"
            raise PipelineError(f"{reader.folder}: {found}; run `dvc repro partition`")
        last = names.slice(len(names) - 1)
        yield table


@contextmanager
def memory_for(folder: Path) -> Iterator[None]:
    """Say what to change where memory runs out within the block.

    Raises:
        PipelineError: if it did. The size of private data is not said.
    """
    try:
        yield
    except MemoryError:  # Arrow's own error is one too
        raise PipelineError(
            f"{folder}: not enough memory for its rows; params.yaml: compute.data_mb: set a "
            "smaller number of megabytes (more rows lie on the disk), "
            "or free memory, and run the stage again"
        ) from None
