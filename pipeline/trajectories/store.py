"""One partition in memory, ready for gathers: what training reads its cohorts from."""

from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from pipeline.errors import PipelineError
from pipeline.trajectories.parquet import PartReader
from pipeline.trajectories.schema import DatasetInfo, action_vectors, run_starts, vectors


class UnitStore:
    """The units of one partition, ragged: contiguous float32 rows and the offset of each unit.

    U units, R transitions, observations of size S and actions of size A. Units are numbered 0 … U - 1 in
    the order of their ids. An input row is (observation, action), a target row is
    (next_observation - observation, reward, terminated).

    Attributes:
        info: the dataset's public facts.
        units: U.
        observation_size: S.
        action_size: A.
    """

    def __init__(
        self,
        info: DatasetInfo,
        inputs: Tensor,
        targets: Tensor,
        unit_starts: Tensor,
        trajectory_starts: Tensor,
    ):
        self.info = info
        self.units = len(unit_starts)
        self.observation_size = info.spaces.observation_size
        self.action_size = info.spaces.action_size
        self._inputs = inputs
        self._targets = targets
        self._starts = unit_starts
        self._lengths = torch.diff(unit_starts, append=torch.tensor([len(inputs)]))
        self._trajectory_starts = trajectory_starts

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Load the partition in ``folder``, one row group at a time.

        Raises:
            PipelineError: files are missing, corrupt or out of order; the message quotes no value.
        """
        reader = PartReader(folder, made_by="partition")
        S, A = reader.info.spaces.observation_size, reader.info.spaces.action_size
        inputs = np.empty((reader.rows, S + A), dtype=np.float32)
        targets = np.empty((reader.rows, S + 2), dtype=np.float32)
        units, trajectories = _Runs("unit_id"), _Runs("trajectory_id")
        row = 0
        for table in reader.tables():
            rows = slice(row, row + table.num_rows)
            observation = vectors(table["observation"])
            inputs[rows, :S] = observation
            inputs[rows, S:] = action_vectors(table, reader.info.spaces)
            np.subtract(vectors(table["next_observation"]), observation, out=targets[rows, :S])
            targets[rows, S] = table["reward"].to_numpy()
            targets[rows, S + 1] = table["terminated"].to_numpy()
            units.add(table, row)
            trajectories.add(table, row)
            row += table.num_rows
        if not units.ascending():
            raise PipelineError(
                f"{folder}: units are out of order or appear twice; run `dvc repro partition` to make it again"
            )
        if not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
            raise PipelineError(
                f"{folder}: found non-finite numbers, allowed none; run `dvc repro ingest` to check the data again"
            )
        unit_starts = units.starts()
        trajectory_starts = np.union1d(trajectories.starts(), unit_starts)
        arrays = (inputs, targets, unit_starts, trajectory_starts)
        return cls(reader.info, *(torch.from_numpy(array) for array in arrays))

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
        return self._inputs[rows], self._targets[rows]

    def flat(self) -> tuple[Tensor, Tensor]:
        """All inputs [R, S + A] and targets [R, S + 2]: views, not copies."""
        return self._inputs, self._targets

    def first_observations(self) -> Tensor:
        """The first observation of every trajectory, float32 [trajectories, S]."""
        return self._inputs[self._trajectory_starts, : self.observation_size]

    def terminated(self) -> Tensor:
        """Whether each transition ended in a terminal state, bool [R]; a truncation is no such end."""
        return self._targets[:, -1] > 0


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
