"""Processes: those of torchrun, environment variables, git's commit, and who runs them."""

import atexit
import gc
import getpass
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from primorl.base import PipelineError
from primorl.base.files import workspace

if TYPE_CHECKING:
    import torch

ONE_THREAD_UP_TO = 192
"""Units of a layer up to which small networks train on one thread: a second one costs more than it
saves.
"""


def collect_garbage_rarely() -> None:
    """Spare a short process a quarter of its time, in which the collector looks through what it
    imported.
    """
    gc.set_threshold(100_000)
    # Or the interpreter looks through all of it again as it ends. Files must be closed: one in a
    # cycle loses its rest.
    atexit.register(gc.freeze)


def place_among_processes() -> tuple[int, int]:
    """Rank of this process and the number of all, by torchrun's variables; (0, 1) without it."""
    return read_number("RANK", 0), read_number("WORLD_SIZE", 1)


def read_number(variable: str, otherwise: int) -> int:
    """Read a whole number of the environment; ``otherwise`` where it is not set, or empty.

    Raises:
        PipelineError: it is no such number.
    """
    text = os.environ.get(variable) or str(otherwise)
    if not text.isdecimal():
        raise PipelineError(f"{variable}: found {text!r} in the environment; unset it")
    return int(text)


def is_worker() -> bool:
    """Tell whether this is not the first of torchrun's processes."""
    rank, _ = place_among_processes()
    return rank != 0


def choose_device(
    device: Literal["auto", "cpu", "cuda"], width: int | None = None
) -> "torch.device":
    """Return the device; ``auto`` takes a GPU if there is one. A small network gets one thread.

    Of several processes on a machine, each has a GPU of its own if there are enough.

    Args:
        device: as ``compute.device`` of params.yaml names it.
        width: units of the widest layer of a network that trains alone. Up to 192 a second thread
            saves a sixth of the time at best, beyond a third and more (benchmarks/performance.md).
            The number is not changed during training, so that equal seeds give equal policies.

    Raises:
        PipelineError: ``cuda`` was asked for and there is none.
    """
    import torch

    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise PipelineError(
            "params.yaml: compute.device: found cuda, but torch sees no GPU; use auto or cpu"
        )
    if device == "cpu" or not available:
        if width is not None and width <= ONE_THREAD_UP_TO:
            torch.set_num_threads(1)
        return torch.device("cpu")
    place = read_number("LOCAL_RANK", 0)
    chosen = torch.device("cuda", place % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block, and put the former ones back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def git_commit() -> str | None:
    """The commit that is checked out, or None outside a repository."""
    return _git("rev-parse", "HEAD")


def user_name() -> str:
    """Name of who runs this process: git's ``user.name``, or the login."""
    try:
        return _git("config", "user.name") or getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=workspace(), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
