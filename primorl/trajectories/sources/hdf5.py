"""HDF5 files: claims that are checked before memory is taken, and writes that are checked one by one."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from primorl.project.errors import PipelineError

_MOST_COMPRESSED = 2_000  # gzip makes at most 1,032 bytes of one
_SMALL_BYTES = 2**20  # not worth a look


def claims_too_much(array: h5py.h5d.DatasetID) -> bool:
    """Say whether an array claims to be larger than what the file holds of it can be.

    A file of 2 kB can claim 10^12 rows: HDF5 writes only the parts that were filled, and reads others as zeros. To make
    room for such an array would take all memory.
    """
    size = array.dtype.itemsize
    for axis in array.shape:
        size *= int(axis)
    return bool(size > _SMALL_BYTES and size > _MOST_COMPRESSED * array.get_storage_size())


@contextmanager
def checked_writing(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file to append to; a full disk is one error when the block ends.

    HDF5 itself does not recover from a write that fails: it writes what waits again at every later call, and at last
    crashes the process. So the file that it sees takes everything from the first failure on, and keeps nothing.

    Raises:
        PipelineError: if the system refused a write.
    """
    target = _CheckedFile(path, "r+")
    try:
        with h5py.File(target, "r+") as file:
            yield file
    except (OSError, RuntimeError, ValueError):
        if target.refused is None:
            raise
    finally:
        target.close()
    if target.refused is not None:
        raise PipelineError(
            f"{path}: cannot be written ({target.refused.strerror}); make room on the disk, or collect less, and run "
            "the stage again"
        )


class _CheckedFile(io.FileIO):
    """A file that remembers the first write that the system refused, and pretends that later ones succeed."""

    def __init__(self, path: Path, mode: str):
        super().__init__(path, mode)
        self.refused: OSError | None = None

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while self.refused is None and len(left) > 0:
            try:
                left = left[super().write(left) :]
            except OSError as refused:
                self.refused = refused
        return size

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size) if self.refused is None else size or 0
        except OSError as refused:
            self.refused = refused
            return size or 0
