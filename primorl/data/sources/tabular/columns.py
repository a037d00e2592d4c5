"""Names and types of a CSV's columns, and which have empty cells. Nothing else is told: its rows are private."""

import csv
import gzip
import io
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from primorl.base.errors import PipelineError
from primorl.config.datasets import CsvFormat

Kind = Literal["whole numbers", "numbers", "truth values", "times", "text", "empty"]

_MOST_BYTES = 2**18  # of the file, from its beginning
DELIMITERS = ",;\t|"
_FEWEST = 3  # columns of a log; fewer are one line whose delimiter is another


@dataclass(frozen=True)
class LogColumn:
    """One column: its name, the type of the cells at the beginning of the file, and whether one of them is empty."""

    name: str
    kind: Kind
    missing: bool = False


def columns_of(path: Path) -> tuple[CsvFormat, tuple[LogColumn, ...]]:
    """Detect the format of a CSV and its columns in their order, from its first 256 KiB.

    A first line of cells instead of names is refused, since names are shown: a log has columns of numbers, so such a
    line has a number, a time or nothing in one of its fields.

    Raises:
        PipelineError: the file is no CSV in UTF-8 with a header; no cell and nothing of the first line is quoted.
    """
    head = _head(path)
    delimiter, names = header_of(head)
    if (
        len(names) < _FEWEST
        or any(_is_cell(name) for name in names)
        or len(set(names)) < len(names)
    ):
        raise PipelineError(
            f"{path}: the first line names no columns: a field is empty, a number, a time, several lines or there "
            f"twice, or there are fewer than {_FEWEST}; allowed is CSV with a name for each column in its first line "
            f"and one of {' '.join(map(repr, DELIMITERS))} between them; add that line"
        )
    cells = _cells(path, head, delimiter, ".")
    decimal_point: Literal[".", ","] = "."
    if delimiter != ",":
        with_comma = _cells(path, head, delimiter, ",")
        if _kinds(with_comma).count("numbers") > _kinds(cells).count("numbers"):
            cells, decimal_point = with_comma, ","
    each = zip(names, _kinds(cells), cells.columns, strict=True)
    columns = tuple(LogColumn(name, kind, missing=_has_empty(cell)) for name, kind, cell in each)
    return CsvFormat(delimiter=delimiter, decimal_point=decimal_point), columns


def _head(path: Path) -> str:
    """Read the first complete lines."""
    if not path.name.endswith((".csv", ".csv.gz")) or path.name[0] in "._":
        raise PipelineError(
            f"{path}: allowed is a name that ends in .csv or .csv.gz, and begins with no dot or _"
        )
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            begun: bytes = file.read(_MOST_BYTES)
            more = bool(file.read(1))
        text = (begun[: begun.rfind(b"\n") + 1] if more else begun).decode("utf-8-sig")
    except OSError as refused:
        raise PipelineError(
            f"{path}: cannot be read ({refused.strerror or type(refused).__name__}); allowed is a .csv or .csv.gz file"
        ) from None
    except (UnicodeDecodeError, EOFError):
        raise PipelineError(f"{path}: not CSV in UTF-8; convert it, or repair it") from None
    return text


def header_of(head: str) -> tuple[str, list[str]]:
    """Find the delimiter that makes the most fields of the first line, of equals the first, and these fields.

    A delimiter within quotes separates nothing.

    Args:
        head: of the file, from its first line.
    """
    delimiter = max(DELIMITERS, key=lambda one: len(_names(head, one)))
    return delimiter, _names(head, delimiter)


def _names(head: str, delimiter: str) -> list[str]:
    try:
        return next(
            (
                line
                for line in csv.reader(io.StringIO(head, newline=""), delimiter=delimiter)
                if line
            ),
            [],
        )
    except csv.Error:
        return []


def _is_cell(name: str) -> bool:
    """Say whether a field of the first line is no name of a column: nothing, a number, a time or several lines.

    An open quote makes one field of many lines.
    """
    if len(name.splitlines()) != 1 or not name.strip():
        return True
    for parse in (float, datetime.fromisoformat):
        with suppress(ValueError):
            parse(name.replace(",", ".") if parse is float else name)
            return True
    return False


def _cells(path: Path, head: str, delimiter: str, decimal_point: str) -> pa.Table:
    """Read the first lines with types that Arrow infers; its errors quote rows and are not shown."""

    def skip(row: Any) -> str:
        return "skip"  # another number of fields; `ingest` names the row

    try:
        return pacsv.read_csv(
            io.BytesIO(head.encode()),
            read_options=pacsv.ReadOptions(block_size=2 * _MOST_BYTES, use_threads=False),
            parse_options=pacsv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip
            ),
            convert_options=pacsv.ConvertOptions(decimal_point=decimal_point),
        )
    except pa.ArrowException:
        raise PipelineError(
            f"{path}: not readable as CSV: truncated or corrupt; repair it"
        ) from None


def _kinds(cells: pa.Table) -> list[Kind]:
    return [_kind(found) for found in cells.schema.types]


def _has_empty(column: pa.ChunkedArray) -> bool:
    if pa.types.is_string(column.type):  # an empty text is no null
        return bool(pc.any(pc.equal(column, "")).as_py())
    return bool(column.null_count > 0)


def _kind(found: pa.DataType) -> Kind:
    if pa.types.is_integer(found):
        return "whole numbers"
    if pa.types.is_floating(found):
        return "numbers"
    if pa.types.is_boolean(found):
        return "truth values"
    if pa.types.is_null(found):
        return "empty"
    return "times" if pa.types.is_timestamp(found) or pa.types.is_date(found) else "text"
