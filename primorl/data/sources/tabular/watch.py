"""The files of a log or a MEDS folder, and whether they are still those that `collect` read.

DVC watches ``data/raw``, not the files that the entry names: a person who is deleted there would
stay in unseen. So ``data/raw`` also has the digest of every file. ``.primorl/sources`` remembers
which digest a file had at which size and time, so that it is computed again only where these
differ.
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
from primorl.config.datasets import AnyDataset, MedsDataset, TabularDataset

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
    """List the log files under ``folder``, part 2 before part 10, without names that begin with a
    dot or underscore.
    """
    visible = []
    for path in folder.rglob("*"):
        hidden = any(part[0] in "._" for part in path.relative_to(folder).parts)
        if path.name.endswith(ENDINGS) and path.is_file() and not hidden:
            visible.append(path)
    return sorted(visible, key=lambda path: (_natural(path.relative_to(folder)), str(path)))


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    digits = [part.isascii() and part.isdigit() for part in parts]
    pairs = zip(parts, digits, strict=True)
    return [(1, int(part), "") if digit else (0, 0, part) for part, digit in pairs]


def source_files(dataset: AnyDataset) -> tuple[str, str] | None:
    """Give what the entry of files of one's own names, for `named_files`, and its key; None for
    other sources.
    """
    if isinstance(dataset, TabularDataset):
        return dataset.options.files, "options.files"
    if isinstance(dataset, MedsDataset):
        return f"{dataset.options.folder}/data", "options.folder"
    return None


def record_files(name: str, raw: Path, folder: Path, files: list[Path]) -> None:
    """Write digests of a log's files in ``folder`` into ``raw``.

    `log_files` leaves that file out.
    """
    digests = {str(file.relative_to(folder)): _digest(file) for file in files}
    write_json(raw / COPIES.name, {"dataset": name, "files": digests})


def changed(name: str, dataset: AnyDataset) -> str | None:
    """Say how the files of a log differ from the copies in ``data/raw``.

    None: they do not; or there are no copies of this dataset; or no file is where the entry says,
    as with a log that was moved away; or one cannot be read.
    """
    if (own := source_files(dataset)) is None or not COPIES.exists():
        return None
    named, key = own
    try:
        copied = read_json(COPIES)
        folder, files = named_files(named)
        if copied.get("dataset") != name or not files:
            return None
        now, before = _digests(name, folder, files), copied.get("files", {})
    except (OSError, PipelineError):
        return None
    gone, new = len(before.keys() - now.keys()), len(now.keys() - before.keys())
    edited = sum(now[file] != before[file] for file in before.keys() & now.keys())
    if not (gone or new or edited):
        return None
    return (
        f"the source changed since it was collected: datasets/{name}.yaml: {key}: {edited} "
        f"changed, {gone} gone, {new} new of {len(before.keys() | now.keys())} files; everything "
        "here is of the former ones. To read them again: `dvc repro -f collect`, then `dvc "
        "repro`, which charges the people who are in them anew"
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
        if isinstance(before, list) and before[:2] == same:
            seen[own] = before
        else:
            seen[own] = [*same, _digest(file)]
    if seen != known and (home() / STATE).exists():
        write_json(memory, seen)
    return {own: str(digest) for own, (*_, digest) in seen.items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
