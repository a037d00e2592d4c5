"""Log files in Parquet or CSV, read in batches whose columns have one meaning and one type whatever the file's.

Errors name the file and the row, counted from 1 without a CSV's header. They quote no value, and nothing of the first
line either: if the header was forgotten, that line is data.
"""

import csv
import gzip
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.config.reading import shown
from primorl.config.tabular import CsvFormat
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.tabular.fields import Field

ROWS_PER_BATCH = 2**16
_CSV_BLOCK_BYTES = 2**22
_PARQUET_BUFFER_BYTES = 2**16
_MOST_NAMED = 30  # columns of a file, in an error
_ENDINGS = (".parquet", ".csv", ".csv.gz")
_AGAIN = "repair the log and run `dvc repro -f collect`"
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError, EOFError, csv.Error)


def log_files(folder: Path) -> list[Path]:
    """List the log files under ``folder``, part 2 before part 10, without names that begin with a dot or underscore."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name.endswith(_ENDINGS)]
    shown = [path for path in found if not any(part[0] in "._" for part in path.relative_to(folder).parts)]
    return sorted(shown, key=lambda path: (_natural(path.relative_to(folder)), str(path)))


def _there(names: Sequence[str], needed: set[str]) -> str:
    """List the columns of a file; nothing where its first line may be data instead of a header."""
    if 2 * len(needed & set(names)) < len(needed):
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f" (the file has {', '.join(map(shown, names[:_MOST_NAMED]))}{more})"


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts]


class Log:
    """The files of one log.

    Args:
        folder: where they are, at any depth.
        fields: what to read of each row; other columns are left aside, and so is a field that no column has.
        form: of those that are CSV.
        paths: the files; None: all in the folder.

    Attributes:
        paths: the files, in the order they are read.
        ordered_by_time: whether the field ``order`` is of times, in microseconds, and not of numbers.

    Raises:
        PipelineError: if there is no readable file, or a column is missing, there twice or of a wrong type.
    """

    def __init__(self, folder: Path, fields: Sequence[Field], form: CsvFormat, paths: Sequence[Path] | None = None):
        self._fields = fields = [field for field in fields if field.kind != "elapsed"]
        self._form = form
        self.paths = log_files(folder) if paths is None else list(paths)
        if not self.paths:
            raise PipelineError(
                f"{folder}: found no log, allowed are {', '.join(_ENDINGS)}; correct options.files and run "
                "`dvc repro -f collect`"
            )
        self._types = [self._columns(path) for path in self.paths]
        self._canonical = {field.name: self._type(field) for field in fields}
        order = {field.column for field in fields if field.kind == "order"}
        self.ordered_by_time = any(pa.types.is_temporal(self._types[0][column]) for column in order)

    def schema(self, only: Sequence[str] | None = None) -> pa.Schema:
        """Give the schema of `batches`: the fields, and each row's ``file`` and ``row`` from 0."""
        fields = [(field.name, self._canonical[field.name]) for field in self._fields if self._wanted(field, only)]
        return pa.schema([*fields, ("file", pa.int32()), ("row", pa.int64())])

    def batches(self, only: Sequence[str] | None = None) -> Generator[pa.Table]:
        """Read all rows, file by file as they lie there; only the fields ``only`` where given.

        Ids are not padded with zeros here. A missing number is NaN, and a missing action is -1: the last row of a
        trajectory may have none.

        Raises:
            PipelineError: if a file cannot be decoded, or a value does not fit its field.
        """
        schema = self.schema(only)
        fields = [field for field in self._fields if self._wanted(field, only)]
        for index, path in enumerate(self.paths):
            row = 0
            for batch in self._read(index, sorted({field.column for field in fields})):
                at = _At(path, row)
                arrays = [self._convert(field, batch.column(field.column), at) for field in fields]
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

    @staticmethod
    def _wanted(field: Field, only: Sequence[str] | None) -> bool:
        return only is None or field.name in only

    def _columns(self, path: Path) -> dict[str, pa.DataType]:
        """Find the type of each mapped column in one file."""
        needed = {field.column for field in self._fields}
        try:
            if path.suffix == ".parquet":
                schema = pq.read_schema(path)
                names, types = schema.names, dict(zip(schema.names, schema.types, strict=True))
            else:
                names, types = self._header(path), {}
        except (pa.ArrowMemoryError, MemoryError):
            raise
        except _UNREADABLE:
            kind = "Parquet" if path.suffix == ".parquet" else "CSV in UTF-8 with a header"
            raise PipelineError(f"{path}: not readable as {kind}: truncated, corrupt or empty; {_AGAIN}") from None
        for column in sorted(needed):
            if names.count(column) != 1:
                found = "missing" if column not in names else "there twice"
                raise PipelineError(
                    f"{path}: column {column!r} is {found}{_there(names, needed)}; allowed is every column of "
                    "options.columns once in every file (a CSV's first line names them); correct options.columns or "
                    "the file"
                )
        if path.suffix != ".parquet":
            types = self._csv_types(path)
        for field in self._fields:
            fits, words = _ALLOWED[field.kind]
            if not fits(types[field.column]):
                raise PipelineError(
                    f"{path}: column {field.column!r}: found {types[field.column]}, allowed: {words}; "
                    "correct options.columns or the file"
                )
        return {column: types[column] for column in needed}

    def _type(self, field: Field) -> pa.DataType:
        if field.kind == "number":
            return pa.float32()
        if field.kind == "flag":
            return pa.bool_()
        if field.kind in ("category", "whole"):
            return pa.int32()
        found = [types[field.column] for types in self._types]
        if field.kind == "label":
            return pa.string()
        if field.kind == "id":
            whole = all(pa.types.is_integer(one) and one != pa.uint64() for one in found)
            return pa.int64() if whole else pa.string()
        times = [pa.types.is_temporal(one) for one in found]
        if any(times) and not all(times):
            raise PipelineError(
                f"{self.paths[0].parent}: column {field.column!r}: found times in some files and numbers in others; "
                "allowed is one of them"
            )
        exact = all(times) or all(pa.types.is_integer(one) and one != pa.uint64() for one in found)
        return pa.int64() if exact else pa.float64()

    def _read(self, index: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        path = self.paths[index]
        rows = 0
        try:
            if path.suffix == ".parquet":
                # Without `pre_buffer` and threads Arrow holds what it decodes, and not all row groups of the file.
                file = pq.ParquetFile(
                    path, page_checksum_verification=True, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES
                )
                batches: Iterable[pa.RecordBatch] = file.iter_batches(
                    ROWS_PER_BATCH, columns=columns, use_threads=False
                )
            else:
                batches = self._open_csv(path, {name: self._types[index][name] for name in columns})
            for batch in batches:
                yield batch
                rows += batch.num_rows
        except (pa.ArrowMemoryError, MemoryError):
            raise
        except _UNREADABLE:
            if path.suffix != ".parquet":
                self._explain(path, {name: self._types[index][name] for name in columns})
            raise PipelineError(f"{path}: truncated or corrupt after row {rows}; {_AGAIN}") from None

    def _convert(self, field: Field, array: pa.Array, at: "_At") -> pa.Array:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        canonical = self._canonical[field.name]
        if field.kind == "number":
            # float64 in between: Arrow has no way straight from a decimal to float32.
            return (array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array).cast(canonical, safe=False)
        if field.kind == "id":
            text = array.cast(canonical)
            at.refuse(text.is_null(), field, "a missing id", "a name in every row; fill it in, or drop the rows")
            if canonical == pa.string():
                at.refuse(pc.equal(text, ""), field, "a missing id", "a name in every row; fill it in, or drop the row")
            return text
        if field.kind == "label":
            return array.cast(canonical).fill_null("")
        if field.kind == "order":
            return self._order(field, array, canonical, at)
        if field.kind == "flag":
            at.refuse(array.is_null(), field, "a missing end flag", "true or false (1 or 0) in every row")
            if not pa.types.is_boolean(array.type):
                neither = pc.invert(pc.is_in(array, pa.array([0, 1]).cast(array.type)))
                at.refuse(neither, field, "a flag that is neither 0 nor 1", "0, 1, true or false")
            return array.cast(pa.bool_())
        if field.kind == "whole":
            outside = pc.or_(pc.less(array, 0), pc.greater_equal(array, field.count))
            allowed = f"whole numbers from 0 to {field.count - 1}; correct the log or options.columns.action.count"
            at.refuse(outside, field, "an action outside the declared space", allowed)
            return array.cast(canonical).fill_null(-1)
        codes = pc.index_in(array.cast(pa.string()), value_set=pa.array(field.categories))
        undeclared = codes.is_null()
        if field.name == "action":  # may be missing; empty is how CSV writes that
            undeclared = pc.and_(undeclared, pc.not_equal(array.cast(pa.string()), "").fill_null(False))
        at.refuse(
            undeclared,
            field,
            "a category that is not declared, or none",
            f"one of the {len(field.categories)} that options.columns declares; add it there, or correct the log",
        )
        return codes.fill_null(-1)

    @staticmethod
    def _order(field: Field, array: pa.Array, canonical: pa.DataType, at: "_At") -> pa.Array:
        if pa.types.is_temporal(array.type):
            array = array.cast(pa.timestamp("us", tz=getattr(array.type, "tz", None)), safe=False)
        place = array.cast(canonical, safe=False)
        bad = place.is_null() if canonical == pa.int64() else pc.invert(pc.is_finite(place).fill_null(False))
        at.refuse(bad, field, "a missing order", "a number or time in every row")
        return place

    def _header(self, path: Path) -> list[str]:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as text:
            lines = (line for line in csv.reader(text, delimiter=self._form.delimiter) if line)
            if (header := next(lines, None)) is None:
                raise EOFError
            return header

    def _csv_types(self, path: Path) -> dict[str, pa.DataType]:
        """Choose the type to read each column as."""
        types = {field.column: _CSV_TYPES[field.kind] for field in self._fields if field.kind != "order"}
        for field in self._fields:
            if field.kind == "order":
                found = self._inferred(path, field.column)
                # Whole numbers too: the next block may have fractions.
                types[field.column] = pa.float64() if pa.types.is_integer(found) else found
        return types

    def _inferred(self, path: Path, column: str) -> pa.DataType:
        try:
            found = self._open_csv(path, {column: None}).schema.types[0]
        except _UNREADABLE:
            self._explain(path, {column: pa.string()})
            raise PipelineError(f"{path}: not readable as CSV: truncated or corrupt; {_AGAIN}") from None
        return pa.float64() if pa.types.is_null(found) else found

    def _open_csv(self, path: Path, types: dict[str, pa.DataType | None], **parsing: Any) -> pacsv.CSVStreamingReader:
        return pacsv.open_csv(
            path,
            read_options=pacsv.ReadOptions(
                block_size=_CSV_BLOCK_BYTES, use_threads="invalid_row_handler" not in parsing
            ),
            parse_options=pacsv.ParseOptions(delimiter=self._form.delimiter, newlines_in_values=True, **parsing),
            convert_options=pacsv.ConvertOptions(
                include_columns=list(types),
                column_types={name: kind for name, kind in types.items() if kind is not None},
                decimal_point=self._form.decimal_point,
                strings_can_be_null="invalid_row_handler" in parsing,
            ),
        )

    def _explain(self, path: Path, types: dict[str, pa.DataType]) -> None:
        """Find the row that Arrow could not read (its own message quotes it) and raise; return where none is found."""
        ragged: list[int] = []

        def refuse(row: Any) -> str:
            ragged.append(row.number - 1)  # the header counts there
            return "error"

        rows = 0
        try:
            reader = self._open_csv(path, {name: pa.string() for name in types}, invalid_row_handler=refuse)
            for batch in reader:
                for name, kind in types.items():
                    text = batch.column(name)
                    if self._form.decimal_point == "," and pa.types.is_floating(kind):
                        text = pc.replace_substring(text, ",", ".")
                    if (bad := _first_unfit(text, kind)) is not None:
                        raise PipelineError(
                            f"{path}: row {rows + bad + 1}, column {name!r}: found a value that is not a {kind}; "
                            "allowed: one in every row; correct the log, or options.csv and options.columns"
                        )
                rows += batch.num_rows
        except _UNREADABLE:
            if ragged:
                raise PipelineError(
                    f"{path}: row {ragged[0]}: found another number of fields than in the header; allowed: as many in "
                    "every row; correct the log or options.csv"
                ) from None


def _first_unfit(text: pa.Array, kind: pa.DataType) -> int | None:
    """Find the first value that is no ``kind``; Arrow does not say which it was."""
    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        for place, value in enumerate(text):
            try:
                value.cast(kind)
            except pa.ArrowInvalid:
                return place
    return None


@dataclass(frozen=True)
class _At:
    """The place of a batch in its file."""

    path: Path
    first: int

    def refuse(self, bad: pa.Array, field: Field, found: str, allowed: str) -> None:
        if pc.any(bad).as_py():
            index = pc.index(bad, True).as_py()
            refuse_row(self.path, self.first + index, f"column {field.column!r}: found {found}", allowed)


def refuse_row(path: Path, row: int, found: str, allowed: str) -> NoReturn:
    """Raise the error about one row, counted from 0 here and from 1 in what is said."""
    raise PipelineError(f"{path}: row {row + 1}: {found}; allowed: {allowed}")


def _textual(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_integer(inner))


def _numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


# Of each kind of field: whether a column's type fits, and in words which types do.
_ALLOWED: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "id": (_textual, "text or whole numbers"),
    "category": (lambda kind: _textual(kind) or pa.types.is_boolean(kind), "text, whole numbers or truth values"),
    "label": (lambda kind: _textual(kind) or pa.types.is_boolean(kind), "text, whole numbers or truth values"),
    "order": (
        lambda kind: _numeric(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind),
        "numbers, timestamps or dates",
    ),
    "number": (
        lambda kind: _numeric(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind),
        "numbers, one column a dimension",
    ),
    "flag": (lambda kind: _numeric(kind) or pa.types.is_boolean(kind), "truth values, or 0 and 1"),
    "whole": (pa.types.is_integer, "whole numbers; for names of actions give {column, categories}"),
}
_CSV_TYPES = {
    "id": pa.string(),
    "category": pa.string(),
    "label": pa.string(),
    "number": pa.float64(),
    "flag": pa.bool_(),
    "whole": pa.int64(),
}
