"""Tables for the terminal."""

import sys
from collections.abc import Iterable, Sequence
from typing import Literal

_UNLIMITED = 10_000  # columns of a pipe or a file, where lines are never wrapped
_GAP, _LEAST = 2, 3  # columns between cells, and of a cell that is cut


def rendered(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), cut: Iterable[str] = ()
) -> str:
    """A table as text: columns aligned, wrapped and coloured only if stdout is a terminal.

    Args:
        headers: one for each column.
        rows: cells, one for each column; printed literally.
        right: headers of the columns that are aligned to the right.
        cut: headers of the columns whose cells are cut to fit the terminal, so that a row stays a line.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    numbers, cells, giving = set(right), list(rows), set(cut)
    widths = [max(cell_len(text) for text in column) for column in zip(headers, *cells, strict=True)]
    room = console.width - _GAP * len(headers)
    which = [number for number, header in enumerate(headers) if header in giving]
    while which and sum(widths) > room and max(widths[number] for number in which) > _LEAST:
        widths[max(which, key=lambda number: widths[number])] -= 1
    for number, header in enumerate(headers):
        justify: Literal["right", "left"] = "right" if header in numbers else "left"
        if number in which:
            table.add_column(Text(header), justify=justify, overflow="ellipsis", no_wrap=True, width=widths[number])
        else:
            table.add_column(Text(header), justify=justify, overflow="fold", no_wrap=bool(which))
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def one_line(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())
