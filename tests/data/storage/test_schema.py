from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from primorl.base.errors import PipelineError
from primorl.data.checks import RowCheck
from primorl.data.storage.schema import DatasetInfo, arrow_schema
from tests.data.builders import INFO, SPACES, episode, table

ORIGIN = Path("somewhere.hdf5")
PEOPLE = ["ann smith", "bob jones"]


def check(*tables: pa.Table, **declared: Any) -> None:
    rows = RowCheck(replace(INFO, **declared), ORIGIN)
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
    return good.set_column(
        index, good.schema.field(index), pa.array(values, good.schema.field(index).type)
    )


@pytest.mark.parametrize(
    ("column", "row", "value", "place"),
    [
        ("observation", 5, [0.0, np.nan, 0.0], "trajectory number 2, step 1: "),
        ("reward", 6, np.nan, "trajectory number 2, step 2: "),
        ("action", 4, [2.01], "trajectory number 2, step 0: "),
        ("truncated", 1, True, "step 1: found an end"),
        ("truncated", 3, False, "trajectory number 1, step 3: "),
        ("step", 2, 7, "trajectory number 1, step 2: "),
        ("reward", 0, None, "column reward: "),
    ],
)
def test_a_bad_row_is_named_and_its_value_is_not(
    column: str, row: int, value: Any, place: str
) -> None:
    with pytest.raises(PipelineError, match=rf"^somewhere\.hdf5: .*{place}") as wrong:
        check(with_values(column, row, value))
    assert not any(word in str(wrong.value) for word in ("\n", "2.01"))


def test_a_change_that_float32_cannot_hold_is_refused_here_and_not_in_training() -> None:
    one = episode(2, 1)
    one = replace(one, observations=np.float32([[sign * 3e38] * 3 for sign in (1, -1, -1)]))
    with pytest.raises(PipelineError, match="step 0: found a step whose change"):
        check(table([one]))


def some(lengths: list[int], names: list[str], units: list[str] | None = None) -> pa.Table:
    return table([episode(length, i) for i, length in enumerate(lengths)], units, names)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([some([2, 2], PEOPLE[::-1])], "number 2, .*out of order"),
        ([some([2], ["0"]), some([2], ["0"])], "split over two batches"),
        ([some([2, 2, 2], ["0", "1", "0"])], "out of order or duplicated"),
        ([some([2], ["1"]), some([2], ["0"])], "out of order or duplicated"),
        ([some([2], ["1"], ["a"]), some([2], ["2"], ["a"])], "split over two batches"),
        ([some([2, 2], ["x", "x"], PEOPLE)], "one trajectory in two units"),
        ([some([2, 300], PEOPLE)], "number 2, step 200: "),
        ([some([2, 2], ["a", PEOPLE[1] + "\0"])], "trajectory_id"),
        ([some([2], [""])], "trajectory_id"),
        ([table([episode(2, 1, terminated=True), episode(2, 2)], names=PEOPLE)], "terminates"),
        ([two().set_column(5, "reward", two()["reward"].cast(pa.float64()))], "reward: "),
    ],
)
def test_what_would_count_somebody_twice_is_refused_without_an_id(
    tables: list[pa.Table], message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as wrong:
        check(*tables, termination="none")
    assert not any(word in str(wrong.value) for name in PEOPLE for word in name.split())


def test_a_unit_with_more_trajectories_than_declared_is_refused() -> None:
    content = table(
        [episode(2, i) for i in range(4)], units=["a", "a", "a", "b"], names=["1", "2", "3", "4"]
    )
    check(content, trajectories_per_person=3)
    with pytest.raises(PipelineError, match="number 3, step 0: found a person with more"):
        check(content, trajectories_per_person=2)


def test_the_facts_travel_in_the_schema_metadata() -> None:
    schema = arrow_schema(SPACES).with_metadata(INFO.to_metadata())
    assert DatasetInfo.from_schema(schema, ORIGIN) == INFO
    for metadata in (None, {b"primorl": b"{}"}, {b"primorl": b"no json"}, {b"primorl": b"[]"}):
        with pytest.raises(PipelineError, match="metadata missing or malformed"):
            DatasetInfo.from_schema(schema.with_metadata(metadata), ORIGIN)
