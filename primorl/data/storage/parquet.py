"""Rows of whole units in one Parquet file, written and read in batches, never the whole dataset at
once.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from primorl.base.errors import PipelineError
from primorl.data.storage.schema import DatasetInfo, run_starts

FILE = "rows.parquet"
ROWS_PER_GROUP = ROWS_PER_BATCH = 2**16
_PAGE_BYTES = 2**23  # pages of the usual size cost a third of the time to write
_IDS = ["unit_id", "trajectory_id"]


class PartWriter(ExitStack):
    """Writes tables of whole units into ``folder``.

    The file carries the dataset's facts, which may be known only after the last row: `finish`
    writes them.

    Args:
        folder: an empty folder.
        schema: of the dataset.
        rows_per_group: how many rows a row group has, unless it is the last.
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
        if sum(table.num_rows for table in self._waiting) >= self._rows_per_group:
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
        rows = batch.num_rows
        if not rest:
            rows -= rows % self._rows_per_group
        self._waiting = [batch.slice(rows)]
        if rows > 0:
            self._file.write_table(batch.slice(0, rows), row_group_size=self._rows_per_group)


def whole_units(batches: Iterable[pa.Table], unit: str) -> Iterator[pa.Table]:
    """Cut rows where a unit ends: no unit is in two tables."""
    waiting: list[pa.Table] = []
    for batch in batches:
        starts = run_starts(batch[unit])
        if waiting and batch[unit][0] != waiting[-1][unit][-1]:
            yield pa.concat_tables(waiting)
            waiting = []
        if starts[-1] > 0:
            yield pa.concat_tables([*waiting, batch.slice(0, starts[-1])])
            waiting = []
        waiting.append(batch.slice(starts[-1]))
    if waiting:
        yield pa.concat_tables(waiting)


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

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Read whole units, about ``ROWS_PER_BATCH`` rows at a time.

        Args:
            columns: of the tables, ``unit_id`` among them; None: all.

        Raises:
            PipelineError: if they cannot be decoded.
        """
        return whole_units(self._batches(columns), "unit_id")

    def _batches(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        rows = 0
        try:
            for batch in self._file.iter_batches(ROWS_PER_BATCH, columns=columns):
                yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
                rows += batch.num_rows
        except pa.ArrowMemoryError:
            raise
        except (OSError, pa.ArrowException):
            found = f"found corrupt pages after row {rows}"
            raise PipelineError(f"{self._path}: {found}; {self._repair}") from None

    def lengths(self) -> npt.NDArray[np.int64]:
        """Count the rows of each unit, in order: no unit is in two tables."""
        found = [np.empty(0, np.int64)]
        for table in self.tables(["unit_id"]):
            found.append(np.diff(run_starts(table["unit_id"]), append=table.num_rows))
        return np.concatenate(found)
