"""The logs are what their entries declare, and pages show what the results hold."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.quality.logs import ADVERSARIAL, LOGS
from benchmarks.speed import tables
from primorl.config.datasets import TabularDataset, validate
from tests.data.builders import collected, ingested


@pytest.mark.parametrize("name", LOGS | ADVERSARIAL)
def test_ingest_takes_every_row_of_a_log(name: str, project: Path) -> None:
    """So bounds, categories, ends and ids are those that the entry declares; no recipe helps."""
    log = (LOGS | ADVERSARIAL)[name]
    assert not log.entry("log")["recipe"]
    log.write(Path("log"), 12, seed=3)
    rows = ingested(collected(validate(TabularDataset, log.entry("log")), name), name).num_rows
    logged = pq.read_table("log/log.parquet")
    assert rows == len(logged) - logged["reward"].null_count


def test_the_pages_agree_with_the_results(tmp_path: Path) -> None:
    """The twin: a figure that was typed is replaced."""
    page = tables.DOCUMENT.read_text(encoding="utf-8")
    assert page.count("<!-- table ") == 6
    assert tables.written(page) == page
    row = {"what": "a round", "ours": 0.2, "peer": 2.0, "peer_name": "loop", "ratio": 10.0}
    one = [row | {"unit": "s", "machine": "m", "command": "c"}]
    (tmp_path / "one.json").write_text(json.dumps(one), encoding="utf-8")
    typed = "<!-- table one -->\n| a round | 0.1 s |\n<!-- end -->"
    made = tables.written(f"{typed}\n<!-- table two -->\n<!-- end -->", tmp_path)
    assert "0.1 s" not in made
    assert "| a round | 0.2 s | 2 s | 10 |" in made
    assert "Still to be made: `python -m benchmarks.speed.two`." in made
