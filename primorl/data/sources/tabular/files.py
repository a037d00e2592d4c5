"""Log files in Parquet or CSV, read in batches with columns of one meaning and one type for all
files.

Errors name the file and the row, counted from 1 without a CSV's header. They quote no value, and
nothing of the first line either: if the header was forgotten, that line is data.
"""

import csv
import gzip
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.base.errors import PipelineError
from primorl.config.columns import (
    Carried,
    Categorical,
    CountedActions,
    Elapsed,
    ObservationColumn,
    TabularColumns,
)
from primorl.config.datasets import CsvFormat
from primorl.data.sources.tabular.watch import ENDINGS, log_files

ROWS_PER_BATCH = 2**16
_CSV_BLOCK_BYTES = 2**22
_PARQUET_BUFFER_BYTES = 2**16
_AGAIN = "repair the log and run `dvc repro -f collect`"
_MISSING = pa.array(pacsv.ConvertOptions().null_values)
_ORDERS = (
    pa.float64(),
    *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")),
)
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError, EOFError, csv.Error)


@dataclass(frozen=True)
class Field:
    """One thing that a row says, and the log's column that says it.

    ``id`` and ``order`` find a row's place. ``number`` and ``flag`` are as their names say,
    ``category`` is one of ``categories``, ``whole`` is a whole number below ``count``. A ``label``
    is any text; a missing one is empty. What ``elapsed`` since the row before is read off no
    column. A ``number`` with ``carried`` may be missing.
    """

    name: str
    column: str
    kind: Literal["id", "order", "number", "flag", "category", "whole", "label", "elapsed"]
    categories: tuple[str, ...] = ()
    count: int = 0
    elapsed: Elapsed | None = None
    carried: Carried | None = None


def fields_of(columns: TabularColumns) -> list[Field]:
    """List the fields of a row: ``trajectory``, ``order``, ``unit`` (if there is one),
    ``observation.0`` and so on.
    """
    fields = [Field("trajectory", columns.trajectory, "id"), Field("order", columns.order, "order")]
    if columns.unit is not None:
        fields.append(Field("unit", columns.unit, "id"))
    for index, entry in enumerate(columns.observation):
        fields.append(_observed(f"observation.{index}", entry))
    for index, column in enumerate(columns.next_observation or ()):
        entry = columns.observation[index]
        fields.append(replace(_observed(f"next_observation.{index}", entry), column=column))
    action = columns.action
    if isinstance(action, Categorical):
        fields.append(Field("action", action.column, "category", action.categories))
    elif isinstance(action, CountedActions):
        fields.append(Field("action", action.column, "whole", count=action.count))
    else:
        for index, column in enumerate(action.columns):
            fields.append(Field(f"action.{index}", column, "number"))
    fields.append(Field("reward", columns.reward, "number"))
    for flag in ("terminated", "truncated"):
        if (column := getattr(columns, flag)) is not None:
            fields.append(Field(flag, column, "flag"))
    return fields


def _observed(name: str, entry: ObservationColumn) -> Field:
    if isinstance(entry, Elapsed):
        return Field(name, entry.elapsed, "elapsed", elapsed=entry)
    if isinstance(entry, Carried):
        return Field(name, entry.carried, "number", carried=entry)
    if isinstance(entry, Categorical):
        return Field(name, entry.column, "category", entry.categories)
    return Field(name, entry, "number")


