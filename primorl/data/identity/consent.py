"""People who withdrew, and the choice of the public units: by a hash of their ids, or by a file of
the ids of people who consented, in ``data/consent``.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base.errors import PipelineError
from primorl.data.storage.schema import id_text, numbers, whole

_SALT = b"7:primorl"  # separates this draw from other hashes of the same ids
_HASH_BITS = 64


def read_ids(file: str, folder: Path, key: str) -> list[str]:
    """Read the id in each line of a file of text, in the form of the column ``unit_id``; empty for
    a blank line.

    Blanks within a line belong to the id.

    Args:
        file: a file in ``folder``.
        folder: that DVC watches, so that an edit of the file makes new versions of the outputs that
            depend on it.
        key: the file and key of the settings that name it, for errors.

    Raises:
        PipelineError: if the file is elsewhere, is missing or is not text.
    """
    path = Path(file)
    if folder.resolve() not in path.resolve().parents:
        raise PipelineError(f"{key}: found {file!r}; allowed is one in {folder}, which DVC watches")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as refused:
        raise PipelineError(f"{file}: {refused.strerror}; {key} names it") from None
    except UnicodeDecodeError:
        raise PipelineError(f"{file}: not UTF-8 text; allowed is one unit id a line") from None
    lines = [line.removesuffix("\r") if line.strip() else "" for line in text.split("\n")]
    ids: list[str] = id_text(pa.array(lines, pa.string())).to_pylist()
    return ids


class IdList:
    """Unit ids of a list; empty ones are left out.

    An id of digits may be written with or without the zeros that the column ``unit_id`` has in
    front of it.

    Args:
        ids: one a line.
        file: the list, for errors.
    """

    def __init__(self, ids: Sequence[str], file: object):
        self._file = file
        # Of equal lines the first counts.
        given = {unit: number for number, unit in reversed(list(enumerate(ids, 1))) if unit}
        self._lines = np.array(list(given.values()), dtype=np.int64)
        self._met = np.zeros(len(given), dtype=bool)
        self._ids = pa.array(list(given), pa.string())

    def contains(self, units: pa.Array) -> npt.NDArray[np.bool_]:
        """Look up each of ``units`` in the list, bool [units]; remember the ids that were met."""
        places = numbers(pc.index_in(units, value_set=self._ids).fill_null(-1))
        listed: npt.NDArray[np.bool_] = places >= 0
        self._met[np.unique(places[listed])] = True
        return listed

    def drop(self, table: pa.Table) -> pa.Table:
        """Drop the rows of the units that are listed."""
        if len(self._ids) == 0:
            return table
        return table.filter(pa.array(~self.contains(whole(table["unit_id"]))))

    def check_all_met(self) -> None:
        """Call after the last batch: an id that no unit has may be misspelt, and its owner would be
        passed over.

        Raises:
            PipelineError: if there is one. The message names the line and not the id, which is a
                person's.
        """
        missing = self._lines[~self._met]
        if len(missing) > 0:
            raise PipelineError(
                f"{self._file}: line {missing.min()}: found an id that no unit has "
                f"({len(missing)} such lines); allowed are ids of the data, as they are in the "
                "column unit_id; correct it, or remove the line"
            )


def draw_public(units: pa.Array, public_fraction: float) -> npt.NDArray[np.bool_]:
    """Draw the public ones of some units: a unit is one where a hash of its id, uniform in [0, 1),
    lies below ``public_fraction``.

    It depends on nothing but the unit's own id, so the presence of a unit moves no other.
    """
    salted = [_SALT + unit.encode() for unit in units.to_pylist()]
    drawn = b"".join([hashlib.sha256(each).digest()[: _HASH_BITS // 8] for each in salted])
    return np.frombuffer(drawn, ">u8") < np.uint64(int(public_fraction * 2**_HASH_BITS))
