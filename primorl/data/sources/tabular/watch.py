"""The files of a log, and whether they are still those that `collect` copied.

DVC watches the copies in ``data/raw``, not the files of ``options.files``: a person who is deleted there would stay in
unseen. So ``data/raw`` also has the digest of every copy. ``.primorl/sources`` remembers which digest a file had at
which size and time, so that it is computed again only where these differ.
"""

import glob
import hashlib
import itertools
import re
from pathlib import Path
from typing import Any

from primorl.base.errors import PipelineError
from primorl.base.files import home, read_json, write_json
from primorl.base.paths import COPIES, SOURCES, STATE
from primorl.config.datasets import AnyDataset, TabularDataset

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


def record_copies(name: str, raw: Path) -> None:
    """Write the digests of a log's copies in ``raw`` beside them. `log_files` leaves that file out."""
    copies = {str(file.relative_to(raw)): _digest(file) for file in log_files(raw)}
    write_json(raw / COPIES.name, {"dataset": name, "files": copies})


def changed(name: str, dataset: AnyDataset) -> str | None:
    """Say how the files of a log differ from the copies in ``data/raw``.

    None: they do not; or there are no copies of this dataset; or no file is where the entry says, as with a log that
    was moved away; or one cannot be read.
    """
    if not isinstance(dataset, TabularDataset) or not COPIES.exists():
        return None
    try:
        copied = read_json(COPIES)
        folder, files = named_files(dataset.options.files)
        if copied.get("dataset") != name or not files:
            return None
        now, before = _digests(name, folder, files), copied.get("files", {})
    except (OSError, PipelineError):
        return None
    gone, new = len(before.keys() - now.keys()), len(now.keys() - before.keys())
    edited = sum(now[file] != before[file] for file in before.keys() & now.keys())
    if not (gone or new or edited):
        return None
    counts = [f"{count} {what}" for count, what in ((edited, "changed"), (gone, "gone"), (new, "new")) if count]
    return (
        f"the source changed since it was collected: datasets/{name}.yaml: options.files: {', '.join(counts)} of "
        f"{len(before.keys() | now.keys())} files; everything here is of the former ones. To read them again: `dvc "
        "repro -f collect`, then `dvc repro`, which charges the people who are in them anew"
    )


def _digests(name: str, folder: Path, files: list[Path]) -> dict[str, str]:
    """Digests of the files, those of the same size and time as before from the project's memory."""
    memory = home() / SOURCES / f"{name}.json"
    known = read_json(memory) if memory.exists() else {}
    seen: dict[str, list[Any]] = {}
    for file in files:
        own, found = str(file.relative_to(folder)), file.stat()
        same = [found.st_size, found.st_mtime_ns]
        before = known.get(own)
        seen[own] = before if isinstance(before, list) and before[:2] == same else [*same, _digest(file)]
    if seen != known and (home() / STATE).exists():
        write_json(memory, seen)
    return {own: str(digest) for own, (*_, digest) in seen.items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
