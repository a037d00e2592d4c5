"""A keyed fingerprint of a dataset's rows: only the holder of the secret can recognise equal data.

A plain content hash of private data tells neighbouring datasets apart, so none leaves the trust
boundary; HMAC with the project's secret takes its place.
"""

import hashlib
import hmac
import json
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.project.paths import SECRET
from primorl.trajectories.storage.schema import run_starts, vectors

_BYTES = 32
_LABEL = b"primorl dataset fingerprint 1\0"  # the secret may key other things as well
_CHECK = b"primorl secret check 1\0"


def project_secret() -> bytes:
    """Read the project's secret (32 bytes), made with mode 0600 on first use; git and DVC never see it.

    Raises:
        PipelineError: if the file is unreadable or has another length.
    """
    path = home() / SECRET
    if not path.exists():
        _create(path)
    try:
        secret = path.read_bytes()
    except OSError as unreadable:
        raise PipelineError(f"{path}: the project's secret cannot be read ({unreadable.strerror})") from None
    if len(secret) != _BYTES:
        raise PipelineError(f"{path}: the project's secret is damaged: not {_BYTES} bytes; restore it from your backup")
    return secret


def secret_check(secret: bytes) -> str:
    """Compute the check value of a secret, 64 hexadecimal digits; it reveals neither the secret nor data."""
    return hmac.new(secret, _CHECK, hashlib.sha256).hexdigest()


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=path.parent)  # mkstemp creates with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(fresh, path)  # unlike a rename, never replaces a secret that another process just made
    finally:
        Path(fresh).unlink()


class Fingerprint:
    """HMAC-SHA256 over the SHA-256 of all rows, fed in batches; where batches begin does not matter.

    Canonical bytes, hashed column by column: text as UTF-8 with a NUL after each value, numbers
    little-endian, booleans one byte. The columns' names and types go in front.
    """

    def __init__(self, schema: pa.Schema):
        self._columns = {field.name: hashlib.sha256() for field in schema}
        self._header = json.dumps([(field.name, str(field.type)) for field in schema]).encode()

    def update(self, table: pa.Table) -> None:
        """Take in the next rows, in the dataset's schema."""
        for name, digest in self._columns.items():
            digest.update(_canonical(table[name]))

    def keyed(self, secret: bytes) -> str:
        """Compute the fingerprint of everything taken in, 64 hexadecimal digits."""
        content = hashlib.sha256(self._header)
        for digest in self._columns.values():
            content.update(digest.digest())
        return hmac.new(secret, _LABEL + content.digest(), hashlib.sha256).hexdigest()


def _canonical(column: pa.ChunkedArray) -> bytes | memoryview:
    if pa.types.is_fixed_size_list(column.type):
        return np.ascontiguousarray(vectors(column), dtype="<f4").data.cast("B")
    if pa.types.is_string(column.type):
        starts = run_starts(column)
        if 8 * len(starts) > len(column):
            ended = pc.binary_join_element_wise(column, "", "\0").combine_chunks()
            return memoryview(ended.buffers()[2] or b"")
        # The same bytes, four times as quick where an id stands in many rows after another.
        runs = zip(column.take(pa.array(starts)).to_pylist(), np.diff([*starts, len(column)]).tolist(), strict=True)
        return "".join([f"{value}\0" * length for value, length in runs]).encode()
    values = column.to_numpy()
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).data.cast("B")
