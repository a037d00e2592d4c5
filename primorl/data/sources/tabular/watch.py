"""The files of a log or a MEDS folder, and whether they are still those that `collect` read.

DVC watches ``data/raw``, not the files that the entry names: a person who is deleted there would
stay in unseen. So ``data/raw`` also has size, time and digest of every file. A digest is computed
again only where size or time differ.
"""

import errno
import glob
import hashlib
import itertools
import os
from pathlib import Path
from typing import Any, NoReturn

from primorl.base.errors import PipelineError
from primorl.base.files import home, read_json, write_json
from primorl.base.paths import COPIES
from primorl.config.datasets import AnyDataset, MedsDataset, TabularDataset

ENDINGS = (".parquet", ".csv", ".csv.gz")


def find_files(named: str, endings: tuple[str, ...] = ENDINGS) -> tuple[Path, list[Path]]:
    """Find the files that ``options.files`` names, and the folder that their names begin in.

    Raises:
        PipelineError: something there cannot be read as a log: people would be left out unsaid.
    """
    wanted = home() / Path(named).expanduser()
    if wanted.is_dir():
        return wanted, log_files(wanted, endings)
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), wanted.parts[:-1])
    found: set[Path] = set()
    for path in _match(wanted):
        if path.is_dir():
            found.update(log_files(path, endings))
        else:
            _refuse_unread(path, endings)
            found.add(path)
    return Path(*fixed), sorted(found)


def log_files(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Path]:
    """List the log files under ``folder``, also behind links, without names that begin with a dot
    or underscore.

    Raises:
        PipelineError: a folder or file cannot be read, is there twice, or is no log.
    """
    found: list[Path] = []
    seen: set[Path] = set()
    for where, below, names in os.walk(folder, onerror=_refuse_folder, followlinks=True):
        real = Path(where).resolve()
        if real in seen:
            raise PipelineError(f"{where}: {real} is there twice, by a link; remove the link")
        seen.add(real)
        below[:] = [name for name in below if name[0] not in "._"]
        found += [Path(where) / name for name in names if name[0] not in "._"]
    for path in found:
        _refuse_unread(path, endings)
    return sorted(found)


def _match(wanted: Path) -> list[Path]:
    """Find what a pattern names; refuse folders on the way that cannot be listed."""
    for depth, part in enumerate(wanted.parts):
        above = str(Path(*wanted.parts[:depth]))
        for folder in glob.iglob(above, recursive=True) if glob.has_magic(part) else ():  # noqa: PTH207
            if Path(folder).is_dir() and not os.access(folder, os.R_OK | os.X_OK):
                _refuse_folder(PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder))
    return [Path(found) for found in glob.iglob(str(wanted), recursive=True)]  # noqa: PTH207


def _refuse_folder(refused: OSError) -> NoReturn:
    raise PipelineError(
        f"{refused.filename}: the folder cannot be read ({refused.strerror}); make it readable, or "
        "move it away"
    ) from None


def _refuse_unread(path: Path, endings: tuple[str, ...]) -> None:
    """Raise the error about a file that would not be read."""
    if not os.access(path, os.R_OK):
        found = "cannot be read, or is a link to nothing; make it readable, or mount its target"
    elif not path.is_file():
        found = "neither a file nor a folder; move it away"
    elif not path.name.endswith(endings) or path.name[0] in "._":
        allowed = ", ".join(endings)
        found = (
            f"found a name that is no log's; allowed are {allowed}, beginning with no dot or _; "
            "convert or rename the file, or let a pattern (FOLDER/**/*.csv) leave it out"
        )
    else:
        return
    raise PipelineError(f"{path}: {found}")


def _source_of(
    dataset: TabularDataset | MedsDataset,
) -> tuple[str, str, tuple[str, ...]]:
    """Give what the entry of files of one's own names, its key, and how their names may end."""
    if isinstance(dataset, TabularDataset):
        return dataset.options.files, "options.files", ENDINGS
    return f"{dataset.options.folder}/data", "options.folder", (".parquet",)


def record_files(
    name: str, dataset: TabularDataset | MedsDataset, raw: Path
) -> tuple[Path, list[Path]]:
    """Find the files of a log, as `find_files` does, and write what they are into ``raw``; call it
    before they are read.

    `log_files` leaves that file out.

    Raises:
        PipelineError: there is none.
    """
    named, key, endings = _source_of(dataset)
    folder, files = find_files(named, endings)
    if not files:
        raise PipelineError(
            f"datasets/{name}.yaml: {key}: found no file at {named!r}; allowed are "
            f"{', '.join(endings)} in a folder, of a pattern (*, **) or by name, from the "
            "project's root"
        )
    known = {}
    for file in files:
        known[str(file.relative_to(folder))] = {**_stamp(file), "digest": _digest(file)}
    write_json(raw / COPIES.name, {"dataset": name, "files": known})
    return folder, files


def changed(name: str, dataset: AnyDataset) -> str | None:
    """Say how the files of a log differ from those that ``data/raw`` was made of.

    None: they do not; or nothing of this dataset was collected; or no file is where the entry says,
    as with a log that was moved away; or one cannot be read.
    """
    if not isinstance(dataset, TabularDataset | MedsDataset) or not COPIES.exists():
        return None
    named, key, endings = _source_of(dataset)
    try:
        copied = read_json(COPIES)
        folder, files = find_files(named, endings)
        if copied["dataset"] != name or not files:
            return None
        before, now = copied["files"], {str(file.relative_to(folder)): file for file in files}
        edited = sum(_differs(now[file], before[file]) for file in before.keys() & now.keys())
    except OSError:
        return None
    except PipelineError as refused:
        return str(refused)
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
