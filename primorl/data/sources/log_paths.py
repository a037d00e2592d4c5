"""The files of a log: which there are, none left out in silence, and whether they changed."""

import glob
import gzip
import itertools
import os
import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq

from primorl.base import PipelineError
from primorl.base.files import (
    COPIES,
    file_sha256,
    home,
    read_json,
    refuse_other_names,
    write_json,
)
from primorl.config.datasets import AnyDataset, MedsDataset, TabularDataset

UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError, EOFError, zlib.error)
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
    for path in [wanted] if wanted.is_file() else _match(wanted):  # its name may have brackets
        if path.is_dir():
            found.update(log_files(path, endings))
        else:
            refuse_unread(path, endings)
            found.add(path)
    _refuse_tables(found)
    return Path(*fixed), sorted(found, key=_in_order)


def _match(wanted: Path) -> list[Path]:
    """Find what a pattern names; refuse folders on the way that cannot be listed."""
    for depth, part in enumerate(wanted.parts):
        above = str(Path(*wanted.parts[:depth]))
        for folder in glob.iglob(above, recursive=True) if glob.has_magic(part) else ():  # noqa: PTH207
            if Path(folder).is_dir() and not os.access(folder, os.R_OK | os.X_OK):
                _refuse_folder(PermissionError(0, "Permission denied", folder))
    return [Path(found) for found in glob.iglob(str(wanted), recursive=True)]  # noqa: PTH207


def log_files(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Path]:
    """List the log files under ``folder``, also behind links, without names that begin with a dot
    or underscore; with an underscore, a log's ending is refused.

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
        kept = [name for name in names if name[0] not in "._" or name.endswith(endings)]
        found += [Path(where) / name for name in kept if name[0] != "."]
    _refuse_tables(found)
    for path in found:
        refuse_unread(path, endings)
    return sorted(found, key=_in_order)


def _refuse_tables(found: Iterable[Path]) -> None:
    """Refuse files of a table that keeps rows in files which no longer count, and of a write that
    did not end, as a folder above them tells: deleted people would come back, others be missing.
    """
    for folder in sorted({above for path in found for above in path.resolve().parents}):
        if (folder / "_temporary" / "0").exists():
            said = "found _temporary, so not all of its files were written"
            raise PipelineError(f"{folder}: {said}; write them again, into an empty folder")
        signs = [folder / name for name in ("_delta_log", ".hoodie", "_spark_metadata")]
        signs = [sign for sign in signs if sign.exists()]
        if signs := signs or [*folder.glob("metadata/*.metadata.json")]:
            said = f"found {signs[0].name}, of a table whose files hold deleted rows, too"
            raise PipelineError(f"{folder}: {said}; write its present rows into files of their own")


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Sort ``part-2`` before ``part-10``."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part) if part.isdecimal() else 0, part) for part in parts]


def _refuse_folder(refused: OSError) -> NoReturn:
    found = f"cannot be read ({refused.strerror}); make it readable, or move it"
    raise PipelineError(f"{refused.filename}: {found}") from None


def refuse_unread(path: Path, endings: tuple[str, ...]) -> None:
    """Raise the error about a file that would not be read."""
    refuse_other_names(path)
    if not os.access(path, os.R_OK) or not path.is_file():
        raise PipelineError(f"{path}: cannot be read, or is a link to nothing, or is no file")
    if not path.name.endswith(endings) or path.name[0] in "._":
        raise PipelineError(
            f"{path}: found a name that is no log's; allowed are {', '.join(endings)}; rename or "
            "convert it (pandas reads Excel, SAS and Stata), or move it away, or let "
            "options.files leave it out by a pattern (FOLDER/**/*.csv)"
        )


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
        found = f"found no file at {named!r}, from the project's root"
        allowed = f"allowed are {', '.join(endings)}; in MEDS the folder is that above `data`"
        raise PipelineError(f"datasets/{name}.yaml: {key}: {found}; {allowed}")
    known: dict[str, dict[str, Any]] = {}
    for file in files:
        known[str(file.relative_to(folder))] = {**_stamp(file), "digest": file_sha256(file)}
    write_json(raw / COPIES.name, {"dataset": name, "named": named, "files": known})
    return folder, files


def has_rows(file: Path) -> bool:
    """Say whether a file is no empty part, which is a header alone: these are alike and tell no
    types. True of a broken one, which `logs.LogFiles` refuses.
    """
    with suppress(*UNREADABLE):
        if file.suffix == ".parquet":
            return bool(pq.read_metadata(file).num_rows)
        with open_bytes(file) as lines:
            first = b"".join(itertools.islice(lines, 2))
            return len(first.splitlines()) != 1
    return True


def describe_edits(name: str, dataset: AnyDataset) -> str | None:
    """Say how the files of a log differ from those that ``data/raw`` was made of.

    None: they do not; or nothing of this entry was collected; or no file is where it says, as with
    a log that was moved away; or one cannot be read.
    """
    if not isinstance(dataset, TabularDataset | MedsDataset) or not COPIES.exists():
        return None
    named, key, endings = _source_of(dataset)
    try:
        copied = read_json(COPIES)
        folder, files = find_files(named, endings)
        others = copied["dataset"] != name or copied.get("named", named) != named
        if others or not files:
            return None
        before, now = copied["files"], {str(file.relative_to(folder)): file for file in files}
        edited = {
            each
            for each in before.keys() & now.keys()
            if not before[each].items() >= _stamp(now[each]).items()
            and before[each]["digest"] != file_sha256(now[each])
        }
    except OSError:
        return None
    except PipelineError as refused:
        return str(refused)
    if not (other := edited | (before.keys() ^ now.keys())):
        return None
    return (
        f"the source changed since it was collected: datasets/{name}.yaml: {key}: {len(other)} of "
        f"{len(before.keys() | now.keys())} files changed, are gone or new; to read them again: "
        "`dvc repro -f collect && dvc repro plan`, which charges nothing; then `primorl plan` says "
        "what the rest charges"
    )


def _stamp(file: Path) -> dict[str, int]:
    found = file.stat()
    return {"size": found.st_size, "time": found.st_mtime_ns}


def open_bytes(path: Path) -> BinaryIO:
    """Open a file, or what was compressed in it."""
    return cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb"))
