"""What rows of a log become: observations, actions, ends and the order of steps."""

import math
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from primorl.base import PipelineError
from primorl.data.sources import logs as tabular_files
from primorl.data.sources import source_of
from primorl.data.sources import tabular as tabular_sorting
from primorl.data.storage.schema import arrow_schema
from tests.data.builders import made
from tests.data.sources.tabular_builders import (
    BOUNDED,
    DISCRETE,
    EXPECTED,
    NO_FLAGS,
    Row,
    discrete,
    entry,
    refusal,
    row,
    rows,
    run,
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


def test_a_number_of_choices_is_an_action_and_names_survive_ingest(project: Path) -> None:
    write(discrete(), "log/log.csv")
    dataset = entry(DISCRETE)
    assert run(dataset)["action"].to_pylist() == [0, 1, 2, 0, 1, 0]
    spaces = source_of("log", dataset).open(Path("log")).spaces
    assert (spaces.action_names, spaces.discrete_actions) == (("0", "1", "2"), True)
    assert (spaces.one_hot, spaces.observation_names) == (((1, 2),), ("x", "ward=A", "ward=B"))
    assert made().info.spaces == spaces


VASO: dict[str, Any] = {"column": "vaso", "categories": ["no", "low", "high"]}
FLUID: dict[str, Any] = {"column": "fluid", "categories": ["none", "some"]}
SEDATION = {"column": "sedation", "categories": [0, 1]}


def test_columns_of_categories_are_one_action_together(project: Path) -> None:
    columns, first = [VASO, FLUID, SEDATION], "vaso=no, fluid=none, sedation=0"
    content = [
        each | {"vaso": VASO["categories"][i % 3], "fluid": FLUID["categories"][i % 2]}
        for i, each in enumerate(rows())
    ]
    content = [each | {"sedation": 1} for each in content]
    content[5] |= {"vaso": None, "fluid": None, "sedation": None}  # of the last row: not used
    write(content)
    dataset = entry({"action": columns})
    assert run(dataset)["action"].to_pylist() == [1, 7, 9, 3, 5, 1]
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
    unfit = entry({"observation": names} | DISCRETE, environment="Pendulum-v1")
    with pytest.raises(PipelineError, match="discrete_actions: found True, declared is False"):
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


@settings(max_examples=12, deadline=None)
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
        ({"observation": ["dose"]}, {}, "found 'dose', the person, or what a row's action is"),
        ({"observation": ["x", {"column": "died", "categories": [0, 1]}]}, {}, "found 'died'"),
    ],
)
def test_choices_that_do_not_fit(columns: Row, changes: Row, key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        entry(columns, **changes)
