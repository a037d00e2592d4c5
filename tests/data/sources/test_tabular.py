import gzip
import math
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from primorl.base.errors import PipelineError
from primorl.config.datasets import TabularDataset
from primorl.data.sources import logs as tabular_files
from primorl.data.sources import source_of
from primorl.data.sources import tabular as tabular_sorting
from primorl.data.storage.rows import PartReader
from primorl.data.storage.schema import arrow_schema
from tests.data.sources.tabular_builders import (
    DISCRETE,
    EXPECTED,
    NO_FLAGS,
    Row,
    discrete,
    entry,
    row,
    rows,
    run,
    text,
    transition,
    write,
)


def arrives(dataset: TabularDataset | None = None) -> None:
    """The transitions of `rows` come out, whatever form the log in ``log`` has; it is deleted."""
    assert run(dataset or entry()).to_pylist() == EXPECTED
    shutil.rmtree("log")


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
    [("part-2.csv", "part-10.csv"), ("2.parquet", "10.parquet"), ("9 (1).csv", "9 (10).csv")],
)
def test_parts_whose_numbers_are_not_padded_come_in_the_order_of_numbers(
    project: Path, names: tuple[str, str], files: str
) -> None:
    Path("log").mkdir()
    for name, part in zip(names, (rows()[:3], rows()[3:]), strict=True):
        write(part, f"log/year=2024/{name}")
    arrives(entry(files=files, sorted=True))


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
    assert PartReader(Path("trajectories"), made_by="ingest").info.spaces == spaces


@pytest.mark.parametrize(
    ("chosen", "never"), [((0, 1, 2), ""), ((0, 2), ": 1."), ((1,), ": 0, 2.")]
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
    names = PartReader(Path("trajectories"), made_by="ingest").info.spaces.action_names
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
        steps = []
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
