"""What both stores need: the order of units, checked batch by batch, and errors that quote no value."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.project.errors import PipelineError
from primorl.trajectories.storage.schema import DatasetInfo, row_numbers, run_starts, whole

Floats = npt.NDArray[np.float32]
EVERY = slice(None)
"""All units. Of several processes each holds some of them."""


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
    """The most memory that one transition takes.

    Args:
        info: of the dataset.
        episodes: whether it is held too which transitions begin a trajectory.
    """
    numbers = 2 * info.spaces.observation_size + info.spaces.action_size + 2
    return 4 * (numbers + info.behaviour_probabilities + episodes)


def not_finite(folder: Path) -> PipelineError:
    """The error about numbers that are not finite."""
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
