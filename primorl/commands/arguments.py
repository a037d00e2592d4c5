"""Options that several commands parse alike: numbers within bounds, and paths relative to the caller's folder."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from primorl.project.paths import PARAMS, PIPELINE

_called_from = Path()


def project_folder(start: Path) -> Path:
    """Find the project that ``start`` lies in.

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
    """Parse a path: relative to the folder that the command was called from."""
    here = Path.cwd()
    if here == _called_from or not _called_from.is_relative_to(here):
        return Path(text)
    path = Path(os.path.normpath(_called_from / text))
    return path.relative_to(here) if path.is_relative_to(here) else path


def number(kind: type[int] | type[float], fits: Callable[[float], bool], allowed: str) -> Callable[[str], Any]:
    """Make a parser of numbers of ``kind`` that satisfy ``fits``; ``allowed`` says which, for the error."""

    def parse(text: str) -> float:
        try:
            parsed = kind(text)
        except ValueError:
            parsed = None
        if parsed is None or not fits(parsed):
            raise typer.BadParameter(f"found {text[:40]!r}, allowed: {allowed}")
        return parsed

    return parse
