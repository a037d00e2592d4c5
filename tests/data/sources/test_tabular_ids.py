"""Whose rows of a log are whose, and in which order: ids of any type and spelling, and those that
people may share; times that are an order, and forms, nights and dates that are none.
"""

import re
import shutil
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.sources.tabular_builders import (
    EXPECTED,
    HEADER,
    NO_FLAGS,
    SECRET,
    arrives,
    entry,
    refusal,
    row,
    rows,
    run,
    text,
    write,
)


def test_ids_of_digits_and_numbers_of_any_type(project: Path) -> None:
    plain = pa.Table.from_pylist(rows())
    words = pa.dictionary(pa.int8(), pa.large_string())
    texts = (pa.string(), pa.large_string(), pa.string_view(), words)
    for kind, two, ten in ((pa.uint64(), 2, 10), *((kind, "2", "0010") for kind in texts)):
        users = pa.array([two if each["user"] == 2 else ten for each in rows()]).cast(kind)
        write(plain.set_column(0, "user", users))
        arrives()
        if kind != pa.uint64():
            write(plain.set_column(4, "ward", plain["ward"].cast(kind)))
            arrives()
    types = {"x": pa.decimal128(10, 2), "gain": pa.float16(), "dose": pa.float64()}
    types |= {"died": pa.int8(), "left": pa.float64()}
    for name, kind in types.items():
        column = plain[name].cast(pa.int8()) if name in ("died", "left") else plain[name]
        plain = plain.set_column(plain.column_names.index(name), name, column.cast(kind))
    write(plain)
    arrives()


def test_trajectories_that_are_units_of_their_own(project: Path) -> None:
    content = [each | {"visit": 100 * each["user"] + each["visit"]} for each in rows()]
    write(content[::-1])
    written = run(entry({"unit": None}, unit="trajectory", trajectory_ids="global", sorted=False))
    assert written["unit_id"].equals(written["trajectory_id"])
    names = [f"{number:012d}" for number in (200, 201, 1000)]
    assert written["unit_id"].unique().to_pylist() == names
    assert written["observation"].to_pylist() == [each["observation"] for each in EXPECTED]


SPELLINGS = [
    *("4217|4217.0", "P421|P421 ", "Ren\u00e9|Rene\u0301", "0123456789012|123456789012"),
    *("v1| v1", "P421|\ufeffP421", "A Lee|A  Lee", "3e3|3000", "1.5E3|1500"),
    *("P-421|P\u2011421", "P-421|P\u2212421"),
]
OF_PEOPLE = [
    "5C1D6E2A-0b1c-4f3e-9a77-0123456789ab|5c1d6e2a-0b1c-4f3e-9a77-0123456789ab",
    "5c1d6e2a0b1c4f3e9a770123456789ab|5c1d6e2a-0b1c-4f3e-9a77-0123456789ab",
    "{5c1d6e2a-0b1c-4f3e-9a77-0123456789ab}|5c1d6e2a-0b1c-4f3e-9a77-0123456789ab",
    *('=""0421""|0421', "'0421|421", "(P421)|P421"),
]
OF = [("units", each) for each in SPELLINGS + OF_PEOPLE]
OF += [("trajectories", each) for each in SPELLINGS]


def write_two(of: str, ids: str, users: tuple[int, int] = (7, 7)) -> None:
    """A file for each of two ids ``one|other`` of units, or of trajectories of these users."""
    for number, name in enumerate(ids.split("|")):
        user, visit = (name, number) if of == "units" else (users[number], name)
        line = f'"{user}","{visit}",0,{number}.0,A,0.5,1.0,true,false\n'
        text(HEADER + line, f"log/{number}.csv")


@pytest.mark.parametrize(("of", "spellings"), OF)
def test_one_id_in_two_spellings_is_not_two(project: Path, spellings: str, of: str) -> None:
    """Neither where one of them withdrew: the other would stay. Twin: trajectories of two
    people.
    """
    first = spellings.partition("|")[0]
    gone = Path("data/withdrawals/gone.txt")
    gone.parent.mkdir(parents=True)
    gone.write_text(f"{first if of == 'units' else 7}\n", encoding="utf-8")
    write_two(of, spellings)
    for ingestion in ({}, {"exclude_units": str(gone)}):
        said = refusal(entry(sorted=False, ingestion={"duplicates": "allow"} | ingestion))
        assert f"found ids of {of} (1) that differ" in said
        assert "in blanks, quotes, brackets" in said
        assert first not in said
    if of == "trajectories":
        write_two(of, spellings, (2, 10))
        assert len(run(entry(sorted=False))) == 2


