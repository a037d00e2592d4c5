"""Part files of whole units in Parquet: written and read in batches, never the whole dataset at
once.

Every row group holds whole units.
"""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from primorl.base.errors import PipelineError
from primorl.data.storage.schema import DatasetInfo, run_starts

ROWS_PER_GROUP = 2**16  # or one whole unit, if it is longer
ROWS_PER_BATCH = 2**16
_ROWS_PER_PART = 2**20
_MOST_OPEN = 256
_PAGE_BYTES = 2**23  # pages of the usual size cost a third of the time to write
_IDS = ["unit_id", "trajectory_id"]


class PartWriter(ExitStack):
    """Writes tables of whole units into ``folder`` as ``part-00000.parquet`` and so on.

    Every part carries the dataset's facts, which may be known only after the last row: parts stay
    open until `finish`.

    Args:
        folder: an empty folder.
        schema: of the dataset.
        rows_per_group: how many rows a row group has at least, unless it is a part's last.
    """

    def __init__(self, folder: Path, schema: pa.Schema, rows_per_group: int = ROWS_PER_GROUP):
        super().__init__()  # of the open parts
        self._folder, self._schema, self._rows_per_group = folder, schema, rows_per_group
        self._parts: list[pq.ParquetWriter] = []
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
        for part in self._parts:
            part.add_key_value_metadata(facts | {b"ARROW:schema": described})
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
            self._parts[-1].write_table(batch.slice(begin, rows), row_group_size=rows)
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
        self._parts.append(self.enter_context(part))
        self._rows_in_part = 0


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
        """Read whole row groups, about ``ROWS_PER_BATCH`` rows each, of all or some columns; the
        metadata is left behind.

        Raises:
            PipelineError: if they cannot be decoded.
        """
        for part, path in enumerate(self._paths):
            file = self._file(part)
            sizes = (file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
            ends = np.cumsum([0, *sizes])
            first = 0
            while first < file.num_row_groups:
                beyond = int(np.searchsorted(ends, ends[first] + ROWS_PER_BATCH))
                last = min(beyond, file.num_row_groups)
                try:
                    table = file.read_row_groups(range(first, last), columns=columns)
                except pa.ArrowMemoryError:
                    raise
                except (OSError, pa.ArrowException):
                    where = f"{path}: row groups {first} to {last - 1}"
                    raise PipelineError(f"{where}: found corrupt pages; {self._repair}") from None
                yield table.replace_schema_metadata(None)
                first = last

    def lengths(self) -> npt.NDArray[np.int64]:
        """Count the rows of each unit, in order: no unit is in two tables."""
        found = [np.empty(0, np.int64)]
        for table in self.tables(["unit_id"]):
            found.append(np.diff(run_starts(table["unit_id"]), append=table.num_rows))
        return np.concatenate(found)

    def _open(self, part: int) -> pq.ParquetFile:
        path = self._paths[part]
        try:
            return pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        except (OSError, pa.ArrowException):
            raise PipelineError(f"{path}: not a readable Parquet file; {self._repair}") from None
