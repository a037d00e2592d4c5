"""The logs are what their entries declare, and their simulators are what made them."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.log import Box
from primorl.config.datasets import TabularDataset, checked
from primorl.data.ingestion import ingest
from primorl.data.sources import source_of
from primorl.data.storage.rows import PartReader


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
    """So bounds, categories, ends and ids are those that the entry declares; no recipe helps."""
    monkeypatch.chdir(tmp_path)
    log = LOGS[name]
    assert not log.entry("log")["recipe"]
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
