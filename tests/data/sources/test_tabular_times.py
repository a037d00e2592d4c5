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


UNKNOWN: dict[str, tuple[list[str], int]] = {  # first times of trajectories; the row refused
    "1900": (["1900-01-01", "2024-01-01", "2024-01-01"], 1),
    "1970, with a time": (["2024-01-01 00:00:00", "1970-01-01 00:00:00", "2024-01-01 00:00:00"], 4),
    "with a zone": (["1753-01-01 00:00Z", "2024-01-01 00:00Z", "2024-01-01 00:00Z"], 1),
    "a day later": (["1970-01-02"] * 3, 0),
    "all count from there": (["1970-01-01"] * 3, 0),
}


@pytest.mark.parametrize("which", UNKNOWN)
def test_times_that_stand_for_unknown_ones_are_refused(project: Path, which: str) -> None:
    firsts, place = UNKNOWN[which]
    form, year = firsts[0][10:], 1980 if "count" in which else 2024
    lines = [
        f"{user},0,{time},1,A,0.5,0,0,0\n"
        for user, first in enumerate(firsts)
        for time in (first, f"{year}-02-01{form}", f"{year}-02-02{form}")
    ]
    text(HEADER + "".join(lines))
    for ordered in (True, False):
        dataset = entry(NO_FLAGS, sorted=ordered, end="last_row")
        if place:
            assert f"row {place}: found a time that stands for an unknown one" in refusal(dataset)
        else:
            assert len(run(dataset)) == 6


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
    "another order": (["2024-01-02 08:00", "2024-01-02 09:00", "01/02/2024 10:00"], 3, "its type"),
    "a number": (["2024-01-02 08:00", "3"], 2, "its type"),
    "midnight as 24": (["2024-01-02 08:00", "2024-01-02 24:00"], 2, "its type"),
    "a word": (["2024-01-02 08:00", SECRET], 2, "its type"),
}


@pytest.mark.parametrize("year", [1600, 2024, 2300, 9999])
@pytest.mark.parametrize("zone", ["", "Z"])
def test_years_that_hide_the_true_ones_are_read(project: Path, year: int, zone: str) -> None:
    times = [f"{year}-01-02 08:00:00.{part}{zone}" for part in ("1", "25")]
    text(HEADER + "".join(f"2,0,{time},1,A,0.5,1,0,0\n" for time in times))
    assert len(run(entry(NO_FLAGS, end="last_row"))) == 1


def test_spark_writes_years_beyond_those_of_nanoseconds(project: Path) -> None:
    """Its older form of times, INT96, is read as nanoseconds by default: 2262 comes before 2024."""
    years = (2300, 2024, 9999, 2262, 2261)
    content = [row(2, 0, datetime(year, 12, 31), x=float(year)) for year in years]
    table, path = pa.Table.from_pylist(content), Path("log/log.parquet")
    path.parent.mkdir()
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    made = run(entry(NO_FLAGS, sorted=False, end="last_row"))
    assert [int(each[0]) for each in made["observation"].to_pylist()] == [2024, 2261, 2262, 2300]


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


SUMMER = r"row [23]: .*summer time.*; allowed: times with their zone"
FAR = r"row [234]: found a time far before that of the row before"
TIMES: dict[str, tuple[list[str], str | None]] = {  # of a trajectory, and what is refused
    "Europe's night": (["2024-10-27 02:15", "2024-10-27 02:50", "2024-10-27 02:25"], SUMMER),
    "Sydney's night": (["2024-04-07 02:30", "2024-04-07 02:45", "2024-04-07 02:00"], SUMMER),
    "zones": (["2024-10-27 02:15+02", "2024-10-27 02:50+02", "2024-10-27 02:25+01"], None),
    "another night": (["2024-10-28 02:15", "2024-10-28 02:50", "2024-10-28 02:25"], None),
    "in no order": (["2024-10-27 02:15", "2024-10-27 00:10", "2024-10-27 03:15"], None),
    "a late year": (["2024-01-02", "2035-01-03", "2024-01-04", "2024-01-05"], FAR),
    "in the end": (["2024-01-02", "2024-01-03", "2024-01-04", "1900-01-01"], FAR),
    "in the beginning": (["2199-12-31", "2024-01-02", "2024-01-03", "2024-01-04"], FAR),
    "with a zone": ([f"{d} 08:00Z" for d in ("2024-01-02", "2035-01-03", "2024-01-04")], FAR),
    "visits of years": (["2020-01-01", "2023-01-01", "2021-01-01", "2024-01-01"], None),
    "newest first": (["2035-01-05", "2024-01-04", "2024-01-03", "2024-01-02"], None),
    "a step back of days": (["2024-01-02", "2024-04-03", "2024-01-04", "2024-01-05"], None),
}


