"""What a log may not be: every refusal names the file and the row, and quotes no value."""

import gzip
import os
import re
import shutil
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from primorl.base.errors import PipelineError
from primorl.config.datasets import TabularDataset
from primorl.data.sources import logs as tabular_files
from primorl.data.sources import source_of
from primorl.data.sources.logs import find_files, log_files
from tests.data.sources.tabular_builders import (
    DISCRETE,
    HEADER,
    NO_FLAGS,
    SECRET,
    Row,
    discrete,
    entry,
    row,
    rows,
    run,
    text,
    write,
)

Change = Callable[[list[Row]], Any]


def changed(place: int, **values: Any) -> Change:
    return lambda content: [
        each | values if index == place else each for index, each in enumerate(content)
    ]


def everywhere(**values: Any) -> Change:
    return lambda content: [each | values for each in content]


def choosing(chosen: list[Any]) -> Change:
    return lambda _: discrete(lambda index: chosen[index % 2])


PART = r"raw/part-0\.parquet: "
BAD: dict[str, tuple[Any, ...]] = {
    "no rows": (lambda rows: pa.Table.from_pylist(rows).slice(0, 0), "no rows"),
    "text for a number": (everywhere(x=SECRET), PART + "column 'x'"),
    "NaN observed": (changed(4, x=np.nan), PART + r"row 5: .*in 'x'"),
    "undeclared category": (changed(6, ward=SECRET), PART + "row 7: column 'ward'"),
    "no unit": (changed(6, user=None), PART + "row 7: column 'user'"),
    "NaN order": (changed(1, time=np.nan), PART + "row 2: column 'time'"),
    "steps unsorted": (lambda rows: [rows[1], rows[0], *rows[2:]], PART + "row 2: "),
    "two ends": (changed(3, left=True), PART + r"row 4: found an end"),
    "no end": (changed(5, left=False), PART + "row 6: .*no end flag"),
    "a flag of 2": (
        lambda rows: changed(5, left=2)([each | {"left": int(each["left"])} for each in rows]),
        PART + "row 6: column 'left'",
    ),
    "no outcome": (lambda rows: [*rows, row(11, 0, 0, left=True)], PART + "row 9: "),
    "a dose too high": (changed(1, dose=7.0), r"'dose'.*\[0, 1\]"),
    "choice below": (choosing([-1, 0]), PART + "row 1: column 'choice'", DISCRETE),
    "no choice": (choosing([0, None]), PART + "row 2: found no action", DISCRETE),
    "half a choice": (choosing([0.5, 0.5]), PART + "column 'choice'", DISCRETE),
}


def refusal(dataset: TabularDataset) -> str:
    """The one line that says no."""
    with pytest.raises(PipelineError) as refused:
        run(dataset)
    assert "\n" not in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    return str(refused.value)


@pytest.mark.parametrize("kind", BAD)
def test_bad_rows(project: Path, kind: str) -> None:
    change, message, columns, changes = (*BAD[kind], {}, {})[:4]
    write(change(rows()))
    assert re.search(message, refusal(entry(columns, **changes)))
    if "unsorted" not in kind:
        # The row is that of the log, not of what was sorted, and what was spilled to disk is gone.
        assert re.search(message, refusal(entry(columns, sorted=False, **changes)))


def test_damaged_files(project: Path) -> None:
    path = write(rows())
    plain = {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.Table.from_pylist(rows()), path, write_page_checksum=True, **plain)
    content = bytearray(path.read_bytes())
    content[bytes(content).index(np.array([7.0, 8.0]).tobytes())] ^= 1
    for damaged in (content, content[:-20], b""):
        path.write_bytes(damaged)
        assert re.search(PART + ".*truncated", refusal(entry()))
    path.unlink()
    text(gzip.compress((HEADER + "2,0,0,1,A,0.5,1,0,1\n" * 1000).encode())[:-20], "log/log.csv.gz")
    assert re.search(r"log\.csv\.gz: .*truncated", refusal(entry()))


def test_files_with_other_columns(project: Path) -> None:
    write(rows()[:3])
    later = rows()[3:]
    write(pa.Table.from_pylist(later).drop_columns("gain"), "log/part-1.parquet")
    assert "part-1.parquet: column 'gain'" in refusal(entry())
    write(everywhere(time=datetime(2024, 1, 1))(later), "log/part-1.parquet")
    assert "column 'time'" in refusal(entry())


