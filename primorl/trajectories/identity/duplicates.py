"""Trajectories that are there twice: whose they are would count twice."""

import hashlib

import pyarrow as pa

from primorl.project.errors import PipelineError
from primorl.trajectories.storage.schema import trajectory_bytes, trajectory_starts


class DuplicateCheck:
    """Refuses a trajectory whose rows are those of one before it, under whatever name.

    A digest and a name are held of every trajectory.

    Args:
        origin: the file or folder that errors name.
    """

    def __init__(self, origin: object):
        self._origin = origin
        self._seen: dict[bytes, str] = {}

    def __call__(self, table: pa.Table) -> None:
        """Check the next batch of whole trajectories.

        Raises:
            PipelineError: names both trajectories.
        """
        if table.num_rows == 0:
            return
        starts = trajectory_starts(table)
        names = table["trajectory_id"].take(pa.array(starts)).to_pylist()
        for rows, name in zip(trajectory_bytes(table, starts), names, strict=True):
            first = self._seen.setdefault(hashlib.blake2b(rows, digest_size=16).digest(), name)
            if first != name:
                raise PipelineError(
                    f"{self._origin}: trajectory {name!r}: found the very rows of trajectory {first!r}; allowed: every "
                    "trajectory once, or its owner counts twice; drop it, or set duplicates: allow where equal records "
                    "of different people are to be expected"
                )
