from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from primorl.project.errors import PipelineError
from primorl.trajectories.storage import parquet
from primorl.trajectories.storage.parquet import PartReader, PartWriter
from tests.trajectories.builders import INFO, SPACES, episodes, table


def write(folder: Path, rows: pa.Table | None = None) -> pa.Table:
    rows = table(episodes(12)) if rows is None else rows
    folder.mkdir(exist_ok=True)
    with PartWriter(folder, SPACES) as writer:
        for unit in sorted(set(rows["unit_id"].to_pylist())):
            writer.write(rows.filter(pc.equal(rows["unit_id"], unit)))
        writer.finish(INFO)
    return rows


def test_parts_hold_whole_units_and_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", 8)
    monkeypatch.setattr(parquet, "_ROWS_PER_PART", 16)
    rows = write(tmp_path)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 2
    for part in parts:
        assert b"primorl" in pq.read_schema(part).metadata
        assert b"primorl" in pq.read_metadata(part).metadata
    reader = PartReader(tmp_path, made_by="ingest")
    assert reader.info == INFO
    assert reader.rows == rows.num_rows
    groups = list(reader.tables())
    assert pa.concat_tables(groups).equals(rows)
    seen = [set(group["unit_id"].to_pylist()) for group in groups]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 12


def test_missing_truncated_and_altered_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="found no Parquet files; run `dvc repro ingest`"):
        PartReader(tmp_path, made_by="ingest")
    write(tmp_path)
    part = tmp_path / "part-00000.parquet"
    good = part.read_bytes()
    part.write_bytes(good[: len(good) // 2])
    with pytest.raises(PipelineError, match=r"part-00000\.parquet: not a readable Parquet file"):
        PartReader(tmp_path, made_by="ingest")
    spoiled = bytearray(good)
    spoiled[300:340] = bytes(40)
    part.write_bytes(spoiled)
    with pytest.raises(PipelineError, match="row group 0: found corrupt pages"):
        list(PartReader(tmp_path, made_by="ingest").tables())


def test_foreign_parts_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part-00001.parquet")
    with pytest.raises(PipelineError, match=r"part-00001.parquet: Parquet metadata"):
        PartReader(tmp_path, made_by="ingest")
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(INFO.to_metadata()), tmp_path / "part-00001.parquet")
    with pytest.raises(PipelineError, match="columns are not those"):
        PartReader(tmp_path, made_by="ingest")
