"""Trajectories that are there twice: whose they are would count twice."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import PipelineError
from pipeline.trajectories.schema import run_starts

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # SplitMix64's constants (Steele et al. 2014)


class DuplicateCheck:
    """Refuses a trajectory whose rows are those of one before it, under whatever name.

    Rows are compared by 64 bits each trajectory, so that a million trajectories are held in some megabytes.

    Args:
        origin: the file or folder that errors name.
    """

    def __init__(self, origin: object):
        self._origin = origin
        self._seen: dict[int, str] = {}

    def __call__(self, table: pa.Table) -> None:
        """Check the next batch of whole trajectories.

        Raises:
            PipelineError: names both trajectories.
        """
        if table.num_rows == 0:
            return
        starts = np.union1d(run_starts(table["unit_id"]), run_starts(table["trajectory_id"]))
        names = table["trajectory_id"].take(pa.array(starts)).to_pylist()
        for digest, name in zip(digests(table, starts).tolist(), names, strict=True):
            first = self._seen.setdefault(digest, name)
            if first != name:
                raise PipelineError(
                    f"{self._origin}: trajectory {name!r}: found the very rows of trajectory {first!r}; allowed: every "
                    "trajectory once, or its owner counts twice; drop it, or set duplicates: allow where equal records "
                    "of different people are to be expected"
                )


def digests(table: pa.Table, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """64 bits of each trajectory's numbers in their order; the names are left out.

    Args:
        table: rows of whole trajectories, in the dataset's schema.
        starts: the first row of each.
    """
    rows = table.num_rows
    lengths = np.diff([*starts, rows])
    step = (np.arange(rows) - np.repeat(starts, lengths)).astype(np.uint64)
    mixed = step * np.uint64(_MIX[0])
    column = 1
    for name in ("observation", "action", "reward", "next_observation", "terminated", "truncated"):
        values = table[name].combine_chunks()
        if pa.types.is_fixed_size_list(values.type):
            numbers = values.flatten().to_numpy(zero_copy_only=False).reshape(rows, -1)
        else:
            numbers = values.to_numpy(zero_copy_only=False)[:, None].astype(np.float32)
        for bits in np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32).T:
            column += 2
            mixed += (bits + np.uint64(column)) * np.uint64((column * _MIX[1] | 1) % 2**64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_MIX[1])
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_MIX[2])
    mixed ^= mixed >> np.uint64(31)
    found: npt.NDArray[np.uint64] = np.add.reduceat(mixed, starts)
    return found
