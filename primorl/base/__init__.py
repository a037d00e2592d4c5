"""Errors, atomic files, records, paths, DVC, processes, progress."""

import sys


class PipelineError(Exception):
    """Bad input, said in one line: the place, the value found, the values allowed, the remedy.

    The message reaches stderr as ``error: <message>`` and so must never quote a private value.
    Rows may be named by file, unit, trajectory and step inside the trust boundary (``ingest``,
    ``partition``); no later stage names any.
    """

    def _render_traceback_(self) -> list[str]:
        """Show the line alone in a notebook, as a command does; IPython asks for it."""
        return [f"error: {self}"]


class BadRows(PipelineError):  # noqa: N818 - as `Busy`
    """Raw rows that do not fit: they are to be corrected at their source."""


class Busy(PipelineError):  # noqa: N818 - as `Refused`, of an outcome
    """Another living process does exactly this work; the same call succeeds when it has ended."""


def say(line: str) -> None:
    """Print a line to stderr, beside what is printed as a result."""
    print(line, file=sys.stderr)
