"""The people in a dataset: fingerprint of its rows, keyed digests of units, duplicates, those who
withdrew, and the choice of the public ones.

A plain content hash of private data tells neighbouring datasets apart, so none leaves the trust
boundary; HMAC with the project's secret takes its place. Public units are chosen by a hash of
their ids, or by a file of the ids of people who consented, in ``data/consent``.
"""

import hashlib
import hmac
import json
import os
import secrets
import tempfile
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base import BadRows, PipelineError, say
from primorl.base.files import SECRET, UNITS, home, read_text, replaced_file, workspace
from primorl.data.storage.schema import (
    IDS,
    Flags,
    first_repeat,
    id_text,
    numbers,
    row_numbers,
    trajectory_bytes,
    trajectory_starts,
    vectors,
    whole,
)

_BYTES = 32
_LABEL = b"primorl dataset fingerprint 1\0"  # the secret may key other things as well
_CHECK = b"primorl secret check 1\0"


def project_secret() -> bytes:
    """Read the project's secret (32 bytes), made with mode 0600 on first use; git and DVC never see
    it.

    Raises:
        PipelineError: if the file has another length.
    """
    path = home() / SECRET
    if not path.exists():
        _create(path)
    secret = path.read_bytes()
    if len(secret) != _BYTES:
        raise PipelineError(f"{path}: damaged: not {_BYTES} bytes; restore it from your backup")
    return secret


