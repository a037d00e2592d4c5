"""Trajectories that are there twice: their owner would count twice."""

import hashlib

import numpy as np
import pyarrow as pa

from primorl.project.errors import PipelineError
from primorl.trajectories.storage.schema import trajectory_bytes, trajectory_starts

_BYTES = 16


class DuplicateCheck:
    """Refuses a trajectory whose rows are those of one before it, under whatever name.

    Only a digest of every trajectory is held, 16 bytes each.

    Args:
        origin: the file or folder that errors name.
    """

    def __init__(self, origin: object):
        self._origin = origin
        self._digests = bytearray()

    def __call__(self, table: pa.Table) -> None:
        """Take in the next batch of whole trajectories."""
        if table.num_rows == 0:
            return
        digest = hashlib.blake2b
        rows = trajectory_bytes(table, trajectory_starts(table))
        self._digests += b"".join([digest(each, digest_size=_BYTES).digest() for each in rows])

    def finish(self) -> None:
        """Compare all trajectories; call it after the last batch.

        Raises:
            PipelineError: if two are equal. They are named by their numbers, counted from 1 in the order of the data:
                an id may name a person.
        """
        words = np.frombuffer(self._digests, np.uint64).reshape(-1, 2)
        order = np.lexsort((words[:, 1], words[:, 0]))
        equal = (words[order[1:]] == words[order[:-1]]).all(axis=1)
        if equal.any():
            # lexsort is stable: of equal ones the first in the order of the data comes first.
            pairs = np.stack([order[1:][equal], order[:-1][equal]], axis=1)
            again, first = pairs[np.argmin(pairs[:, 0])] + 1
            raise PipelineError(
                f"{self._origin}: trajectory number {again}: found the same rows as in trajectory number {first}; "
                "allowed: every trajectory once, or its owner counts twice; drop it, or set "
                "ingestion.duplicates: allow in the dataset's file where equal records of different people are to be "
                "expected"
            )
