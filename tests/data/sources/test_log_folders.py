"""Folders of logs: nobody is left out in silence, and parts of any name are one log."""

import gzip
import os
import re
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from primorl.base import PipelineError
from primorl.data.sources import source_of
from primorl.data.sources.log_paths import find_files, log_files
from tests.data.sources.tabular_builders import (
    EXPECTED,
    HEADER,
    NO_FLAGS,
    Row,
    arrives,
    entry,
    refusal,
    row,
    rows,
    run,
    text,
    write,
)

TABLES = {
    "Delta Lake": "log/_delta_log/00000000000000000000.json",
    "Hudi": "log/.hoodie/hoodie.properties",
    "Spark's streams": "log/_spark_metadata/0",
    "Iceberg": "log/metadata/v1.metadata.json",
    "a write of Spark that was cut off": "log/_temporary/0/part-2.parquet",
}


@pytest.mark.parametrize("named", ["log", "log/**/*.parquet", "log/year=2024"])
@pytest.mark.parametrize("table", TABLES)
def test_files_of_a_table_are_no_log_as_they_keep_deleted_rows(
    folder: Path, table: str, named: str
) -> None:
    """Of somebody who was deleted there the whole file may still lie in the folder; others are
    missing where its writing was cut off.
    """
    Path("log/year=2024").mkdir()
    write(rows()[:6], "log/year=2024/kept.parquet")
    write(rows()[6:], "log/year=2024/deleted.parquet")
    sign = Path(TABLES[table])
    sign.parent.mkdir(parents=True)
    sign.write_text("{}", encoding="utf-8")
    says = "whose files hold deleted rows|not all of its files were written"
    with pytest.raises(PipelineError, match=says):
        run(entry(files=named, sorted=False))


def test_a_column_that_is_a_folders_name_alone_is_told_so(project: Path) -> None:
    """As Spark's and Polars' partitions write it."""
    for user in (2, 10):
        own = [each for each in rows() if each["user"] == user]
        table = pa.Table.from_pylist(own).drop_columns("user")
        Path(f"log/user={user}").mkdir(parents=True)
        write(table, f"log/user={user}/part-0.parquet")
    assert "column 'user' is missing, and the name of a folder is none" in refusal(entry())


def test_several_files_of_both_kinds_are_one_log(project: Path) -> None:
    table = pa.Table.from_pylist(rows()[2:])
    for second in ("part-3.parquet", "year/part-1.parquet"):
        Path("log/year").mkdir(parents=True)
        write(rows()[:2], "log/part-2.csv")
        write(table.select(table.column_names[::-1]), f"log/{second}")
        for name in ("_SUCCESS", ".part-3.csv"):
            text("not a log", f"log/{name}")
        arrives()


@pytest.mark.parametrize("files", ["log", "log/*/*"])
@pytest.mark.parametrize(
    "names",
    [("part-2.csv", "part-10.csv"), ("9 (1).parquet", "9 (10).parquet")],
)
def test_parts_whose_numbers_are_not_padded_come_in_the_order_of_numbers(
    project: Path, names: tuple[str, str], files: str
) -> None:
    Path("log").mkdir()
    for name, part in zip(names, (rows()[:3], rows()[3:]), strict=True):
        write(part, f"log/year=2024/{name}")
    arrives(entry(files=files, sorted=True))


def of_one(person: str) -> list[Row]:
    return [row(person, 0, 0), row(person, 0, 1, dose=None, gain=None, left=True)]


