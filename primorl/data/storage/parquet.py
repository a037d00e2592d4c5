"""Rows of whole units in one Parquet file, written and read in batches, never the whole dataset at
once.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from primorl.base.errors import PipelineError
from primorl.data.storage.schema import DatasetInfo, run_starts

FILE = "rows.parquet"
ROWS_PER_GROUP = 2**16  # or one whole unit, if it is longer
ROWS_PER_BATCH = 2**16
_PAGE_BYTES = 2**23  # pages of the usual size cost a third of the time to write
_IDS = ["unit_id", "trajectory_id"]


class PartWriter(ExitStack):
    """Writes tables of whole units into ``folder``.

    The file carries the dataset's facts, which may be known only after the last row: `finish`
    writes them.

    Args:
        folder: an empty folder.
        schema: of the dataset.
        rows_per_group: how many rows a row group has at least, unless it is the last. Each holds
            whole units.
    """

    def __init__(self, folder: Path, schema: pa.Schema, rows_per_group: int = ROWS_PER_GROUP):
        super().__init__()  # of the open file
        self._schema, self._rows_per_group = schema, rows_per_group
        self._waiting: list[pa.Table] = []
        self._file = self.enter_context(
            pq.ParquetWriter(
                folder / FILE,
                schema,
                use_dictionary=_IDS,
                # measured numbers hardly shrink
                compression="none",
                write_statistics=False,
                data_page_size=_PAGE_BYTES,
                write_page_checksum=True,
            )
        )

    def write(self, table: pa.Table) -> None:
        """Append a table of whole units."""
        self._waiting.append(table)
        if sum(table.num_rows for table in self._waiting) >= ROWS_PER_BATCH:
            self._encode(rest=False)

    def finish(self, info: DatasetInfo) -> None:
        """Write what waits and the dataset's facts; without this the file is not complete."""
        self._encode(rest=True)
        self._file.add_key_value_metadata(info.to_metadata())

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
            rows = int(ends[last]) - begin
            self._file.write_table(batch.slice(begin, rows), row_group_size=rows)
            first = last + 1


class PartReader:
    """The rows in ``folder``.

    Args:
        folder: what ``PartWriter`` filled.
        made_by: the stage that makes it, for errors.

    Raises:
        PipelineError: if there is no file, or it is unreadable or no dataset's.
    """

    def __init__(self, folder: Path, made_by: str):
        self._repair = f"run `dvc repro {made_by}` to make it again"
        self.folder, self._path = folder, folder / FILE
        try:
            self._file = pq.ParquetFile(
                self._path, page_checksum_verification=True, pre_buffer=False
            )
        except FileNotFoundError:
            raise PipelineError(f"{self._path}: not there; {self._repair}") from None
        except (OSError, pa.ArrowException):
            found = "not a readable Parquet file"
            raise PipelineError(f"{self._path}: {found}; {self._repair}") from None
        self.info = DatasetInfo.from_metadata(self._file.metadata.metadata, self._path)
        if not self._file.schema_arrow.equals(self.info.schema):
            raise PipelineError(f"{self._path}: columns are not the dataset's; {self._repair}")
        self.rows = self._file.metadata.num_rows

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Read whole row groups, about ``ROWS_PER_BATCH`` rows each, of all or some columns; the
        metadata is left behind.

        Raises:
            PipelineError: if they cannot be decoded.
        """
        groups = self._file.num_row_groups
        sizes = [self._file.metadata.row_group(group).num_rows for group in range(groups)]
        ends = np.cumsum([0, *sizes])
        first = 0
        while first < groups:
            last = min(int(np.searchsorted(ends, ends[first] + ROWS_PER_BATCH)), groups)
            try:
                table = self._file.read_row_groups(range(first, last), columns=columns)
            except pa.ArrowMemoryError:
                raise
            except (OSError, pa.ArrowException):
                where = f"{self._path}: row groups {first} to {last - 1}"
                raise PipelineError(f"{where}: found corrupt pages; {self._repair}") from None
            yield table.replace_schema_metadata(None)
            first = last

    def lengths(self) -> npt.NDArray[np.int64]:
        """Count the rows of each unit, in order: no unit is in two tables."""
        found = [np.empty(0, np.int64)]
        for table in self.tables(["unit_id"]):
            found.append(np.diff(run_starts(table["unit_id"]), append=table.num_rows))
        return np.concatenate(found)
