"""HDF5 files of which nothing is believed before it was checked."""

import h5py

_MOST_COMPRESSED = 2_000  # gzip makes at most 1,032 bytes of one
_SMALL_BYTES = 2**20  # not worth a look


def claims_too_much(array: h5py.h5d.DatasetID) -> bool:
    """Whether an array says that it is larger than what the file holds of it can be.

    A file of 2 kB can claim 10^12 rows: HDF5 writes only the parts that were filled, and reads others as zeros. To make
    room for such an array would take all memory.
    """
    size = array.dtype.itemsize
    for axis in array.shape:
        size *= int(axis)
    return bool(size > _SMALL_BYTES and size > _MOST_COMPRESSED * array.get_storage_size())