START = HEADER.encode() + b"2,0,0,1,A,0.5,1,0,0\n"
BAD_CSV: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not readable as CSV"),
    "no header": (f"2,0,0,1,{SECRET},0.5,1,0,1\n".encode(), r"column '.*' is missing"),
    "a column less": (HEADER.replace("gain", "income").encode(), "column 'gain' is missing"),
    "a column twice": (HEADER.replace("left", "left,x").encode(), "column 'x' is there twice"),
    "a row too short": (START + b"2,0,1\n", "row 2: "),
    "a word": (START + f"2,0,1,1,A,{SECRET},1,0,1\n".encode(), "row 2: column 'dose'"),
    "not UTF-8": (HEADER.encode() + b"2,0,0,1,\xff,0.5,1,0,1\n", "row 1: "),
}


@pytest.mark.parametrize("kind", BAD_CSV)
def test_bad_csv(project: Path, kind: str) -> None:
    content, message = BAD_CSV[kind]
    text(content)
    assert re.search(message, refusal(entry()))


NOTED = HEADER.replace("left", "left,note")
OPEN_QUOTES = {  # the notes of four rows
    "text after the closing quote": ('"see letter', 'cannula 5" left', "", ""),
    "the next quote ends a row": ('"see letter', 'cannula 5"', "", ""),
}
CLOSED_QUOTES = {
    "in the middle of a cell": ('cannula 5" left', 'arm 3"', "", ""),
    "line breaks and commas": ('"one\ntwo, ""three""\nfour, five"', '"six\r\n\r\nseven"', "", ""),
}


def noted(notes: tuple[str, ...]) -> str:
    lines = [f"2,0,{time},1,A,0.5,1,0,{int(time == 3)},{note}\n" for time, note in enumerate(notes)]
    return NOTED + "".join(lines)


def test_a_quote_swallows_no_row_and_is_text_where_it_is_closed(project: Path) -> None:
    for notes in OPEN_QUOTES.values():
        text(noted(notes))
        assert "row 1: found a quote" in refusal(entry())
    Path("log/log.csv").unlink()
    for notes in CLOSED_QUOTES.values():
        text(gzip.compress(noted(notes).encode()), "log/log.csv.gz")
        assert len(run(entry())) == 3


UTC, BERLIN = pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin")


@pytest.mark.parametrize(
    ("kinds", "ordered"),
    [
        ((UTC, pa.timestamp("us")), False),
        ((UTC, BERLIN), True),
        ((pa.date32(), pa.timestamp("us")), True),
    ],
)
def test_times_with_and_without_a_zone_have_no_order(
    project: Path, kinds: tuple[pa.DataType, pa.DataType], ordered: bool
) -> None:
    for part, kind in enumerate(kinds):
        times = pa.array([86_400 * (each["time"] + 1 + part) for each in rows()], pa.int64())
        content = pa.Table.from_pylist([each | {"visit": part} for each in rows()])
        times = times.cast(pa.timestamp("s")).cast(kind)
        write(content.set_column(2, "time", times), f"log/{part}.parquet")
    dataset = entry(NO_FLAGS, sorted=False, end="last_row")
    if ordered:
        assert len(run(dataset)) > 0
    else:
        assert "found times without a time zone" in refusal(dataset)


FORMS = {  # times of a CSV, the row of another form than the first, and what is said of it
    "a zone later": (["2024-01-02 08:00", "2024-01-02 09:00Z"], 2, "with a zone after times wit"),
    "a zone first": (["2024-01-02 08:00Z", "2024-01-02 09:00"], 2, "with a zone after times wit"),
    "an offset": (["2024-01-02 08:00+01:00", "2024-01-02 09:00"], 2, "or the reverse"),
    "another order": (["2024-01-02 08:00", "2024-01-02 09:00", "01/02/2024 10:00"], 3, "its type"),
    "a number": (["2024-01-02 08:00", "3"], 2, "its type"),
    "a word": (["2024-01-02 08:00", SECRET], 2, "its type"),
}


@pytest.mark.parametrize("form", FORMS)
def test_times_of_several_forms_in_a_csv_name_the_row(project: Path, form: str) -> None:
    times, place, found = FORMS[form]
    text(HEADER + "".join(f"2,0,{time},1,A,0.5,1,0,0\n" for time in times))
    for ordered in (True, False):
        said = refusal(entry(NO_FLAGS, sorted=ordered, end="last_row"))
        assert re.search(rf"log\.csv: row {place}: column 'time': .*{found}.*; allowed: ", said)


