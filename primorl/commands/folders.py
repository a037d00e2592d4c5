"""Where a command runs: in the project's folder, also when it was called from a folder inside it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from primorl.project.paths import PARAMS, PIPELINE

_called_from = Path()


def project_folder(start: Path) -> Path:
    """The project that ``start`` lies in.

    Returns:
        ``start`` if it has a ``params.yaml``; else the nearest folder above that has both ``params.yaml`` and
        ``dvc.yaml``; else ``start``, as there is no project.
    """
    if (start / PARAMS).exists():
        return start
    for folder in start.parents:
        if (folder / PARAMS).exists() and (folder / PIPELINE).exists():
            return folder
    return start


@contextlib.contextmanager
def in_project() -> Iterator[None]:
    """Work in the project's folder, and come back."""
    global _called_from
    _called_from = Path.cwd()
    with contextlib.chdir(project_folder(_called_from)):
        yield


def given_path(text: str) -> Path:
    """A path that the user typed: relative to the folder that the command was called from."""
    here = Path.cwd()
    if here == _called_from or not _called_from.is_relative_to(here):
        return Path(text)
    path = Path(os.path.normpath(_called_from / text))
    return path.relative_to(here) if path.is_relative_to(here) else path
