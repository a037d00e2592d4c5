"""Times of a log: forms that are an order, and forms, nights and dates that are none."""

import re
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.sources.tabular_builders import (
    HEADER,
    NO_FLAGS,
    SECRET,
    entry,
    refusal,
    row,
    rows,
    run,
    text,
    write,
)


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