@pytest.mark.parametrize("which", TIMES)
def test_the_hour_that_comes_twice_and_a_date_far_away_are_refused(
    project: Path, which: str
) -> None:
    times, says = TIMES[which]
    text(HEADER + "".join(f"2,0,{time},1,A,0.5,1,0,0\n" for time in times))
    one = entry(NO_FLAGS, sorted=False, end="last_row")
    if says is None:
        assert len(run(one)) == len(times) - 1
        return
    said = refusal(one)
    assert re.search(says, said)
    assert not any(time in said for time in times)
    assert says != SUMMER or "their zone" in refusal(entry(NO_FLAGS, end="last_row"))


CLOCKS: dict[str, tuple[list[str], bool]] = {  # times of day; whether they are of a 12-hour clock
    "at noon": (["11:30", "12:20", "01:05", "02:00"], True),
    "at midnight": (["10:00", "12:40", "01:40", "03:00"], True),
    "the end of it": (["09:59", "12:59", "01:00"], True),
    "hours of 24": (["11:30", "12:20", "01:05", "13:00"], False),
    "hours of a night": (["00:30", "12:20", "01:05"], False),
    "a morning in no order": (["12:10", "08:00", "09:00"], False),
    "a morning in order": (["01:05", "09:00", "12:10"], False),
}


@pytest.mark.parametrize("form", ["2024-01-02 {}", "2024-01-02 {}Z", "parquet"])
@pytest.mark.parametrize("which", CLOCKS)
def test_hours_of_a_clock_of_twelve_are_refused(project: Path, which: str, form: str) -> None:
    """13:05 that was written as 01:05 would be sorted to the begin."""
    times, refused = CLOCKS[which]
    if form == "parquet":
        dates = [datetime.fromisoformat(f"2300-01-02 {time}") for time in times]
        write([row(2, 0, date) for date in dates])
    else:
        lines = [f"2,0,{form.format(time)},1,A,0.5,1,0,0\n" for time in times]
        text(HEADER + "".join(lines))
    dataset = entry(NO_FLAGS, sorted=False, end="last_row")
    if refused:
        said = refusal(dataset)
        assert re.search(r"row 3: found a time 9 to 12 hours before .*allowed: hours of 24", said)
    else:
        assert len(run(dataset)) == len(times) - 1


NUMBERS: dict[str, tuple[list[list[float]], bool]] = {  # of trajectories; whether one is refused
    "-999 for a missing one": ([[0, 1, -999, 3], [0, 1, 2, 3]], True),
    "9999 for a missing one": ([[0, 9999, 2, 3], [0, 1, 2, 3]], True),
    "milliseconds, then seconds": ([[1.7e12, 1.7e12 + 6e4, 1.7e9 + 120, 1.7e9 + 180]], True),
    "at the begin": ([[-999, 1, 2, 3]], False),
    "no order at all": ([[3, 2, 1, 0], [0, 1, -999, 3]], False),
    "two rows": ([[500, 1]], False),
}


@pytest.mark.parametrize("kind", [pa.float64(), pa.int64()])
@pytest.mark.parametrize("which", NUMBERS)
def test_a_number_far_away_is_refused_where_the_log_is_in_order(
    project: Path, which: str, kind: pa.DataType
) -> None:
    orders, refused = NUMBERS[which]
    places = [row(user, 0, 0) for user, order in enumerate(orders) for _ in order]
    numbers = pa.array([each for order in orders for each in order]).cast(kind, safe=False)
    write(pa.Table.from_pylist(places).set_column(2, "time", numbers))
    dataset = entry(NO_FLAGS, sorted=False, end="last_row")
    if refused:
        assert re.search(FAR + r".*as -999\).*; allowed: the true one", refusal(dataset))
    else:
        assert len(run(dataset)) == len(places) - len(orders)
