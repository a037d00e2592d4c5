"""Paths of the project, and outputs that are replaced whole or not at all."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

_EXPERIMENTS = "/.dvc/tmp/exps/"


def workspace() -> Path:
    """The tree the stages run in: where DVC starts them.

    Not ``DVC_ROOT``: for experiments in a temporary copy (``--temp``, ``--queue``) that names the project the
    copy was made from, and a stage that went there would overwrite its outputs.
    """
    return Path.cwd()


def home() -> Path:
    """The project itself, also from inside DVC's temporary copies: what outlives one experiment lives here."""
    named = Path(os.environ.get("DVC_ROOT", ".")).resolve()
    root, inside, _ = str(named).partition(_EXPERIMENTS)
    return Path(root) if inside else named


@contextmanager
def replaced_directory(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill; move it to ``target`` when the block ends well, drop it otherwise.

    The previous ``target`` stays untouched until the new one is complete, and is put back if the
    exchange itself fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    fresh.chmod(0o777 & ~_umask())  # mkdtemp's 0700 would hide the output from a group that shares it
    try:
        yield fresh
        _exchange(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _exchange(fresh: Path, target: Path) -> None:
    if not target.exists():
        fresh.replace(target)
        return
    previous = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    try:
        target.replace(previous)
        fresh.replace(target)
    finally:
        if not target.exists():  # also where the exchange was interrupted between its two moves
            previous.replace(target)
        shutil.rmtree(previous, ignore_errors=True)


@contextmanager
def replaced_file(target: Path) -> Iterator[Path]:
    """Give a path to write; move it over ``target`` when the block ends well, drop it otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new-{os.getpid()}")
    try:
        yield fresh
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as strict JSON (finite numbers only), atomically."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    with replaced_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        PipelineError: the file is missing or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise PipelineError(f"{path}: not there; run `dvc repro` to make it") from None
    except ValueError as broken:
        raise PipelineError(f"{path}: not JSON ({type(broken).__name__}); run the stage that writes it again") from None
    if not isinstance(content, dict):
        raise PipelineError(f"{path}: found a JSON {type(content).__name__}, expected an object")
    return content


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def finite(value: float) -> float | None:
    """``value`` for JSON: None where it is infinite or not a number."""
    return value if math.isfinite(value) else None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
