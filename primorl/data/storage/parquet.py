"""Part files of whole units in Parquet: written and read in batches, never the whole dataset at
once.

Every row group holds whole units. Every part carries an index, the rows of each of its units and
row groups. It says in which row groups a cohort lies, so that nothing else of the part is read.
"""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from primorl.base.errors import PipelineError
from primorl.data.storage.schema import DatasetInfo, run_starts

SEQUENTIAL, RANDOM = 2**16, 2**9
"""Rows of a row group (or one whole unit, if it is longer) for reading all of it, and for reading
single units.
"""
ROWS_PER_BATCH = 2**16
_ROWS_PER_PART = 2**20
_MOST_OPEN = 256
_PAGE_BYTES = 2**23  # pages of the usual size cost a third of the time to write
_IDS = ["unit_id", "trajectory_id"]
_INDEX_KEY = b"primorl.units"


class PartWriter(ExitStack):
    """Writes tables of whole units into ``folder`` as ``part-00000.parquet`` and so on.

    Every part carries the dataset's facts, which may be known only after the last row: parts stay
    open until `finish`.

    Args:
        folder: an empty folder.
        schema: of the dataset.
        rows_per_group: how many rows a row group has at least, unless it is a part's last.
    """

    def __init__(self, folder: Path, schema: pa.Schema, rows_per_group: int = SEQUENTIAL):
        super().__init__()  # of the open parts
        self._folder, self._schema, self._rows_per_group = folder, schema, rows_per_group
        # Of each part its file, the rows of its units, and those of its row groups.
        self._parts: list[tuple[pq.ParquetWriter, list[npt.NDArray[np.int64]], list[int]]] = []
        self._rows_in_part = _ROWS_PER_PART
        self._waiting: list[pa.Table] = []

    def write(self, table: pa.Table) -> None:
        """Append a table of whole units."""
        self._waiting.append(table)
        if sum(table.num_rows for table in self._waiting) >= ROWS_PER_BATCH:
            self._encode(rest=False)

    def finish(self, info: DatasetInfo) -> None:
        """Write what waits and the dataset's facts; without this the parts are not complete.

        A dataset without rows is one part without rows.
        """
        self._encode(rest=True)
        if not self._parts:
            self._begin_part()
        facts = info.to_metadata()
        # Readers take the Arrow schema, its metadata included, from this key; Arrow's writer would
        # put it there itself, but with the facts known when the part was opened.
        described = base64.b64encode(self._schema.with_metadata(facts).serialize().to_pybytes())
        for part, units, groups in self._parts:
            lengths = np.concatenate([np.empty(0, np.int64), *units])
            index = _encoded(lengths) + b"." + _encoded(groups)
            part.add_key_value_metadata(facts | {b"ARROW:schema": described, _INDEX_KEY: index})
        # a closed writer holds the places of its row groups, and the parts are read again next
        self._parts.clear()

    def _encode(self, *, rest: bool) -> None:
        """Write what waits, without the ``rest`` that fills no row group yet.

        Where groups end depends on the rows alone, not on the tables they come in: those of public
        rows tell how many private ones lie between them.
        """
        batch = pa.concat_tables([self._schema.empty_table(), *self._waiting]).combine_chunks()
        self._waiting = []
        starts = run_starts(batch["unit_id"])
        ends = np.append(starts[1:], batch.num_rows)
        first = 0
        while first < len(starts):
            begin = int(starts[first])
            if not rest and batch.num_rows - begin < self._rows_per_group:
                self._waiting = [batch.slice(begin)]
                return
            last = int(np.searchsorted(ends, min(begin + self._rows_per_group, batch.num_rows)))
            if self._rows_in_part >= _ROWS_PER_PART:
                self._begin_part()
            rows = int(ends[last]) - begin
            part, units, groups = self._parts[-1]
            part.write_table(batch.slice(begin, rows), row_group_size=rows)
            units.append(ends[first : last + 1] - starts[first : last + 1])
            groups.append(rows)
            self._rows_in_part += rows
            first = last + 1

    def _begin_part(self) -> None:
        path = self._folder / f"part-{len(self._parts):05d}.parquet"
        part = pq.ParquetWriter(
            path,
            self._schema,
            use_dictionary=_IDS,
            # measured numbers hardly shrink; decoding a cohort would pay for it every round
            compression="none",
            write_statistics=False,
            data_page_size=_PAGE_BYTES,
            store_schema=False,
            write_page_checksum=True,
        )
        self._parts.append((self.enter_context(part), [], []))
        self._rows_in_part = 0


@dataclass(frozen=True)
class Index:
    """Positions of the units in a folder of parts. U units in G row groups, both in order.

    Attributes:
        lengths: rows of each unit, [U].
        group_of: the row group of each unit, [U].
        start_in_group: the first row of each unit within its row group, [U].
        groups: (number of the part, number of the row group in it), one a row group.
    """

    lengths: npt.NDArray[np.int64]
    group_of: npt.NDArray[np.int64]
    start_in_group: npt.NDArray[np.int64]
    groups: list[tuple[int, int]]


