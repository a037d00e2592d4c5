"""Logs as files: what arrives, and what is refused with file and row, and quotes no value."""

import gzip
import math
import re
import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from primorl.base.errors import PipelineError
from primorl.data.sources import logs as tabular_files
from primorl.data.sources import source_of
from primorl.data.sources import tabular as tabular_sorting
from primorl.data.sources.logs import Field, LogFiles
from primorl.data.storage.schema import arrow_schema
from tests.data.builders import made
from tests.data.sources.tabular_builders import (
    DISCRETE,
    EXPECTED,
    HEADER,
    NO_FLAGS,
    REPOSITORY,
    SECRET,
    Row,
    arrives,
    discrete,
    entry,
    refusal,
    row,
    rows,
    run,
    text,
    transition,
    write,
)


def test_next_observations_in_the_log_are_used_and_every_row_is_kept(project: Path) -> None:
    content = [
        each | {"x2": 10 * each["x"], "ward2": "B", "dose": 0.5, "gain": 0.0} for each in rows()
    ]
    write(content)
    written = run(entry({"next_observation": ["x2", "ward2"]})).to_pylist()
    assert [each["next_observation"] for each in written] == [
        [10 * each["x"], 0, 1] for each in content
    ]
    assert [each["observation"][0] for each in written] == [each["x"] for each in content]
    assert [each["truncated"] for each in written] == [each["left"] for each in content]
    assert [each["terminated"] for each in written] == [each["died"] for each in content]


