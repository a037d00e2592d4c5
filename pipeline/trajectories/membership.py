"""Who is in a private partition, as keyed digests: what the ledger recognises people by in other versions.

Two versions of a dataset share a unit where an id or a unit's rows come back. Ids are compared within one entry of
``datasets`` (episodes of two environments may both be called 17); rows are compared everywhere, so a unit is also known
under another name.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.trajectories.schema import run_starts, vectors

DIGEST_BYTES = 16


class Membership:
    """Two keyed digests of every unit that `update` is shown, ``DIGEST_BYTES`` long each.

    They say who is in the data to anybody who holds the secret and a guess, so they stay inside the trust boundary.

    Args:
        secret: the project's, up to 64 bytes.
        dataset: the entry of ``datasets`` within which ids mean the same.
        by_rows: whether equal rows mean the same unit. False for short records of a small state space, where
            different people's may well be equal: there the second digest is of the id again.
    """

    def __init__(self, secret: bytes, dataset: str, by_rows: bool = True):
        self._secret = secret
        self._by_rows = by_rows
        self._dataset = f"{len(dataset)}:{dataset}".encode()
        self._digests: list[bytes] = []

    def update(self, table: pa.Table) -> None:
        """Take in whole units, in the dataset's schema."""
        if table.num_rows == 0:
            return
        starts = run_starts(table["unit_id"])
        names = table["unit_id"].take(starts).to_pylist()
        rows = np.hstack(
            [
                vectors(table["observation"]),
                _actions(table),
                table["reward"].to_numpy()[:, None],
                vectors(table["next_observation"]),
            ]
        ).astype("<f4", copy=False)
        ends = [*starts[1:].tolist(), table.num_rows]
        for name, start, end in zip(names, starts.tolist(), ends, strict=True):
            self._digests.append(self._digest(b"unit id", self._dataset, name.encode()))
            if self._by_rows:
                content = np.ascontiguousarray(rows[start:end]).data.cast("B")
                self._digests.append(self._digest(b"unit rows", content))
            else:
                self._digests.append(self._digest(b"unit again", self._dataset, name.encode()))

    def to_bytes(self) -> bytes:
        """All digests, sorted: their order tells nothing."""
        return b"".join(sorted(self._digests))

    def shares_with(self, other: "Membership") -> bool:
        """Whether an id or a unit's rows are in both."""
        return not set(self._digests).isdisjoint(other._digests)

    def _digest(self, what: bytes, *parts: bytes | memoryview) -> bytes:
        keyed = hashlib.blake2b(key=self._secret, digest_size=DIGEST_BYTES, person=what)
        for part in parts:
            keyed.update(part)
        return keyed.digest()


def _actions(table: pa.Table) -> npt.NDArray[np.float32]:
    column = table["action"]
    if pa.types.is_fixed_size_list(column.type):
        return vectors(column)
    chosen: npt.NDArray[np.float32] = column.to_numpy()[:, None].astype(np.float32)
    return chosen
