"""The zoo's logs are what their entries declare, and their simulators are what made them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.log import Box, Choice, Log
from primorl.config.datasets import TabularDataset, checked
from primorl.trajectories.ingestion import ingest
from primorl.trajectories.sources import source_of
from primorl.trajectories.storage.parquet import PartReader


def written(log: Log, folder: Path, people: int = 12) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    log.write(folder, people, seed=3)
    columns = pq.read_table(folder / "log.parquet").to_pydict()
    return log.entry(str(folder)), {name: np.array(values) for name, values in columns.items()}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_keeps_what_its_entry_declares(name: str, tmp_path: Path) -> None:
    log = LOGS[name]
    entry, rows = written(log, tmp_path)
    checked(TabularDataset, entry)
    assert not any(entry["suggested"].values())
    for column in log.observation:
        if isinstance(column, Choice):
            assert set(rows[column.column]) <= set(column.categories)
        else:
            assert column.low <= rows[column.column].min()
            assert rows[column.column].max() <= column.high
    given = rows["reward"] != np.array(None)
    reward = rows["reward"][given].astype(float)
    assert entry["bounds"]["reward"][0] <= reward.min()
    assert reward.max() <= entry["bounds"]["reward"][1]
    for i, column in enumerate(log.action.columns):
        action = rows[column][given].astype(float)
        low, high = (
            (log.action.low[i], log.action.high[i]) if isinstance(log.action, Box) else (0, log.action.count - 1)
        )
        assert low <= action.min()
        assert action.max() <= high
    assert rows["step"].max() <= log.horizon
    assert rows["trajectory"].max() < log.trajectories[1]


@pytest.mark.parametrize("name", ["boat", "pricing"])
def test_ingest_accepts_a_log(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminations and categories included."""
    monkeypatch.chdir(tmp_path)
    entry, rows = written(LOGS[name], tmp_path / "log", people=20)
    dataset = checked(TabularDataset, entry)
    source_of(name, dataset).collect(Path("raw"))
    ingest(Path("raw"), Path("trajectories"), name, dataset)
    kept = sum(part.num_rows for part in PartReader(Path("trajectories"), made_by="ingest").tables(columns=["unit_id"]))
    assert kept == (rows["reward"] != np.array(None)).sum()


@pytest.mark.parametrize("name", ["desk", "boat"])
def test_the_simulator_is_the_one_that_made_the_log(name: str, tmp_path: Path) -> None:
    """The mean over people of the mean over a person's trajectories agrees; another policy's value does not."""
    log = LOGS[name]
    _, rows = written(log, tmp_path, people=400)
    person, trajectory = rows[log.unit], rows["trajectory"]
    reward = np.where(rows["reward"] == np.array(None), 0, rows["reward"]).astype(float)
    each = [reward[person == i].sum() / len(set(trajectory[person == i])) for i in np.unique(person)]
    truth = log.behaviour_returns(2000, seed=0)
    spread = np.hypot(np.std(each) / len(each) ** 0.5, truth.std() / len(truth) ** 0.5)
    assert abs(np.mean(each) - truth.mean()) < 4 * spread
    assert abs(np.mean(each) - log.random_returns(2000, seed=0).mean()) > 8 * spread


def test_a_policy_sees_what_the_log_says_in_the_entrys_order(tmp_path: Path) -> None:
    """One dimension for each of the declared bounds, and a category's dimensions are one-hot."""
    log = LOGS["pricing"]
    _, rows = written(log, tmp_path)
    seen: list[np.ndarray] = []

    def act(observed: np.ndarray) -> np.ndarray:
        seen.append(observed)
        return np.zeros(len(observed), int)

    log.returns(act, 50, seed=0)
    bounds: Any = log.entry("")["bounds"]
    assert seen[0].shape == (50, len(bounds["observation"]["low"]))
    assert (seen[0][:, :4].sum(1) == 1).all()
    first = rows["step"] == 0
    for column, at in (("weekday", 7), ("stock", 9), ("left", 10)):
        logged = (rows[column] == "weekday") if column == "weekday" else rows[column] > 0.5
        assert logged[first].all(), "all begin on a weekday with stock and time"
        assert (seen[0][:, at] > 0.5).all()
