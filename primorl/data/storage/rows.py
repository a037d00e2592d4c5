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
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base.errors import PipelineError
from primorl.data.storage.parquet import PartReader
from primorl.data.storage.schema import (
    Spaces,
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

    Each observation is held once: the next observation of a transition is the observation in the
    row after it. Where it is another one, as at the end of a trajectory, a row of its own holds it.
    So memory holds S + A + 3 numbers a transition and not 2S + A + 2.

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
            # Room for the worst case, in which no next observation is the following row's. Pages
            # that are never written take no memory.
            shape = 2 * self.size, S + A
            small = keep_bytes is None or 4 * math.prod(shape) <= keep_bytes
            rows: Floats = np.empty(shape, np.float32) if small else _on_disk(reader.folder, shape)
            outcomes: Floats = np.empty((self.size, 2), dtype=np.float32)  # reward and terminated
            places = np.empty(self.size, dtype=np.int64)  # where in `rows` each transition is
            firsts = [np.empty(0, dtype=np.int64)]
            kept_rows = np.repeat(owned, lengths)
            seen = filled = done = 0
            for table in _checked_tables(reader):
                watch(table)
                kept = kept_rows[seen : seen + table.num_rows]
                seen += table.num_rows
                table = table if kept.all() else table.filter(pa.array(kept))
                if table.num_rows == 0:
                    continue
                packed, place = _packed(table, spaces)
                rows[filled : filled + len(packed)] = packed
                these = slice(done, done + table.num_rows)
                places[these] = filled + place
                outcomes[these, 0] = numbers(table["reward"])
                outcomes[these, 1] = numbers(table["terminated"])
                firsts.append(done + trajectory_starts(table))
                filled, done = filled + len(packed), these.stop
        self._arrays: dict[str, npt.NDArray[Any]] = {
            "rows": rows[:filled],
            "outcomes": outcomes,
            "places": places,
            "lengths": lengths[owned],
            "unit_starts": np.cumsum(lengths[owned]) - lengths[owned],
            "trajectory_starts": np.concatenate(firsts),
            "numbers": np.flatnonzero(owned),
        }

    @classmethod
    def open(cls, folder: Path, watch: Watch = lambda table: None, own: slice = EVERY) -> Self:
        """Load the partition in ``folder``; see the class."""
        return cls(PartReader(folder, made_by="partition"), watch, own)

    def arrays(self) -> tuple[Floats, Floats]:
        """Give all inputs [R, S + A] and targets [R, S + 2], as copies."""
        S, rows, places = self.observation_size, self._arrays["rows"], self._arrays["places"]
        inputs = rows[places]
        change = rows[places + 1, :S] - inputs[:, :S]
        return inputs, np.concatenate((change, self._arrays["outcomes"]), axis=1)

    @property
    def trajectory_starts(self) -> npt.NDArray[np.int64]:
        """Return the first transition of every trajectory."""
        return self._arrays["trajectory_starts"]

    @property
    def terminates(self) -> bool:
        """Whether any transition ended in a terminal state; a truncation is no such end."""
        return bool((self._arrays["outcomes"][:, 1] > 0).any())

    @cached_property
    def _tensors(self) -> dict[str, "Tensor"]:
        import torch

        return {name: torch.from_numpy(values) for name, values in self._arrays.items()}

    @property
    def numbers(self) -> "Tensor":
        """Which of the partition's units these are, int64 [U], ascending."""
        return self._tensors["numbers"]

    def lengths(self, units: "Tensor") -> "Tensor":
        """Count the transitions of each unit: int64 [U] of unit numbers to int64 [U]."""
        return self._tensors["lengths"][units]

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
        return self._gather(self._chosen(units, steps))

    def begins(self, units: "Tensor", steps: "Tensor") -> "Tensor":
        """Say whether the chosen transitions each begin a trajectory, bool [U, M]; see
        `transitions`.
        """
        return self._begins[self._chosen(units, steps)]

    def flat(self) -> tuple["Tensor", "Tensor"]:
        """Give all inputs [R, S + A] and targets [R, S + 2], as copies."""
        import torch

        inputs, targets = self.arrays()
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def first_observations(self) -> "Tensor":
        """Give the first observation of every trajectory, float32 [trajectories, S]."""
        places = self._tensors["places"][self._tensors["trajectory_starts"]]
        return self._tensors["rows"][places, : self.observation_size]

    def terminated(self) -> "Tensor":
        """Say whether each transition ended in a terminal state, bool [R]; a truncation is no such
        end.
        """
        return self._tensors["outcomes"][:, 1] > 0

    @cached_property
    def _begins(self) -> "Tensor":
        """Mark the transitions that begin a trajectory, bool [R]; made on first use: training never
        asks.
        """
        import torch

        begins = torch.zeros(self.size, dtype=torch.bool)
        begins[self._tensors["trajectory_starts"]] = True
        return begins

    def _chosen(self, units: "Tensor", steps: "Tensor") -> "Tensor":
        starts, lengths = self._tensors["unit_starts"], self._tensors["lengths"]
        return starts[units, None] + steps.minimum(lengths[units, None] - 1)

    def _gather(self, rows: "Tensor") -> tuple["Tensor", "Tensor"]:
        import torch

        # NumPy takes short rows in half of torch's time.
        S, arrays, chosen = self.observation_size, self._arrays, rows.numpy()
        places = arrays["places"][chosen]
        inputs = torch.from_numpy(arrays["rows"].take(places, axis=0))
        following = torch.from_numpy(arrays["rows"].take(places + 1, axis=0))
        outcomes = torch.from_numpy(arrays["outcomes"].take(chosen, axis=0))
        targets = torch.empty(*rows.shape, S + 2)
        torch.sub(following[..., :S], inputs[..., :S], out=targets[..., :S])
        targets[..., S:] = outcomes
        return inputs, targets


def _packed(table: pa.Table, spaces: Spaces) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Pack whole units as `UnitStore` holds them: rows [more than n, S + A], and where the n
    transitions are.
    """
    S = spaces.observation_size
    observation, after = vectors(table["observation"]), vectors(table["next_observation"])
    # Whether the next observation is not the following row's, bit by bit.
    apart = np.ones(table.num_rows, dtype=bool)
    apart[:-1] = (after[:-1].view(np.int32) != observation[1:].view(np.int32)).any(axis=1)
    places = np.arange(table.num_rows) + np.cumsum(apart) - apart
    rows = np.zeros((table.num_rows + int(apart.sum()), S + spaces.action_size), dtype=np.float32)
    rows[places, :S] = observation
    rows[places, S:] = action_vectors(table, spaces)
    rows[places[apart] + 1, :S] = after[apart]
    return rows, places


def _on_disk(folder: Path, shape: tuple[int, int]) -> Floats:
    """Give room for rows in a file without a name, which is gone with the process.

    Raises:
        PipelineError: the disk is too full. The size of private data is not said.
    """
    if shutil.disk_usage(folder).free < 4 * math.prod(shape):
        raise PipelineError(f"{folder}: not enough space on its disk for its rows; free some")
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, np.float32, "w+", shape=shape)


def _checked_tables(reader: PartReader) -> Iterator[pa.Table]:
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
