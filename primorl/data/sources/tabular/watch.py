"""The files of a log or a MEDS folder, and whether they are still those that `collect` read.

DVC watches ``data/raw``, not the files that the entry names: a person who is deleted there would
stay in unseen. So ``data/raw`` also has size, time and digest of every file. A digest is computed
again only where size or time differ.
"""

import glob
import hashlib
import itertools
import re
from pathlib import Path
from typing import Any

from primorl.base.errors import PipelineError
from primorl.base.files import home, read_json, write_json
from primorl.base.paths import COPIES
from primorl.config.datasets import AnyDataset, MedsDataset, TabularDataset

ENDINGS = (".parquet", ".csv", ".csv.gz")


def find_files(named: str) -> tuple[Path, list[Path]]:
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
    """Give what the entry of files of one's own names, for `find_files`, and its key; None for
    other sources.
    """
    if isinstance(dataset, TabularDataset):
        return dataset.options.files, "options.files"
    if isinstance(dataset, MedsDataset):
        return f"{dataset.options.folder}/data", "options.folder"
    return None


def record_files(name: str, raw: Path, folder: Path, files: list[Path]) -> None:
    """Write what a log's files in ``folder`` are into ``raw``; call it before they are read.

    `log_files` leaves that file out.
    """
    known = {}
    for file in files:
        known[str(file.relative_to(folder))] = {**_stamp(file), "digest": _digest(file)}
    write_json(raw / COPIES.name, {"dataset": name, "files": known})


def changed(name: str, dataset: AnyDataset) -> str | None:
    """Say how the files of a log differ from those that ``data/raw`` was made of.

    None: they do not; or nothing of this dataset was collected; or no file is where the entry says,
    as with a log that was moved away; or one cannot be read. What ``data/raw`` says in the format
    of another version cannot be compared, which is said too.
    """
    if (own := source_files(dataset)) is None or not COPIES.exists():
        return None
    named, key = own
    try:
        copied = read_json(COPIES)
        folder, files = find_files(named)
        if copied["dataset"] != name or not files:
            return None
        before, now = copied["files"], {str(file.relative_to(folder)): file for file in files}
        edited = sum(_differs(now[file], before[file]) for file in before.keys() & now.keys())
    except (OSError, PipelineError):
        return None
    except (AttributeError, KeyError, TypeError):
        return (
            f"{COPIES}: not of this version, so whether the source changed is unknown; `dvc repro "
            "-f collect` reads it again"
        )
    gone, new = len(before.keys() - now.keys()), len(now.keys() - before.keys())
    if not (gone or new or edited):
        return None
    return (
        f"the source changed since it was collected: datasets/{name}.yaml: {key}: {edited} "
        f"changed, {gone} gone, {new} new of {len(before.keys() | now.keys())} files; to read them "
        "again: `dvc repro -f collect`, then `dvc repro`, which charges the people who are in them "
        "anew"
    )


def _differs(file: Path, before: dict[str, Any]) -> bool:
    stamp = _stamp(file)
    same = all(before[key] == value for key, value in stamp.items())
    return not same and before["digest"] != _digest(file)


def _stamp(file: Path) -> dict[str, int]:
    found = file.stat()
    return {"size": found.st_size, "time": found.st_mtime_ns}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
