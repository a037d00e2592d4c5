"""Tables of observations in Parquet or CSV as the matrices that a policy takes; memory does not grow with the file.

The dimensions of an observation are found by the names of columns. Errors name the file and the row, counted from 1
without a CSV's header. They quote no cell.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.config.tabular import CsvFormat, DecimalPoint
from primorl.project.elapsed import ElapsedTime
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.tabular.columns import header_of
from primorl.trajectories.sources.tabular.elapsed import RowOrder, elapsed_in

_CELLS_PER_BATCH, _ROWS_PER_BATCH = 2**22, 2**16
_CSV_BLOCK_BYTES = 2**22
_PARQUET_BUFFER_BYTES = 2**16
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)
_VECTOR = "observation"
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_NUMBERS: dict[DecimalPoint, str] = {".": _NUMBER, ",": _NUMBER.replace(r"\.", ",")}
# Of these, what is no number by the decimal mark has the other mark, or separates thousands.
_MARKED = r"^[-+]?[.,]?\d+([.,]\d*|[ '\x{a0}\x{202f}]\d{3})*([eE][-+]?\d+)?$"

Matrix = npt.NDArray[np.float64]


class ParquetTable:
    """A Parquet file; raises a `PipelineError` if it is not readable.

    Attributes:
        path: the file.
        names: of its columns.
        total: how much `batches` counts in all.
        unit: of that.
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
        """Return the type of a column's decoded values."""
        kind = self._file.schema_arrow.field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[dict[str, pa.Array], int, int]]:
        """Yield columns of a batch by name, its number of rows, and how much of `total` it is.

        Raises:
            PipelineError: the file is corrupt further down.
        """
        width = sum(getattr(self.type_of(column), "list_size", 1) for column in columns)
        rows, read = min(_ROWS_PER_BATCH, max(1, _CELLS_PER_BATCH // max(1, width))), 0
        try:
            for batch in self._file.iter_batches(rows, columns=list(columns), use_threads=False):
                found = {column: batch.column(column) for column in columns}
                decoded = {
                    column: array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
                    for column, array in found.items()
                }
                yield decoded, batch.num_rows, batch.num_rows
                read += batch.num_rows
        except (pa.ArrowMemoryError, MemoryError):
            raise
        except _UNREADABLE:
            vectors = any(pa.types.is_fixed_size_list(self.type_of(column)) for column in columns)
            # Arrow reads no missing vector.
            why = "truncated, corrupt, or a vector is missing" if vectors else "truncated or corrupt"
            raise PipelineError(f"{self.path}: {why} after row {read}; repair it") from None


class CsvTable:
    """A CSV file in UTF-8 with a header; see `ParquetTable`. Every field is read as text."""

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
        """Return text, whatever the column."""
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


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a table.

    Attributes:
        observations: ``[n, S]``; NaN where a value is missing, no number or no declared category.
        kept: the columns to keep.
        done: how much of the table's `total` these rows are.
    """

    observations: Matrix
    kept: list[pa.Array]
    done: int


@dataclass(frozen=True)
class _Dimension:
    """A column of numbers, or one category of a column: 1 where a row has it, else 0."""

    column: str
    category: str | None = None


class ObservationTable:
    """One observation a row, with other columns that are left aside.

    Args:
        path: a Parquet or CSV file.
        names: of the S dimensions. A name is that of a column of numbers. ``meal=snack`` is also the category
            ``snack`` of a column ``meal`` of text or whole numbers.
        vector: whether a column ``observation`` of vectors of size S may take the place of the named ones.
        keep: other columns to give with every batch.
        decimal_point: of numbers that are text, as all of a CSV are.
        elapsed: the dimension that is the time since the row before. Its column is cut at what is declared, as
            `ingest` does.
        by: what `elapsed` is computed from; None: a column of its name has it.

    Attributes:
        table: the file.

    Raises:
        PipelineError: not readable, or a column is missing, there twice, ambiguous or of a wrong type.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        *,
        vector: bool,
        keep: Sequence[str],
        decimal_point: DecimalPoint = ".",
        elapsed: ElapsedTime | None = None,
        by: RowOrder | None = None,
    ):
        self.table: ParquetTable | CsvTable = open_table(path)
        self._keep = tuple(keep)
        self._decimal_point = decimal_point
        self._elapsed, self._by = elapsed, by
        there, self._size = set(self.table.names), len(names)
        missing = [column for column in self._keep if column not in there]
        computed = set() if elapsed is None or by is None else {elapsed.name}
        if by is not None:
            missing += [column for column in (*by.trajectory, by.step) if column not in there]
        if both := computed & there:
            raise PipelineError(
                f"{path}: found a column {both.pop()!r}, which --trajectory and --step tell as well; allowed is one of "
                "them; leave out the flags, or drop the column"
            )
        if computed and elapsed is not None and by is not None and len(by.trajectory) < len(elapsed.trajectory):
            raise PipelineError(
                f"--trajectory: found {', '.join(by.trajectory)}; the log of training needed {len(elapsed.trajectory)} "
                f"columns to tell trajectories apart: {', '.join(elapsed.trajectory)}; repeat the flag for each"
            )
        there |= computed
        self._dimensions: list[_Dimension] = []
        self._vector = vector and _VECTOR in there and not there.issuperset(names)
        missing = [*([] if self._vector else self._find(names, there)), *missing]
        if missing:
            raise PipelineError(
                f"{path}: found no column {', '.join(map(repr, dict.fromkeys(missing)))}; allowed is a table with "
                "every column that the policy was trained on and that a flag names, under the same names (a CSV's "
                f"first line names them, separated by ',', ';', '|' or tabs); rename or add them{self._hint(missing)}"
            )
        named = [dimension.column for dimension in self._dimensions if dimension.column not in computed]
        own = [_VECTOR] if self._vector else named
        self._columns = tuple(dict.fromkeys((*own, *self._keep)))
        twice = [column for column in self._columns if self.table.names.count(column) > 1]
        if twice:
            raise PipelineError(
                f"{path}: column {', '.join(map(repr, twice))} is there twice; allowed is once; drop or rename one"
            )
        self._check_types()

    @property
    def kept(self) -> list[tuple[str, pa.DataType]]:
        """Return names and types of the columns to keep."""
        return [(column, self.table.type_of(column)) for column in self._keep]

    def batches(self) -> Iterator[Batch]:
        """Yield all rows, in the file's order.

        Raises:
            PipelineError: the file is corrupt further down, or has a number with other marks than the decimal point.
        """
        before, since = 0, self._since()
        for columns, rows, done in self.table.batches(self._columns):
            columns |= {name: pa.array(times[before : before + rows]) for name, times in since.items()}
            observations = _vectors(columns[_VECTOR]) if self._vector else self._matrix(columns, rows, before)
            yield Batch(observations, [columns[column] for column in self._keep], done)
            before += rows

    def _since(self) -> dict[str, Matrix]:
        if self._elapsed is None or self._by is None:
            return {}
        form = CsvFormat(delimiter=getattr(self.table, "delimiter", ","), decimal_point=self._decimal_point)
        times = elapsed_in(self.table.path, form, self._by, self._elapsed.unit, self._elapsed.most)
        return {self._elapsed.name: times}

    def _hint(self, missing: Sequence[str]) -> str:
        if self._elapsed is None or self._elapsed.name not in missing:
            return ""
        return (
            f"; {self._elapsed.name!r} is the time since the row before, in {self._elapsed.unit}: add it, or, if every "
            "trajectory is there from its first row, name the columns that tell it: --trajectory COLUMN --step COLUMN"
        )

    def _find(self, names: Sequence[str], there: set[str]) -> list[str]:
        """Find the column of each name; return the columns that are not there."""
        groups = [name.partition("=")[0] for name in names]
        missing = []
        for name, group in zip(names, groups, strict=True):
            places = [index for index, letter in enumerate(name) if letter == "=" and name[:index] in there]
            found = [_Dimension(name)] if name in there else []
            found += [_Dimension(name[:index], name[index + 1 :]) for index in places]
            if len(found) > 1:
                raise PipelineError(
                    f"{self.table.path}: column {found[0].column!r} and column {found[1].column!r}: the policy's "
                    f"{name!r} could be either; allowed is one of them; drop or rename the other"
                )
            if not found:
                missing.append(group if groups.count(group) > 1 and "=" in name else name)
            self._dimensions += found
        return missing

    def _check_types(self) -> None:
        wanted = {dimension.column: _fits_number for dimension in self._dimensions if dimension.category is None}
        wanted |= {dimension.column: _fits_category for dimension in self._dimensions if dimension.category is not None}
        for column, fits in wanted.items():
            if column in self._columns and not fits(found := self.table.type_of(column)):
                allowed = "numbers" if fits is _fits_number else "text, whole numbers or truth values"
                raise PipelineError(f"{self.table.path}: column {column!r}: found {found}; allowed: {allowed}")
        if self._vector:
            found = self.table.type_of(_VECTOR)
            if not (pa.types.is_fixed_size_list(found) and found.list_size == self._size):
                raise PipelineError(
                    f"{self.table.path}: column {_VECTOR!r}: found {found}; allowed: fixed_size_list of {self._size} "
                    f"numbers, or columns {_VECTOR}_0 to {_VECTOR}_{self._size - 1}"
                )

    def _matrix(self, columns: dict[str, pa.Array], rows: int, before: int) -> Matrix:
        # One row a dimension, turned at the end: to write column by column takes three times as long.
        turned = np.empty((self._size, rows))
        of: dict[str, list[int]] = {}
        for index, dimension in enumerate(self._dimensions):
            if dimension.category is not None:
                of.setdefault(dimension.column, []).append(index)
                continue
            self._refuse_marks(dimension.column, columns[dimension.column], before)
            turned[index] = _numbers(columns[dimension.column], self._decimal_point)
            if self._elapsed is not None and dimension.column == self._elapsed.name:
                turned[index] = turned[index].clip(max=self._elapsed.most)
        for column, indices in of.items():
            text = columns[column].cast(pa.string())
            declared = pa.array([self._dimensions[index].category for index in indices])
            code = pc.index_in(text, value_set=declared).cast(pa.float64()).to_numpy(zero_copy_only=False)
            one_hot = (np.arange(len(indices))[:, None] == code).astype(np.float64)
            turned[indices] = np.where(np.isnan(code), np.nan, one_hot)
        return np.ascontiguousarray(turned.T)

    def _refuse_marks(self, column: str, array: pa.Array, before: int) -> None:
        """Refuse a text such as 1,234, which is one number or a thousand times it. The cell is not quoted."""
        if not _is_text(array.type):
            return
        text, mark = pc.utf8_trim_whitespace(array), self._decimal_point
        plain = pc.match_substring_regex(text, _NUMBERS[mark])
        marked = pc.and_not(pc.match_substring_regex(text, _MARKED), plain)
        if (place := pc.index(marked, True).as_py()) >= 0:
            point, other, remedy = (
                ("point", "comma", "pass --decimal-point ,")
                if mark == "."
                else ("comma", "point", "leave out that flag")
            )
            raise PipelineError(
                f"{self.table.path}: row {before + place + 1}, column {column!r}: found a number with a {other} or a "
                f"thousands separator; allowed is a decimal {point} and no other mark (--decimal-point {mark}); if a "
                f"{other} is the decimal mark, {remedy}, and else remove it"
            )


def _numbers(array: pa.Array, decimal_point: DecimalPoint = ".") -> Matrix:
    """Numbers, or text, as float64; NaN where there is no number."""
    if _is_text(array.type):
        text = pc.utf8_trim_whitespace(array)
        fits = pc.match_substring_regex(text, _NUMBERS[decimal_point])
        array = pc.if_else(fits, pc.replace_substring(text, decimal_point, "."), pa.scalar(None, array.type))
    numbers: Matrix = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _vectors(array: pa.FixedSizeListArray) -> Matrix:
    size = array.type.list_size
    flat = _numbers(array.values.slice(array.offset * size, len(array) * size))
    missing = array.is_null().to_numpy(zero_copy_only=False)
    return np.where(missing[:, None], np.nan, flat.reshape(len(array), size))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _fits_category(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind) or _is_text(kind))


def _fits_number(kind: pa.DataType) -> bool:
    return bool(_fits_category(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
