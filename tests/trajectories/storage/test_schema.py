from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from primorl.project.elapsed import ElapsedTime
from primorl.project.errors import PipelineError
from primorl.trajectories.checks import RowCheck
from primorl.trajectories.storage.schema import DatasetInfo, Spaces, arrow_schema
from tests.trajectories.builders import INFO, SPACES, episode, table

ORIGIN = Path("somewhere.hdf5")


def check(*tables: pa.Table, **declared: Any) -> None:
    rows = RowCheck(SPACES, ORIGIN, **declared)
    for each in tables:
        rows(each)
    rows.finish()


def two() -> pa.Table:
    """Trajectories 000 (4 steps) and 001 (3 steps)."""
    return table([episode(4, 1), episode(3, 2)])


def with_values(column: str, row: int, value: Any) -> pa.Table:
    """``two()`` with one value exchanged."""
    good = two()
    values = good[column].to_pylist()
    values[row] = value
    index = good.column_names.index(column)
    return good.set_column(index, good.schema.field(index), pa.array(values, good.schema.field(index).type))


def test_good_rows_pass_in_one_batch_or_several() -> None:
    check(two())
    check(table([episode(4, 1)]), table([episode(1, 2)], names=["001"]), arrow_schema(SPACES).empty_table())


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("observation", 5, [0.0, np.nan, 0.0], "trajectory number 2, step 1: found a non-finite observation"),
        ("next_observation", 0, [0.0, 0.0, np.inf], "trajectory number 1, step 0: found a non-finite next_observation"),
        ("action", 2, [-np.inf], "trajectory number 1, step 2: found a non-finite action"),
        ("reward", 6, np.nan, "trajectory number 2, step 2: found a non-finite reward"),
        (
            "action",
            4,
            [2.01],
            "trajectory number 2, step 0: found an action outside the declared space ('action_0')",
        ),
        ("truncated", 1, True, "step 1: found an end (terminated or truncated) before the last step"),
        ("terminated", 4, True, "step 0: found an end (terminated or truncated) before the last step"),
        ("truncated", 3, False, "trajectory number 1, step 3: found end flags missing at the last step"),
        ("step", 2, 7, "trajectory number 1, step 2: found step numbers not contiguous from 0"),
        ("step", 0, 1, "trajectory number 1, step 0: found step numbers not contiguous from 0"),
        ("reward", 0, None, "column reward: found missing values"),
        ("observation", 0, [0.0, None, 0.0], "column observation: found missing values"),
    ],
)
def test_a_bad_row_is_named_and_its_value_is_not(column: str, row: int, value: Any, message: str) -> None:
    """Every way a row can be unfit stops the ingest with one line that a user can act on."""
    with pytest.raises(PipelineError) as wrong:
        check(with_values(column, row, value))
    text = str(wrong.value)
    assert message in text
    assert text.startswith("somewhere.hdf5: ")
    assert "allowed" in text
    assert "\n" not in text
    assert "2.01" not in text


def test_a_change_that_float32_cannot_hold_is_refused_here_and_not_in_training() -> None:
    """Both observations are finite; their difference, which training learns, is not."""
    one = episode(2, 1)
    one.observations = [np.full(3, sign * 3e38, dtype=np.float32) for sign in (1, -1, -1)]
    with pytest.raises(PipelineError, match="trajectory number 1, step 0: found a step whose change of observation"):
        check(table([one]))


def test_an_action_on_the_bound_up_to_float_error_passes() -> None:
    check(with_values("action", 4, [np.float32(2.000001)]))


@pytest.mark.parametrize(
    "tables",
    [
        [table([episode(2, 1), episode(2, 2)], names=["001", "000"])],
        [table([episode(2, 1)]), table([episode(2, 1)])],
        [table([episode(2, 1), episode(2, 2), episode(2, 3)], names=["000", "001", "000"])],
        [table([episode(2, 1)], names=["001"]), table([episode(2, 2)], names=["000"])],
    ],
)
def test_unsorted_and_duplicated_trajectories_are_refused(tables: list[pa.Table]) -> None:
    """A unit that appears twice could land in a cohort, or in a partition, twice."""
    with pytest.raises(PipelineError, match=r"out of order or duplicated|split over two batches"):
        check(*tables)


def test_rows_of_one_trajectory_may_not_be_shuffled() -> None:
    with pytest.raises(PipelineError, match="not contiguous"):
        check(two().take([1, 0, 2, 3, 4, 5, 6]))


def test_one_trajectory_in_two_units_is_refused() -> None:
    """The same trajectory under two units would be counted, and clipped, twice."""
    with pytest.raises(PipelineError, match="one trajectory in two units"):
        check(table([episode(2, 1), episode(2, 2)], units=["a", "b"], names=["same", "same"]))


