"""Progress bars with time left, on stderr; in a log file one line now and then."""

import sys
from typing import Any, TypeAlias

from tqdm import tqdm

Bar: TypeAlias = "tqdm[Any]"


def progress_bar(total: int, description: str, unit: str) -> Bar:
    """A bar for ``total`` units of long work; use it as a context manager."""
    seconds = 0.2 if sys.stderr.isatty() else 15.0
    return tqdm(total=total, desc=description, unit=unit, mininterval=seconds, maxinterval=seconds)
