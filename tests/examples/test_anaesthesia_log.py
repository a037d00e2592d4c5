"""The log of the example is what its dataset's file declares."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primorl.config.datasets import TabularDataset, checked
from primorl.data.ingestion import ingest
from primorl.data.sources import source_of
from primorl.data.storage.rows import PartReader
from tests.projects import project_settings

pytest.importorskip("anesthesim")


def test_the_log_is_read_as_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.anaesthesia_log import FILE, simulate

    monkeypatch.chdir(tmp_path)
    for folder in (FILE.parent, Path("raw"), Path(".primorl")):
        folder.mkdir(parents=True)
    log = simulate(patients=4)
    pq.write_table(log, FILE)
    entry = checked(TabularDataset, project_settings("propofol")["chosen"])
    source_of("propofol", entry).collect(Path("raw"))
    ingest(Path("raw"), Path("trajectories"), "propofol", entry)
    table = pa.concat_tables(PartReader(Path("trajectories"), made_by="ingest").tables())
    assert table["unit_id"].combine_chunks().unique().to_pylist() == [f"{i:012d}" for i in range(4)]
    assert table["reward"].to_pylist() == log["reward"].cast(pa.float32()).to_pylist()