def secret_check(secret: bytes) -> str:
    """Compute the check value of a secret, 64 hexadecimal digits; it reveals neither the secret nor
    data.
    """
    return hmac.new(secret, _CHECK, hashlib.sha256).hexdigest()


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=path.parent)  # mkstemp creates with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link never replaces a secret that another process just made.
            os.link(fresh, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links: whoever made the empty file fills it
            with suppress(FileExistsError):
                path.touch(mode=0o600, exist_ok=False)
                Path(fresh).replace(path)
    finally:
        Path(fresh).unlink(missing_ok=True)


class Fingerprint:
    """HMAC-SHA256 over the SHA-256 of all rows, fed in batches; where batches begin does not
    matter.

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

    def keyed_digest(self, secret: bytes) -> str:
        """Compute the fingerprint of everything taken in, 64 hexadecimal digits."""
        content = hashlib.sha256(self._header)
        for digest in self._columns.values():
            content.update(digest.digest())
        return hmac.new(secret, _LABEL + content.digest(), hashlib.sha256).hexdigest()


def _canonical(column: pa.ChunkedArray) -> bytes | memoryview:
    if pa.types.is_fixed_size_list(column.type):
        return np.ascontiguousarray(vectors(column), dtype="<f4").data.cast("B")
    if pa.types.is_string(column.type):
        ended = pc.binary_join_element_wise(column, "", "\0").combine_chunks()
        return memoryview(ended.buffers()[2] or b"")
    values = column.to_numpy()
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).data.cast("B")


DIGEST_BYTES = 16
NOBODY = b"\n"
"""Content of a file without digests: DVC warns of an empty file at every stage."""


class Membership:
    """Keyed digests of every unit that `update` is shown: of its id, and of each trajectory's id
    and rows.

    Each is ``DIGEST_BYTES`` long; where the trajectory is the unit, there are two of it. They tell
    the people in the data to anybody who holds the secret and a guess, so they stay inside the
    trust boundary.

    Args:
        secret: the project's, up to 64 bytes.
        population: within which ids mean the same.
        by_rows: whether equal rows mean the same person. False for the public side of short records
            of a small state space, some of which equal private ones: there a second digest of the
                id takes the place of the rows'.
    """

    def __init__(self, secret: bytes, population: str, by_rows: bool = True):
        prefix = _within(population)
        self._of_id = _digester(secret, b"unit id", prefix)
        self._of_id_again = _digester(secret, b"id again", prefix)
        self._of_rows = _digester(secret, b"rows")
        self._by_rows = by_rows
        self._digests = bytearray()

    def update(self, table: pa.Table) -> None:
        """Take in whole units, in the dataset's schema."""
        if table.num_rows == 0:
            return
        starts = trajectory_starts(table)
        chosen = row_numbers(starts)
        units, names = (whole(table[name]).take(chosen).to_pylist() for name in IDS)
        others = dict.fromkeys(u for u, name in zip(units, names, strict=True) if u != name)
        encoded = [name.encode() for name in names]
        self._digests += self._of_id([*map(str.encode, others), *encoded])
        if self._by_rows:
            self._digests += self._of_rows(trajectory_bytes(table, starts))
        else:
            self._digests += self._of_id_again(encoded)

    def to_bytes(self) -> bytes:
        """Give all digests, sorted: their order reveals nothing."""
        return np.sort(_split(self._digests)).tobytes()

    def shares_with(self, other: "Membership") -> bool:
        """Say whether an id or a trajectory's rows are in both."""
        return np.intersect1d(_split(self._digests), _split(other._digests)).size > 0


def _split(digests: bytes | bytearray) -> npt.NDArray[np.bytes_]:
    # NumPy ignores zeros at the end when it compares; as all are equally long, nothing is lost.
    return np.frombuffer(digests, f"S{DIGEST_BYTES}")


def id_digests(secret: bytes, population: str, ids: Sequence[str]) -> bytes:
    """Keyed digests of people's ids, sorted, as `Membership` has them of units of the same
    population.

    Args:
        secret: the project's.
        population: within which ids mean the same.
        ids: in the form of the column ``unit_id`` (`id_text`).
    """
    digests = _digester(secret, b"unit id", _within(population))(one.encode() for one in ids)
    return np.sort(_split(digests)).tobytes()


_OF_IDS = ".ids"  # earlier versions kept files without it, whose digests never equal today's


def remember_units(dataset: str, fingerprint: str, digests: bytes) -> None:
    """Keep the `id_digests` of a version of a dataset in the project's state, to compare others;
    say how many units joined and left since the one that was kept last.
    """
    last = max(_list_versions(dataset), key=lambda file: file.stat().st_mtime_ns, default=None)
    known = b"" if last is None else last.read_bytes()
    with replaced_file(home() / UNITS / f"{fingerprint}.{dataset}{_OF_IDS}") as fresh:
        fresh.touch(mode=0o600)
        fresh.write_bytes(digests)
    before, now = set(_split(known)), set(_split(digests))
    if before and before != now:
        changes = f"{len(now - before)} units joined and {len(before - now)} left"
        say(f"partition: {changes} since the version before")


def _list_versions(dataset: str) -> list[Path]:
    """List the files of ids of the dataset's versions, each named by its fingerprint."""
    return list((home() / UNITS).glob(f"{'?' * 64}.{dataset}{_OF_IDS}"))


def _had(dataset: str, ids: Sequence[str]) -> Flags:
    """Say of each id whether a version of the dataset that was split here had it."""
    known = b"".join(file.read_bytes() for file in _list_versions(dataset))
    own = _digester(project_secret(), b"unit id", _within(""))(map(str.encode, ids))
    return np.isin(_split(own), _split(known))


def population_digest(secret: bytes, population: str) -> str:
    """Digest a population's name for the ledger, which only compares it."""
    return _digester(secret, b"population")([population.encode()]).hex()


_Digester = Callable[[Iterable[bytes | memoryview]], bytes]


def _within(population: str) -> bytes:
    return f"{len(population)}:{population}".encode()


def _digester(secret: bytes, what: bytes, prefix: bytes = b"") -> _Digester:
    """Make a function from values to their keyed digests, joined."""
    keyed = hashlib.blake2b(prefix, key=secret, digest_size=DIGEST_BYTES, person=what)

    def digests(values: Iterable[bytes | memoryview]) -> bytes:
        found = []
        for value in values:
            own = keyed.copy()  # the key need not be taken in again
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
        for rows in trajectory_bytes(table, trajectory_starts(table)):
            self._digests += hashlib.blake2b(rows, digest_size=DIGEST_BYTES).digest()

    def finish(self) -> None:
        """Compare all trajectories; call it after the last batch.

        Raises:
            PipelineError: if two are equal. They are named by their numbers, counted from 1 in the
                order of the data: an id may name a person.
        """
        count, content = len(self._digests) // DIGEST_BYTES, pa.py_buffer(self._digests)
        digests = pa.Array.from_buffers(pa.binary(DIGEST_BYTES), count, [None, content])
        if (places := first_repeat(digests)) is not None:
            first, again = places
            found = f"found the same rows as in trajectory number {first + 1}"
            remedy = "drop it; or, as short ones can be alike, set ingestion.duplicates: allow"
            raise BadRows(f"{self._origin}: trajectory number {again + 1}: {found}; {remedy}")


_UUID = "^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$"
_UNSEEN = ((r"[\p{Cf}\x00]+", ""), (r"\s+", " "), (" ?/ ?", "/"), ("[\u2010-\u2015\u2212]", "-"))
# as ="017" and '017, which spreadsheets keep as text
_WRAPPED = (r"^[='\"{(\[ ]+|[\])}\"' ]+$", "")


class SpellingCheck:
    """Refuses two ids of units that are written differently and are one: their owner would be two
    units.

    Ids are one where they agree without blanks, quotes and brackets around them and second blanks
    within, without invisible characters (a byte order mark, a zero-width blank), without zeros in
    front of digits and ``.0`` or ``,0`` behind them, with ``3e3`` written out, and in one Unicode
    form. Case tells people apart, but for UUIDs; ids that differ by case alone are warned of.

    Ids that all end in ``.0`` are refused: another version of the log may have them without it.

    Only hashes are held, 24 bytes for each id. Two of 10⁷ different ids have equal ones in one
    ingestion of 370,000, which is refused, too; repeated, it passes.

    Args:
        origin: the file or folder that errors name.
        of: ``units``, or ``trajectories``, of whose ids only the spelling counts.
    """

    def __init__(self, origin: object, of: str = "units"):
        self._origin, self._of = origin, of
        self._hashes = array("q"), array("q"), array("q")  # of ids, in plain, in one case
        self._pointed = of == "units"  # whether all end in ``.0``

    def __call__(self, table: pa.Table) -> None:
        """Take in the next batch of whole units, also of those who withdrew: they may be there in
        two spellings.
        """
        ids = pc.unique(table["unit_id" if self._of == "units" else "trajectory_id"])
        self._pointed &= pc.all(pc.match_substring_regex(ids, r"^[0-9]+\.0+$")).as_py() is not False
        plain = pc.utf8_normalize(ids, form="NFKC")
        for pattern, kept in (*_UNSEEN, _WRAPPED):
            plain = pc.replace_substring_regex(plain, pattern=pattern, replacement=kept)
        for pattern in (r"(^|/)([0-9]+)[.,]0*$", r"(^|/)0+([0-9]+)$"):
            plain = pc.replace_substring_regex(plain, pattern=pattern, replacement=r"\1\2")
        as_uuid = pc.match_substring_regex(plain, _UUID, ignore_case=True)
        plain = pc.if_else(as_uuid, pc.utf8_lower(pc.replace_substring(plain, "-", "")), plain)
        short = pc.match_substring_regex(plain, r"(^|/)[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}$")
        parts = (each.rpartition("/") for each in plain.filter(short).to_pylist())
        whole = [f"{unit}{bar}{Decimal(own).normalize():f}" for unit, bar, own in parts]
        plain = pc.replace_with_mask(plain, short, pa.array(whole, plain.type))
        texts = ids.to_pylist(), plain.to_pylist(), map(str.casefold, plain.to_pylist())
        for hashes, own in zip(self._hashes, texts, strict=True):
            hashes.extend(map(hash, own))

    def finish(self) -> None:
        """Compare all ids; call it after the last batch.

        Raises:
            PipelineError: if two are one. They are counted and not named, as an id may name a
                person.
        """
        if self._pointed and self._hashes[0]:
            found = "all ids of units end in `.0`, as whole numbers do that were read as decimal"
            raise BadRows(f"{self._origin}: {found}; write them as they were, whole")
        # Sorted, as np.unique takes ten times as long for as many numbers.
        different = [np.count_nonzero(np.diff(np.sort(each))) for each in self._hashes]
        if again := different[0] - different[1]:
            raise BadRows(
                f"{self._origin}: found ids of {self._of} ({again}) that differ from another one "
                "in blanks, quotes, brackets, the form of a hyphen, zeros in front, a final `.0`, "
                "an exponent, or the form of a UUID or of Unicode; use one spelling"
            )
        if again := different[1] - different[2]:
            found = f"found ids of {self._of} ({again}) that differ from another one by case alone"
            why = "if two are one, it is cut in two"
            if self._of == "units":
                why = "if two are one person, that person counts twice, and ε is of half a person"
            say(f"ingest: warning: {self._origin}: {found}; {why}; use one spelling")


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
    remedy = f"{key} names it; allowed is one unit id a line, in UTF-8"
    if workspace().resolve() != home():
        remedy += f"; not in git, so give `dvc exp run` also `--copy-paths {file}`"
    text = read_text(path, remedy).removeprefix("\ufeff")
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

    def contains(self, units: pa.Array) -> Flags:
        """Look up each of ``units`` in the list, bool [units]; remember the ids that were met."""
        places = numbers(pc.index_in(units, value_set=self._ids).fill_null(-1))
        listed: Flags = places >= 0
        self._met[np.unique(places[listed])] = True
        return listed

    def drop(self, table: pa.Table) -> pa.Table:
        """Drop the rows of the units that are listed."""
        return table.filter(pa.array(~self.contains(whole(table["unit_id"]))))

    def check_all_met(self, dataset: str | None = None) -> None:
        """Call after the last batch: an id that no unit has may be misspelt, and its owner would be
        passed over.

        Args:
            dataset: whose earlier versions may have had the ids; they are counted. None: that is
                no excuse.

        Raises:
            PipelineError: if there is another one. The message names the line and not the id, which
                is a person's.
        """
        missing = self._lines[~self._met]
        if len(missing) > 0 and dataset is not None:
            gone = _had(dataset, self._ids.filter(pa.array(~self._met)).to_pylist())
            missing = missing[~gone]
            if count := np.count_nonzero(gone):
                say(f"ingest: {self._file}: {count} listed ids are no longer in the log")
        if len(missing) > 0:
            found = f"found an id that no unit has ({len(missing)} such lines)"
            raise PipelineError(
                f"{self._file}: line {missing.min()}: {found}; correct or remove it"
            )


def draw_public(units: pa.Array, public_fraction: float) -> Flags:
    """Draw the public ones of some units: a unit is one where a hash of its id, uniform in [0, 1),
    lies below ``public_fraction``.

    It depends on nothing but the unit's own id, so the presence of a unit moves no other.
    """
    salted = [_SALT + unit.encode() for unit in units.to_pylist()]
    drawn = b"".join([hashlib.sha256(each).digest()[: _HASH_BITS // 8] for each in salted])
    return np.frombuffer(drawn, ">u8") < np.uint64(int(public_fraction * 2**_HASH_BITS))
