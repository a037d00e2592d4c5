"""One partition in memory as tensors, ready for gathers."""

from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import embedding

from primorl.trajectories.storage.rows import PartitionArrays, UnitRows
from primorl.trajectories.storage.schema import DatasetInfo


class UnitStore(UnitRows):
    """`UnitRows` as tensors, which share their memory.

    Attributes:
        numbers: which of the partition's units these are, int64 [U], ascending.
    """

    def __init__(self, info: DatasetInfo, loaded: PartitionArrays):
        super().__init__(info, loaded)
        self.numbers = torch.from_numpy(loaded.numbers)
        self._rows = torch.from_numpy(loaded.rows)
        self._observations = self._rows[:, : self.observation_size]
        self._outcomes = torch.from_numpy(loaded.outcomes)
        self._places = torch.from_numpy(loaded.places)
        self._starts = torch.from_numpy(loaded.unit_starts)
        self._lengths = torch.diff(self._starts, append=torch.tensor([len(loaded.places)]))
        self._trajectory_starts = torch.from_numpy(loaded.trajectory_starts)
        self._probabilities = None if loaded.probabilities is None else torch.from_numpy(loaded.probabilities)

    @classmethod
    def of(cls, rows: UnitRows) -> Self:
        """The store of rows that are in memory."""
        return rows if isinstance(rows, cls) else cls(rows.info, rows.loaded)

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