@pytest.mark.parametrize(("cut", "told"), [(2, True), (3, False), (5, True), (6, False)])
def test_trajectories_that_go_on_in_another_file_are_told(
    project: Path, cut: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where each file numbers its own anew, and times go on."""
    write(rows()[:cut], "log/a.csv")
    write(rows()[cut:], "log/b.csv")
    arrives(entry(sorted=False))
    assert ("trajectories that go on in another file" in capsys.readouterr().err) is told


def test_a_part_is_empty_only_with_a_header_alone_that_names_the_columns(project: Path) -> None:
    Path("log").mkdir()
    write(rows(), "log/a.csv")
    header, *below = write(of_one("77"), "log/b.csv").read_text(encoding="utf-8").splitlines()
    text("\r".join([header, *below]), "log/b.csv")  # a line that ends as on old Macs
    assert len(set(run(entry())["unit_id"].to_pylist())) == 3
    for content in (below[0] + "\n", "user,visit\n"):
        text(content, "log/b.csv")
        with pytest.raises(PipelineError, match=r"b\.csv: column .* is missing"):
            run(entry())


def test_a_later_file_may_come_first(project: Path) -> None:
    for name, day in (("a", "2035-01-0"), ("b", "2024-01-0")):
        lines = "".join(f"2,0,{day}{step},1,A,0.5,1,0,0\n" for step in (1, 2, 3))
        text(HEADER + lines, f"log/{name}.csv")
    assert len(run(entry(NO_FLAGS, sorted=False, end="last_row"))) == 5


def test_files_that_are_none(project: Path) -> None:
    """A name that looks like a pattern may be a file's, as browsers name a second download."""
    Path("empty").mkdir()
    for files in ("nowhere", "nowhere/*.csv", "empty"):
        assert f"log.yaml: options.files: found no file at {files!r}" in refusal(entry(files=files))
    write(rows())
    text("{}", "log/part.json")
    assert "log/part.json: found a name" in refusal(entry(files="log/*"))
    write(rows(), "log/log[1].parquet")
    assert len(run(entry(files="log/log[1].parquet"))) == 6


B = Path("log/b")


def linked_folder() -> None:
    Path("disk").mkdir()
    Path("disk/b.csv").touch()
    B.symlink_to(Path("disk").resolve())


def named(name: str) -> Callable[[], None]:
    def make() -> None:
        B.mkdir()
        (B / name).touch()

    return make


def loop() -> None:
    B.mkdir()
    (B / "again").symlink_to(Path("log").resolve())


def pipe() -> None:
    B.mkdir()
    os.mkfifo(B / "b.csv")


REFUSED: dict[str, Callable[[], Any]] = {
    "a link to nothing": lambda: B.symlink_to("gone"),
    ".CSV": named("b.CSV"),
    ".tsv": named("b.tsv"),
    "compressed otherwise": named("b.csv.zst"),
    "a file that is no log": named("README"),
    "a log that begins with an underscore": named("_b.csv"),
    "a folder in itself": loop,
    "a pipe": pipe,
}


@pytest.fixture
def folder(project: Path) -> Path:
    write(rows(), "log/a.csv")
    return project


@pytest.mark.parametrize("files", ["log", "log/*", "log/**"])
@pytest.mark.parametrize("make", [named("b.csv"), linked_folder])
def test_a_folder_is_copied_whole(folder: Path, files: str, make: Callable[[], None]) -> None:
    make()
    Path("raw").mkdir()
    source_of("log", entry(files=files)).collect(Path("raw"))
    found = log_files(Path("raw"))
    assert [path.name for path in found] == ["a.csv", "b.csv"]
    assert not any(path.is_symlink() for path in found)


def copy_log(name: str) -> Callable[[], None]:
    def make() -> None:
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy("log/a.csv", name)

    return make


def overlap() -> None:
    """The last visit is in two exports."""
    write(rows()[6:], "log/b.csv")


DOUBLED: dict[str, tuple[Callable[[], object], str]] = {  # and the second file
    "beside it": (copy_log("log/a (1).csv"), "a.csv"),
    "in a folder of the same name": (copy_log("log/b/a.csv"), "b/a.csv"),
    "in part": (overlap, "b.csv"),
}


@pytest.mark.parametrize("what", DOUBLED)
def test_rows_that_are_in_a_folder_twice_name_both_files(folder: Path, what: str) -> None:
    make, second = DOUBLED[what]
    make()
    dataset = entry(NO_FLAGS, sorted=False, end="last_row")
    first = "a.csv" if second != "a.csv" else "a (1).csv"
    assert re.search(rf"/{re.escape(second)}: .*/{re.escape(first)}", refusal(dataset))


NO_TYPES = pa.table({name: pa.nulls(0) for name in rows()[0]})


EMPTY: dict[str, Callable[[str], Any]] = {  # as Spark and pandas write them
    "csv": lambda part: text(HEADER, f"{part}.csv"),
    "no line end": lambda part: text(HEADER.strip(), f"{part}.csv"),
    "csv.gz": lambda part: text(gzip.compress(HEADER.encode(), mtime=0), f"{part}.csv.gz"),
    "parquet": lambda part: write(pa.Table.from_pylist(rows()).slice(0, 0), f"{part}.parquet"),
    "no types": lambda part: write(NO_TYPES, f"{part}.parquet"),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_parts_are_alike_and_tell_no_types(project: Path, kind: str) -> None:
    """Twin: a file of no bytes was cut, and is refused."""
    times = [datetime(2024, 1, 1 + each["time"]) for each in rows()]
    content = pa.Table.from_pylist(rows()).set_column(2, "time", pa.array(times))
    write(content, "log/part-1.parquet")
    for part in ("log/part-0", "log/part-2"):
        EMPTY[kind](part)
    assert len(run(entry())) == 6
    text(b"", "log/part-3.csv")
    assert "part-3.csv: not readable" in refusal(entry())


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("files", ["log", "log/*"])
def test_a_part_that_is_not_understood_is_refused_by_name(
    folder: Path, files: str, what: str
) -> None:
    REFUSED[what]()
    with pytest.raises(PipelineError, match=r"^.*log/b"):
        find_files(files)


def test_what_cannot_be_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named("b.csv")()

    def refuse(path: Any, mode: int) -> bool:  # root may read everything
        return Path(path).name != refused

    monkeypatch.setattr("os.access", refuse)
    for files, refused in (("log", "b.csv"), ("log/*/*", "b.csv"), ("log/*/*", "b")):
        with pytest.raises(PipelineError, match=f"{refused}: .*cannot be read"):
            find_files(files)


OTHER_NAMES = {  # a file in Latin-1, and what is read
    "a file": (b"log/visites_\xe9t\xe9.csv", "log"),
    "a folder of a pattern": (b"log/donn\xe9es/visits.csv", "log/donn*/*.csv"),
    "a folder with others": (b"log/donn\xe9es/visits.csv", "log/*.csv"),
}


@pytest.mark.parametrize("which", OTHER_NAMES)
def test_names_that_are_not_utf_8_are_refused_by_their_bytes(project: Path, which: str) -> None:
    """As those of an older disk, which neither Arrow nor DVC opens. Twin: beside those read."""
    name, files = OTHER_NAMES[which]
    path = Path(os.fsdecode(name))
    path.parent.mkdir(parents=True)
    text(HEADER, str(path))
    write(rows(), "log/plain.csv")
    if which == "a folder with others":
        assert len(run(entry(files=files))) == len(EXPECTED)
    else:
        said = refusal(entry(files=files))
        assert r"\xe9" in said
        assert said.endswith("found a name that is not UTF-8; rename the file or folder")