def test_times_of_no_known_form_name_the_remedy(project: Path) -> None:
    text(HEADER + "2,0,31.12.2024 08:00,1,A,0.5,1,0,0\n")
    assert "times as 2024-03-31 14:00:00; convert it" in refusal(entry())


NIGHTS = {  # local times, and whether a row is refused
    "Europe": (["2024-10-27 02:15", "2024-10-27 02:50", "2024-10-27 02:25"], True),
    "Sydney": (["2024-04-07 02:30", "2024-04-07 02:45", "2024-04-07 02:00"], True),
    "with a zone": (["2024-10-27 02:15+02", "2024-10-27 02:50+02", "2024-10-27 02:25+01"], False),
    "another day": (["2024-10-28 02:15", "2024-10-28 02:50", "2024-10-28 02:25"], False),
    "in no order": (["2024-10-27 02:15", "2024-10-27 00:10", "2024-10-27 03:15"], False),
}


@pytest.mark.parametrize("night", NIGHTS)
def test_the_hour_that_comes_twice_is_refused(project: Path, night: str) -> None:
    times, twice = NIGHTS[night]
    text(HEADER + "".join(f"2,0,{time},1,A,0.5,1,0,0\n" for time in times))
    one = entry(NO_FLAGS, sorted=False, end="last_row")
    if not twice:
        assert len(run(one)) == 2
        return
    assert re.search(r"row [23]: .*summer time.*; allowed: times with their zone", refusal(one))
    assert "times with their zone" in refusal(entry(NO_FLAGS, end="last_row"))


DATES = {  # times of a trajectory, and whether a row is refused
    "a late year": (["2024-01-02", "2035-01-03", "2024-01-04", "2024-01-05"], True),
    "in the end": (["2024-01-02", "2024-01-03", "2024-01-04", "1900-01-01"], True),
    "in the beginning": (["2199-12-31", "2024-01-02", "2024-01-03", "2024-01-04"], True),
    "with a zone": ([f"{d} 08:00Z" for d in ("2024-01-02", "2035-01-03", "2024-01-04")], True),
    "in order": (["2024-01-02", "2024-01-03", "2024-01-04", "2035-01-05"], False),
    "visits of years": (["2020-01-01", "2023-01-01", "2021-01-01", "2024-01-01"], False),
    "newest first": (["2035-01-05", "2024-01-04", "2024-01-03", "2024-01-02"], False),
    "two visits": (["2035-01-05", "2024-01-04"], False),
    "a step back of days": (["2024-01-02", "2024-04-03", "2024-01-04", "2024-01-05"], False),
}


@pytest.mark.parametrize("dates", DATES)
def test_a_date_that_moves_its_row_far_is_refused(project: Path, dates: str) -> None:
    times, wrong = DATES[dates]
    text(HEADER + "".join(f"2,0,{time},1,A,0.5,1,0,0\n" for time in times))
    one = entry(NO_FLAGS, sorted=False, end="last_row")
    if not wrong:
        assert len(run(one)) == len(times) - 1
        return
    said = refusal(one)
    assert re.search(r"row [234]: found a time over half a year before", said)
    assert not any(time in said for time in times)


def test_a_later_file_may_come_first(project: Path) -> None:
    for name, day in (("a", "2035-01-0"), ("b", "2024-01-0")):
        lines = "".join(f"2,0,{day}{step},1,A,0.5,1,0,0\n" for step in (1, 2, 3))
        text(HEADER + lines, f"log/{name}.csv")
    assert len(run(entry(NO_FLAGS, sorted=False, end="last_row"))) == 5


def test_a_bad_row_late_in_a_long_csv_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular_files, "_CSV_BLOCK_BYTES", 1000)
    lines = [f"2,0,{time},1,A,0.5,1,0,{int(time == 499)}\n" for time in range(500)]
    text(HEADER + "".join(lines))
    assert len(run(entry())) == 499
    lines[321] = lines[321].replace("0.5", "half")
    text(HEADER + "".join(lines))
    assert "row 322: column 'dose'" in refusal(entry())