def test_a_unit_may_hold_several_trajectories_but_not_span_two_batches() -> None:
    check(table([episode(2, 1), episode(2, 2)], units=["a", "a"], names=["1", "2"]))
    with pytest.raises(PipelineError, match="split over two batches"):
        check(table([episode(2, 1)], units=["a"], names=["1"]), table([episode(2, 2)], units=["a"], names=["2"]))


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_unusable_ids_are_refused(name: str) -> None:
    with pytest.raises(PipelineError, match="empty unit_id or trajectory_id"):
        check(table([episode(2, 1)], names=[name]))


def test_wrong_columns_are_named() -> None:
    with pytest.raises(PipelineError, match=r"column reward: found double, allowed float"):
        check(two().set_column(5, "reward", two()["reward"].cast(pa.float64())))
    with pytest.raises(PipelineError, match="column action missing"):
        check(two().drop_columns(["action"]))
    wider = Spaces((-1.0,) * 4, (1.0,) * 4, (-2.0,), (2.0,))
    with pytest.raises(PipelineError, match=r"column observation: found .*\[3\], allowed .*\[4\]"):
        RowCheck(wider, ORIGIN)(two())


def test_open_spaces_survive_json_and_admit_every_finite_action() -> None:
    """JSON knows no infinity: null stands for it, in both directions."""
    spaces = Spaces((-np.inf,) * 3, (np.inf, 1.0, 2.0), (-np.inf,), (0.5,))
    assert spaces.to_json()["observation_high"] == [None, 1.0, 2.0]
    assert Spaces.from_json(spaces.to_json()) == spaces
    low = with_values("action", 0, [-1e30])
    with pytest.raises(PipelineError, match="outside the declared space"):
        RowCheck(spaces, ORIGIN)(table([episode(50, 1)]))
    RowCheck(Spaces((-1.0,) * 3, (1.0,) * 3, (-np.inf,), (np.inf,)), ORIGIN)(low)


@pytest.mark.parametrize("horizon", [3, 4, None])
def test_an_episode_longer_than_the_horizon_is_refused(horizon: int | None) -> None:
    """The statement names the horizon as a public fact, so it must hold in the data."""
    batches = table([episode(2, 9)], names=["000"]), table([episode(3, 1), episode(4, 2)], names=["001", "002"])
    if horizon != 3:
        check(*batches, horizon=horizon)
        return
    with pytest.raises(PipelineError, match="trajectory number 3, step 3: found an episode longer than the horizon"):
        check(*batches, horizon=horizon)


PEOPLE = ["ann smith", "bob jones"]


@pytest.mark.parametrize(
    "spoilt",
    [
        table([episode(2, 1), episode(2, 2)], names=PEOPLE[::-1]),
        table([episode(2, 1), episode(2, 2)], units=PEOPLE, names=["ann smith", "ann smith"]),
        table([episode(2, 1), episode(300, 2)], names=PEOPLE),
        table([episode(2, 1), episode(2, 2)], names=PEOPLE).take([0, 1, 3, 2]),
        table([episode(2, 1), episode(2, 2)], names=[PEOPLE[0], PEOPLE[1] + "\0"]),
        table([episode(2, 1, terminated=True), episode(2, 2)], names=PEOPLE),
    ],
)
def test_no_error_quotes_an_id(spoilt: pa.Table) -> None:
    """Ids of units and trajectories may name people, and errors are pasted into tickets."""
    with pytest.raises(PipelineError, match=r"trajectory number [12]") as wrong:
        check(spoilt, may_terminate=False, horizon=200)
    assert not any(word in str(wrong.value) for name in PEOPLE for word in name.split())


def test_dimensions_have_names() -> None:
    """Own ones or default ones; a dataset that was written before there were names gets the default ones."""
    assert SPACES.observation_names == ("observation_0", "observation_1", "observation_2")
    assert SPACES.action_names == ("action_0",)
    assert Spaces.with_discrete_actions((0.0,), (1.0,), 3).action_names == ("0", "1", "2")
    named = replace(SPACES, observation_names=("pulse", "meal=snack", "meal=none"), action_names=("dose",))
    assert Spaces.from_json(named.to_json()) == named
    timed = replace(SPACES, elapsed=ElapsedTime(name="observation_2", unit="hours", most=4.0))
    assert Spaces.from_json(timed.to_json()) == timed
    assert "elapsed" not in SPACES.to_json()
    old = {name: value for name, value in SPACES.to_json().items() if not name.endswith("names")}
    assert Spaces.from_json(old) == SPACES
    with pytest.raises(ValueError, match="one for each dimension"):
        replace(SPACES, action_names=("dose", "time"))


def test_the_facts_travel_in_the_schema_metadata() -> None:
    schema = arrow_schema(SPACES).with_metadata(INFO.to_metadata())
    assert DatasetInfo.from_schema(schema, ORIGIN) == INFO
    for metadata in (None, {b"primorl": b"{}"}, {b"primorl": b"no json"}, {b"primorl": b"[]"}):
        with pytest.raises(PipelineError, match="metadata 'primorl' missing or malformed"):
            DatasetInfo.from_schema(schema.with_metadata(metadata), ORIGIN)
