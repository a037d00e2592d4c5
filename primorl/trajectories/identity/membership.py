"""Who is in a private partition, as keyed digests: what the ledger recognises people by in other versions.

Two versions of a dataset share a unit where its id, the id of one of its trajectories or the rows of one come back. Ids
are compared within one entry of ``datasets`` (episodes of two environments may both be called 17); rows are compared
everywhere, so people are also known under another name, and where the privacy unit was declared otherwise.
"""

import hashlib

import pyarrow as pa

from primorl.trajectories.storage.schema import trajectory_bytes, trajectory_starts

DIGEST_BYTES = 16


class Membership:
    """Keyed digests of every unit that `update` is shown: of its id, and of each trajectory's id and rows.

    Each is ``DIGEST_BYTES`` long; where the trajectory is the unit, there are two of it. They say who is in the data to
    anybody who holds the secret and a guess, so they stay inside the trust boundary.

    Args:
        secret: the project's, up to 64 bytes.
        dataset: the entry of ``datasets`` within which ids mean the same.
        by_rows: whether equal rows mean the same person. False for the public side of short records of a small state
            space, of which some equal private ones: there a second digest of the id takes the rows' place.
    """

    def __init__(self, secret: bytes, dataset: str, by_rows: bool = True):
        self._secret = secret
        self._by_rows = by_rows
        self._dataset = f"{len(dataset)}:{dataset}".encode()
        self._digests: list[bytes] = []
        self._unit = ""

    def update(self, table: pa.Table) -> None:
        """Take in whole units, in the dataset's schema."""
        if table.num_rows == 0:
            return
        starts = trajectory_starts(table)
        named = table.select(["unit_id", "trajectory_id"]).take(pa.array(starts)).to_pydict()
        for unit, name, rows in zip(*named.values(), trajectory_bytes(table, starts), strict=True):
            if unit not in (name, self._unit):
                self._digests.append(self._digest(b"unit id", self._dataset, unit.encode()))
                self._unit = unit
            self._digests.append(self._digest(b"unit id", self._dataset, name.encode()))
            if self._by_rows:
                self._digests.append(self._digest(b"rows", rows))
            else:
                self._digests.append(self._digest(b"id again", self._dataset, name.encode()))

    def to_bytes(self) -> bytes:
        """All digests, sorted: their order tells nothing."""
        return b"".join(sorted(self._digests))

    def shares_with(self, other: "Membership") -> bool:
        """Whether an id or a trajectory's rows are in both."""
        return not set(self._digests).isdisjoint(other._digests)

    def _digest(self, what: bytes, *parts: bytes | memoryview) -> bytes:
        keyed = hashlib.blake2b(key=self._secret, digest_size=DIGEST_BYTES, person=what)
        for part in parts:
            keyed.update(part)
        return keyed.digest()