def test_other_ids_are_other_people(project: Path) -> None:
    users = ["ab", "AB", "a b", "a-b", "a'b", "(a)b", "12-3", "1-23", "7.2", "7.20"]
    users += ["70", "+7", "7", "-7", "17.0", "12e4", "12E4f"]
    users += ["NAN4", "Nancy", "1e5", "12e", "nulla", "E+3"]  # words and numbers in part
    for number, user in enumerate(users):
        text(f"{HEADER}{user},{number},0,1.0,A,0.5,1.0,true,false\n", f"log/{number}.csv")
    assert len(set(run(entry(sorted=False))["unit_id"].to_pylist())) == len(users)


CASES: dict[str, tuple[str, int]] = {  # two ids, and how many of people differ by case alone
    "VINs": ("WVWZZZ1JZ3W386000|wvwzzz1jz3w386000", 1),
    "e-mails": ("A.Lee@ward.example|a.lee@ward.example", 1),
    "plates": ("MÜ-AB 12|mü-ab 12", 1),
    "other spaces, too": ("AB  1|AB 2", 0),
    "other people": ("ab-1|AB-2", 0),
}


@pytest.mark.parametrize("which", CASES)
@pytest.mark.parametrize("of", ["units", "trajectories"])
def test_ids_that_differ_by_case_alone_are_counted_and_warned_of(
    project: Path, which: str, of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not refused: case tells some people apart."""
    ids, count = CASES[which]
    write_two(of, ids)
    assert len(run(entry(sorted=False))) == 2
    said = capsys.readouterr().err
    assert (f"found ids of {of} ({count}) that differ from another one by case alone" in said) is (
        count > 0
    )
    assert ids.split("|")[0] not in said


def test_whole_numbers_that_were_read_as_decimal_ones_are_refused(project: Path) -> None:
    """Another version has them without `.0`, and would be of other people. Twin: one is none."""
    write([each | {"user": f"{each['user']}.0"} for each in rows()], "log/log.csv")
    assert "all ids of units end in `.0`" in refusal(entry(sorted=False))
    write([each | {"user": f"{each['user']}.0"} for each in rows()][:6], "log/log.csv")
    text(f"{HEADER}7.5,0,0,1.0,A,0.5,1.0,true,false\n", "log/other.csv")
    assert len(set(run(entry(sorted=False))["unit_id"].to_pylist())) == 2


SHARED_IDS: list[str | int] = [-1, -9, -9999]  # as pandas codes a category that is missing
SHARED_IDS += ["\\N", "--", "(null)", "#REF!", "NA", "n/a", "<NA>", "nan", "None", " "]
SHARED_IDS += [
    ".",
    "?",
    "undefined",
    "#N/A",
    "NULL",
    "1.58291E+17",
    "2,5e+12",
    "missing",
    "Unknown",
    "-1",
    "-999",
]


@pytest.mark.parametrize("shared", SHARED_IDS)
@pytest.mark.parametrize("column", ["user", "visit"])
def test_ids_that_different_people_may_share_are_refused(
    project: Path, column: str, shared: str | int
) -> None:
    """Other programs write missing ids so, and long ones with fewer digits."""
    kind = type(shared)
    content = [each | {name: kind(each[name]) for name in ("user", "visit")} for each in rows()]
    content[6] |= {column: shared}
    for name in ("log/log.csv", "log/log.parquet"):
        write(content, name)
        said = refusal(entry(sorted=False))
        word = re.search(r"\de|^ $", str(shared), re.IGNORECASE) is None
        found = "a word that stands for a missing id" if word else "a missing id, or one in"
        assert f"row 7: column '{column}': found {found}" in said
        assert said.endswith("columns.words_as_ids: true") is word
        content[7] |= {column: shared}
        write(content, name)
        content[7] |= {column: kind(rows()[7][column])}
        names = entry({"words_as_ids": True}, sorted=False)
        if not word:
            assert "row 7" in refusal(names)
        else:
            ids = {"user": "unit_id", "visit": "trajectory_id"}[column]
            assert any(str(shared) in each for each in run(names)[ids].to_pylist())
        shutil.rmtree("log")


def test_numbers_of_nanoseconds_may_have_no_sign(project: Path) -> None:
    times = pa.array([1_700_000_000_000_000_000 + 100 * n for n in range(3)], pa.uint64())
    content = [row(2, 0, 0, x=float(n), left=n == 2) for n in range(3)]
    write(pa.Table.from_pylist(content).set_column(2, "time", times))
    assert [seen[0] for seen in run(entry())["observation"].to_pylist()] == [0, 1]


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("first", [158_000_000_000_123_457, 1_700_000_000_123_456_789, 7])
def test_whole_numbers_of_any_size_are_an_order(project: Path, first: int, step: int) -> None:
    """Twin: the same number twice is refused."""
    for by in (step, 0):
        lines = [f"2,0,{first + by * n},{n},A,0.5,0,0,{int(n == 2)}\n" for n in range(3)]
        text(HEADER + "".join(lines))
        if by:
            assert [seen[0] for seen in run(entry())["observation"].to_pylist()] == [0, 1]
        else:
            assert "row 2: found an order that is not after" in refusal(entry())


def test_times_with_and_without_a_zone_have_no_order(project: Path) -> None:
    """Twins: of two zones, and of days and times."""
    plain, utc = pa.timestamp("us"), pa.timestamp("us", "UTC")
    dataset = entry(NO_FLAGS, sorted=False, end="last_row")

    def write_parts(*kinds: pa.DataType) -> None:
        for part, kind in enumerate(kinds):
            times = pa.array([86_400 * (each["time"] + 1 + part) for each in rows()], pa.int64())
            content = pa.Table.from_pylist([each | {"visit": part} for each in rows()])
            content = content.set_column(2, "time", times.cast(pa.timestamp("s")).cast(kind))
            write(content, f"log/{part}.parquet")

    write_parts(utc, plain)
    assert "found times without a time zone" in refusal(dataset)
    for kinds in ((utc, pa.timestamp("ns", "Europe/Berlin")), (pa.date32(), plain)):
        write_parts(*kinds)
        assert len(run(dataset)) > 0


def test_spark_writes_years_beyond_those_of_nanoseconds(project: Path) -> None:
    """Its older form of times, INT96, is read as nanoseconds by default: 2262 comes before 2024."""
    years = (2300, 2024, 9999, 2262, 2261)
    content = [row(2, 0, datetime(year, 12, 31), x=float(year)) for year in years]
    table, path = pa.Table.from_pylist(content), Path("log/log.parquet")
    path.parent.mkdir()
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    made = run(entry(NO_FLAGS, sorted=False, end="last_row"))
    assert [int(each[0]) for each in made["observation"].to_pylist()] == [2024, 2261, 2262, 2300]


UNKNOWN = "row {}: found a time that stands for an unknown one"
FORM = "row {}: column 'time': .*its type.*; allowed: "
ZONED = "row 2: column 'time': .*with a zone after times without.*; allowed: "
SUMMER = r"row [23]: .*; allowed: times with their zone.* summer time ends"
FAR = r"row [234]: found a time far before that of the row before.*-999\).*; allowed: the true one"
CLOCK = r"row 3: found a time 9 to 12 hours before .*allowed: hours of 24"
TIMES: dict[str, tuple[str, str | None]] = {  # of trajectories in a CSV, and what is refused
    "1753": ("1753-01-01, 2024-02-01 | 2024-01-01, 2024-02-01", UNKNOWN.format(1)),
    "1970, with a time": (
        "2024-01-01 00:00:00, 2024-02-01 00:00:00 | 1970-01-01 00:00:00, 2024-02-01 00:00:00",
        UNKNOWN.format(3),
    ),
    "1900, with a zone": ("1900-01-01 00:00Z, 2024-02-01 00:00Z", UNKNOWN.format(1)),
    "1970, and a day": ("1970-01-02, 2024-02-01", None),
    "all count from 1970": ("1970-01-01, 1980-02-01 | 1970-01-01, 1980-02-02", None),
    "1600": ("1600-01-02 08:00:00.1, 1600-01-02 08:00:00.25", None),
    "2300, with a zone": ("2300-01-02 08:00:00.1Z, 2300-01-02 08:00:00.25Z", None),
    "a zone later": ("2024-01-02 08:00, 2024-01-02 09:00Z", ZONED),
    "a zone first": ("2024-01-02 08:00Z, 2024-01-02 09:00", ZONED),
    "another order": ("2024-01-02 08:00, 2024-01-02 09:00, 01/02/2024 10:00", FORM.format(3)),
    "a number": ("2024-01-02 08:00, 3", FORM.format(2)),
    "midnight as 24": ("2024-01-02 08:00, 2024-01-02 24:00", FORM.format(2)),
    "a word": (f"2024-01-02 08:00, {SECRET}", FORM.format(2)),
    "no known form": ("31.12.2024 08:00", "times as 2024-03-31 14:00:00; convert it"),
    "Europe's night": ("2024-10-27 02:15, 2024-10-27 02:50, 2024-10-27 02:25", SUMMER),
    "Sydney's night": ("2024-04-07 02:30, 2024-04-07 02:45, 2024-04-07 02:00", SUMMER),
    "zones": ("2024-10-27 02:15+02, 2024-10-27 02:50+02, 2024-10-27 02:25+01", None),
    "another night": ("2024-10-28 02:15, 2024-10-28 02:50, 2024-10-28 02:25", None),
    "in no order": ("2024-10-27 02:15, 2024-10-27 00:10, 2024-10-27 03:15", None),
    "a late year": ("2024-01-02, 2035-01-03, 2024-01-04, 2024-01-05", FAR),
    "in the end": ("2024-01-02, 2024-01-03, 2024-01-04, 1900-01-01", FAR),
    "in the beginning": ("2199-12-31, 2024-01-02, 2024-01-03, 2024-01-04", FAR),
    "late, with a zone": ("2024-01-02 08:00Z, 2035-01-03 08:00Z, 2024-01-04 08:00Z", FAR),
    "visits of years": ("2020-01-01, 2023-01-01, 2021-01-01, 2024-01-01", None),
    "newest first": ("2035-01-05, 2024-01-04, 2024-01-03, 2024-01-02", None),
    "a step back of days": ("2024-01-02, 2024-04-03, 2024-01-04, 2024-01-05", None),
    "-999 for a missing one": ("0, 1, -999, 3 | 0, 1, 2, 3", FAR),
    "9999 for a missing one": ("0, 9999, 2, 3 | 0, 1, 2, 3", FAR),
    "milliseconds": ("1700000000000, 1700000060000, 1700000120, 1700000180", FAR),
    "a number at the begin": ("-999, 1, 2, 3", None),
    "no order at all": ("3, 2, 1, 0 | 0, 1, -999, 3", None),
    "two rows": ("500, 1", None),
    "at noon": ("2024-01-02 11:30, 2024-01-02 12:20, 2024-01-02 01:05", CLOCK),
    "at midnight": ("2024-01-02 10:00Z, 2024-01-02 12:40Z, 2024-01-02 01:40Z", CLOCK),
    "the end of it": ("2024-01-02 09:59, 2024-01-02 12:59, 2024-01-02 01:00", CLOCK),
    "hours of 24": ("2024-01-02 12:20, 2024-01-02 01:05, 2024-01-02 13:00", None),
    "hours of a night": ("2024-01-02 00:30, 2024-01-02 12:20, 2024-01-02 01:05", None),
    "a morning in no order": ("2024-01-02 12:10, 2024-01-02 08:00, 2024-01-02 09:00", None),
}


@pytest.mark.parametrize("which", TIMES)
def test_times_are_an_order_or_refused_by_row_and_without_a_value(
    project: Path, which: str
) -> None:
    """13:05 that was written as 01:05 would be sorted to the begin, and so would a missing one."""
    trajectories, says = TIMES[which]
    of = [each.split(", ") for each in trajectories.split(" | ")]
    lines = [f"{user},0,{time},1,A,0.5,0,0,0\n" for user, own in enumerate(of) for time in own]
    text(HEADER + "".join(lines))
    if says is None:
        made = run(entry(NO_FLAGS, sorted=False, end="last_row"))
        assert len(made) == len(lines) - len(of)
        return
    for ordered, refused in ((False, says), (True, f"{says}|order that is not after")):
        said = refusal(entry(NO_FLAGS, sorted=ordered, end="last_row"))
        assert re.search(refused, said)
        assert not any(time in said for own in of for time in own if len(time) > 5)
