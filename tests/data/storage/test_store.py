"""Parts on disk and the store of units, in memory and on disk: what was written is what is read,
by unit, and damage is refused.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.base import PipelineError
from primorl.data.ingestion import RowCheck
from primorl.data.private import open_units
from primorl.data.storage import rows as parquet
from primorl.data.storage import schema
from primorl.data.storage.rows import PartReader, UnitStore
from tests.data.builders import INFO, episode, episodes, exchanged, snapshot, table, write_parts


def people(lengths: list[list[int]]) -> pa.Table:
    """One unit for each entry, with trajectories of these lengths."""
    flat = [(f"{u:03d}", length) for u, person in enumerate(lengths) for length in person]
    content = [episode(length, i) for i, (_, length) in enumerate(flat)]
    return table(content, [unit for unit, _ in flat], [f"{i:03d}" for i in range(len(flat))])


def matrix(rows: pa.Table, *names: str) -> np.ndarray:
    columns = [
        np.array(rows[name].to_pylist(), dtype=np.float32).reshape(rows.num_rows, -1)
        for name in names
    ]
    return np.hstack(columns)


def test_files_do_not_depend_on_the_tables_that_rows_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public rows come in tables of which private ones were taken out: these must not decide about
    public files.
    """
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", 40)
    whole = people([[1 + 5 * unit % 7] for unit in range(90)])
    starts = [*np.flatnonzero(schema.changes(whole["unit_id"])), whole.num_rows]
    found = []
    for units in (1, 7, 20, 90):
        cuts = [*starts[:-1:units], whole.num_rows]
        tables = [whole.slice(begin, end - begin) for begin, end in itertools.pairwise(cuts)]
        found.append(snapshot(write_parts(tmp_path / str(units), *tables, rows_per_group=8)))
    assert all(each == found[0] for each in found)
    groups = list(PartReader(tmp_path / "1", made_by="ingest").tables())
    assert len(groups) > 1
    assert pa.concat_tables(groups).equals(whole)
    assert sum(len(set(group["unit_id"].to_pylist())) for group in groups) == 90, "none is split"


def check_units(store: UnitStore, rows: pa.Table, units: list[int]) -> None:
    """Compare what the store has of its units number ``units`` with the table, padding included."""
    names, asked = np.array(rows["unit_id"].to_pylist()), torch.tensor(units, dtype=torch.int64)
    steps = torch.arange(25).expand(len(units), -1)
    places = np.empty((len(units), 25), dtype=int)
    for row, number in enumerate(store.numbers[asked].tolist()):
        own = np.flatnonzero(names == f"{number:03d}")
        places[row] = own[np.minimum(np.arange(25), len(own) - 1)]
        assert int(store.lengths(asked)[row]) == len(own)
    inputs, targets = store.transitions(asked, steps)
    observation = matrix(rows, "observation")
    expected = np.hstack(
        [matrix(rows, "next_observation") - observation, matrix(rows, "reward", "terminated")]
    )
    assert np.array_equal(inputs, np.hstack([observation, matrix(rows, "action")])[places])
    assert np.array_equal(targets, expected[places])
    assert np.array_equal(store.begins(asked, steps), (matrix(rows, "step")[:, 0] == 0)[places])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_store_and_all_parts_of_it_read_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lengths = data.draw(
        st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6)
    )
    rows = people(lengths)
    after = matrix(rows, "next_observation")  # which need not be the following rows' observations
    for row in data.draw(st.lists(st.integers(0, len(after) - 1), max_size=5)):
        after[row, 1] = np.nextafter(after[row, 1], np.float32(9))
    changed = pa.FixedSizeListArray.from_arrays(pa.array(after.ravel()), 3)
    rows = rows.set_column(6, rows.schema.field("next_observation"), changed)
    folder = tmp_path_factory.mktemp("part")
    write_parts(folder, rows, rows_per_group=data.draw(st.sampled_from([1, 8, 100])))
    store = UnitStore.open(folder)
    check_units(store, rows, data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=5)))
    parts = data.draw(st.integers(1, min(3, len(lengths))))
    for bound in (0, 10**6):
        seen: list[int] = []
        for part in range(parts):
            shown: list[int] = []
            watch, own = (lambda table: shown.append(table.num_rows)), slice(part, None, parts)  # noqa: B023
            store = open_units(folder, bound, watch, own)
            assert sum(shown) == rows.num_rows, "every part is shown all rows"
            assert isinstance(store._rows, np.memmap) is (bound == 0)
            check_units(store, rows, list(range(store.units)))
            seen += store.numbers.tolist()
        assert sorted(seen) == list(range(len(lengths)))