class Log:
    """The files of one log.

    Args:
        folder: where they are, at any depth.
        fields: to be read of each row; other columns are left aside, and so is a field that no
            column has.
        form: of those that are CSV.
        paths: the files; None: all in the folder.

    Attributes:
        paths: the files, in the order they are read.
        ordered_by_time: whether the field ``order`` is of times, in microseconds, and not of
            numbers.

    Raises:
        PipelineError: if there is no readable file, or a column is missing, there twice or of a
            wrong type.
    """

    def __init__(
        self,
        folder: Path,
        fields: Sequence[Field],
        form: CsvFormat,
        paths: Sequence[Path] | None = None,
    ):
        self._fields = [field for field in fields if field.kind != "elapsed"]
        self._form = form
        self.paths = log_files(folder) if paths is None else list(paths)
        if not self.paths:
            raise PipelineError(f"{folder}: found none of {', '.join(ENDINGS)}; {_AGAIN}")
        self._types = [self._columns(path) for path in self.paths]
        self._canonical = {field.name: self._type(field) for field in self._fields}
        order = {field.column for field in self._fields if field.kind == "order"}
        self.ordered_by_time = any(pa.types.is_temporal(self._types[0][column]) for column in order)

    def schema(self, only: Sequence[str] | None = None) -> pa.Schema:
        """Give the schema of `batches`: the fields, and each row's ``file`` and ``row`` from 0."""
        names = self._canonical if only is None else only
        fields = [(name, self._canonical[name]) for name in self._canonical if name in names]
        return pa.schema([*fields, ("file", pa.int32()), ("row", pa.int64())])

    def batches(self, only: Sequence[str] | None = None) -> Generator[pa.Table]:
        """Read all rows, file by file as they lie there; only the fields ``only`` where given.

        Ids are not padded with zeros here. A missing number is NaN, and a missing action is -1: the
        last row of a trajectory may have none.

        Raises:
            PipelineError: if a file cannot be decoded, or a value does not fit its field.
        """
        schema = self.schema(only)
        fields = [field for field in self._fields if field.name in schema.names]
        for index, path in enumerate(self.paths):
            row = 0
            types = {field.column: self._types[index][field.column] for field in fields}
            for batch in self._read(path, types):
                arrays = []
                for field in fields:
                    refuse = partial(_refuse_first, path, row, field)
                    arrays.append(self._convert(field, batch.column(field.column), refuse))
                arrays.append(pa.array(np.full(batch.num_rows, index, dtype=np.int32)))
                arrays.append(pa.array(np.arange(row, row + batch.num_rows)))
                row += batch.num_rows
                if batch.num_rows > 0:
                    yield pa.Table.from_arrays(arrays, schema=schema)

    def refuse(self, rows: pa.Table, bad: npt.NDArray[np.int64], found: str, allowed: str) -> None:
        """Raise the error about the first bad row of a table that `batches` gave, if any.

        Raises:
            PipelineError: names the file and the row.
        """
        if len(bad) > 0:
            place = int(bad[0])
            path = self.paths[rows["file"][place].as_py()]
            refuse_row(path, rows["row"][place].as_py(), f"found {found}", allowed)

    def _columns(self, path: Path) -> dict[str, pa.DataType]:
        """Find the type of each mapped column in one file."""
        needed = {field.column for field in self._fields}
        parquet = path.suffix == ".parquet"
        try:
            if parquet:
                schema = pq.read_schema(path)
                names, types = schema.names, dict(zip(schema.names, schema.types, strict=True))
            else:
                names, types = self._header(path), {}
        except MemoryError:  # Arrow's own error is one too
            raise
        except _UNREADABLE:
            kind = "Parquet" if parquet else "CSV in UTF-8 with a header"
            raise PipelineError(
                f"{path}: not readable as {kind}: truncated, corrupt or empty; {_AGAIN}"
            ) from None
        for column in sorted(needed):
            if names.count(column) != 1:
                wrong = "missing" if column not in names else "there twice"
                raise PipelineError(
                    f"{path}: column {column!r} is {wrong}; allowed is every column of "
                    "options.columns once in every file (a CSV's first line names them); correct "
                    "options.columns or the file"
                )
        if not parquet:
            for field in self._fields:
                cast_to = _KINDS[field.kind][2]
                types[field.column] = cast_to or self._type_of_order(path, field.column)
        for field in self._fields:
            allowed, words, *_ = _KINDS[field.kind]
            if _sort_of(types[field.column]) not in allowed:
                raise PipelineError(
                    f"{path}: column {field.column!r}: found {types[field.column]}, allowed: "
                    f"{words}; correct options.columns or the file"
                )
        return {column: types[column] for column in needed}

    def _type(self, field: Field) -> pa.DataType:
        if (canonical := _KINDS[field.kind][3]) is not None:
            return canonical
        found = [types[field.column] for types in self._types]
        whole = all(pa.types.is_integer(one) and one != pa.uint64() for one in found)
        if field.kind == "id":
            return pa.int64() if whole else pa.string()
        times = [pa.types.is_temporal(one) for one in found]
        if any(times) and not all(times):
            where = f"{self.paths[0].parent}: column {field.column!r}"
            raise PipelineError(f"{where}: found times in some files and numbers in others")
        return pa.int64() if all(times) or whole else pa.float64()

    def _read(self, path: Path, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        rows = 0
        read = self._read_parquet if path.suffix == ".parquet" else self._read_csv
        try:
            for batch in read(path, types):
                yield batch
                rows += batch.num_rows
        except MemoryError:
            raise
        except _UNREADABLE:
            raise PipelineError(
                f"{path}: truncated or corrupt after row {rows}; {_AGAIN}"
            ) from None

    def _read_parquet(self, path: Path, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        # Without `pre_buffer` and threads Arrow holds what it decodes, and not all row groups of
        # the file.
        file = pq.ParquetFile(
            path,
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=_PARQUET_BUFFER_BYTES,
        )
        yield from file.iter_batches(ROWS_PER_BATCH, columns=sorted(types), use_threads=False)

    def _read_csv(self, path: Path, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Read cells as text and convert them here: Arrow's own errors quote the row and do not
        number it.
        """
        ragged: list[int] = []

        def note(row: Any) -> str:
            ragged.append(row.number - 1)  # the header counts there
            return "error"

        rows = 0
        try:
            reader = pacsv.open_csv(
                path,
                # Rows have no number where several threads read them.
                read_options=pacsv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
                parse_options=pacsv.ParseOptions(
                    delimiter=self._form.delimiter,
                    newlines_in_values=True,
                    invalid_row_handler=note,
                ),
                convert_options=pacsv.ConvertOptions(
                    include_columns=list(types), column_types=dict.fromkeys(types, pa.string())
                ),
            )
            for batch in reader:
                columns = []
                for name, kind in types.items():
                    columns.append(self._from_text(path, rows, name, batch.column(name), kind))
                yield pa.RecordBatch.from_arrays(columns, list(types))
                rows += batch.num_rows
        except _UNREADABLE:
            if not ragged:
                raise
            raise PipelineError(
                f"{path}: row {ragged[0]}: found another number of fields than in the header; "
                "allowed: as many in every row; correct the log or options.csv"
            ) from None

    def _from_text(
        self, path: Path, first: int, column: str, cells: pa.Array, kind: pa.DataType
    ) -> pa.Array:
        """Convert a CSV's cells; ``first`` is the row of the first one."""
        if pa.types.is_string(kind):
            return cells
        cells = self._plain(cells)
        try:
            return cells.cast(kind)
        except pa.ArrowInvalid:
            bad = next(place for place, cell in enumerate(cells) if not _fits(cell, kind))
        found = f"column {column!r}: found a value that is not a {kind}"
        refuse_row(path, first + bad, found, "one in every row; correct the log or options.csv")

    def _plain(self, cells: pa.Array) -> pa.Array:
        """Write numbers in CSV as Arrow reads them; null where a cell is missing."""
        cells = pc.utf8_trim_whitespace(cells)
        if self._form.decimal_point == ",":  # a point in thousands must not become a decimal one
            cells = pc.replace_substring(pc.replace_substring(cells, ".", "?"), ",", ".")
        return pc.if_else(pc.is_in(cells, value_set=_MISSING), None, cells)

    def _convert(
        self, field: Field, array: pa.Array, refuse: Callable[[pa.Array, str, str], None]
    ) -> pa.Array:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        canonical = self._canonical[field.name]
        if field.kind == "number":
            if pa.types.is_decimal(array.type):  # Arrow has no way straight to float32
                array = array.cast(pa.float64())
            return array.cast(canonical, safe=False)
        if field.kind == "id":
            ids = array.cast(canonical)
            empty = ids.is_null()
            if pa.types.is_string(canonical):
                empty = pc.equal(ids.fill_null(""), "")
            refuse(empty, "a missing id", "a name in every row; fill it in, or drop the rows")
            return ids
        if field.kind == "label":
            return array.cast(canonical).fill_null("")
        if field.kind == "order":
            if pa.types.is_temporal(array.type):
                zone = getattr(array.type, "tz", None)
                array = array.cast(pa.timestamp("us", tz=zone), safe=False)
            place = array.cast(canonical, safe=False)
            bad = pc.invert(pc.is_finite(place).fill_null(False))
            refuse(bad, "a missing order", "a number or time in every row")
            return place
        if field.kind == "flag":
            refuse(array.is_null(), "a missing end flag", "true or false (1 or 0) in every row")
            if not pa.types.is_boolean(array.type):
                neither = pc.invert(pc.is_in(array, pa.array([0, 1]).cast(array.type)))
                refuse(neither, "a flag that is neither 0 nor 1", "0, 1, true or false")
            return array.cast(canonical)
        if field.kind == "whole":
            outside = pc.or_(pc.less(array, 0), pc.greater_equal(array, field.count))
            allowed = f"whole numbers from 0 to {field.count - 1}, by options.columns.action.count"
            refuse(outside, "an action outside the declared space", allowed)
            return array.cast(canonical).fill_null(-1)
        text = array.cast(pa.string())
        codes = pc.index_in(text, value_set=pa.array(field.categories))
        undeclared = codes.is_null()
        if field.name == "action":  # may be missing; empty is how CSV writes that
            undeclared = pc.and_(undeclared, pc.not_equal(text, "").fill_null(False))
        refuse(
            undeclared,
            "a category that is not declared, or none",
            f"one of the {len(field.categories)} that options.columns declares; add it there, or "
            "correct the log",
        )
        return codes.fill_null(-1)

    def _header(self, path: Path) -> list[str]:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as text:
            lines = (line for line in csv.reader(text, delimiter=self._form.delimiter) if line)
            if (header := next(lines, None)) is None:
                raise EOFError
            return header

    def _type_of_order(self, path: Path, column: str) -> pa.DataType:
        """Find out whether a CSV's order is of numbers or times, by its first rows; text where of
        neither.
        """
        first = next(self._read(path, {column: pa.string()}), None)
        cells = pa.array([], pa.string()) if first is None else self._plain(first.column(column))
        for kind in _ORDERS:
            with suppress(pa.ArrowInvalid):
                cells.cast(kind)
                return kind
        return pa.string()


def _fits(cell: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        cell.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _refuse_first(
    path: Path, first: int, field: Field, bad: pa.Array, found: str, allowed: str
) -> None:
    """Raise the error about the first row that is bad, if any, of a batch that begins at row
    ``first``.
    """
    if pc.any(bad).as_py():
        row = first + pc.index(bad, True).as_py()
        refuse_row(path, row, f"column {field.column!r}: found {found}", allowed)


def refuse_row(path: Path, row: int, found: str, allowed: str) -> NoReturn:
    """Raise the error about one row, counted from 0 here and from 1 in the message."""
    raise PipelineError(f"{path}: row {row + 1}: {found}; allowed: {allowed}")


def _sort_of(kind: pa.DataType) -> str:
    """Name the sort of a column's type, that of the values where it is a dictionary."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return next(
        (sort for sort, fits in _SORTS.items() if any(each(inner) for each in fits)), "other"
    )


_SORTS: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "text": (pa.types.is_string, pa.types.is_large_string),
    "integer": (pa.types.is_integer,),
    "number": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "flag": (pa.types.is_boolean,),
    "time": (pa.types.is_timestamp, pa.types.is_date),
}
_TEXT = "text, whole numbers or truth values"
# Of each kind of field: the sorts of columns that fit, the same in words, the type to read a CSV's
# column as, and the type of the field; None: it depends on the files.
_KINDS: dict[str, tuple[set[str], str, pa.DataType | None, pa.DataType | None]] = {
    "id": ({"text", "integer"}, "text or whole numbers", pa.string(), None),
    "category": ({"text", "integer", "flag"}, _TEXT, pa.string(), pa.int32()),
    "label": ({"text", "integer", "flag"}, _TEXT, pa.string(), pa.string()),
    "order": ({"integer", "number", "time"}, "numbers, timestamps or dates", None, None),
    "number": ({"integer", "number", "decimal", "flag"}, "numbers", pa.float64(), pa.float32()),
    "flag": ({"integer", "number", "flag"}, "truth values, or 0 and 1", pa.bool_(), pa.bool_()),
    "whole": ({"integer"}, "whole numbers (names: categories)", pa.int64(), pa.int32()),
}
