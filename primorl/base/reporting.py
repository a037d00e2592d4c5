"""How a stage reports: progress bars, numbers for MLflow, and errors as exit statuses."""

import errno
import math
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.base import PipelineError, say
from primorl.base.files import STATE

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
    keep_warnings()
    try:
        work()
    except KeyboardInterrupt:
        say("error: interrupted; the next `dvc repro` resumes what was paid for")
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        say(f"error: {explain(name, error)}")
        return 1
    return 0


def keep_warnings() -> None:
    """Let no warning of a library end a command or what was paid for, whatever PYTHONWARNINGS or
    ``-W`` makes an error.
    """
    if any(each.startswith("e") for each in sys.warnoptions):
        warnings.simplefilter("default")


def explain(name: str, error: Exception) -> str:
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
        said = f"{error.filename or name}: {error.strerror or type(error).__name__}"
        if error.errno == errno.EACCES and f"{STATE}/" in str(error.filename):
            said += "; a project is its owner's: work in a clone with the same ledger"
        return said
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{name}: unforeseen {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}; "
        "its message may quote private values and is shown only with --debug"
    )


def in_lines(text: str) -> list[str]:
    """Split a text where a sentence or a part of one ends."""
    return re.split(r"(?<=\.) (?=[A-Z])|(?<=;) ", text)


class StageLog:
    """The numbers of a stage, for MLflow: of released or public things alone.

    Attributes:
        metrics: name, value and step of each.
    """

    def __init__(self) -> None:
        self.metrics: list[tuple[str, float, int]] = []

    def metric(self, name: str, value: float, step: int = 0) -> None:
        """Keep one number; one that is not finite is left out."""
        if math.isfinite(value):
            self.metrics.append((name, float(value), step))


@dataclass(frozen=True)
class RunContent:
    """What MLflow gets of a result.

    Attributes:
        params: nested mappings become dotted keys.
        tags: words.
        metrics: name, value and step of each.
    """

    params: dict[str, Any]
    tags: Mapping[str, str]
    metrics: Sequence[tuple[str, float, int]]


def progress_bar(total: int, description: str, unit: str) -> "tqdm[Any]":
    """A bar for ``total`` units of long work; use it as a context manager."""
    from tqdm import tqdm  # an extra of the package

    seconds = 0.2 if sys.stderr.isatty() else 15.0
    return tqdm(total=total, desc=description, unit=unit, mininterval=seconds, maxinterval=seconds)