def test_a_store_in_memory_gives_all_rows_first_observations_and_ends(tmp_path: Path) -> None:
    content = episodes(9)
    rows = table(content)
    opened = UnitStore.open(write_parts(tmp_path, rows))
    assert (opened.observation_size, opened.action_size, opened.info) == (3, 1, INFO)
    inputs, targets = opened.flat()
    assert np.array_equal(inputs, matrix(rows, "observation", "action"))
    assert all(map(np.array_equal, opened.arrays(), (inputs, targets)))
    assert np.array_equal(opened.first_observations(), [item.observations[0] for item in content])
    assert opened.terminates
    empty = UnitStore.open(write_parts(tmp_path / "none", rows.slice(0, 0)))
    assert (empty.units, empty.flat()[0].shape) == (0, (0, 4))
    assert empty.first_observations().shape == (0, 3)


def test_missing_damaged_and_foreign_parts_are_refused(tmp_path: Path) -> None:
    def refused(place: str) -> None:
        with pytest.raises(PipelineError, match=place):
            UnitStore.open(tmp_path)

    refused("`dvc repro partition`")
    part = write_parts(tmp_path, table(episodes(12))) / "rows.parquet"
    good = part.read_bytes()
    part.write_bytes(good[: len(good) // 2])
    refused(r"rows\.parquet: not a readable Parquet file")
    part.write_bytes(good[:300] + bytes(40) + good[340:])
    refused("rows.parquet: found corrupt pages after row 0")
    part.write_bytes(good)
    for metadata in ({}, INFO.to_metadata()):
        pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(metadata), part)
        refused(r"rows\.parquet: ")


def test_memory_that_runs_out_is_one_line(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of 1073741824 bytes failed")

    write_parts(tmp_path, table(episodes(5)))
    with pytest.raises(PipelineError, match="not enough memory") as wrong:
        open_units(tmp_path, 0, full)
    assert "1073741824" not in str(wrong.value)


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
    values = two()[column].to_pylist()
    values[row] = value
    return exchanged(two(), column, values)


def some(lengths: list[int], names: list[str], units: list[str] | None = None) -> pa.Table:
    return table([episode(length, i) for i, length in enumerate(lengths)], units, names)


FAR = np.array([[sign * 3e38] * 3 for sign in (1, -1, -1)], np.float32)
THREE = some([2] * 4, ["1", "2", "3", "4"], ["a", "a", "a", "b"])
DIED = table([episode(2, 1, terminated=True), episode(2, 2)], names=PEOPLE)
REFUSED: list[tuple[list[pa.Table], str]] = [
    ([with_values("observation", 5, [0.0, np.nan, 0.0])], "trajectory number 2, step 1: "),
    ([with_values("reward", 6, np.nan)], "trajectory number 2, step 2: "),
    ([with_values("action", 4, [2.01])], "trajectory number 2, step 0: "),
    ([with_values("truncated", 1, True)], "step 1: found an end"),
    ([with_values("truncated", 3, False)], "trajectory number 1, step 3: "),
    # which float32 cannot hold: refused here and not in training
    ([table([replace(episode(2, 1), observations=FAR)])], "step 0: found a step whose change"),
    # what would count somebody twice
    ([some([2, 2], PEOPLE[::-1])], "number 2, .*out of order"),
    ([some([2], ["0"]), some([2], ["0"])], "split over two batches"),
    ([some([2], ["1"]), some([2], ["0"])], "out of order or duplicated"),
    ([some([2], ["1"], ["a"]), some([2], ["2"], ["a"])], "split over two batches"),
    ([some([2, 2], ["x", "x"], PEOPLE)], "one trajectory in two units"),
    ([some([2, 300], PEOPLE)], "number 2, step 200: "),
    ([some([2, 2], ["a", PEOPLE[1] + "\0"])], "trajectory_id"),
    ([DIED], "terminates"),
    ([THREE], "number 3, step 0: found a person with more"),
]


@pytest.mark.parametrize(("tables", "message"), REFUSED)
def test_a_bad_row_is_named_and_no_value_or_id_is(tables: list[pa.Table], message: str) -> None:
    check(THREE, trajectories_per_person=3)
    with pytest.raises(PipelineError, match=rf"^somewhere\.hdf5: .*{message}") as wrong:
        check(*tables, termination="none", trajectories_per_person=2)
    secret = ("\n", "2.01", *" ".join(PEOPLE).split())
    assert not any(word in str(wrong.value) for word in secret)
