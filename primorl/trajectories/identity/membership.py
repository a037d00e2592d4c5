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

from primorl.project.errors import PipelineError
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
        self._of_id = _digester(secret, b"unit id", prefixes)
        self._of_id_again = _digester(secret, b"id again", prefixes[:1])
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
        if not units.equals(names):  # units whose id is not their trajectory's too, one a unit
            found = []
            for unit, name in zip(units.to_pylist(), names.to_pylist(), strict=True):
                if unit not in (name, self._unit):
                    found.append(unit.encode())
                    self._unit = unit
            self._digests += self._of_id(found)
        encoded = [name.encode() for name in names.to_pylist()]
        self._digests += self._of_id(encoded)
        by_rows, again = self._of_rows, self._of_id_again
        self._digests += by_rows(trajectory_bytes(table, starts)) if self._by_rows else again(encoded)

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
    digests = _digester(secret, b"unit id", prefixes)(one.encode() for one in ids)
    return b"".join(sorted(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)))


def population_digest(secret: bytes, population: str) -> str:
    """Digest a population's name for the ledger, which only compares it."""
    return hashlib.blake2b(population.encode(), key=secret, digest_size=DIGEST_BYTES, person=b"population").hexdigest()


_Digester = Callable[[Iterable[bytes | memoryview]], bytes]


def _digester(secret: bytes, what: bytes, prefixes: Sequence[bytes] = (b"",)) -> _Digester:
    """Make a function from values to their keyed digests, one for each prefix."""
    keyed = [hashlib.blake2b(prefix, key=secret, digest_size=DIGEST_BYTES, person=what) for prefix in prefixes]

    def digests(values: Iterable[bytes | memoryview]) -> bytes:
        found = []
        for value in values:
            for each in keyed:
                own = each.copy()  # the key need not be taken in again
                own.update(value)
                found.append(own.digest())
        return b"".join(found)

    return digests


class DuplicateCheck:
    """Refuses a trajectory whose rows are those of one before it: its owner would count twice.

    Only a digest of every trajectory is held, 16 bytes each.

    Args:
        origin: the file or folder that errors name.
    """

    def __init__(self, origin: object):
        self._origin = origin
        self._digests = bytearray()

    def __call__(self, table: pa.Table) -> None:
        """Take in the next batch of whole trajectories."""
        rows = trajectory_bytes(table, trajectory_starts(table))
        self._digests += b"".join([hashlib.blake2b(each, digest_size=DIGEST_BYTES).digest() for each in rows])

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
                "allowed: every trajectory once, or its owner counts twice; drop it, or set ingestion.duplicates: "
                "allow in the dataset's file where different people may have equal records"
            )
