"""How a stage, a command or a worker process ends: its errors as one line on stderr, and its exit status."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from primorl.project.errors import PipelineError

INTERRUPTED = 130


def exit_status(name: str, work: Callable[[], None], *, debug: bool) -> int:
    """Do a stage's work and return its exit status. An error becomes one line on stderr.

    Args:
        name: of the stage, for messages.
        work: what to do.
        debug: show tracebacks as well.
    """
    try:
        work()
    except KeyboardInterrupt:
        print(
            "error: interrupted; the last good outputs are untouched; the next `dvc repro` resumes what was paid for",
            file=sys.stderr,
        )
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"error: {explained(name, error)}", file=sys.stderr)
        return 1
    return 0


def explained(name: str, error: Exception) -> str:
    """Say in a line what went wrong in ``name``; of an exception that nobody foresaw, only its type and place."""
    if isinstance(error, PipelineError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("primorl"):
        return f"{name}: needs {error.name}, which is not installed; run `pip install 'primorl[pipeline]'`"
    if isinstance(error, OSError):
        return f"{error.filename or name}: {error.strerror or type(error).__name__}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{name}: unforeseen {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}; "
        "its message may quote private values and is shown only with --debug"
    )
