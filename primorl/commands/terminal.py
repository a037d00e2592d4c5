"""Helpers of several commands: registration, options that they parse alike, and tables for the
terminal.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from primorl.base.files import project_folder

_called_from = Path()


def add_command(
    app: typer.Typer, name: str, function: Callable[..., None], examples: str = ""
) -> None:
    """Add a command.

    Its help is the function's docstring and ``examples``; examples are not wrapped.
    """
    text = f"{inspect.getdoc(function)}\n\n{examples}"
    app.command(name, help=text.replace("Examples:\n", "\b\nExamples:\n").rstrip())(function)


def flag(name: str, about: str) -> Any:
    """Make an option that takes no value."""
    return typer.Option(name, help=about)


def option(metavar: str, about: str, **more: Any) -> Any:
    """Make an option that takes a value."""
    return typer.Option(metavar=metavar, help=about, **more)


def path_option(metavar: str, about: str) -> Any:
    """Make an option that is a path, relative to the folder that the command was called from."""
    return typer.Option(metavar=metavar, help=about, parser=given_path)


AsJson: TypeAlias = Annotated[bool, flag("--json", "Print JSON.")]


@contextlib.contextmanager
def in_project() -> Iterator[None]:
    """Work in the project's folder, and come back."""
    global _called_from
    _called_from = Path.cwd()
    with contextlib.chdir(project_folder(_called_from)):
        yield


def given_path(text: str) -> Path:
    """Parse a path: relative to the folder that the command was called from."""
    here, given = Path.cwd(), Path(text).expanduser()  # as no shell does in --out=~/FILE
    if here == _called_from or not _called_from.is_relative_to(here):
        return given
    path = Path(os.path.normpath(_called_from / given))
    return path.relative_to(here) if path.is_relative_to(here) else path


def format_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()
) -> str:
    """Align the columns of a table.

    Args:
        headers: one for each column.
        rows: cells, one for each column; printed literally.
        right: headers of the columns that are aligned to the right.
    """
    table = [tuple(headers), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    numbers, lines = set(right), []
    for row in table:
        cells = []
        for header, cell, width in zip(headers, row, widths, strict=True):
            cells.append(cell.rjust(width) if header in numbers else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
