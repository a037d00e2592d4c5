"""One partition in memory."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import embedding

from primorl.trajectories.storage.loading import EVERY, Floats, UnitOrder, memory_for, not_finite
from primorl.trajectories.storage.parquet import PartReader
from primorl.trajectories.storage.schema import (
    BEHAVIOUR_PROBABILITY,
    DatasetInfo,
    action_vectors,
    trajectory_starts,
    vectors,
    whole,
)


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
        observation_size: S.
        action_size: A.
        numbers: which of the partition's units these are, int64 [U], ascending.
    """

    def __init__(
        self,
        info: DatasetInfo,
        rows: Tensor,
        outcomes: Tensor,
        places: Tensor,
        unit_starts: Tensor,
        trajectory_starts: Tensor,
        numbers: Tensor | None = None,
        probabilities: Tensor | None = None,
    ):
        self.info = info
        self.units = len(unit_starts)
        self.numbers = torch.arange(self.units) if numbers is None else numbers
        self.observation_size = info.spaces.observation_size
        self.action_size = info.spaces.action_size
        self._rows = rows  # [more than R, S + A]: inputs, and next observations that are no input
        self._observations = rows[:, : self.observation_size]
        self._outcomes = outcomes  # [R, 2]: reward, terminated
        self._places = places  # [R]: where in `_rows` each transition is
        self._starts = unit_starts
        self._lengths = torch.diff(unit_starts, append=torch.tensor([len(places)]))
        self._trajectory_starts = trajectory_starts
        self._probabilities = probabilities  # [R]: of the logged actions; None: the log does not say

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
            rows = _Rows(reader.info, int(own_lengths.sum()))
            seen = 0
            for table in reader.tables():
                order.add(table)
                watch(table)
                if rows.size < reader.rows:
                    unit = np.searchsorted(ends, np.arange(seen, seen + table.num_rows), side="right")
                    kept = table.filter(pa.array(kept_units[unit]))
                else:
                    kept = table
                if not rows.add(kept):
                    raise not_finite(reader.folder)
                seen += table.num_rows
            order.check(lengths, reader.folder)
            unit_starts = torch.from_numpy(np.cumsum(own_lengths) - own_lengths)
            return cls(
                reader.info,
                *rows.tensors(),
                unit_starts,
                rows.starts(),
                torch.from_numpy(np.flatnonzero(kept_units)),
                rows.probabilities(),
            )

    def lengths(self, units: Tensor) -> Tensor:
        """How many transitions each unit has: int64 [U] of unit numbers to int64 [U]."""
        return self._lengths[units]

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen transitions of each unit.

        A step past a unit's end gives the unit's own last transition: padding, which the caller's mask drops, never
        touches another unit's data.

        Args:
            units: int64 [U], unit numbers.
            steps: int64 [U, M], from 0, within each unit.

        Returns:
            Inputs [U, M, S + A] and targets [U, M, S + 2], float32.
        """
        return self._gather(self._chosen(units, steps))

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        """Whether the chosen transitions each begin a trajectory, bool [U, M]; see `transitions`."""
        return self._begins[self._chosen(units, steps)]

    def behaviour_probabilities(self, units: Tensor, steps: Tensor) -> Tensor | None:
        """With which probability (density, for continuous actions) the logged actions were chosen, float32 [U, M].

        See `transitions`. None: the log does not say.
        """
        return None if self._probabilities is None else self._probabilities[self._chosen(units, steps)]

    def flat(self) -> tuple[Tensor, Tensor]:
        """All inputs [R, S + A] and targets [R, S + 2], as copies."""
        return self._gather(torch.arange(len(self._places)))

    def first_observations(self) -> Tensor:
        """The first observation of every trajectory, float32 [trajectories, S]."""
        return self._observations[self._places[self._trajectory_starts]]

    def terminated(self) -> Tensor:
        """Whether each transition ended in a terminal state, bool [R]; a truncation is no such end."""
        return self._outcomes[:, 1] > 0

    @cached_property
    def _begins(self) -> Tensor:
        """Whether each transition begins a trajectory, bool [R]; made when first asked for: training never asks."""
        begins = torch.zeros(len(self._places), dtype=torch.bool)
        begins[self._trajectory_starts] = True
        return begins

    def _chosen(self, units: Tensor, steps: Tensor) -> Tensor:
        return self._starts[units, None] + torch.minimum(steps, self._lengths[units, None] - 1)

    def _gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        S = self.observation_size
        places = self._places[rows]
        inputs, following = embedding(places, self._rows), embedding(places + 1, self._rows)  # faster than an index
        targets = torch.empty(*rows.shape, S + 2)
        torch.sub(following[..., :S], inputs[..., :S], out=targets[..., :S])
        targets[..., S:] = embedding(rows, self._outcomes)
        return inputs, targets


class _Rows:
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
        self._outcomes[own, 0] = whole(table["reward"]).to_numpy()
        self._outcomes[own, 1] = table["terminated"].to_numpy()
        self._places[own] = places + self._filled
        known = True
        if self._probabilities is not None:
            self._probabilities[own] = whole(table[BEHAVIOUR_PROBABILITY]).to_numpy()
            known = bool(np.isfinite(self._probabilities[own]).all())
        self._trajectories.append(trajectory_starts(table) + self._transitions)
        self._transitions += count
        self._filled += taken
        with np.errstate(over="ignore"):
            change = after - observation
        numbers = (rows, self._outcomes[own], change)
        return known and all(bool(np.isfinite(each).all()) for each in numbers)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, outcomes and places, for `UnitStore`."""
        return (
            torch.from_numpy(self._rows[: self._filled]),
            torch.from_numpy(self._outcomes),
            torch.from_numpy(self._places),
        )

    def probabilities(self) -> Tensor | None:
        """With which probability each action was chosen, [R]; None: the log does not say."""
        return None if self._probabilities is None else torch.from_numpy(self._probabilities)

    def starts(self) -> Tensor:
        """At which transition each trajectory begins, int64."""
        return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *self._trajectories]))
