"""Progress bars with time left, on stderr; where that is no terminal, a plain line now and then."""

import sys
from typing import Any, TypeAlias

from tqdm import tqdm

Bar: TypeAlias = "tqdm[Any]"

_LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} so far, {remaining} left{postfix}"


class _Lines:
    """Writes every state of a bar to stderr as a line of its own, for files and pipes."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print(line, file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(total: int, description: str, unit: str) -> Bar:
    """A bar for ``total`` units of long work; use it as a context manager."""
    if sys.stderr.isatty():
        return tqdm(total=total, desc=description, unit=unit, mininterval=0.2, maxinterval=0.2)
    return tqdm(
        total=total, desc=description, unit=unit, mininterval=15.0, maxinterval=15.0, file=_Lines(), bar_format=_LINE
    )
