"""How far a sweep is: a bar on a terminal, a line a trial elsewhere."""

import sys
import time
from contextlib import ExitStack
from typing import Self

from primorl.project.progress import Bar, progress_bar
from primorl.sweeps.rows import Row
from primorl.sweeps.trials import Trial, said


class Progress:
    """Trials that have ended, of all, and the time left by the mean of those that this command ran.

    Args:
        name: of the sweep.
        total: trials of the sweep.
        ended: that had ended before.
        keys: of settings that tell trials apart.
    """

    def __init__(self, name: str, total: int, ended: int, keys: list[str]) -> None:
        self._name, self._total, self._ended, self._here, self._keys = name, total, ended, 0, keys
        self._started = time.monotonic()
        self._stack = ExitStack()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = self._stack.enter_context(progress_bar(self._total, self._name, "trial"))
            self._bar.initial = self._bar.n = self._ended
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def update(self, trial: Trial, row: Row) -> None:
        """Count a trial."""
        self._ended += 1
        self._here += 1
        words = f"{said(trial, self._keys)}: {row.status}" + (f": {row.error}" if row.error else "")
        if self._bar is not None:
            if row.error:
                self._bar.write(f"{self._name}: {words}", file=sys.stderr)
            self._bar.update()
            return
        left = (self._total - self._ended) * (time.monotonic() - self._started) / self._here
        time_left = f", about {left / 60:.0f} min left" if self._ended < self._total else ""
        print(f"{self._name}: {self._ended} of {self._total}{time_left}: {words}", file=sys.stderr, flush=True)