def test_files_that_are_none(project: Path) -> None:
    Path("empty").mkdir()
    for files in ("nowhere", "nowhere/*.csv", "empty"):
        assert f"log.yaml: options.files: found no file at {files!r}" in refusal(entry(files=files))
    write(rows())
    text("{}", "log/part.json")
    assert "log/part.json: found a name" in refusal(entry(files="log/*"))


TWICE = {"column": "ward", "categories": ["A", "A"]}


@pytest.mark.parametrize(
    ("columns", "changes", "key"),
    [
        ({}, {"unit": "visit"}, "unit"),
        ({"unit": None}, {"unit": "trajectory"}, "per_unit"),
        (NO_FLAGS, {}, "end: flags"),
        ({"next_observation": ["x"]}, {}, "one column for each"),
        ({"observation": [TWICE]}, {}, "once"),
        ({"action": {"columns": ["dose"], "low": [0.0], "high": None}}, {}, "both"),
        ({}, {"environment": "Pendulum-v1"}, "environment"),
    ],
)
def test_choices_that_do_not_fit(columns: Row, changes: Row, key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        entry(columns, **changes)


SPELLINGS = ("4217|4217.0", "P421|P421 ", "Ren\u00e9|Rene\u0301", "0123456789012|123456789012")
SPELLINGS += ("P421|\ufeffP421", "A Lee|A  Lee")


@pytest.mark.parametrize("spellings", SPELLINGS)
def test_one_person_in_two_spellings_is_not_two_units(project: Path, spellings: str) -> None:
    """Neither where one of them withdrew: the other would stay."""
    two = spellings.split("|")
    for number, user in enumerate(two):
        text(f'{HEADER}"{user}",{number},0,1.0,A,0.5,1.0,true,false\n', f"log/{number}.csv")
    gone = Path("data/withdrawals/gone.txt")
    gone.parent.mkdir(parents=True)
    gone.write_text(f"{two[0]}\n", encoding="utf-8")
    for ingestion in ({}, {"exclude_units": str(gone)}):
        with pytest.raises(PipelineError, match="in blanks, zeros in front") as refused:
            run(entry(sorted=False, ingestion={"duplicates": "allow"} | ingestion))
        assert two[0] not in str(refused.value)


def test_other_ids_are_other_people(project: Path) -> None:
    users = ("ab", "AB", "a b", "7.2", "7.20", "70", "+7", "7", "-7")
    for number, user in enumerate(users):
        text(f"{HEADER}{user},{number},0,1.0,A,0.5,1.0,true,false\n", f"log/{number}.csv")
    assert len(set(run(entry(sorted=False))["unit_id"].to_pylist())) == len(users)


# Nobody is left out of a log in silence
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


def copy_log(name: str) -> Callable[[], None]:
    def make() -> None:
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy("log/a.csv", name)

    return make


def overlap() -> None:
    """The last visit is in two exports."""
    write(rows()[6:], "log/b.csv")


TWICE: dict[str, tuple[Callable[[], None], str]] = {  # and the second file
    "beside it": (copy_log("log/a (1).csv"), "a.csv"),
    "in a folder of the same name": (copy_log("log/b/a.csv"), "b/a.csv"),
    "of Parquet": (lambda: [write(rows(), f"log/{n}.parquet") for n in "bc"] and None, "c.parquet"),
    "in part": (overlap, "b.csv"),
}


@pytest.mark.parametrize("what", TWICE)
def test_rows_that_are_in_a_folder_twice_name_both_files(folder: Path, what: str) -> None:
    make, second = TWICE[what]
    make()
    dataset = entry(NO_FLAGS, sorted=False, end="last_row")
    first = "b.parquet" if second == "c.parquet" else "a.csv" if second != "a.csv" else "a (1).csv"
    assert re.search(rf"/{re.escape(second)}: .*/{re.escape(first)}", refusal(dataset))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_empty_parts_are_alike_and_are_read(project: Path, suffix: str) -> None:
    """As Spark writes them."""
    if suffix == ".parquet":
        write(rows(), "log/part-0.parquet")
    else:
        write(rows(), "log/part-0.csv")
    for part in ("log/part-1", "log/part-2"):
        if suffix == ".parquet":
            write(pa.Table.from_pylist(rows()).slice(0, 0), f"{part}{suffix}")
        else:
            head = HEADER.encode()
            text(gzip.compress(head, mtime=0) if suffix == ".csv.gz" else head, f"{part}{suffix}")
    assert len(run(entry())) == 6


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
