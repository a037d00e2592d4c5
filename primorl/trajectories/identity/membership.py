"""Keyed digests of the people in a partition, by which the ledger recognises them in other versions of a dataset.

Two versions share a unit where its id, the id of one of its trajectories or the rows of one come back. Ids are compared
within one population (episodes of two environments may both be called 17). Rows are compared everywhere, so people are
also recognised under another name, and where the privacy unit was declared otherwise.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from primorl.trajectories.storage.schema import row_numbers, trajectory_bytes, trajectory_starts, whole

DIGEST_BYTES = 16


NOBODY = b"\n"
"""Content of a file without digests: DVC warns of an empty file at every stage."""


class Membership:
    """Keyed digests of every unit that `update` is shown: of its id, and of each trajectory's id and rows.

    Each is ``DIGEST_BYTES`` long; where the trajectory is the unit, there are two of it or three. They say who is in
    the data to anybody who holds the secret and a guess, so they stay inside the trust boundary.

    Ids are digested within the population, and where it has another name than the dataset, within the dataset's name
    too: that was the rule before populations were declared, so what older charges spent still counts.

    Args:
        secret: the project's, up to 64 bytes.
        dataset: the name of the dataset.
        population: within which ids mean the same; empty: the dataset's name.
        by_rows: whether equal rows mean the same person. False for the public side of short records of a small state
            space, some of which equal private ones: there a second digest of the id takes the place of the rows'.
    """

    def __init__(self, secret: bytes, dataset: str, population: str = "", by_rows: bool = True):
        names = dict.fromkeys((population or dataset, dataset))
        prefixes = [f"{len(name)}:{name}".encode() for name in names]
        self._of_id = _all_of([_digester(secret, b"unit id", prefix) for prefix in prefixes])
        self._of_id_again = _digester(secret, b"id again", prefixes[0])
        self._of_rows = _digester(secret, b"rows")
        self._by_rows = by_rows
        self._digests = bytearray()
        self._unit = ""

    def update(self, table: pa.Table) -> None:
        """Take in whole units, in the dataset's schema."""
        if table.num_rows == 0:
            return
        starts = trajectory_starts(table)
        chosen = row_numbers(starts)
        units, names = (whole(table[name]).take(chosen) for name in ("unit_id", "trajectory_id"))
        self._digests += self._of_units(units, names)
        encoded = [name.encode() for name in names.to_pylist()]
        self._digests += self._of_id(encoded)
        if self._by_rows:
            self._digests += self._of_rows(trajectory_bytes(table, starts))
        else:
            self._digests += self._of_id_again(encoded)

    def _of_units(self, units: pa.Array, names: pa.Array) -> bytes:
        """Digests of the units whose id is not their trajectory's too, one a unit."""
        if units.equals(names):
            return b""
        found = []
        for unit, name in zip(units.to_pylist(), names.to_pylist(), strict=True):
            if unit not in (name, self._unit):
                found.append(unit.encode())
                self._unit = unit
        return self._of_id(found)

    def to_bytes(self) -> bytes:
        """Give all digests, sorted: their order reveals nothing."""
        self._sorted()
        return bytes(self._digests)

    def shares_with(self, other: "Membership") -> bool:
        """Say whether an id or a trajectory's rows are in both."""
        few, many = sorted((self._sorted(), other._sorted()), key=len)
        if len(few) == 0:
            return False
        places = np.minimum(np.searchsorted(many, few), len(many) - 1)
        return bool((many[places] == few).any())

    def _sorted(self) -> npt.NDArray[np.bytes_]:
        """Sort the digests in place. They must not grow while the array is in use."""
        # NumPy ignores zeros at the end of such values when it compares them. All are equally long, so nothing is lost.
        digests: npt.NDArray[np.bytes_] = np.frombuffer(self._digests, f"S{DIGEST_BYTES}")
        digests.sort()
        return digests


def id_digests(secret: bytes, populations: Collection[str], ids: Sequence[str]) -> bytes:
    """Keyed digests of people's ids, sorted, as `Membership` has them of units of the same population.

    Args:
        secret: the project's.
        populations: names within which ids mean the same; each gives a digest of its own.
        ids: in the form of the column ``unit_id`` (`id_text`).
    """
    prefixes = [f"{len(name)}:{name}".encode() for name in populations]
    digests = _all_of([_digester(secret, b"unit id", prefix) for prefix in prefixes])([one.encode() for one in ids])
    return b"".join(sorted(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)))


def population_digest(secret: bytes, population: str) -> str:
    """Digest a population's name for the ledger, which only compares it."""
    return hashlib.blake2b(population.encode(), key=secret, digest_size=DIGEST_BYTES, person=b"population").hexdigest()


_Digester = Callable[[Iterable[bytes | memoryview]], bytes]


def _all_of(digesters: Sequence[_Digester]) -> _Digester:
    def digests(values: Iterable[bytes | memoryview]) -> bytes:
        kept = list(values)
        return b"".join([each(kept) for each in digesters])

    return digests


def _digester(secret: bytes, what: bytes, prefix: bytes = b"") -> _Digester:
    """Make a function from values to their keyed digests, one after the other."""
    keyed = hashlib.blake2b(key=secret, digest_size=DIGEST_BYTES, person=what)
    keyed.update(prefix)

    def digests(values: Iterable[bytes | memoryview]) -> bytes:
        found = []
        for value in values:
            own = keyed.copy()  # the key need not be taken in again
            own.update(value)
            found.append(own.digest())
        return b"".join(found)

    return digests
