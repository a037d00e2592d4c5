"""One partition in memory: arrays for the statistics of its rows, tensors for training.

Loading this module needs no torch: it is imported when tensors are first asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.project.errors import PipelineError
from primorl.trajectories.storage.parquet import PartReader
from primorl.trajectories.storage.schema import (
    BEHAVIOUR_PROBABILITY,
    DatasetInfo,
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
_Whole = npt.NDArray[np.int64]

EVERY = slice(None)
"""All units. Of several processes each holds some of them."""


@dataclass(frozen=True)
class PartitionArrays:
    """The arrays of a partition in memory.

    Attributes:
        rows: inputs, and next observations that are no input, [more than R, S + A].
        outcomes: reward and terminated, [R, 2].
        places: where in ``rows`` each transition is, [R].
        unit_starts: the first transition of each unit, [U].
        trajectory_starts: the first transition of each trajectory.
        numbers: which of the partition's units these are, ascending, [U].
        probabilities: of the logged actions, [R]; None: the log does not say.
    """

    rows: Floats
    outcomes: Floats
    places: _Whole
    unit_starts: _Whole
    trajectory_starts: _Whole
    numbers: _Whole
    probabilities: Floats | None


class UnitStore:
    """The units of one partition in memory, ragged: float32 rows one after the other, and the offset of each unit.

    U units, R transitions, observations of size S and actions of size A. Units are numbered 0 … U - 1 in the order of
    their ids. An input row is (observation, action), a target row is (next_observation - observation, reward,
    terminated).

    Each observation is held once: the next observation of a transition is the observation in the row after it. Where it
    is another one, as at the end of a trajectory, a row of its own holds it. So memory holds S + A + 3 numbers a
    transition and not 2S + A + 2.

    Attributes:
        info: the dataset's public facts.
        units: U.
        size: R.
        observation_size: S.
        action_size: A.
        loaded: the arrays.
    """

    def __init__(self, info: DatasetInfo, loaded: PartitionArrays):
        self.info = info
        self.loaded = loaded
        self.units = len(loaded.unit_starts)
        self.size = len(loaded.places)
        self.observation_size = info.spaces.observation_size
        self.action_size = info.spaces.action_size

    @classmethod
    def open(cls, folder: Path, watch: Callable[[pa.Table], None] = lambda table: None, own: slice = EVERY) -> Self:
        """Load the partition in ``folder``, batch by batch.

        Args:
            folder: of one partition.
            watch: is shown every batch of rows on its way, also those that are not kept.
            own: which units are kept.

        Raises:
            PipelineError: if files are missing, corrupt or out of order, or memory runs out; it quotes no value.
        """
        return cls.read(PartReader(folder, made_by="partition"), watch, own)

    @classmethod
    def read(cls, reader: PartReader, watch: Callable[[pa.Table], None], own: slice) -> Self:
        """Load parts that are open; see `open`."""
        lengths = reader.index().lengths
        kept_units = np.zeros(len(lengths), dtype=bool)
        kept_units[own] = True
        ends, own_lengths = np.cumsum(lengths), lengths[own]
        order = UnitOrder()
        with memory_for(reader.folder):
            filling = _Filling(reader.info, int(own_lengths.sum()))
            seen = 0
            for table in reader.tables():
                order.add(table)
                watch(table)
                if filling.size < reader.rows:
                    unit = np.searchsorted(ends, np.arange(seen, seen + table.num_rows), side="right")
                    kept = table.filter(pa.array(kept_units[unit]))
                else:
                    kept = table
                if not filling.add(kept):
                    raise not_finite(reader.folder)
                seen += table.num_rows
            order.check(lengths, reader.folder)
            unit_starts = np.cumsum(own_lengths) - own_lengths
            return cls(reader.info, filling.loaded(unit_starts, np.flatnonzero(kept_units)))

    def arrays(self) -> tuple[Floats, Floats]:
        """Give all inputs [R, S + A] and targets [R, S + 2], as copies."""
        S, rows, places = self.observation_size, self.loaded.rows, self.loaded.places
        inputs = rows[places]
        return inputs, np.concatenate((rows[places + 1, :S] - inputs[:, :S], self.loaded.outcomes), axis=1)

    @property
    def terminates(self) -> bool:
        """Whether any transition ended in a terminal state; a truncation is no such end."""
        return bool((self.loaded.outcomes[:, 1] > 0).any())

    @cached_property
    def _tensors(self) -> dict[str, "Tensor"]:
        """Share the arrays' memory as tensors; add the number of transitions of each unit."""
        import torch

        arrays = vars(self.loaded) | {"lengths": np.diff(self.loaded.unit_starts, append=self.size)}
        return {name: torch.from_numpy(values) for name, values in arrays.items() if values is not None}

    @property
    def numbers(self) -> "Tensor":
        """Which of the partition's units these are, int64 [U], ascending."""
        return self._tensors["numbers"]

    def lengths(self, units: "Tensor") -> "Tensor":
        """Count the transitions of each unit: int64 [U] of unit numbers to int64 [U]."""
        return self._tensors["lengths"][units]

    def transitions(self, units: "Tensor", steps: "Tensor") -> tuple["Tensor", "Tensor"]:
        """Gather the chosen transitions of each unit.

        A step past a unit's end gives the unit's own last transition: padding, which the caller's mask drops, never
        touches another unit's data.

        Args:
            units: int64 [U], unit numbers.
            steps: int64 [U, M], from 0, within each unit.

        Returns:
            Inputs [U, M, S + A] and targets [U, M, S + 2], float32.
        """
        return self._gather(self._chosen(units, steps))

    def begins(self, units: "Tensor", steps: "Tensor") -> "Tensor":
        """Say whether the chosen transitions each begin a trajectory, bool [U, M]; see `transitions`."""
        return self._begins[self._chosen(units, steps)]

    def behaviour_probabilities(self, units: "Tensor", steps: "Tensor") -> "Tensor | None":
        """Give the probability (density, for continuous actions) of each logged action, float32 [U, M].

        See `transitions`. None: the log does not say.
        """
        if self.loaded.probabilities is None:
            return None
        return self._tensors["probabilities"][self._chosen(units, steps)]

    def flat(self) -> tuple["Tensor", "Tensor"]:
        """Give all inputs [R, S + A] and targets [R, S + 2], as copies."""
        import torch

        return self._gather(torch.arange(self.size))

    def first_observations(self) -> "Tensor":
        """Give the first observation of every trajectory, float32 [trajectories, S]."""
        tensors = self._tensors
        return tensors["rows"][:, : self.observation_size][tensors["places"][tensors["trajectory_starts"]]]

    def terminated(self) -> "Tensor":
        """Say whether each transition ended in a terminal state, bool [R]; a truncation is no such end."""
        return self._tensors["outcomes"][:, 1] > 0

    @cached_property
    def _begins(self) -> "Tensor":
        """Mark the transitions that begin a trajectory, bool [R]; made on first use: training never asks."""
        import torch

        begins = torch.zeros(self.size, dtype=torch.bool)
        begins[self._tensors["trajectory_starts"]] = True
        return begins

    def _chosen(self, units: "Tensor", steps: "Tensor") -> "Tensor":
        starts, lengths = self._tensors["unit_starts"], self._tensors["lengths"]
        return starts[units, None] + steps.minimum(lengths[units, None] - 1)

    def _gather(self, rows: "Tensor") -> tuple["Tensor", "Tensor"]:
        import torch
        from torch.nn.functional import embedding  # faster than an index

        S, tensors = self.observation_size, self._tensors
        places = tensors["places"][rows]
        inputs, following = embedding(places, tensors["rows"]), embedding(places + 1, tensors["rows"])
        targets = torch.empty(*rows.shape, S + 2)
        torch.sub(following[..., :S], inputs[..., :S], out=targets[..., :S])
        targets[..., S:] = embedding(rows, tensors["outcomes"])
        return inputs, targets


