"""Log files in Parquet or CSV, read in batches with columns of one meaning and one type for all
files.

Errors name the file and the row, counted from 1 without a CSV's header. They quote no value, and
nothing of the first line either: if the header was forgotten, that line is data.
"""

import csv
import io
import itertools
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.base import BadRows, PipelineError, say
from primorl.config.datasets import BoxActions, CsvFormat, TabularColumns
from primorl.data.sources.log_paths import (
    ENDINGS,
    UNREADABLE,
    has_rows,
    log_files,
    open_bytes,
    refuse_unread,
)
from primorl.data.storage.schema import Flags, Ints, id_text

ROWS_PER_BATCH = 2**16
_FIRST_YEAR, _LAST_YEAR = 1678, 2262
_EXACT = 2**53  # float64 has no whole number beyond for each
_CSV_BLOCK_BYTES = 2**22
_SHEET_ROWS = (65_535, 1_048_575)  # of a spreadsheet, below its header
_PARQUET_BUFFER_BYTES = 2**16
_AGAIN = "repair the log (then `dvc repro -f collect` reads it anew)"
_CSV_PLACE = re.compile(r"(?:In CSV column #(\d+): |CSV parse error: )Row #(\d+): ")
"""The beginning of Arrow's errors about a row. The rest quotes the row, and the header counts."""

_QUOTES = 'quotes around whole fields of a line, doubled within (not \\"); or leave the column out'
_NO_NAME = r"^\s*(|\d([.,]\d+)?e\+\d+)\s*$"
_WORD = r"^\s*(n/?a|#n/a|<na>|nan|null|\(null\)|none|undefined|#(ref|value)!|\\n|\.|-+|\?+)\s*$"
_NO_PERSON = rf"{_WORD}|^\s*(missing|unknown|-1|-9+)\s*$"
"""Ids that different people may share: other programs write missing ones, or fewer digits, so."""

Kind = Literal["id", "name", "order", "number", "flag", "category"]
Refuse = Callable[[pa.Array, str, str], None]


@dataclass(frozen=True)
class Field:
    """One thing that a row says, and the log's column that says it.

    ``id``, ``name`` (an id that may be a word such as null) and ``order`` find a row's place.
    ``number`` and ``flag`` are as their names say, ``category`` is one of ``categories``.
    """

    name: str
    column: str
    kind: Kind
    categories: tuple[str, ...] = ()


def fields_of(columns: TabularColumns) -> list[Field]:
    """List the fields of a row: ``trajectory``, ``order``, ``unit`` (if there is one),
    ``observation.0`` and so on.
    """
    named: Kind = "name" if columns.words_as_ids else "id"
    fields = [
        Field("trajectory", columns.trajectory, named),
        Field("order", columns.order, "order"),
    ]
    if columns.unit is not None:
        fields.append(Field("unit", columns.unit, named))
    for index, entry in enumerate(columns.observation):
        name = f"observation.{index}"
        if isinstance(entry, str):
            seen = Field(name, entry, "number")
        else:
            seen = Field(name, entry.column, "category", entry.categories)
        fields.append(seen)
        if columns.next_observation is not None:
            column = columns.next_observation[index]
            fields.append(replace(seen, name=f"next_{name}", column=column))
    for index, part in enumerate(columns.choices):
        fields.append(Field(f"action.{index}", part.column, "category", part.categories))
    if isinstance(columns.action, BoxActions):
        for index, column in enumerate(columns.action.columns):
            fields.append(Field(f"action.{index}", column, "number"))
    fields.append(Field("reward", columns.reward, "number"))
    for flag in ("terminated", "truncated"):
        if (column := getattr(columns, flag)) is not None:
            fields.append(Field(flag, column, "flag"))
    return fields