@pytest.mark.parametrize("stays", [1, 2])
def test_what_came_next_is_of_the_same_person(project: Path, stays: int) -> None:
    """A shift of the whole column gives each person a value of the next one; twin: of her next
    stay.
    """
    ids = [(n // stays, n % stays, t) for n in range(40) for t in range(3)]
    content = [row(*each, x=float(place), left=each[2] == 2) for place, each in enumerate(ids)]
    for each, after in zip(content, [*content[1:], content[-1]], strict=True):
        others = stays > 1 and each["user"] != after["user"]
        each |= {"next_x": each["x"] + (0.5 if others else 1.0), "next_ward": "A"}
    write(content)
    dataset = entry({"next_observation": ["next_x", "next_ward"]})
    if stays > 1:
        assert len(run(dataset)) == 120
    else:
        assert "row 3: found a next observation that is the first of the unit" in refusal(dataset)


def test_odd_csv(project: Path) -> None:
    plain = write(rows(), "plain.csv").read_bytes()
    flags = plain.replace(b"true", b"1").replace(b"false", b"0")
    text(b"\xef\xbb\xbf" + flags.replace(b"\n", b"\r\n"))
    arrives()
    european = re.sub(rb"(\d)\.(\d)", rb"\1,\2", plain.replace(b",", b";"))
    text(gzip.compress(european), "log/log.csv.gz")
    arrives(entry(csv={"delimiter": ";", "decimal_point": ","}))


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


def test_a_number_of_choices_is_an_action_and_names_survive_ingest(project: Path) -> None:
    write(discrete(), "log/log.csv")
    dataset = entry(DISCRETE)
    assert run(dataset)["action"].to_pylist() == [0, 1, 2, 0, 1, 0]
    spaces = source_of("log", dataset).open(Path("log")).spaces
    assert (spaces.action_names, spaces.discrete_actions) == (("0", "1", "2"), True)
    assert (spaces.one_hot, spaces.observation_names) == (((1, 2),), ("x", "ward=A", "ward=B"))
    assert made().info.spaces == spaces


@pytest.mark.parametrize(
    ("chosen", "never"), [((0, 1, 2), ""), ((0, 2), ": 1."), ((1,), ": 0; 2.")]
)
def test_actions_that_nobody_got_are_told_before_anybody_is_charged(
    project: Path, capsys: pytest.CaptureFixture[str], chosen: tuple[int, ...], never: str
) -> None:
    write(discrete(lambda index: chosen[index % len(chosen)]))
    run(entry(DISCRETE))
    said = capsys.readouterr().err
    assert ("no row has" in said) == bool(never)
    assert never in said


VASO = {"column": "vaso", "categories": ["no", "low", "high"]}
FLUID = {"column": "fluid", "categories": ["none", "some"]}
SEDATION = {"column": "sedation", "categories": [0, 1]}


@pytest.mark.parametrize(
    ("columns", "first", "actions"),
    [
        ([VASO, FLUID], "vaso=no, fluid=none", [0, 3, 4, 1, 2, 0]),
        ([VASO, FLUID, SEDATION], "vaso=no, fluid=none, sedation=0", [1, 7, 9, 3, 5, 1]),
    ],
)
def test_columns_of_categories_are_one_action_together(
    project: Path, columns: list[dict[str, Any]], first: str, actions: list[int]
) -> None:
    content = [
        each | {"vaso": VASO["categories"][i % 3], "fluid": FLUID["categories"][i % 2]}
        for i, each in enumerate(rows())
    ]
    content = [each | {"sedation": 1} for each in content]
    content[5] |= {"vaso": None, "fluid": None, "sedation": None}  # of the last row: not used
    write(content)
    dataset = entry({"action": columns})
    assert run(dataset)["action"].to_pylist() == actions
    names = made().info.spaces.action_names
    assert (len(names), names[0]) == (math.prod(len(c["categories"]) for c in columns), first)
    with pytest.raises(ValidationError, match="found a column twice"):
        entry({"action": [*columns, columns[0]]})


def test_an_environments_spaces_are_used(project: Path) -> None:
    names = ["x", "y", "z"]
    content = [each | {"y": 0.0, "z": 0.0} for each in rows()]
    write(content)
    box = {"columns": ["dose"], "low": None, "high": None}
    dataset = entry({"observation": names, "action": box}, environment="Pendulum-v1")
    reader = source_of("log", dataset).open(Path("log"))
    assert reader.spaces.observation_high == (1.0, 1.0, 8.0)
    assert reader.spaces.action_low == (-2.0,)
    assert reader.horizon == 200
    assert len(run(dataset)) == len(EXPECTED)
    pendulum = {"environment": "Pendulum-v1"}
    for unfit, message in (
        (entry({"observation": names[:2], "action": box}, **pendulum), "found 2 dimensions"),
        (entry({"observation": names} | DISCRETE, **pendulum), "environment's kind"),
    ):
        with pytest.raises(PipelineError, match=message):
            source_of("log", unfit).open(Path("log"))


def test_recordings_without_end_flags(project: Path) -> None:
    write(rows())
    assert run(entry({"truncated": None}, end="last_row")).to_pylist() == EXPECTED
    written = run(entry(NO_FLAGS, end="last_row")).to_pylist()
    assert [each["truncated"] for each in written] == [False, True, False, True, True]
    content = [each | {"died": False, "dose": 0.5, "gain": 0.0} for each in rows()[:6]]
    write([*content[:-1], content[-1] | {"gain": 7.0}])
    written = run(entry(NO_FLAGS, end="outcome")).to_pylist()
    assert [each["terminated"] for each in written] == [False, False, True, False, False, True]
    assert (written[-1]["reward"], any(each["truncated"] for each in written)) == (7.0, False), (
        "the score is kept"
    )


def test_last_rows_that_only_observe_have_no_reward(project: Path) -> None:
    """They are cut as others are. The twin has one, which may be an outcome, and is refused."""
    content = rows()
    write(content)
    cut = run(entry(NO_FLAGS, end="last_row")).to_pylist()
    observed = entry(NO_FLAGS, end="observed")
    with pytest.raises(PipelineError, match=r"row 3: found a reward in the last .*outcome"):
        run(observed)
    visits = [each["visit"] for each in content]
    ends = [now != after for now, after in zip(visits, [*visits[1:], None], strict=True)]
    write([each | ({"gain": None} if end else {}) for each, end in zip(content, ends, strict=True)])
    assert run(observed).to_pylist() == cut


def test_an_end_at_the_horizon_is_cut_there_and_an_outcome_is_in_last_rows_alone(
    project: Path,
) -> None:
    """What is earned there counts. The twin: the same row before the end is refused."""
    content = [each | {"died": False, "dose": 0.5, "gain": 0.0} for each in rows()[:5]]
    write([*content[:-1], content[-1] | {"gain": 7.0}])
    bounds = BOUNDED["bounds"] | {"reward": [-9, 9], "before_end": [0, 0]}
    bounds["observation"] = {"low": [1, 0, 0], "high": [9, 1, 1]}
    outcome: dict[str, Any] = {"end": "outcome", "horizon": 3, "bounds": bounds}
    written = run(entry(NO_FLAGS, **outcome)).to_pylist()
    assert [each["truncated"] for each in written] == [False, False, True, False, False]
    assert [each["terminated"] for each in written] == [False, False, False, False, True]
    assert written[-1]["reward"] == 7.0
    write([*content[:-2], content[-2] | {"gain": 7.0}, content[-1]])
    with pytest.raises(PipelineError, match=r"row 4: .*bounds.before_end"):
        run(entry(NO_FLAGS, **outcome))
    bounds |= {"outcomes": ["lost", "won"]}
    write([*content[:-1], content[-1] | {"gain": 7.0}])
    with pytest.raises(PipelineError, match=r"row 3: .*bounds.outcomes"):
        run(entry(NO_FLAGS, **outcome))


BOUNDED: dict[str, Any] = {
    "bounds": {"observation": {"low": [1, 0, 0], "high": [4.5, 1, 1]}, "reward": [0, 4]}
}


def test_values_beyond_declared_bounds_are_refused_or_cut_as_declared(project: Path) -> None:
    """The error names the row itself, also where only the row before uses it, and quotes no value
    of a row.
    """
    within = [each | {"x": min(each["x"], 4.5)} for each in rows()]
    later = [each | {"x2": 1 + 5.0 * each["visit"], "dose": 0.5, "gain": 0.5} for each in within]
    following = {"next_observation": ["x2", "ward"]}
    for content, columns, place in (
        (rows(), {}, r"row 5: .*bounds.observation of: x;"),
        (within, {}, r"row 5: .*bounds.reward of: reward;"),
        (later, following, r"row 4: .*bounds.observation of: x;"),
    ):
        write(content)
        with pytest.raises(PipelineError, match=place):
            run(entry(columns, **BOUNDED))
    written = run(entry(following, beyond_bounds="clip", **BOUNDED))
    assert [first for first, *_ in written["next_observation"].to_pylist()] == [
        4.5 if each["visit"] else 1 for each in rows()
    ]
    write(rows())
    cut = run(entry(beyond_bounds="clip", **BOUNDED)).to_pylist()
    for each, whole in zip(cut, EXPECTED, strict=True):
        for name in ("observation", "next_observation"):
            assert each[name] == [min(whole[name][0], 4.5), *whole[name][1:]]
        assert each["reward"] == min(whole["reward"], 4.0)


def slow(content: list[Row]) -> list[Row]:
    """What the log says, trajectory by trajectory: the obvious reference."""
    found = []
    for user, visit in sorted({(each["user"], each["visit"]) for each in content}):
        of_one = [each for each in content if (each["user"], each["visit"]) == (user, visit)]
        of_one.sort(key=lambda each: each["time"])
        steps: list[Row] = []
        for now, later in zip(of_one, [*of_one[1:], None], strict=True):
            if later is not None or now["died"]:
                seen, after = (
                    [each["x"], each["ward"] == "A", each["ward"] == "B"]
                    for each in (now, later or now)
                )
                values = {"dose": now["dose"], "gain": now["gain"], "terminated": now["died"]}
                steps.append(transition(user, visit, len(steps), seen, after, **values))
        steps[-1]["truncated"] = not steps[-1]["terminated"]
        found += steps
    return found


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Rows of some users' visits, in any order."""
    visits = draw(
        st.sets(st.tuples(st.integers(0, 10**4), st.integers(0, 3)), min_size=1, max_size=12)
    )
    content = []
    number = st.floats(-1e6, 1e6, width=32)
    for user, visit in visits:
        died = draw(st.booleans())
        times = draw(st.sets(st.integers(-50, 50), min_size=1 if died else 2, max_size=6))
        for time in times:
            last = time == max(times)
            values = {"x": draw(number), "gain": draw(number), "ward": draw(st.sampled_from("AB"))}
            values["dose"] = draw(st.floats(0, 1, width=32))
            values |= {"died": died and last, "left": last and not died}
            content.append(row(user, visit, time, **values))
    return draw(st.permutations(content))


@settings(max_examples=25, deadline=None)
@given(logs(), st.integers(1, 40), st.integers(0, 40))
def test_any_order_of_rows_is_the_same_dataset(content: list[Row], batch: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabular_files, "ROWS_PER_BATCH", batch)
        patch.setattr(tabular_sorting, "ROWS_PER_BATCH", batch)
        in_order = sorted(content, key=lambda each: (each["user"], each["visit"], each["time"]))
        found = []
        for given_rows, is_sorted in ((content, False), (in_order, True)):
            raw = Path(folder) / f"raw-{is_sorted}"
            raw.mkdir()
            for part, some in enumerate((given_rows[:cut], given_rows[cut:])):
                if some:
                    pq.write_table(pa.Table.from_pylist(some), raw / f"{part}.parquet")
            tables = list(source_of("log", entry(sorted=is_sorted)).open(raw).tables())
            assert all(
                table.schema.equals(arrow_schema(source_of("log", entry()).open(raw).spaces))
                for table in tables
            )
            found.append(pa.concat_tables(tables).to_pylist())
        assert found[0] == slow(content)
        assert found[1] == found[0]


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
    "no rows": (lambda rows: pa.Table.from_pylist(rows).slice(0, 0), "no transitions"),
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
    "Excel's first line": (b"sep=,\r\n" + START, r"row 1: .*\(as a line before it"),
    "a line after the rows": (START + b"\n# 1 row\n", r"row 2: .*one after the rows\)"),
    "a total": (START + b"Total,,,,,,9,,\n", "row 2: column 'visit': found a missing id"),
    "percent": (START.replace(b"0.5", b"50%"), r"column 'dose': .*allowed: numbers; "),
    "yes": (START.replace(b"0,0\n", b"No,No\n"), "column 'died': .*allowed: truth values, or 0"),
    "a workbook": (b"PK\x03\x04\x88\x99,\n" * 9, "not readable as CSV"),
    "not UTF-8": (HEADER.encode() + b"2,0,0,1,\xff,0.5,1,0,1\n", "row 1: "),
}


@pytest.mark.parametrize("kind", BAD_CSV)
def test_bad_csv(project: Path, kind: str) -> None:
    content, message = BAD_CSV[kind]
    text(content)
    assert re.search(message, refusal(entry()))


WRITTEN: dict[str, Callable[[str], str]] = {
    "pandas with a column that was missing somewhere": lambda text: re.sub(
        r"(true|false)", lambda flag: {"true": "1.0", "false": "0.0"}[flag[0]], text
    ),
    "pandas with its index": lambda text: re.sub("^", lambda _: ",", text, flags=re.MULTILINE),
    "MySQL": lambda text: text.replace(",,", ",\\N,").replace(",,", ",\\N,"),
    "old Mac": lambda text: text.replace("\n", "\r"),
}


@pytest.mark.parametrize("writer", WRITTEN)
def test_a_csv_of_these_writers_is_read(project: Path, writer: str) -> None:
    lines = [HEADER.strip()]
    for each in rows():
        cells = ("" if value is None else str(value).lower() for value in each.values())
        lines.append(",".join(cells).replace(",a,", ",A,").replace(",b,", ",B,"))
    text(WRITTEN[writer]("\n".join(lines)))
    arrives()


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
    text("note," + HEADER + ',2,0,0,1,A,0,1,0,0\n,"2,0,1,1,A,0,1,0,0\n,",0,2,1,A,0,1,0,1\n')
    assert "row 2: found a quote" in refusal(entry()), "the next quote begins the second field"
    Path("log/log.csv").unlink()
    for notes in CLOSED_QUOTES.values():
        text(gzip.compress(noted(notes).encode()), "log/log.csv.gz")
        assert len(run(entry())) == 3


@pytest.mark.parametrize("place", range(10))
def test_a_quote_that_swallows_a_row_is_told_from_a_long_note_in_any_column(
    project: Path, place: int
) -> None:
    def log(*notes: str) -> str:
        lines = [HEADER.strip().split(",")]
        lines += [f"2,0,{time},1,A,0.5,0,0,{int(time == 2)}".split(",") for time in range(3)]
        cells = zip(lines, ("note", *notes), strict=True)
        return "\n".join(",".join([*row[:place], note, *row[place:]]) for row, note in cells) + "\n"

    for long in ("ate, then\nslept,", ",\n", "one,\n\ntwo,\nthree", "a,b,c,d,e\n,"):
        text(log(f'"{long}"', "", '"well"'))
        assert len(run(entry())) == 2
    text(log('"see letter', '"', ""))
    assert "row 1: found a quote" in refusal(entry())


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


@pytest.mark.parametrize("count", [2, 3])
def test_a_csv_that_ends_where_a_spreadsheet_does_is_warned_of(
    project: Path, count: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tabular_files._SHEET_ROWS == (2**16 - 1, 2**20 - 1)
    monkeypatch.setattr(tabular_files, "_SHEET_ROWS", (3,))
    for name in ("log/log.csv", "log/log.parquet"):
        write([row(2, 0, time, left=time == count - 1) for time in range(count)], name)
        run(entry())
        said = "log.csv: found 3 rows, where a spreadsheet ends" in capsys.readouterr().err
        assert said is (name.endswith("csv") and count == 3)
        shutil.rmtree("log")


@pytest.mark.parametrize(
    ("orders", "moved"),
    [
        ([[21, 22, 23, 0, 1], [0, 1, 2]], 1),  # a time of day
        ([[1, 2, 30_000, 4], [3, 1, 2]], 2),
        ([[0, 1, 2], [5, 6, 9]], 0),
        ([["2024-01-02", "2024-01-04", "2024-01-03"], ["2024-01-02", "2024-01-03"]], 1),
    ],
)
def test_how_many_trajectories_are_sorted_is_told(
    project: Path, orders: list[list[Any]], moved: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{user},0,{time},1,A,0.5,0,0,0\n" for user in (0, 1) for time in orders[user]]
    text(HEADER + "".join(lines))
    run(entry(NO_FLAGS, sorted=False, end="last_row"))
    said = capsys.readouterr().err
    assert (f"{moved} of 2 trajectories do not lie in order" in said) == bool(moved)


REWARDS: dict[str, tuple[list[float], Row, str]] = {  # of a trajectory, and what is told
    "outcomes": ([0, 0, 5], {}, "no other row has a reward: in 2 trajectories"),
    "costs": ([-1, -2, -1], {}, "ingest: in 2 trajectories"),
    "none in the last row": ([-1, -2, 0], {}, ""),
    "outcomes that count": ([0, 0, 5], {"end": "outcome"}, ""),
    "of rows that tell what came next": ([0, 0, 5], {"next_observation": ["x", "ward"]}, ""),
    "at a true end": ([0, 0, 5], {"terminated": "died"}, ""),
}


@pytest.mark.parametrize("what", REWARDS)
def test_rewards_of_last_rows_that_are_not_used_are_told(
    project: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards, changes, said = REWARDS[what]
    content = [
        row(user, 0, time, gain=float(gain), died=time == 2)
        for user in (1, 2)
        for time, gain in enumerate(rewards)
    ]
    write(content)
    changes = {"end": "last_row", "next_observation": None} | NO_FLAGS | changes
    run(entry({key: changes.pop(key) for key in ("next_observation", *NO_FLAGS)}, **changes))
    told = capsys.readouterr().err
    assert (said or "the last row has one") in told if said else "has one" not in told


@pytest.mark.parametrize(("first", "told"), [(1_700_000_000, True), (2**24 - 9, False)])
def test_numbers_that_lose_digits_are_warned_of(
    project: Path, first: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write([each | {"x": float(first + n)} for n, each in enumerate(rows())])
    run(entry())
    assert ("lose digits (float32), in x;" in capsys.readouterr().err) is told


UNKNOWN: dict[str, tuple[list[str], int]] = {  # first times of trajectories; the row refused
    "1900": (["1900-01-01", "2024-01-01", "2024-01-01"], 1),
    "1970, with a time": (["2024-01-01 00:00:00", "1970-01-01 00:00:00", "2024-01-01 00:00:00"], 4),
    "with a zone": (["1753-01-01 00:00Z", "2024-01-01 00:00Z", "2024-01-01 00:00Z"], 1),
    "a day later": (["1970-01-02"] * 3, 0),
    "all count from there": (["1970-01-01"] * 3, 0),
    "true dates": (["1970-01-02", "2018-12-31", "1999-01-01"], 0),
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
    "an offset": (["2024-01-02 08:00+01:00", "2024-01-02 09:00"], 2, "or the reverse"),
    "another order": (["2024-01-02 08:00", "2024-01-02 09:00", "01/02/2024 10:00"], 3, "its type"),
    "a number": (["2024-01-02 08:00", "3"], 2, "its type"),
    "a second header": (["1", "2", "time"], 3, "its type"),
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
FAR = r"row [234]: found a time over half a year before"
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
    "in order": (["2024-01-02", "2024-01-03", "2024-01-04", "2035-01-05"], None),
    "visits of years": (["2020-01-01", "2023-01-01", "2021-01-01", "2024-01-01"], None),
    "newest first": (["2035-01-05", "2024-01-04", "2024-01-03", "2024-01-02"], None),
    "two visits": (["2035-01-05", "2024-01-04"], None),
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


TYPES = {
    "`string`": [pa.string(), pa.large_string(), pa.string_view()],
    "`int8`": [pa.int8(), pa.int64(), pa.uint64()],
    "`float16`": [pa.float16(), pa.float32(), pa.float64()],
    "`decimal128`": [pa.decimal128(10, 2)],
    "`bool`": [pa.bool_()],
    "`timestamp`": [pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.date32()],
    "`time64`": [pa.time64("us"), pa.duration("s"), pa.binary(), pa.list_(pa.int8()), pa.null()],
}
TYPES["`string`"] += [pa.dictionary(pa.int8(), kind) for kind in TYPES["`string`"][:2]]


def test_the_pages_table_of_types_says_what_is_read(project: Path) -> None:
    page = (REPOSITORY / "docs/datasets/tabular.md").read_text(encoding="utf-8")
    lines = page.partition("## Types of Parquet columns")[2].strip().splitlines()
    kinds: Any = ("id", "category", "number", "order", "flag")
    for line in lines[2 : 2 + len(TYPES)]:
        types, *said = (cell.strip() for cell in line.strip("|").split("|"))
        for kind in TYPES[re.split("[ ,]", types)[0]]:
            path = write(pa.schema([("x", kind)]).empty_table(), "log/log.parquet")
            for role, expected in zip(kinds, said, strict=True):
                found = "read"
                try:
                    LogFiles(path.parent, [Field("x", "x", role)], entry().options.csv)
                except PipelineError:
                    found = "refused"
                assert found == expected, (kind, role)


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


SPELLINGS = [
    *("4217|4217.0", "P421|P421 ", "Ren\u00e9|Rene\u0301", "0123456789012|123456789012"),
    *("P421|\ufeffP421", "A Lee|A  Lee"),
]


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


SHARED_IDS = [
    "\\N",
    ".",
    "--",
    "?",
    "(null)",
    "undefined",
    "#REF!",
    "NA",
    "n/a",
    "#N/A",
    "<NA>",
    "NULL",
    "nan",
    "None",
    " ",
    "1.58291E+17",
    "2,5e+12",
]


@pytest.mark.parametrize("shared", SHARED_IDS)
@pytest.mark.parametrize("column", ["user", "visit"])
def test_ids_that_different_people_may_share_are_refused(
    project: Path, column: str, shared: str
) -> None:
    """Other programs write missing ids so, and long ones with fewer digits."""
    content = [each | {"user": str(each["user"]), "visit": str(each["visit"])} for each in rows()]
    content[6] |= {column: shared}
    for name in ("log/log.csv", "log/log.parquet"):
        write(content, name)
        said = refusal(entry(sorted=False))
        word = re.search(r"\d|^ $", shared) is None
        found = "a word that stands for a missing id" if word else "a missing id, or one in"
        assert f"row 7: column '{column}': found {found}" in said
        assert said.endswith("columns.words_as_ids: true") is word
        content[7] |= {column: shared}
        write(content, name)
        content[7] |= {column: str(rows()[7][column])}
        names = entry({"words_as_ids": True}, sorted=False)
        if not word:
            assert "row 7" in refusal(names)
        else:
            ids = {"user": "unit_id", "visit": "trajectory_id"}[column]
            assert any(shared in each for each in run(names)[ids].to_pylist())
        shutil.rmtree("log")


@pytest.mark.parametrize("rounded", [lambda i: i // 1000 * 1000, lambda i: int(float(i)), int])
def test_ids_that_may_have_lost_their_last_digits_are_warned_of(
    project: Path, capsys: pytest.CaptureFixture[str], rounded: Callable[[int], int]
) -> None:
    """As a spreadsheet keeps 15, and pandas a float where an id is missing; twin: all digits."""
    people = [rounded(158_000_000_000_123_457 + 1017 * n) for n in range(30)]
    write([row(each, 0, time, left=time == 1) for each in people for time in range(2)])
    run(entry())
    assert ("different people may share one" in capsys.readouterr().err) == (rounded is not int)


@pytest.mark.parametrize("id_", ["NAN4", "Nancy", "1e5", "12e", "nulla", "E+3"])
def test_ids_that_only_look_so_are_ids(project: Path, id_: str) -> None:
    write([each | {"user": f"{each['user']}" if each["user"] == 2 else id_} for each in rows()])
    assert id_ in run(entry(sorted=False))["unit_id"].to_pylist()