UnitRows = UnitStore


class _Filling:
    """Transitions on their way into memory.

    Args:
        info: of the dataset.
        size: how many transitions will come.
    """

    def __init__(self, info: DatasetInfo, size: int):
        S, A = info.spaces.observation_size, info.spaces.action_size
        self.size = size
        self._info = info
        # Room for the worst case, in which no next observation is the following row's. Pages that are never written
        # take no memory.
        self._rows: Floats = np.empty((2 * size, S + A), dtype=np.float32)
        self._outcomes: Floats = np.empty((size, 2), dtype=np.float32)
        self._places = np.empty(size, dtype=np.int64)
        self._probabilities: Floats | None = np.empty(size, np.float32) if info.behaviour_probabilities else None
        self._trajectories: list[npt.NDArray[np.int64]] = []
        self._transitions = self._filled = 0

    def add(self, table: pa.Table) -> bool:
        """Take in the next transitions of whole units; False if a number is not finite."""
        count, S = table.num_rows, self._info.spaces.observation_size
        if count == 0:
            return True
        observation, after = vectors(table["observation"]), vectors(table["next_observation"])
        apart = np.ones(count, dtype=bool)  # whose next observation is not the following row's observation, bit by bit
        apart[:-1] = (after[:-1].view(np.int32) != observation[1:].view(np.int32)).any(axis=1)
        places = np.arange(count) + np.cumsum(apart) - apart
        taken = count + int(apart.sum())
        rows = self._rows[self._filled : self._filled + taken]
        rows[places, :S] = observation
        rows[places, S:] = action_vectors(table, self._info.spaces)
        extra = places[apart] + 1
        rows[extra, :S] = after[apart]
        rows[extra, S:] = 0
        own = slice(self._transitions, self._transitions + count)
        self._outcomes[own, 0] = numbers(table["reward"])
        self._outcomes[own, 1] = numbers(table["terminated"])
        self._places[own] = places + self._filled
        known = True
        if self._probabilities is not None:
            self._probabilities[own] = numbers(table[BEHAVIOUR_PROBABILITY])
            known = bool(np.isfinite(self._probabilities[own]).all())
        self._trajectories.append(trajectory_starts(table) + self._transitions)
        self._transitions += count
        self._filled += taken
        with np.errstate(over="ignore"):
            change = after - observation
        found = (rows, self._outcomes[own], change)
        return known and all(bool(np.isfinite(each).all()) for each in found)

    def loaded(self, unit_starts: _Whole, unit_numbers: _Whole) -> PartitionArrays:
        """Give all that came, as `UnitStore` holds it."""
        return PartitionArrays(
            rows=self._rows[: self._filled],
            outcomes=self._outcomes,
            places=self._places,
            unit_starts=unit_starts,
            trajectory_starts=np.concatenate([np.empty(0, dtype=np.int64), *self._trajectories]),
            numbers=unit_numbers,
            probabilities=self._probabilities,
        )


