"""Checks of stored arrays before memory is taken: their type, their shape, and what they claim to hold."""

import math
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from primorl.project.errors import PipelineError

Array = npt.NDArray[Any]

ONE_NUMBER: list[tuple[int, ...]] = [(), (1,)]
"""Shapes of one number a step: it may have an axis of its own."""
_KINDS = {"f": "floating point", "iu": "whole numbers", "b": "booleans"}
_MOST_COMPRESSED = 2_000  # gzip makes at most 1,032 bytes of one
_SMALL_BYTES = 2**20  # not worth a look


def check_array(where: str, array: Array | h5py.Dataset, kinds: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Check the type of an array and its shape a step.

    Args:
        where: the file and the array, for errors.
        array: [rows, …].
        kinds: letters of NumPy's kinds of numbers.
        shapes: those allowed for a step; the first is named in errors.

    Raises:
        PipelineError: if it has others.
    """
    if array.dtype.kind not in kinds:
        allowed = " or ".join(words for letters, words in _KINDS.items() if set(letters) & set(kinds))
        raise PipelineError(f"{where}: found type {array.dtype}; allowed: {allowed}")
    if array.ndim == 0 or array.shape[1:] not in shapes:
        raise PipelineError(
            f"{where}: found shape {array.shape[1:]} a step, declared is {shapes[0] or 'one number'}; "
            "correct `environment` in params.yaml, or the data"
        )


def whole_numbers(values: Array, most: int) -> npt.NDArray[np.int64]:
    """Give discrete actions [T] that fit int32; those below 0 or above ``most`` stay outside, for `RowCheck`."""
    return np.clip(values.reshape(-1), -1, most)


def claims_too_much(array: h5py.h5d.DatasetID) -> bool:
    """Say whether an array claims to be larger than what the file holds of it can be.

    A file of 2 kB can claim 10^12 rows: HDF5 writes only the parts that were filled, and reads others as zeros. To make
    room for such an array would take all memory.
    """
    size = array.dtype.itemsize * math.prod(map(int, array.shape))
    return bool(size > _SMALL_BYTES and size > _MOST_COMPRESSED * array.get_storage_size())
