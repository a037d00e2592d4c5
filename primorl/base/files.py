"""Where the project keeps things, outputs that are replaced whole or not at all, and leftovers of
killed processes.

Every path is spelt here once. Those of inputs and outputs are relative to `workspace`, where DVC
starts the stages. `STATE` and what lies in it are relative to `home`: they outlive one experiment.
"""

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from primorl.base import PipelineError

PARAMS = Path("params.yaml")
ONLINE_SETTINGS = Path("online.yaml")
DATASETS = Path("datasets")
PIPELINE, LOCK = Path("dvc.yaml"), Path("dvc.lock")

# Inside the trust boundary.
RAW = Path("data/raw")
COPIES = RAW / "_source.json"
TRAJECTORIES = Path("data/trajectories")
WITHDRAWALS = Path("data/withdrawals")
CONSENT = Path("data/consent")
PARTITIONS = Path("data/partitions")
PRIVATE = PARTITIONS / "private"

# What later stages read.
PUBLIC = PARTITIONS / "public"
MANIFEST = PARTITIONS / "manifest.json"
PLAN = Path("data/plan.json")
MODELS = Path("models")
MODEL, POLICY = MODELS / "dynamics", MODELS / "policy"
BEHAVIOUR = MODELS / "behaviour"
STAGES = Path("metrics/stages")
SUMMARY = Path("metrics/summary.json")
PRIVATE_EVALUATION = Path("metrics/private_evaluation.json")
ONLINE = MODELS / "online"
ONLINE_METRICS, ONLINE_CURVE = Path("metrics/online.json"), Path("plots/online.csv")
CURVES = Path("plots/curves.csv")
REPORTS = Path("reports")
REPORT, LATEST_REPORT = REPORTS / "report.html", REPORTS / "latest.html"

STATE = Path(".primorl")
SECRET = STATE / "secret"
LEDGER, LEDGER_HEAD = STATE / "ledger.db", STATE / "ledger.head"
UNITS = STATE / "units"
CHECKPOINTS = STATE / "checkpoints"
PAID_PLANS = STATE / "plans"

_OF_MODELS = (MODELS, MODEL, POLICY, BEHAVIOUR, ONLINE)
_OF_STATE = (STATE, UNITS, CHECKPOINTS, PAID_PLANS)
_OTHERS = (Path(), Path("data"), Path("metrics"), Path("plots"), Path(".dvc/tmp"))
PARENTS = (*_OTHERS, PARTITIONS, STAGES, REPORTS, *_OF_MODELS, *_OF_STATE)
"""Folders that outputs are written into, and so the folders in which a killed process leaves
temporary files.
"""

_EXPERIMENTS = ".dvc/tmp/exps"
_COPY = re.compile(rf"/{re.escape(_EXPERIMENTS)}/(?:standalone/)?[^/]+/")
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
"""This machine. A process number means nothing on another one."""
_TEMPORARY = re.compile(rf"\..+\.new-{HOST}-(?P<process>\d{{1,9}})-")


def stage_log(stage: str) -> Path:
    """The file that holds a stage's wall time and its numbers for MLflow."""
    return STAGES / f"{stage}.json"


def workspace() -> Path:
    """The folder that DVC starts the stages in.

    It is not ``DVC_ROOT``. For an experiment in a temporary copy (``--temp``, ``--queue``)
    ``DVC_ROOT`` names the project that the copy was made from, and a stage that wrote there would
    overwrite its outputs.
    """
    return Path.cwd()


def home() -> Path:
    """The project itself, also from inside DVC's temporary copies; `STATE` and files that outlive
    one experiment are kept here.

    A working directory with ``params.yaml`` is a project of its own. ``DVC_ROOT`` may name another
    one, whose stage started DVC here.
    """
    here, root = workspace().resolve(), Path(os.environ.get("DVC_ROOT", ".")).resolve()
    copies = (root / _EXPERIMENTS).resolve()
    if here.is_relative_to(copies):  # also where they lie behind a link
        here = root / _EXPERIMENTS / here.relative_to(copies)
    elif not _COPY.search(f"{here}/") and not (here / PARAMS).exists():
        here = root
    if (copy := _COPY.search(f"{here}/")) is None:
        return here
    project = Path(f"{here}/"[: copy.start()] or "/")
    below = project / f"{here}/"[copy.end() :]
    return below if (below / PARAMS).exists() else project


def project_folder(start: Path) -> Path:
    """Find the project that ``start`` lies in.

    Returns:
        ``start`` if it has a ``params.yaml``; else the nearest folder above that has both
        ``params.yaml`` and ``dvc.yaml``; else ``start``, as there is no project.
    """
    if (start / PARAMS).exists():
        return start
    for folder in start.parents:
        if (folder / PARAMS).exists() and (folder / PIPELINE).exists():
            return folder
    return start


def refuse_other_names(path: Path) -> None:
    """Refuse a file or folder that DVC and Arrow cannot open.

    Raises:
        PipelineError: its name is not UTF-8.
    """
    shown = os.fsencode(path).decode(errors="backslashreplace")
    if shown != str(path):
        raise PipelineError(f"{shown}: found a name that is not UTF-8; rename the file or folder")


