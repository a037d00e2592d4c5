"""Nobody is left out of a log in silence: parts of a folder are read, or refused by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from primorl.base.errors import PipelineError
from primorl.data.sources import source_of
from primorl.data.sources.logs import find_files, log_files
from tests.data.sources.tabular_builders import entry, rows, write

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
    "an archive": named("b.zip"),
    "a file that is no log": named("README"),
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
