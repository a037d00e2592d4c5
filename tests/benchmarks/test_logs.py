"""The zoo's logs are what their entries declare, and their simulators are what made them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.log import Box
from primorl.config.datasets import TabularDataset, checked
from primorl.trajectories.ingestion import ingest
from primorl.trajectories.sources import source_of
from primorl.trajectories.storage.parquet import PartReader


@pytest.mark.parametrize("name", LOGS)
def test_ingest_takes_every_row_of_a_log(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So bounds, categories, ends and ids are those that the entry declares; no setting is suggested."""
    monkeypatch.chdir(tmp_path)
    log = LOGS[name]
    log.write(Path("log"), 12, seed=3)
    entry = log.entry("log")
    assert not any(entry["suggested"].values())
    dataset = checked(TabularDataset, entry)
    source_of(name, dataset).collect(Path("raw"))
    ingest(Path("raw"), Path("trajectories"), name, dataset)
    kept = sum(part.num_rows for part in PartReader(Path("trajectories"), made_by="ingest").tables(columns=["unit_id"]))
    logged = pq.read_table("log/log.parquet")
    assert kept == len(logged) - logged["reward"].null_count
    low, high = log.reward
    rewards = logged["reward"].drop_null().to_numpy()
    assert low <= rewards.min() <= rewards.max() <= high
    if isinstance(log.action, Box):
        for column, lowest, highest in zip(log.action.columns, log.action.low, log.action.high, strict=True):
            actions = logged[column].drop_null().to_numpy()
            assert lowest <= actions.min() <= actions.max() <= highest


def test_the_simulator_is_the_one_that_made_the_log(tmp_path: Path) -> None:
    """The mean over people of the mean over a person's trajectories agrees; another policy's value does not."""
    log = LOGS["desk"]
    log.write(tmp_path, 400, seed=3)
    rows = {name: np.array(values) for name, values in pq.read_table(tmp_path / "log.parquet").to_pydict().items()}
    person, trajectory = rows[log.unit], rows["trajectory"]
    reward = np.where(rows["reward"] == np.array(None), 0, rows["reward"]).astype(float)
    each = [reward[person == i].sum() / len(set(trajectory[person == i])) for i in np.unique(person)]
    truth = log.behaviour_returns(2000, seed=0)
    spread = np.hypot(np.std(each) / len(each) ** 0.5, truth.std() / len(truth) ** 0.5)
    assert abs(np.mean(each) - truth.mean()) < 4 * spread
    assert abs(np.mean(each) - log.random_returns(2000, seed=0).mean()) > 8 * spread