class PartReader:
    """The part files of ``folder``, in order.

    Args:
        folder: what ``PartWriter`` filled.
        made_by: the stage that makes it, for errors.

    Raises:
        PipelineError: if there is no part, a part is unreadable, or parts are of different
            datasets.
    """

    def __init__(self, folder: Path, made_by: str):
        self._repair = f"run `dvc repro {made_by}` to make it again"
        self.folder = folder
        self._paths = sorted(folder.glob("*.parquet"))
        if not self._paths:
            raise PipelineError(f"{folder}: found no Parquet files; {self._repair}")
        # A part's footer takes longer to read than a cohort.
        self._file = lru_cache(maxsize=_MOST_OPEN)(self._open)
        self.rows = 0
        self.info = DatasetInfo.from_schema(self._file(0).schema_arrow, self._paths[0])
        for part, path in enumerate(self._paths):
            file = self._file(part)
            info = DatasetInfo.from_schema(file.schema_arrow, path)
            if not file.schema_arrow.equals(info.schema):
                raise PipelineError(f"{path}: columns are not the dataset's; {self._repair}")
            if info != self.info:
                first = self._paths[0].name
                raise PipelineError(f"{path}: of another dataset than {first}; {self._repair}")
            self.rows += file.metadata.num_rows

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Tables of whole row groups, about ``ROWS_PER_BATCH`` rows each, of all or some columns;
        see `row_groups`.
        """
        for part in range(len(self._paths)):
            metadata = self._file(part).metadata
            ends = np.cumsum(
                [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            )
            first = 0
            while first < len(ends):
                before = ends[first - 1] if first else 0
                last = min(int(np.searchsorted(ends, before + ROWS_PER_BATCH)), len(ends) - 1)
                yield self.row_groups(part, list(range(first, last + 1)), columns, threads=True)
                first = last + 1

    def row_groups(
        self,
        part: int,
        groups: list[int],
        columns: list[str] | None = None,
        *,
        threads: bool = False,
    ) -> pa.Table:
        """Some row groups of one part, in the order asked for; the metadata is left behind.

        Args:
            part: its number.
            groups: their numbers in it.
            columns: the columns to read; None: all.
            threads: whether Arrow decodes columns side by side; who reads several parts side by
                side is faster without.

        Raises:
            PipelineError: if they cannot be decoded.
        """
        try:
            table = self._file(part).read_row_groups(groups, columns=columns, use_threads=threads)
        except pa.ArrowMemoryError:
            raise
        except (OSError, pa.ArrowException):
            where = f"{self._paths[part]}: row groups {groups[0]} to {groups[-1]}"
            raise PipelineError(f"{where}: found corrupt pages; {self._repair}") from None
        return table.replace_schema_metadata(None)

    def index(self) -> Index:
        """Read the positions of the units from the ends of the files.

        Raises:
            PipelineError: if a part has no index, or one that does not fit it.
        """
        lengths, group_of, starts = ([np.empty(0, np.int64)] for _ in range(3))
        groups: list[tuple[int, int]] = []
        for part, path in enumerate(self._paths):
            metadata = self._file(part).metadata
            own, sizes = _index(metadata)
            ends, group_ends = np.cumsum(own), np.cumsum(sizes)
            whole = own.sum() == sizes.sum() == metadata.num_rows
            whole = whole and len(sizes) == metadata.num_row_groups
            if not whole or (own < 1).any() or not np.isin(group_ends, ends).all():
                raise PipelineError(f"{path}: its index of units does not fit; {self._repair}")
            within = np.searchsorted(group_ends, ends)
            group_of.append(within + len(groups))
            starts.append(ends - own - (group_ends - sizes)[within])
            lengths.append(own)
            groups += [(part, group) for group in range(len(sizes))]
        return Index(
            np.concatenate(lengths), np.concatenate(group_of), np.concatenate(starts), groups
        )

    def _open(self, part: int) -> pq.ParquetFile:
        path = self._paths[part]
        try:
            return pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        except (OSError, pa.ArrowException):
            raise PipelineError(f"{path}: not a readable Parquet file; {self._repair}") from None


def _encoded(rows: npt.ArrayLike) -> bytes:
    return base64.b64encode(np.asarray(rows, "<i8").tobytes())


def _index(metadata: pq.FileMetaData) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows of each unit and row group, as the writer noted them: asking for each row group takes as
    long again.
    """
    try:
        parts = (metadata.metadata or {})[_INDEX_KEY].split(b".")
        decoded = [base64.b64decode(part, validate=True) for part in parts]
        own, sizes = (np.frombuffer(part, "<i8").astype(np.int64) for part in decoded)
    except (KeyError, ValueError):
        return np.full(1, -1), np.full(1, -1)
    return own, sizes