class UnitOrder:
    """Checks that units are ascending over all batches, and where each begins."""

    def __init__(self) -> None:
        self._starts: list[npt.NDArray[np.int64]] = []
        self._rows = 0
        self._last: pa.Array | None = None  # the id of the last unit so far, alone
        self._ascending = True

    def add(self, table: pa.Table) -> None:
        """Take in the next rows."""
        starts = run_starts(table["unit_id"])
        names = whole(table["unit_id"]).take(row_numbers(starts))
        if self._last is not None and len(names) > 0:
            if names.slice(0, 1).equals(self._last):
                starts, names = starts[1:], names.slice(1)
            names = pa.concat_arrays([self._last, names])
        if len(names) > 0:
            earlier = names.slice(0, len(names) - 1)
            self._ascending = self._ascending and not pc.any(pc.less_equal(names.slice(1), earlier)).as_py()
            self._last = names.slice(len(names) - 1)
        self._starts.append(starts + self._rows)
        self._rows += table.num_rows

    def check(self, lengths: npt.NDArray[np.int64], folder: Path) -> None:
        """Call after the last batch. The index decides whose rows are whose, so it must fit the rows.

        Args:
            lengths: rows of each unit, as the index has them.
            folder: of the partition, for errors.

        Raises:
            PipelineError: if units are out of order, or the index is another's.
        """
        starts = np.concatenate([np.empty(0, dtype=np.int64), *self._starts])
        if not self._ascending or not np.array_equal(np.diff(starts, append=self._rows), lengths):
            raise PipelineError(
                f"{folder}: units are out of order or appear twice; run `dvc repro partition` to make it again"
            )


def row_bytes(info: DatasetInfo, *, episodes: bool = False) -> int:
    """Compute the most memory that one transition takes, in bytes.

    Args:
        info: of the dataset.
        episodes: whether it is held too which transitions begin a trajectory.
    """
    held = 2 * info.spaces.observation_size + info.spaces.action_size + 2
    return 4 * (held + info.behaviour_probabilities + episodes)


def not_finite(folder: Path) -> PipelineError:
    """Make the error about numbers that are not finite."""
    return PipelineError(
        f"{folder}: found non-finite numbers, allowed none; run `dvc repro ingest` to check the data again"
    )


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
            f"{folder}: not enough memory for its rows; params.yaml: compute.data_mb: set a smaller number of "
            "megabytes (rows beyond it are read from disk as they are needed), or free memory, and run the stage again"
        ) from None
