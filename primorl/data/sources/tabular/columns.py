"""Names of a CSV's columns and the form of its numbers.

Nothing else is told: its rows are private.
"""

import csv
import gzip
import io
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from primorl.base.errors import PipelineError
from primorl.config.tabular import CsvFormat

_MOST_BYTES = 2**18  # of the file, from its beginning
DELIMITERS = ",;\t|"
_FEWEST = 3  # columns of a log; fewer are one line whose delimiter is another
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")


def columns_of(path: Path) -> tuple[CsvFormat, tuple[str, ...]]:
    """Find the format of a CSV and the names of its columns in their order, from its first 256 KiB.

    A first line of cells instead of names is refused, since names are shown: a log has columns of
    numbers, so such a line has a number, a time or nothing in one of its fields.

    Raises:
        PipelineError: the file is no CSV in UTF-8 with a header; no cell and nothing of the first
            line is quoted.
    """
    head = _head(path)
    delimiter, names = header_of(head)
    twice = len(set(names)) < len(names)
    if len(names) < _FEWEST or twice or any(_is_cell(name) for name in names):
        raise PipelineError(
            f"{path}: the first line names no columns: a field is empty, a number, a time, "
            f"several lines or there twice, or there are fewer than {_FEWEST}; allowed is CSV "
            "with a name for each column in its first line and one of "
            f"{' '.join(map(repr, DELIMITERS))} between them; add that line"
        )
    decimal_point: Literal[".", ","] = "."
    if delimiter != ",":
        fields = (field for line in head.splitlines()[1:] for field in line.split(delimiter))
        if any(_DECIMAL_COMMA.fullmatch(field) for field in fields):
            decimal_point = ","
    return CsvFormat(delimiter=delimiter, decimal_point=decimal_point), tuple(names)


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
        return (begun[: begun.rfind(b"\n") + 1] if more else begun).decode("utf-8-sig")
    except (UnicodeDecodeError, EOFError):
        raise PipelineError(f"{path}: not CSV in UTF-8; convert it, or repair it") from None
    except OSError as refused:
        raise PipelineError(
            f"{path}: cannot be read ({refused.strerror or type(refused).__name__}); allowed is a "
            ".csv or .csv.gz file"
        ) from None


def header_of(head: str) -> tuple[str, list[str]]:
    """Find the delimiter that makes the most fields of the first line, of equals the first, and
    these fields.

    A delimiter within quotes separates nothing.

    Args:
        head: of the file, from its first line.
    """
    delimiter = max(DELIMITERS, key=lambda one: len(_names(head, one)))
    return delimiter, _names(head, delimiter)


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