class LogFiles:
    """The files of one log.

    Args:
        folder: where they are, at any depth.
        fields: to be read of each row; other columns are left aside.
        form: of those that are CSV.
        paths: the files; None: all in the folder.

    Attributes:
        paths: the files, in the order they are read.
        ordered_by_time: whether the field ``order`` is of times, in microseconds, and not of
            numbers.
        without_zone: whether these times have no time zone, so that an hour can come twice.
        schema: of `batches`: the fields, and each row's ``file`` and ``row`` from 0.

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
        self._fields = list(fields)
        self._form = form
        found = log_files(folder) if paths is None else list(paths)
        self.paths = [path for path in found if has_rows(path)] or found
        for empty in (path for path in found if path not in self.paths):
            self._check_columns(self._header(empty), empty)
        if not self.paths:
            raise PipelineError(f"{folder}: found none of {', '.join(ENDINGS)}; {_AGAIN}")
        self._names: dict[Path, list[str]] = {}  # of all columns of a file
        self._words = {field.column: _KINDS[field.kind].words for field in self._fields}
        self._types = [self._columns(path) for path in self.paths]
        columns = [(field.name, self._type(field)) for field in self._fields]
        self.schema = pa.schema([*columns, ("file", pa.int32()), ("row", pa.int64())])
        orders = (field.column for field in self._fields if field.kind == "order")
        order = _form(self._types[0].get(next(orders, ""), pa.null()))
        self.ordered_by_time, self.without_zone = order != _NUMBERS, order == _WITHOUT_ZONE

    def batches(self) -> Generator[pa.Table]:
        """Read all rows, file by file as they lie there.

        Ids that are numbers in all files are numbers here, others are `id_text`. A missing number
        is NaN, and a missing action is -1: the last row of a trajectory may have none.

        Raises:
            PipelineError: if a file cannot be decoded, or a value does not fit its field.
        """
        for index, row, batch in self._read():
            arrays = [self._convert(field, index, row, batch) for field in self._fields]
            arrays.append(pa.array(np.full(batch.num_rows, index, dtype=np.int32)))
            arrays.append(pa.array(np.arange(row, row + batch.num_rows)))
            if batch.num_rows > 0:
                yield pa.Table.from_arrays(arrays, schema=self.schema)

    def refuse(self, rows: pa.Table, bad: Ints, found: str, allowed: str) -> None:
        """Raise the error about the first bad row of a table that `batches` gave, if any.

        Raises:
            PipelineError: names the file and the row.
        """
        if len(bad) > 0:
            place = int(bad[0])
            path = self.paths[rows["file"][place].as_py()]
            _refuse_row(path, rows["row"][place].as_py(), f"found {found}", allowed)

    def _columns(self, path: Path) -> dict[str, pa.DataType]:
        """Find the type of each mapped column in one file."""
        with _decoding(path, (), {}):
            parquet = path.suffix == ".parquet"
            schema = pq.read_schema(path) if parquet else self._open_csv(path, {}).schema
            self._names[path], types = schema.names, {}
        self._check_columns(schema.names, path)
        for field in self._fields:
            kind, found = _KINDS[field.kind], schema.field(field.column).type
            if not parquet:
                found = kind.csv or self._csv_order(path, field.column)
            inner = found.value_type if pa.types.is_dictionary(found) else found
            if not any(getattr(pa.types, f"is_{fit}")(inner) for fit in kind.fits.split()):
                said = f"column {field.column!r}: found {found}, allowed: {kind.words}"
                said += "; convert it" + " to columns" * pa.types.is_nested(inner)
                raise BadRows(f"{path}: {said}, or correct options.columns")
            types[field.column] = found
        return types

    def _header(self, path: Path) -> list[str]:
        """Read the names of the columns of a part without rows."""
        if path.suffix == ".parquet":
            return list(pq.read_schema(path).names)
        with io.TextIOWrapper(open_bytes(path), "utf-8-sig", "replace") as lines:
            return next(csv.reader(lines, delimiter=self._form.delimiter))

    def _check_columns(self, names: Sequence[str], path: Path) -> None:
        """Refuse a mapped column that is missing or there twice."""
        for field in self._fields:
            if (count := names.count(field.column)) != 1:
                said = f"column {field.column!r} is {'there twice' if count else 'missing'}"
                if f"/{field.column}=" in str(path):
                    said += ", and the name of a folder is none: write it into the files"
                elif field.column.strip().lower() in {name.strip().lower() for name in names}:
                    said += " (case and blanks count)"
                elif len(names) == 1:
                    said += ", as a line is one column: set options.csv.delimiter"
                raise BadRows(f"{path}: {said}; correct options.columns or file")

    def _csv_order(self, path: Path, column: str) -> pa.DataType:
        """Give the type to read a CSV's order as, by its first cell that is not empty: where others
        are of another form, the error names a row.
        """
        batches = self._open_csv(path, {column: pa.string()})
        cells = (cell for batch in batches for cell in batch[column].to_pylist())
        told = (cell for cell in cells if cell.strip() and not re.match(_WORD, cell, re.IGNORECASE))
        first = next(told, "nan")
        with suppress(ValueError):
            return pa.int64() if abs(int(first)) > _EXACT else pa.float64()
        with suppress(ValueError):
            float(first.replace(self._form.decimal_point, "."))
            return pa.float64()
        with suppress(ValueError):
            time = datetime.fromisoformat(first)
            # nanoseconds end in 2262; dates that were shifted to hide them may be later
            unit = "ns" if _FIRST_YEAR < time.year < _LAST_YEAR else "us"
            return pa.timestamp(unit, time.tzinfo and "UTC")
        return pa.string()

    def _type(self, field: Field) -> pa.DataType:
        """Give the type of a field, the same for all files."""
        if (canonical := _KINDS[field.kind].canonical) is not None:
            return canonical
        found = [types[field.column] for types in self._types]
        whole = all(map(pa.types.is_integer, found))
        if field.kind in ("id", "name"):
            return pa.int64() if whole and pa.uint64() not in found else pa.string()
        forms = [_form(one) for one in found]
        for path, form in zip(self.paths, forms, strict=True):
            if form != forms[0]:
                said = f"found {form}, in {self.paths[0]} {forms[0]}; write all files alike"
                raise BadRows(f"{path}: column {field.column!r}: {said}")
        return pa.int64() if pa.types.is_temporal(found[0]) or whole else pa.float64()

    def _read(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Read the mapped columns of all files; give each batch with its file's place in `paths`
        and the number of its first row.
        """
        for index, path in enumerate(self.paths):
            row = 0
            with _decoding(path, self._names[path], self._words):
                if path.suffix != ".parquet":
                    check_text(path, self._form.delimiter)
                for batch in self._open(path, self._types[index]):
                    yield index, row, batch
                    row += batch.num_rows
            if row in _SHEET_ROWS and path.suffix != ".parquet":
                why = "where a spreadsheet ends; if it was saved from one, more are missing"
                say(f"ingest: warning: {path}: found {row} rows, {why}")

    def _convert(self, field: Field, index: int, row: int, batch: pa.RecordBatch) -> pa.Array:
        """Convert the field's column of a batch, whose first row has this number in its file."""

        def refuse(bad: pa.Array, found: str, allowed: str) -> None:
            if pc.any(bad).as_py():
                said = f"column {field.column!r}: found {found}"
                _refuse_row(self.paths[index], row + pc.index(bad, True).as_py(), said, allowed)

        cells, kind = batch.column(field.column), self.schema.field(field.name).type
        return _convert_cells(field, cells, kind, refuse)

    def _open(self, path: Path, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        if path.suffix != ".parquet":
            return iter(self._open_csv(path, types))
        # Without `pre_buffer` and threads Arrow holds what it decodes, and not all row groups of
        # the file.
        file = pq.ParquetFile(
            path,
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=_PARQUET_BUFFER_BYTES,
            coerce_int96_timestamp_unit="us",  # nanoseconds end in 2262, and then begin in 1677
        )
        batches: Iterator[pa.RecordBatch] = file.iter_batches(
            ROWS_PER_BATCH, columns=sorted(types), use_threads=False
        )
        return batches

    def _open_csv(self, path: Path, types: dict[str, pa.DataType]) -> pacsv.CSVStreamingReader:
        """Open a CSV with columns of these types; without any, of all columns as they seem."""
        return pacsv.open_csv(
            path,
            # Errors have no row where several threads read.
            read_options=pacsv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
            parse_options=pacsv.ParseOptions(
                delimiter=self._form.delimiter, newlines_in_values=True
            ),
            convert_options=pacsv.ConvertOptions(
                include_columns=list(types),
                column_types=types,
                decimal_point=self._form.decimal_point,
                true_values=["1", "1.0", "true", "True", "TRUE", "t", "T"],
                false_values=["0", "0.0", "false", "False", "FALSE", "f", "F"],
                null_values=[*pacsv.ConvertOptions().null_values, "\\N", "None", "<NA>", "."],
            ),
        )


def check_text(path: Path, delimiter: str) -> None:
    """Refuse a field of a CSV that holds rows: Arrow reads up to the next quote, whatever follows
    it. Refuse NUL bytes, which it takes for text.

    Raises:
        PipelineError: names the file and the row in which the quote is opened.
    """
    quoted = False
    with open_bytes(path) as file:
        for block in iter(lambda: file.read(_CSV_BLOCK_BYTES), b""):
            quoted |= b'"' in block
            if b"\0" in block:
                _refuse_other_text(path)
    if not quoted:
        return
    row, line = -1, 0
    with io.TextIOWrapper(open_bytes(path), "utf-8", "replace", newline="") as text:
        lines = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            for fields in lines:
                if lines.line_num > line + 1 and _swallows_rows(fields, delimiter):
                    raise csv.Error
                row, line = row + bool(fields), lines.line_num
        except csv.Error:
            found = "a quote that is not closed in its row, a character after a closing quote"
            _refuse_row(path, row, f"found {found}, or an endless cell", _QUOTES)


def _swallows_rows(fields: Sequence[str], delimiter: str) -> bool:
    """Say whether a field has the rest of its row, whole rows, and what comes before it in one."""
    most = len(fields) - 1
    for place, field in enumerate(fields):
        first, *others = (part.count(delimiter) for part in re.split(r"\r\n|\r|\n", field))
        if others and [first, *others] == [most - place, *[most] * (len(others) - 1), place]:
            return True
    return False


ZONE = "times with their zone, as a local hour comes twice when summer time ends"
HOUR = 3_600_000_000  # microseconds


def can_end_summer_time(time: Ints) -> Flags:
    """Whether local times, in microseconds since 1970, lie in a night in which summer time ends
    somewhere: one to a Sunday.
    """
    hours = time // HOUR % (7 * 24)  # since a Thursday's begin
    month = time.astype("datetime64[us]").astype("datetime64[M]").astype(int) % 12
    found: Flags = (hours >= 3 * 24 - 1) & (hours < 3 * 24 + 4)
    return found & np.isin(month, (1, 2, 3, 8, 9, 10))


_NUMBERS, _WITHOUT_ZONE = "numbers", "times without a time zone"


def _form(kind: pa.DataType) -> str:
    if not pa.types.is_temporal(kind):
        return _NUMBERS
    return "times with a time zone" if getattr(kind, "tz", None) else _WITHOUT_ZONE


def _convert_cells(
    field: Field, array: pa.Array, canonical: pa.DataType, refuse: Refuse
) -> pa.Array:
    """Convert a column of one batch to the field's type, and refuse what does not fit it."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    match field.kind:
        case "number":
            # Arrow has no way from decimals straight to float32
            return array.cast(pa.float64(), safe=False).cast(canonical, safe=False)
        case "id" | "name":
            ids = array.cast(canonical)
            empty, allowed = ids.is_null(), "a name in every row; fill it in, or drop the rows"
            names = ids.cast(pa.string()).fill_null("")
            if field.kind == "id":
                words = pc.match_substring_regex(names, _NO_PERSON, ignore_case=True)
                found = "a word that stands for a missing id, such as NA, null, unknown or -1"
                true = "or, if it is a true one and none is missing, columns.words_as_ids: true"
                refuse(words, found, f"{allowed}; {true}")
            if pa.types.is_string(canonical):
                empty = pc.match_substring_regex(names, _NO_NAME, ignore_case=True)
            refuse(empty, "a missing id, or one in scientific notation", allowed)
            return id_text(ids) if pa.types.is_string(canonical) else ids
        case "order":
            if pa.types.is_temporal(array.type):
                array = array.cast(pa.timestamp("us", getattr(array.type, "tz", None)), safe=False)
            place = array.cast(canonical, safe=False)
            bad = pc.invert(pc.is_finite(place).fill_null(False))
            refuse(bad, "a missing order", "a number or time in every row")
            return place
        case "flag":
            refuse(array.is_null(), "a missing end flag", "true or false (1 or 0) in every row")
            neither = pc.invert(
                pc.is_in(array.cast(pa.float64(), safe=False), pa.array([0.0, 1.0]))
            )
            refuse(neither, "a flag that is neither 0 nor 1", "0, 1, true or false")
            return array.cast(canonical)
    text, categories = array.cast(pa.string()), pa.array(field.categories)
    whole = pc.replace_substring_regex(text, pattern=r"^([0-9]+)\.0$", replacement=r"\1")
    codes = pc.coalesce(pc.index_in(text, categories), pc.index_in(whole, categories))
    undeclared = codes.is_null()
    if field.name.startswith("action"):  # may be missing, in CSV empty or a word such as NA
        missing = pc.match_substring_regex(text, f"^$|{_WORD}", ignore_case=True).fill_null(True)
        undeclared = pc.and_not(undeclared, missing)
    allowed = f"one of the {len(field.categories)} that options.columns declares, written alike"
    refuse(undeclared, "a category that is not declared, or none", allowed)
    return codes.fill_null(-1)


@contextmanager
def _decoding(path: Path, columns: Sequence[str], words: Mapping[str, str]) -> Iterator[None]:
    """Turn an error of decoding into one line: about the row of a CSV that Arrow names, or about
    the file.
    """
    try:
        yield
    except MemoryError:  # Arrow's own error is one too
        raise
    except UNREADABLE as broken:
        place = _CSV_PLACE.match(str(broken))
        if path.suffix != ".parquet" and (place is None or not place[1] or "UTF8" in str(broken)):
            _refuse_other_text(path)
        if place is not None:
            column, row = place.groups()
            found = "found another number of fields than in the header (as a line before it, or one"
            found += " after the rows, or a delimiter or quote within a field)"
            allowed = f"as in every row; correct options.csv or the log: {_QUOTES}"
            if column is not None:
                allowed = "as in every row; correct log or options.csv"
                value = "a time with a zone after times without, or the reverse"
                if "zone offset" not in str(broken):
                    value = "a value that is not of its type"
                    allowed = f"{words.get(columns[int(column)])}; {allowed}"
                found = f"column {columns[int(column)]!r}: found {value}"
            _refuse_row(path, int(row) - 2, found, allowed)
        form = "Parquet" if path.suffix == ".parquet" else "CSV in UTF-8 with a header"
        raise PipelineError(
            f"{path}: not readable as {form}: another one, truncated or corrupt; {_AGAIN}"
        ) from None


def _refuse_other_text(path: Path) -> None:
    """Refuse a CSV that is not in UTF-8, or has NUL bytes, by its first such line."""
    with suppress(OSError, EOFError, zlib.error), open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            found = "found what is not UTF-8 (an older encoding, UTF-16, compressed)"
            if number > 1 and b"\0" in line:
                found = "found NUL bytes (a write was cut off, or space reserved), to be deleted"
            if b"\0" in line or "\ufffd" in line.decode("utf-8", "replace"):
                raise PipelineError(f"{path}: line {number}: {found}; {_AGAIN}") from None


def _refuse_row(path: Path, row: int, found: str, allowed: str) -> NoReturn:
    """Raise the error about one row, counted from 0 here and from 1 in the message."""
    # Arrow's own error, which it may come of, quotes the row.
    raise BadRows(f"{path}: row {row + 1}: {found}; allowed: {allowed}") from None


class _FieldKind(NamedTuple):
    """The columns that fit a kind of field, by the ends of the names of Arrow's ``is_…``; the same
    in words; the type to read a CSV's column as, and that of the field (None: by the files).
    """

    fits: str
    words: str
    csv: pa.DataType | None
    canonical: pa.DataType | None


_TEXT, _REAL = "string large_string string_view integer", "integer floating"
_ID = _FieldKind(_TEXT, "text or whole numbers", pa.string(), None)
_KINDS = {
    "id": _ID,
    "name": _ID,
    "category": _FieldKind(
        f"{_TEXT} boolean", "text, whole numbers or truth values", pa.string(), pa.int32()
    ),
    "order": _FieldKind(
        f"{_REAL} timestamp date", "numbers, or times as 2024-03-31 14:00:00", None, None
    ),
    "number": _FieldKind(f"{_REAL} decimal boolean", "numbers", pa.float64(), pa.float32()),
    "flag": _FieldKind(f"{_REAL} boolean", "truth values, or 0 and 1", pa.bool_(), pa.bool_()),
}


_HEAD_LINES = 1000
DELIMITERS = ",;\t|"
_FEWEST = 3  # columns of a log; fewer are one line whose delimiter is another
_DECIMAL_COMMA = re.compile(r"[-+]?(0,\d+|\d+,(?!\d{3}$)\d+)")  # 1,234 may be over a thousand


def columns_of(path: Path) -> tuple[CsvFormat, tuple[str, ...]]:
    """Find the format of a CSV and the names of its columns in their order, from its first lines.

    A first line of cells instead of names is refused, since names are shown: a log has columns of
    numbers, so such a line has a number, a time or nothing in one of its fields.

    Raises:
        PipelineError: the file is no CSV in UTF-8 with a header; no cell and nothing of the first
            line is quoted.
    """
    refuse_unread(path, ENDINGS)
    with _decoding(path, (), {}):
        if path.suffix == ".parquet":
            return CsvFormat(), tuple(pq.read_schema(path).names)
        with io.TextIOWrapper(open_bytes(path), "utf-8-sig", newline="") as file:
            head = list(itertools.islice(file, _HEAD_LINES))
    delimiter, names = header_of("".join(head))
    named = names[1:] if names[:1] == [""] else names  # of pandas' and R's numbers of rows
    if len(set(names)) < max(_FEWEST, len(names)) or any(map(_is_cell, named)):
        allowed = f"with one of {' '.join(map(repr, DELIMITERS))} between them"
        allowed = f"allowed are {_FEWEST} or more names, none twice, {allowed}"
        raise PipelineError(f"{path}: the first line names no columns; {allowed}")
    cells = (cell for line in head[1:] for cell in line.rstrip("\r\n").split(delimiter))
    commas = delimiter != "," and any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    form = CsvFormat(delimiter=delimiter, decimal_point="," if commas else ".")
    return form, tuple(names)


def header_of(head: str) -> tuple[str, list[str]]:
    """Find the delimiter that makes the most fields of the first line, of equals the first, and
    these fields.

    A delimiter within quotes separates nothing.

    Args:
        head: of the file, from its first line.
    """
    return max(((one, _names(head, one)) for one in DELIMITERS), key=lambda found: len(found[1]))


def _names(head: str, delimiter: str) -> list[str]:
    lines = csv.reader(io.StringIO(head, newline=""), delimiter=delimiter)
    try:
        return next((line for line in lines if line), [])
    except csv.Error:
        return []


def _is_cell(name: str) -> bool:
    """Say whether a field of the first line is no name of a column: nothing, a number, a time or
    several lines.
    """
    if len(name.splitlines()) != 1 or not name.strip():
        return True
    for parse in (float, datetime.fromisoformat):
        with suppress(ValueError):
            parse(name.replace(",", ".") if parse is float else name)
            return True
    return False
