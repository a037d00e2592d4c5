"""Tables in Parquet or CSV, read and written in batches; memory does not grow with the file.

Errors name the file and the row, counted from 1 without a CSV's header. They quote no cell.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.project.errors import PipelineError
from primorl.trajectories.sources.tabular.columns import header_of

_CELLS_PER_BATCH, _ROWS_PER_BATCH = 2**22, 2**16
_CSV_BLOCK_BYTES = 2**22
_PARQUET_BUFFER_BYTES = 2**16
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)


class ParquetTable:
    """A Parquet file.

    Args:
        path: the file.

    Attributes:
        path: the file.
        names: of its columns.
        total: how much `batches` counts in all.
        unit: of that.

    Raises:
        PipelineError: not readable.
    """

    unit = "row"

    def __init__(self, path: Path):
        self.path = path
        try:
            # Without `pre_buffer` and threads Arrow holds what it decodes, and not all row groups of the file.
            self._file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES)
        except (pa.ArrowMemoryError, MemoryError):
            raise
        except _UNREADABLE:
            raise PipelineError(f"{path}: not readable as Parquet: truncated, corrupt or empty; repair it") from None
        self.names: list[str] = self._file.schema_arrow.names
        self.total: int = self._file.metadata.num_rows

    def type_of(self, column: str) -> pa.DataType:
        """The type of a column's decoded values."""
        kind = self._file.schema_arrow.field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[dict[str, pa.Array], int, int]]:
        """Columns of a batch by name, its number of rows, and how much of `total` it is.

        Raises:
            PipelineError: the file is corrupt further down.
        """
        width = sum(getattr(self.type_of(column), "list_size", 1) for column in columns)
        rows, read = min(_ROWS_PER_BATCH, max(1, _CELLS_PER_BATCH // max(1, width))), 0
        try:
            for batch in self._file.iter_batches(rows, columns=list(columns), use_threads=False):
                yield {column: _decoded(batch.column(column)) for column in columns}, batch.num_rows, batch.num_rows
                read += batch.num_rows
        except (pa.ArrowMemoryError, MemoryError):
            raise
        except _UNREADABLE:
            vectors = any(pa.types.is_fixed_size_list(self.type_of(column)) for column in columns)
            why = (
                "truncated, corrupt, or a vector is missing" if vectors else "truncated or corrupt"
            )  # Arrow reads none
            raise PipelineError(f"{self.path}: {why} after row {read}; repair it") from None


class CsvTable:
    """A CSV file in UTF-8 with a header. Every field is read as text.

    See `ParquetTable`.

    Attributes:
        delimiter: what separates fields: the one that `header_of` finds.
    """

    unit = "byte"

    def __init__(self, path: Path):
        self.path = path
        self._ragged: list[int] = []
        with path.open("rb") as file:
            header = file.readline(_CSV_BLOCK_BYTES).decode("utf-8-sig", "replace")
        self.delimiter, fields = header_of(header)
        self._several = len(fields) > 1
        with self._opened(None) as (_, reader):
            self.names: list[str] = reader.schema.names
        self.total = path.stat().st_size

    def type_of(self, column: str) -> pa.DataType:
        """Text."""
        return pa.string()

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[dict[str, pa.Array], int, int]]:
        """See `ParquetTable.batches`."""
        done = 0
        with self._opened(list(columns)) as (file, reader):
            for block in reader:  # of short rows it has many
                for first in range(0, block.num_rows, _ROWS_PER_BATCH):
                    batch, now = block.slice(first, _ROWS_PER_BATCH), file.tell()
                    yield {column: batch.column(column) for column in columns}, batch.num_rows, now - done
                    done = now

    @contextmanager
    def _opened(self, columns: list[str] | None) -> Iterator[tuple[Any, pacsv.CSVStreamingReader]]:
        def refuse(row: Any) -> str:
            self._ragged.append(row.number - 1)  # the header counts there
            return "error"

        reading = pacsv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False)  # or rows would have no number
        parsing = pacsv.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=True,
            ignore_empty_lines=self._several,  # of one column, an empty line is a row without a value
            invalid_row_handler=refuse,
        )
        texts = pacsv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns or (), pa.string()))
        try:
            with self.path.open("rb") as file, pacsv.open_csv(file, reading, parsing, texts) as reader:
                yield file, reader
        except (pa.ArrowMemoryError, MemoryError):
            raise
        except (pa.ArrowException, UnicodeDecodeError):
            if self._ragged:
                raise PipelineError(
                    f"{self.path}: row {self._ragged[0]}: found another number of fields than in the header, whose "
                    f"fields {self.delimiter!r} separates; allowed: as many in every row"
                ) from None
            raise PipelineError(
                f"{self.path}: not readable as CSV in UTF-8 with a header: truncated, corrupt or empty; repair it"
            ) from None


class TableWriter:
    """Writes batches of one schema as Parquet or CSV; use it as a context manager.

    Args:
        path: where to write.
        schema: of the batches.
        ending: ``.parquet`` or ``.csv``.
    """

    def __init__(self, path: Path, schema: pa.Schema, ending: str):
        self._schema = schema
        kind = pq.ParquetWriter if ending == ".parquet" else pacsv.CSVWriter
        self._writer = kind(str(path), schema)

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Append rows: one array for each field of the schema."""
        self._writer.write_table(pa.Table.from_arrays(list(columns), schema=self._schema))


def check_ending(path: Path, option: str) -> None:
    """Refuse a file name that says neither Parquet nor CSV.

    Raises:
        PipelineError: names the option that the path was given with.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise PipelineError(f"{option}: found {str(path)!r}; allowed is a name that ends in .parquet or .csv")


def open_table(path: Path) -> ParquetTable | CsvTable:
    """Open a table that `check_ending` allows.

    Raises:
        PipelineError: it is not there, or not readable.
    """
    if not path.is_file():
        raise PipelineError(f"{path}: not there; give a .parquet or .csv file")
    return ParquetTable(path) if path.suffix == ".parquet" else CsvTable(path)


def _decoded(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
