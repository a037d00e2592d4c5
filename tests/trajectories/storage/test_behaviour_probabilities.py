"""Where trajectories begin, and with which probability each action was chosen: what private evaluation reads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.evaluation.private.problem import Episodes, EpisodeSource
from primorl.project.errors import PipelineError
from primorl.trajectories.checks import RowCheck
from primorl.trajectories.identity.fingerprint import Fingerprint
from primorl.trajectories.identity.membership import Membership
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.parquet import PartReader, PartWriter
from primorl.trajectories.storage.schema import DatasetInfo, Spaces, arrow_schema
from primorl.trajectories.storage.store import ShardedStore, UnitStore, open_units
from tests.trajectories.builders import INFO, SPACES, episode, table

NAMED = replace(INFO, behaviour_probabilities=True)
CHOICES = Spaces.with_discrete_actions((-1.0,), (1.0,), 3)
ORIGIN = Path("raw")


def with_probabilities(rows: pa.Table, values: np.ndarray | None = None) -> pa.Table:
    """Random ones where none are given; no two agree by chance."""
    if values is None:
        values = np.random.default_rng(rows.num_rows).uniform(0.1, 3, rows.num_rows)
    return rows.append_column(pa.field("behaviour_probability", pa.float32()), pa.array(values.astype(np.float32)))


def write(folder: Path, rows: pa.Table, rows_per_group: int = 2**16) -> Path:
    folder.mkdir(exist_ok=True)
    named = "behaviour_probability" in rows.column_names
    with PartWriter(folder, SPACES, rows_per_group, behaviour_probabilities=named) as writer:
        writer.write(rows)
        writer.finish(NAMED if named else INFO)
    return folder


def people(lengths: list[list[int]]) -> pa.Table:
    """One unit for each entry, with trajectories of these lengths."""
    flat = [(f"{u:03d}", length) for u, person in enumerate(lengths) for length in person]
    content = [episode(length, i) for i, (_, length) in enumerate(flat)]
    return table(content, [unit for unit, _ in flat], [f"{i:03d}" for i in range(len(flat))])


def slowly(rows: pa.Table, units: list[int]) -> Episodes:
    """`Episodes.read`, row by row from the table."""
    of_units = [[row for row in rows.to_pylist() if row["unit_id"] == f"{unit:03d}"] for unit in units]
    most = max(len(own) for own in of_units)
    padded = [own + [own[0]] * (most - len(own)) for own in of_units]
    own = torch.tensor([[m < len(each) for m in range(most)] for each in of_units])

    def column(name: str) -> torch.Tensor:
        return torch.tensor([[row[name] for row in each] for each in padded], dtype=torch.float64)

    step = column("step").long().where(own, 0)
    ends = [
        [m + 1 == len(each) or (m < len(each) and each[m + 1]["step"] == 0) for m in range(most)] for each in of_units
    ]
    named = "behaviour_probability" in rows.column_names
    return Episodes(
        observation=column("observation"),
        action=column("action"),
        reward=column("reward"),
        following=column("next_observation"),
        terminated=column("terminated") > 0,
        step=step,
        begins=own & (step == 0),
        ends=torch.tensor(ends) & own,
        own=own,
        probability=column("behaviour_probability") if named else None,
    )


def check_equal(found: Episodes, true: Episodes) -> None:
    for name in Episodes.__dataclass_fields__:
        one, other = getattr(found, name), getattr(true, name)
        assert (one is None) == (other is None), name
        if one is None:
            continue
        assert (one.shape, one.dtype) == (other.shape, other.dtype), name
        if name == "following":  # stored as a difference of float32
            assert torch.allclose(one, other, atol=1e-6)
        else:
            assert torch.equal(one, other), name


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_both_stores_read_the_same_episodes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6))
    rows = people(lengths)
    if data.draw(st.booleans()):
        rows = with_probabilities(rows)
    folder = write(tmp_path_factory.mktemp("part"), rows, data.draw(st.sampled_from([1, 8, 100])))
    keep = data.draw(st.sampled_from([0, 300, 10**6]))
    whole = UnitStore.open(folder)
    stores: list[EpisodeSource] = [whole, ShardedStore(folder, keep, lambda table: None, episodes=True)]
    for _ in range(3):
        units = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5))
        for store in stores:
            check_equal(Episodes.read(store, torch.tensor(units)), slowly(rows, units))
    # Parts for several processes: each unit is in one, and every part is shown all rows.
    parts = data.draw(st.integers(1, min(3, len(lengths))))
    for bound in (0, 10**6):
        seen: list[int] = []
        for part in range(parts):
            shown: list[int] = []
            own = open_units(
                folder,
                bound,
                lambda table: shown.append(table.num_rows),  # noqa: B023
                slice(part, None, parts),
                episodes=True,
            )
            assert isinstance(own, UnitStore if bound else ShardedStore)
            assert sum(shown) == rows.num_rows
            check_equal(Episodes.read(own, torch.arange(own.units)), slowly(rows, own.numbers.tolist()))
            seen += own.numbers.tolist()
        assert sorted(seen) == list(range(len(lengths)))
    none = torch.empty(0, dtype=torch.int64)  # Poisson sampling draws an empty cohort now and then
    for store in stores:
        assert [len(each) for each in store.transitions(none, torch.empty(0, 5, dtype=torch.int64))] == [0, 0]


def test_steps_past_the_end_are_the_units_own_last_row(tmp_path: Path) -> None:
    rows = with_probabilities(people([[2, 3], [4], [1]]))
    folder = write(tmp_path, rows)
    units, steps = torch.tensor([2, 0]), torch.tensor([[0, 1, 9], [1, 2, 9]])
    stated = rows["behaviour_probability"].to_pylist()
    for store in (UnitStore.open(folder), ShardedStore(folder, 0, episodes=True)):
        assert store.begins(units, steps).tolist() == [[True, True, True], [False, True, False]]
        found = store.behaviour_probabilities(units, steps)
        assert found is not None
        assert found.tolist() == [[stated[9]] * 3, [stated[1], stated[2], stated[4]]]


def test_training_reads_no_more_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, with_probabilities(people([[2, 3], [4]])))
    asked: list[list[str]] = []
    original = PartReader.row_groups

    def noted(self: PartReader, part: int, groups: list[int], columns: list[str], **options: bool) -> pa.Table:
        asked.append(columns)
        return original(self, part, groups, columns, **options)

    monkeypatch.setattr(PartReader, "row_groups", noted)
    plain, full = ShardedStore(folder, 10**6), ShardedStore(folder, 10**6, episodes=True)
    units, steps = torch.tensor([0]), torch.zeros(1, 1, dtype=torch.int64)
    for store in (plain, full):
        store.transitions(units, steps)
    few = ["observation", "action", "reward", "next_observation", "terminated"]
    assert asked == [few, [*few, "step", "behaviour_probability"]]
    full.begins(units, steps)
    full.behaviour_probabilities(units, steps)
    assert len(asked) == 2, "what was just read is held"
    assert plain._ring.extras.nbytes == 0
    for ask in (plain.begins, plain.behaviour_probabilities):
        with pytest.raises(ValueError, match="opened without episodes=True"):
            ask(units, steps)
    assert "_begins" not in vars(UnitStore.open(folder)), "made when first asked for"


@pytest.mark.parametrize("keep_bytes", [0, 10**6])
def test_a_store_refuses_what_is_not_finite(tmp_path: Path, keep_bytes: int) -> None:
    folder = write(tmp_path, with_probabilities(people([[2]]), np.array([0.5, np.inf])))
    with pytest.raises(PipelineError, match="found non-finite numbers"):
        open_units(folder, keep_bytes, lambda table: None)


# The schema, and what tells datasets apart


def test_a_dataset_without_them_says_nothing_about_them() -> None:
    assert "behaviour_probabilities" not in INFO.to_json()
    assert "behaviour_probabilities" not in Manifest(INFO, 1, 1).to_json()
    assert DatasetInfo.from_json(NAMED.to_json()) == NAMED
    assert arrow_schema(SPACES, behaviour_probabilities=True).remove(9) == arrow_schema(SPACES)


def test_they_are_part_of_the_fingerprint_and_not_of_who_people_are() -> None:
    rows = people([[2, 3], [4]])
    values = np.linspace(0.1, 0.9, rows.num_rows)
    changed = values.copy()
    changed[3] += 0.01
    prints, members = set(), set()
    for content in (rows, with_probabilities(rows, values), with_probabilities(rows, changed)):
        fingerprint = Fingerprint(SPACES, behaviour_probabilities=content is not rows)
        fingerprint.update(content)
        prints.add(fingerprint.keyed(bytes(32)))
        membership = Membership(bytes(32), "small")
        membership.update(content)
        members.add(membership.to_bytes())
    assert (len(prints), len(members)) == (3, 1)


# The checks of rows


def refusal(spaces: Spaces, rows: pa.Table) -> str:
    with pytest.raises(PipelineError) as error:
        RowCheck(spaces, ORIGIN, behaviour_probabilities=True)(rows)
    return str(error.value)


@pytest.mark.parametrize("value", [0.0, -0.25, np.nan, np.inf])
def test_values_out_of_range_are_named_by_place(value: float) -> None:
    rows = people([[2], [3]])
    values = np.full(5, 2.5)
    RowCheck(SPACES, ORIGIN, behaviour_probabilities=True)(with_probabilities(rows, values))  # a density may exceed 1
    values[3] = value
    assert refusal(SPACES, with_probabilities(rows, values)) == (
        "raw: trajectory number 2, step 1: found a behaviour_probability out of range; allowed: a finite density above "
        "0; correct the log, or drop the trajectory"
    )


def test_the_probability_of_a_discrete_action_is_at_most_1() -> None:
    rows = people([[2]]).select(["unit_id", "trajectory_id", "step", "reward", "terminated", "truncated"])
    seen = pa.FixedSizeListArray.from_arrays(pa.array([0.0, 0.5], pa.float32()), 1)
    for name, column in (("observation", seen), ("next_observation", seen), ("action", pa.array([0, 2], pa.int32()))):
        rows = rows.append_column(name, column)
    check = RowCheck(CHOICES, ORIGIN, behaviour_probabilities=True)
    check(with_probabilities(rows, np.array([1.0, 1e-9])))
    found = refusal(CHOICES, with_probabilities(rows, np.array([1.0, 1.0001])))
    assert "trajectory number 1, step 1" in found
    assert "allowed: a probability above 0 and at most 1" in found
