"""The files of a log, and whether they are still those that `collect` copied.

DVC watches the copies in ``data/raw``, not the files of ``options.files``: a person who is deleted there would stay in
unseen. So ``.primorl/sources`` has size, time and a digest of every file that was copied. The digest is computed again
only where the time differs.
"""

import glob
import hashlib
import itertools
import re
from pathlib import Path
from typing import Any

from primorl.config.datasets import AnyDataset, TabularDataset
from primorl.project.files import home, read_json, write_json
from primorl.project.paths import SOURCES

ENDINGS = (".parquet", ".csv", ".csv.gz")


def named_files(named: str) -> tuple[Path, list[Path]]:
    """Find the files that ``options.files`` names, and the folder that their names begin in."""
    wanted = home() / Path(named).expanduser()
    if wanted.is_dir():
        return wanted, log_files(wanted)
    matched = [Path(found) for found in glob.glob(str(wanted), recursive=True)]  # noqa: PTH207
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), wanted.parts[:-1])
    return Path(*fixed), sorted(path for path in matched if path.is_file())


def log_files(folder: Path) -> list[Path]:
    """List the log files under ``folder``, part 2 before part 10, without names that begin with a dot or underscore."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name.endswith(ENDINGS)]
    visible = [path for path in found if not any(part[0] in "._" for part in path.relative_to(folder).parts)]
    return sorted(visible, key=lambda path: (_natural(path.relative_to(folder)), str(path)))


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts]


def remember(name: str, dataset: AnyDataset) -> None:
    """Record the files of a log as they are now; call it when `collect` has copied them. Other sources have none."""
    if isinstance(dataset, TabularDataset):
        folder, files = named_files(dataset.options.files)
        seen = {str(file.relative_to(folder)): {**_stat(file), "digest": _digest(file)} for file in files}
        write_json(_record(name), {"files": seen})


def changed(name: str, dataset: AnyDataset) -> str | None:
    """Say how the files of a log differ from those that were copied; None: they do not, or nothing was copied here."""
    if not isinstance(dataset, TabularDataset) or not _record(name).exists():
        return None
    folder, files = named_files(dataset.options.files)
    now, before = {str(file.relative_to(folder)): file for file in files}, read_json(_record(name))["files"]
    gone, new = len(before.keys() - now.keys()), len(now.keys() - before.keys())
    edited = sum(_differs(now[file], before[file]) for file in before.keys() & now.keys())
    if not (gone or new or edited):
        return None
    counts = [f"{count} {what}" for count, what in ((edited, "changed"), (gone, "gone"), (new, "new")) if count]
    return (
        f"the source changed since it was collected: datasets/{name}.yaml: options.files: {', '.join(counts)} of "
        f"{len(before.keys() | now.keys())} files; everything here is of the former ones. To read them again: `dvc "
        "repro -f collect`, then `dvc repro`"
    )


def _record(name: str) -> Path:
    return home() / SOURCES / f"{name}.json"


def _stat(file: Path) -> dict[str, int]:
    found = file.stat()
    return {"size": found.st_size, "time": found.st_mtime_ns}


def _differs(file: Path, before: dict[str, Any]) -> bool:
    now = _stat(file)
    if now["size"] != before["size"]:
        return True
    return now["time"] != before["time"] and _digest(file) != str(before["digest"])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
