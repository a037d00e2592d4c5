"""How a stage reports: progress bars, logs of episodes and epochs, and errors as exit statuses."""

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from primorl.base.errors import PipelineError

if TYPE_CHECKING:
    from tqdm import tqdm

INTERRUPTED = 130


def exit_status(name: str, work: Callable[[], None], *, debug: bool) -> int:
    """Do a stage's work and return its exit status. An error becomes one line on stderr.

    Args:
        name: of the stage, for messages.
        work: of the stage.
        debug: show tracebacks as well.
    """
    try:
        work()
    except KeyboardInterrupt:
        print("error: interrupted; the next `dvc repro` resumes what was paid for", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"error: {explained(name, error)}", file=sys.stderr)
        return 1
    return 0


def explained(name: str, error: Exception) -> str:
    """Describe an error in ``name`` in one line; of an unforeseen exception only its type and
    place.
    """
    if isinstance(error, PipelineError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("primorl"):
        return (
            f"{name}: needs {error.name}, which is not installed; run `pip install "
            "'primorl[pipeline]'`"
        )
    if isinstance(error, OSError):
        return f"{error.filename or name}: {error.strerror or type(error).__name__}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{name}: unforeseen {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}; "
        "its message may quote private values and is shown only with --debug"
    )


class Log(Protocol):
    """One run to write to."""

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters; nested mappings become dotted keys."""

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Log one number."""

    def tag(self, name: str, value: object) -> None:
        """Set one tag."""

    def artifact(self, path: Path) -> None:
        """Copy a file or a folder to the run."""

    def note(self, text: str) -> None:
        """Describe the run, in Markdown."""


def progress_bar(total: int, description: str, unit: str) -> "tqdm[Any]":
    """A bar for ``total`` units of long work; use it as a context manager."""
    from tqdm import tqdm  # an extra of the package

    seconds = 0.2 if sys.stderr.isatty() else 15.0
    return tqdm(total=total, desc=description, unit=unit, mininterval=seconds, maxinterval=seconds)
