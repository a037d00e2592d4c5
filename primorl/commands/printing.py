"""Tables for the terminal."""

import sys
from collections.abc import Iterable, Sequence

_UNLIMITED = 10_000  # columns of a pipe or a file, where lines are never wrapped


def rendered(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> str:
    """A table as text: columns aligned, wrapped and coloured only if stdout is a terminal.

    Args:
        headers: one for each column.
        rows: cells, one for each column; printed literally.
        right: headers of the columns that are aligned to the right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numbers = set(right)
    for header in headers:
        table.add_column(Text(header), justify="right" if header in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