def refuse_readable() -> None:
    """Refuse a project whose state is not its owner's alone.

    Raises:
        PipelineError: others may read the state, or its secret; or the project's folder has
            another name than DVC can open.
    """
    refuse_other_names(home())
    for path, mode in ((home() / STATE, "700"), (home() / SECRET, "600")):
        if path.exists() and path.stat().st_mode & 0o077:
            raise PipelineError(
                f"{path}: others may read it; chmod {mode} {shlex.quote(str(path))}; where that "
                "changes nothing, as on a Windows drive, move the project to a disk of Linux"
            )


@contextmanager
def replaced_directory(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill.

    If the block succeeds the folder replaces ``target``, else it is deleted.

    The previous ``target`` stays untouched until the new one is complete and on the disk. A kill or
    a power cut leaves the old one, the new one or, between two renames, none; an exception there
    leaves the old one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=_temporary(target), dir=target.parent))
    previous = fresh.with_name(f"{fresh.name}-old")
    # mkdtemp's 0700 would hide the output from a group that shares it
    fresh.chmod(0o777 & ~_umask())
    try:
        yield fresh
        for file in fresh.rglob("*"):
            if file.is_file():
                file.chmod(0o666 & ~_umask())  # safetensors hides its files from all others
            sync(file)
        sync(fresh)
        if target.exists():
            target.replace(previous)
        fresh.replace(target)
        sync(target.parent)
    finally:
        if previous.exists() and not target.exists():  # interrupted between the two renames
            previous.replace(target)
        for folder in (fresh, previous):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replaced_file(target: Path) -> Iterator[Path]:
    """Give a path to write.

    If the block succeeds the file replaces ``target``, else it is deleted.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=_temporary(target), dir=target.parent)
    os.close(handle)
    fresh = Path(name)
    fresh.chmod(0o666 & ~_umask())
    try:
        yield fresh
        sync(fresh)
        fresh.replace(target)
        sync(target.parent)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock file at ``path`` for the block; give False if another living process holds it.

    The system releases the lock of a killed process. A lock on a file that was deleted meanwhile is
    worth nothing, so it is taken again on the file that is there now.
    """
    import fcntl  # here, and not above: Windows has none, and policies are loaded there too

    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if _is_at(file.fileno(), path):
                yield True
                return


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _temporary(target: Path) -> str:
    """Begin a temporary name of this process for ``target``. Git ignores all of these names."""
    return f".{target.name}.new-{HOST}-{os.getpid()}-"


def sweep_leftovers(root: Path) -> list[Path]:
    """Delete leftovers of killed processes of this machine below ``root``; return the paths.

    Left over are temporary outputs, which may hold private rows. Files of living processes and of
    other machines stay.
    """
    swept = []
    for leftover in (path for parent in PARENTS for path in (root / parent).glob(".*.new-*")):
        named = _TEMPORARY.match(leftover.name)
        if named is None or _alive(int(named["process"])):
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
        swept.append(leftover)
    return swept


def check_writable(paths: Iterable[Path], bytes_needed: int = 0) -> None:
    """Check that outputs can be written, before anything is computed or paid for.

    Args:
        paths: files and folders that will be created or replaced; they need not exist.
        bytes_needed: free space that must be left on the disk of each.

    Raises:
        PipelineError: if a folder refuses new files, or too little space is free.
    """
    parents = (path.absolute().parents for path in paths)
    for folder in sorted({next(filter(Path.is_dir, above)) for above in parents}):
        try:
            with tempfile.TemporaryFile(prefix=_temporary(Path("writable")), dir=folder):
                free = shutil.disk_usage(folder).free
        except OSError as refused:
            raise PipelineError(
                f"{folder}: not writable ({refused.strerror}); make it so, or free space"
            ) from None
        if free < bytes_needed:
            found, needed = -(-free // 2**20), -(-bytes_needed // 2**20)
            raise PipelineError(
                f"{folder}: found {found} MB free, this stage needs {needed} MB; free some space"
            )


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def sync(path: Path) -> None:
    """Wait until the disk holds the written bytes, so that a power cut after an exchange cannot
    empty it. On macOS plain fsync would stop at the drive's cache.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as strict JSON (finite numbers only), atomically."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    with replaced_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        PipelineError: if the file is missing or is not a strict JSON object (finite numbers, every
            key once).
    """
    return parse_json(read_text(path, "run `primorl run`, or, in a clone, `dvc pull`"), path)


def read_text(path: Path, remedy: str) -> str:
    """Read a file as UTF-8.

    Raises:
        PipelineError: the file is missing or is no text; advises ``remedy``.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineError(f"{path}: not there; {remedy}") from None
    except (OSError, UnicodeDecodeError) as broken:
        raise PipelineError(f"{path}: not readable ({type(broken).__name__}); {remedy}") from None


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """`read_json` of a text that was read from ``path``."""
    try:
        content = json.loads(text, parse_constant=_refuse, object_pairs_hook=_keys_once)
    except (ValueError, RecursionError):  # RecursionError: thousands of brackets
        allowed = "JSON of finite numbers and each key once; run the stage that writes it again"
        raise PipelineError(f"{path}: not {allowed}") from None
    if not isinstance(content, dict):
        raise PipelineError(f"{path}: found a JSON {type(content).__name__}, expected an object")
    return content


def _refuse(constant: str) -> None:
    raise ValueError  # NaN and Infinity, which Python's reader takes


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):  # of two, one reader takes the first and another the last
        raise ValueError
    return content


def finite(value: float) -> float | None:
    """``value`` for JSON: None if it is infinite or NaN."""
    return value if math.isfinite(value) else None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
