"""The logs are what their entries declare, and their simulators are what made them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.log import Box
from benchmarks.quality.logs.project import keep_public, write_settings
from primorl.base.paths import PARTITIONS
from primorl.config.datasets import TabularDataset, checked
from primorl.data.ingestion import ingest
from primorl.data.partitioning import partition
from primorl.data.sources import source_of
from primorl.data.storage.parquet import PartReader


def ingested(name: str, people: int) -> None:
    log = LOGS[name]
    log.write(Path("log"), people, seed=3)
    dataset = checked(TabularDataset, log.entry("log"))
    source_of(name, dataset).collect(Path("raw"))
    ingest(Path("raw"), Path("trajectories"), name, dataset)


@pytest.mark.parametrize("name", LOGS)
def test_ingest_takes_every_row_of_a_log(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So bounds, categories, ends and ids are those that the entry declares; no setting is
    suggested.
    """
    monkeypatch.chdir(tmp_path)
    log = LOGS[name]
    assert not any(log.entry("log")["suggested"].values())  # type: ignore[attr-defined]
    ingested(name, 12)
    parts = PartReader(Path("trajectories"), made_by="ingest").tables(columns=["unit_id"])
    logged = pq.read_table("log/log.parquet")
    assert sum(part.num_rows for part in parts) == len(logged) - logged["reward"].null_count
    bounds = dict(zip(["reward"], [log.reward], strict=True))
    if isinstance(log.action, Box):
        lows, highs = log.action.low, log.action.high
        bounds |= dict(zip(log.action.columns, zip(lows, highs, strict=True), strict=True))
    for column, (low, high) in bounds.items():
        values = logged[column].drop_null().to_numpy()
        assert low <= values.min() <= values.max() <= high


def test_the_simulator_is_the_one_that_made_the_log(tmp_path: Path) -> None:
    """The mean over people of the mean over a person's trajectories agrees; another policy's value
    does not.
    """
    log = LOGS["treatment"]
    log.write(tmp_path, 400, seed=3)
    rows = {
        name: np.array(values)
        for name, values in pq.read_table(tmp_path / "log.parquet").to_pydict().items()
    }
    person, trajectory = rows[log.unit], rows["trajectory"]
    reward = np.where(rows["reward"] == np.array(None), 0, rows["reward"]).astype(float)
    each = [
        reward[person == i].sum() / len(set(trajectory[person == i])) for i in np.unique(person)
    ]
    truth = log.behaviour_returns(2000, seed=0)
    spread = np.hypot(np.std(each) / len(each) ** 0.5, truth.std() / len(truth) ** 0.5)
    assert abs(np.mean(each) - truth.mean()) < 4 * spread
    assert abs(np.mean(each) - log.returns(log.best_known, 2000, seed=0).mean()) > 8 * spread


def test_public_people_alone_are_the_public_people_of_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else is in the reference's data."""
    monkeypatch.chdir(tmp_path)
    log = LOGS["titration"]
    write_settings(log, 3, {}, Path())
    ingested("titration", 60)
    partition(Path("trajectories"), PARTITIONS, public_fraction=0.2)
    public = PartReader(PARTITIONS / "public", made_by="partition").tables(columns=["unit_id"])
    people = {int(each) for part in public for each in part["unit_id"].to_pylist()}
    assert 0 < len(people) < 60
    keep_public(Path("log/log.parquet"), log.unit, Path())
    assert set(pq.read_table("log/log.parquet")[log.unit].to_pylist()) == people
