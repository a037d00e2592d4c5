"""Paths of the project, and outputs that are replaced whole or not at all."""

import ctypes
import fcntl
import glob
import hashlib
import json
import math
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from primorl.project.errors import PipelineError

_EXPERIMENTS = "/.dvc/tmp/exps/"
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
"""This machine: process numbers mean nothing elsewhere."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2(2)


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


def leaves_project(path: str) -> bool:
    """Whether a relative path (they start at `home`) ends outside the project; an absolute one is meant to."""
    named = Path(path).expanduser()
    return not named.is_absolute() and not (home() / named).resolve().is_relative_to(home().resolve())


@contextmanager
def replaced_directory(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill; put it in ``target``'s place when the block ends well, drop it otherwise.

    The previous ``target`` stays untouched until the new one is complete and on the disk. Where the system can
    exchange two folders in one step (Linux), a kill or a power cut leaves either the old one or the new one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _drop_leftovers(target)
    fresh = Path(tempfile.mkdtemp(prefix=_temporary(target), dir=target.parent))
    fresh.chmod(0o777 & ~_umask())  # mkdtemp's 0700 would hide the output from a group that shares it
    try:
        yield fresh
        for file in fresh.rglob("*"):
            _sync(file)
        _sync(fresh)
        _exchange(fresh, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def scratch_directory(beside: Path) -> Iterator[Path]:
    """Give an empty folder on the disk of ``beside``, gone when the block ends; what a kill leaves, the next drops."""
    _drop_leftovers(beside)
    scratch = Path(tempfile.mkdtemp(prefix=_temporary(beside), dir=beside.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _exchange(fresh: Path, target: Path) -> None:
    if not target.exists():
        fresh.replace(target)
        return
    if _swap(fresh, target):
        return
    previous = Path(tempfile.mkdtemp(prefix=f"{_temporary(target)}old-", dir=target.parent))
    try:
        target.replace(previous)
        fresh.replace(target)
    finally:
        if not target.exists():  # also where the exchange was interrupted between its two moves
            previous.replace(target)
        shutil.rmtree(previous, ignore_errors=True)


def _swap(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here = ctypes.c_int(_AT_FDCWD)
    return (
        rename is not None
        and rename(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    )


@contextmanager
def replaced_file(target: Path) -> Iterator[Path]:
    """Give a path to write; move it over ``target`` when the block ends well, drop it otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _drop_leftovers(target)
    handle, name = tempfile.mkstemp(prefix=_temporary(target), dir=target.parent)
    os.close(handle)
    fresh = Path(name)
    fresh.chmod(0o666 & ~_umask())
    try:
        yield fresh
        _sync(fresh)
        fresh.replace(target)
        _sync(target.parent)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock file at ``path`` for the block; False where another living process holds it. A kill lets it go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _temporary(target: Path) -> str:
    """How the temporary names of this process for ``target`` begin; git ignores all of them."""
    return f".{target.name}.new-{HOST}-{os.getpid()}-"


def _drop_leftovers(target: Path) -> None:
    """Remove what killed processes of this machine left: it may hold private rows."""
    known = re.compile(rf"{re.escape(f'.{target.name}.new-{HOST}-')}(\d+)-(old-)?")
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.new-*"):
        named = known.match(leftover.name)
        if named is None or _alive(int(named[1])):
            continue
        if named[2] and not target.exists():  # killed between the two moves of an exchange
            leftover.replace(target)
        elif leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _sync(path: Path) -> None:
    """Have the disk hold what was written, so that a power cut after an exchange cannot empty it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        flush(handle)
    finally:
        os.close(handle)


def flush(handle: int) -> None:
    """Have the disk itself hold an open file; on macOS plain fsync stops at the drive's cache."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    else:
        os.fsync(handle)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as strict JSON (finite numbers only), atomically."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    with replaced_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        PipelineError: the file is missing or is not a strict JSON object: finite numbers, every key once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineError(f"{path}: not there; run `dvc repro` to make it") from None
    except UnicodeDecodeError as broken:
        raise _not_json(path, broken) from None
    return parse_json(text, path)


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """`read_json` of a text that was read from ``path``."""
    try:
        content = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite_only, object_pairs_hook=_keys_once
        )
    except (ValueError, RecursionError) as broken:  # RecursionError: thousands of brackets
        raise _not_json(path, broken) from None
    if not isinstance(content, dict):
        raise PipelineError(f"{path}: found a JSON {type(content).__name__}, expected an object")
    return content


def _not_json(path: Path, broken: Exception) -> PipelineError:
    reason = str(broken) if isinstance(broken, _RefusedError) else type(broken).__name__
    return PipelineError(f"{path}: not JSON ({reason}); run the stage that writes it again")


class _RefusedError(ValueError):
    """What Python's reader would take and JSON does not allow."""


def _refuse_constant(constant: str) -> None:
    raise _RefusedError(f"found {constant}")


def _finite_only(number: str) -> float:
    if math.isinf(value := float(number)):
        raise _RefusedError(f"found {number[:40]}, which is too large for a number")
    return value


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):  # of two, one reader takes the first and another the last
        raise _RefusedError("a key is given twice")
    return content


def finite(value: float) -> float | None:
    """``value`` for JSON: None where it is infinite or not a number."""
    return value if math.isfinite(value) else None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
