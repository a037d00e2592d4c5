import base64
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.project.errors import PipelineError
from primorl.trajectories.sources.minari.writing import Episode
from primorl.trajectories.storage import parquet
from primorl.trajectories.storage.parquet import PartWriter
from primorl.trajectories.storage.store import ShardedStore, UnitStore, open_units
from tests.trajectories.builders import INFO, SPACES, episode, episodes, table


def write(folder: Path, rows: pa.Table, rows_per_group: int = 2**16) -> Path:
    folder.mkdir(exist_ok=True)
    with PartWriter(folder, SPACES, rows_per_group) as writer:
        writer.write(rows)
        writer.finish(INFO)
    return folder


def store(folder: Path, content: list[Episode], units: list[str] | None = None) -> UnitStore:
    folder.mkdir(exist_ok=True)
    with PartWriter(folder, SPACES) as writer:
        names = [f"{i:03d}" for i in range(len(content))]
        for i, item in enumerate(content):
            writer.write(table([item], units=[units[i] if units else names[i]], names=[names[i]]))
        writer.finish(INFO)
    return UnitStore.open(folder)


def expected(item: Episode) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one episode, written out."""
    observations, actions = np.stack(item.observations), np.stack(item.actions)
    rewards = np.array(item.rewards, dtype=np.float32)[:, None]
    inputs = np.hstack([observations[:-1], actions])
    ended = np.zeros_like(rewards)
    ended[-1] = item.terminated
    targets = np.hstack([observations[1:] - observations[:-1], rewards, ended])
    return torch.from_numpy(inputs), torch.from_numpy(targets)


@pytest.fixture(params=[2**16, 4], ids=["one row group", "many row groups"])
def content(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Episode]:
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", request.param)
    return episodes(9)


def test_every_transition_of_every_unit_is_there(tmp_path: Path, content: list[Episode]) -> None:
    opened = store(tmp_path, content)
    assert (opened.units, opened.observation_size, opened.action_size) == (9, 3, 1)
    assert opened.info == INFO
    assert opened.lengths(torch.arange(9)).tolist() == [len(item.rewards) for item in content]
    for unit, item in enumerate(content):
        steps = torch.arange(len(item.rewards))[None]
        inputs, targets = opened.transitions(torch.tensor([unit]), steps)
        for found, true in zip((inputs[0], targets[0]), expected(item), strict=True):
            assert torch.equal(found, true)
    inputs, targets = opened.flat()
    assert torch.equal(inputs, torch.cat([expected(item)[0] for item in content]))
    assert torch.equal(targets, torch.cat([expected(item)[1] for item in content]))
    assert inputs.is_contiguous()
    assert inputs.dtype == targets.dtype == torch.float32
    firsts = torch.from_numpy(np.stack([item.observations[0] for item in content]))
    assert torch.equal(opened.first_observations(), firsts)
    ends = torch.tensor(np.cumsum([len(item.rewards) for item in content]) - 1)
    assert opened.terminated()[ends].tolist() == [item.terminated for item in content]
    assert int(opened.terminated().sum()) == sum(item.terminated for item in content)


def test_padding_never_reads_another_unit(tmp_path: Path, content: list[Episode]) -> None:
    opened = store(tmp_path, content)
    units = torch.tensor([4, 0, 8])
    inputs, _ = opened.transitions(units, torch.arange(50).expand(3, 50))
    assert inputs.shape == (3, 50, 4)
    for row, unit in enumerate(units.tolist()):
        own = expected(content[unit])[0]
        assert torch.equal(inputs[row, len(own) - 1 :], own[-1].expand(51 - len(own), 4))


@pytest.mark.parametrize(("names", "part"), [("ba", 0), ("aba", 0), ("acbd", 0), ("acbd", 1)])
def test_units_out_of_order_are_refused_by_every_part_and_not_named(tmp_path: Path, names: str, part: int) -> None:
    with PartWriter(tmp_path, SPACES) as writer:
        for number, name in enumerate(names):
            writer.write(table([episode(2, number)], units=[f"person-{name}"], names=[f"{number}"]))
        writer.finish(INFO)
    with pytest.raises(PipelineError, match="units are out of order or appear twice") as wrong:
        UnitStore.open(tmp_path, own=slice(part, None, 2))
    assert "person" not in str(wrong.value)


def test_missing_damaged_and_non_finite_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="found no Parquet files; run `dvc repro partition`"):
        UnitStore.open(tmp_path / "nothing")
    bad = episode(3, 1)
    bad.rewards[1] = float("nan")
    with pytest.raises(PipelineError, match="found non-finite numbers"):
        store(tmp_path / "nan", [bad])
    store(tmp_path / "good", [episode(3, 1)])
    part = tmp_path / "good" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(PipelineError, match="not a readable Parquet file"):
        UnitStore.open(tmp_path / "good")


def sharded(folder: Path, keep_bytes: int = 0) -> ShardedStore:
    return ShardedStore(folder, keep_bytes, watch=lambda table: None)


def test_a_cohort_touches_its_own_row_groups_only(tmp_path: Path) -> None:
    write(tmp_path, table([episode(50, i) for i in range(4)]), 1)
    store = ShardedStore(tmp_path, keep_bytes=0)
    part = tmp_path / "part-00000.parquet"
    place = pq.read_metadata(part).row_group(2).column(5)
    content = bytearray(part.read_bytes())
    content[place.data_page_offset + 60 : place.data_page_offset + 100] = bytes(40)
    part.write_bytes(content)
    steps = torch.arange(50).expand(3, 50)
    store.transitions(torch.tensor([0, 1, 3]), steps)
    with pytest.raises(PipelineError, match=r"part-00000\.parquet: row groups 0 to 2: found corrupt pages; run"):
        store.transitions(torch.tensor([0, 1, 2]), steps)


def test_what_stays_in_memory_is_bounded(tmp_path: Path) -> None:
    write(tmp_path, table([episode(50, i) for i in range(6)]), 1)
    store = sharded(tmp_path, keep_bytes=4000)
    first = torch.zeros(1, 1, dtype=torch.int64)
    for unit in (0, 1, 2, 3, 3, 5):
        store.transitions(torch.tensor([unit]), first)
        assert len(store._ring) <= 2
        assert store._ring.inputs.nbytes + store._ring.targets.nbytes <= 4000
    store.transitions(torch.arange(6), first.expand(6, 1))
    assert len(store._ring) == 6, "a cohort is held as a whole, whatever it takes"


def test_the_bound_decides_where_the_units_are(tmp_path: Path) -> None:
    seen: list[int] = []
    write(tmp_path, table(episodes(9)))
    rows = UnitStore.open(tmp_path).flat()[0].shape[0]
    size = rows * 4 * (4 + 5)
    assert isinstance(open_units(tmp_path, size, lambda table: seen.append(table.num_rows)), UnitStore)
    assert isinstance(open_units(tmp_path, size - 1, lambda table: seen.append(table.num_rows)), ShardedStore)
    assert seen == [rows, rows]
    own = slice(0, None, 3)  # a part may fit where the whole does not
    assert isinstance(open_units(tmp_path, size - 1, lambda table: None, own), UnitStore)


def noted(*rows: list[int]) -> bytes:
    return b".".join(base64.b64encode(np.array(part, "<i8").tobytes()) for part in rows)


def test_an_index_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write(tmp_path, table(episodes(5)))
    part = tmp_path / "part-00000.parquet"
    good = pq.read_table(part)
    for index in (b"", noted([3, 3], [6]), noted([4, 1, 7, 4, 1], [21]), noted([1, 4, 7, 3], [15, 0])):
        metadata = good.schema.metadata | {b"primorl.units": index}
        pq.write_table(good.replace_schema_metadata(metadata), part)
        with pytest.raises(PipelineError, match="no index of its units, or one that does not fit"):
            ShardedStore(tmp_path, 0)
    swapped = noted(list(reversed([len(item.rewards) for item in episodes(5)])), [good.num_rows])
    pq.write_table(good.replace_schema_metadata(good.schema.metadata | {b"primorl.units": swapped}), part)
    with pytest.raises(PipelineError, match="units are out of order"):
        sharded(tmp_path)


def test_no_unit_at_all_is_a_store_of_none(tmp_path: Path) -> None:
    with PartWriter(tmp_path, SPACES) as writer:
        writer.finish(INFO)
    opened = UnitStore.open(tmp_path)
    assert (opened.units, opened.flat()[0].shape, opened.flat()[1].shape) == (0, (0, 4), (0, 5))
    assert opened.first_observations().shape == (0, 3)


@pytest.mark.parametrize("keep_bytes", [0, 10**6])
def test_memory_that_runs_out_names_the_setting(
    tmp_path: Path, keep_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, table(episodes(5)))

    def full(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of 1073741824 bytes failed")

    with pytest.raises(PipelineError, match=r"params\.yaml: compute\.data_mb: set a smaller number") as wrong:
        open_units(tmp_path, keep_bytes, full)
    assert "1073741824" not in str(wrong.value)
    opened = open_units(tmp_path, keep_bytes, lambda table: None)
    assert opened.units == 5
    if isinstance(opened, ShardedStore):
        monkeypatch.setattr(opened._ring, "place", full)
        with pytest.raises(PipelineError, match=r"compute\.data_mb"):
            opened.transitions(torch.arange(5), torch.zeros(5, 1, dtype=torch.int64))


@settings(deadline=None)
@given(data=st.data())
def test_next_observations_need_not_be_the_following_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    content = table([episode(length, i) for i, length in enumerate(lengths)])
    after = np.stack(content["next_observation"].to_pylist()).astype(np.float32)
    for row in data.draw(st.lists(st.integers(0, len(after) - 1), max_size=5)):
        after[row, 1] = np.nextafter(after[row, 1], np.float32(9))
    place = content.column_names.index("next_observation")
    column = pa.FixedSizeListArray.from_arrays(pa.array(after.ravel()), 3)
    content = content.set_column(place, content.schema.field(place), column)
    folder = tmp_path_factory.mktemp("part")
    inputs, targets = UnitStore.open(write(folder, content)).flat()
    observation = np.stack(content["observation"].to_pylist()).astype(np.float32)
    assert np.array_equal(inputs[:, :3].numpy(), observation)
    assert np.array_equal(targets[:, :3].numpy(), after - observation)
