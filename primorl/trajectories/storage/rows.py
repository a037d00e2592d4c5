"""One partition in memory as NumPy arrays, for what trains nothing. Loading this module needs no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from primorl.trajectories.storage.loading import EVERY, Floats, UnitOrder, memory_for, not_finite
from primorl.trajectories.storage.parquet import PartReader
from primorl.trajectories.storage.schema import (
    BEHAVIOUR_PROBABILITY,
    DatasetInfo,
    action_vectors,
    numbers,
    trajectory_starts,
    vectors,
)

_Whole = npt.NDArray[np.int64]


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


class UnitRows:
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
        """As `open`, of parts that are open."""
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
        """All inputs [R, S + A] and targets [R, S + 2], as copies."""
        S, rows, places = self.observation_size, self.loaded.rows, self.loaded.places
        inputs = rows[places]
        return inputs, np.concatenate((rows[places + 1, :S] - inputs[:, :S], self.loaded.outcomes), axis=1)

    @property
    def terminates(self) -> bool:
        """Whether any transition ended in a terminal state; a truncation is no such end."""
        return bool((self.loaded.outcomes[:, 1] > 0).any())


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
        """All that came, as `UnitRows` holds it."""
        return PartitionArrays(
            rows=self._rows[: self._filled],
            outcomes=self._outcomes,
            places=self._places,
            unit_starts=unit_starts,
            trajectory_starts=np.concatenate([np.empty(0, dtype=np.int64), *self._trajectories]),
            numbers=unit_numbers,
            probabilities=self._probabilities,
        )
