import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import pipeline.trajectories.store as module
from pipeline.errors import PipelineError
from pipeline.trajectories import parquet
from pipeline.trajectories.parquet import PartWriter
from pipeline.trajectories.recording import Episode
from pipeline.trajectories.store import UnitStore
from tests.trajectories.builders import INFO, SPACES, episode, episodes, table


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
    targets = np.hstack([observations[1:] - observations[:-1], rewards])
    return torch.from_numpy(inputs), torch.from_numpy(targets)


@pytest.fixture(params=[2**16, 4], ids=["one row group", "many row groups"])
def content(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Episode]:
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", request.param)
    return episodes(9)


def test_every_transition_of_every_unit_is_there(tmp_path: Path, content: list[Episode]) -> None:
    """The last step is kept, and no transition leads from one episode into another."""
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
    """A cohort is padded to its longest unit: what stands there must be the unit's own data."""
    opened = store(tmp_path, content)
    units = torch.tensor([4, 0, 8])
    inputs, _ = opened.transitions(units, torch.arange(50).expand(3, 50))
    assert inputs.shape == (3, 50, 4)
    for row, unit in enumerate(units.tolist()):
        own = expected(content[unit])[0]
        assert torch.equal(inputs[row, len(own) - 1 :], own[-1].expand(51 - len(own), 4))


def test_an_empty_cohort_is_an_empty_answer(tmp_path: Path, content: list[Episode]) -> None:
    """Poisson sampling draws it now and then; it must not crash."""
    none = torch.empty(0, dtype=torch.int64)
    opened = store(tmp_path, content)
    inputs, targets = opened.transitions(none, torch.empty(0, 5, dtype=torch.int64))
    assert inputs.shape == (0, 5, 4)
    assert targets.shape == (0, 5, 4)
    assert opened.lengths(none).shape == (0,)


def test_a_unit_with_several_trajectories_is_one_unit(tmp_path: Path) -> None:
    """Clipping bounds a unit, not a trajectory: both trajectories of one person belong together."""
    opened = store(tmp_path, [episode(3, 1), episode(2, 2), episode(4, 3)], units=["a", "a", "b"])
    assert opened.units == 2
    assert opened.lengths(torch.arange(2)).tolist() == [5, 4]
    assert opened.first_observations().shape == (3, 3)


@pytest.mark.parametrize("names", [["b", "a"], ["a", "b", "a"]])
def test_units_out_of_order_are_refused_and_not_named(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(PipelineError, match="units are out of order or appear twice") as wrong:
        store(tmp_path / "partition", [episode(2, i) for i in range(len(names))], units=[f"person-{n}" for n in names])
    assert "person" not in str(wrong.value)


def test_missing_damaged_and_non_finite_data_is_refused(tmp_path: Path) -> None:
    """The message reaches a terminal outside the trust boundary: no value, no name in it."""
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


def test_the_store_knows_nothing_of_training() -> None:
    """The stage joins store and training; a path of imports would open a second door to the data."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name and name.startswith("pipeline")} == {
        "pipeline.errors",
        "pipeline.trajectories.parquet",
        "pipeline.trajectories.schema",
    }
