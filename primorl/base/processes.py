"""Processes: those of torchrun, environment variables, and git's commit."""

import atexit
import gc
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from primorl.base.files import workspace

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
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def is_worker() -> bool:
    """Tell whether this is not the first of torchrun's processes."""
    rank, _ = place_among_processes()
    return rank != 0


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


def git_tags() -> dict[str, str]:
    """The commit and whether anything differs from it, as MLflow's tags; empty outside a
    repository.
    """
    commit = git_commit()
    if commit is None:
        return {}
    # DVC itself rewrites dvc.lock after every stage
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock")
    return {"mlflow.source.git.commit": commit, "git_dirty": str(bool(changed)).lower()}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=workspace(), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
