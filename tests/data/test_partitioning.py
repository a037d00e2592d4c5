import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primorl.base.errors import PipelineError
from primorl.data.identity.consent import HashDraw
from primorl.data.identity.membership import (
    DIGEST_BYTES,
    NOBODY,
    DuplicateCheck,
    Membership,
    project_secret,
)
from primorl.data.ingestion import ingest
from primorl.data.partitioning import partition
from primorl.data.storage import parquet
from primorl.data.storage.parquet import PartReader
from primorl.data.storage.schema import Manifest
from primorl.paid.accounts import dataset_version
from tests.data.builders import (
    INFO,
    entry,
    episode,
    episodes,
    snapshot,
    write_parts,
    write_raw,
)

SAID = """
dataset environment unit population trajectories_per_person spaces horizon termination duplicates
dataset_fingerprint observation_size action_size private_units public_units public_by secret_check
"""
MANIFEST = Path("partitions/manifest.json")


@pytest.fixture
def ingested(project: Path, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """Twenty units in ``trajectories/``, in many row groups."""
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", 8)
    write_raw(Path("raw"), episodes(20))
    info, rows = ingest(Path("raw"), Path("trajectories"), "small", entry()), read("trajectories")
    write_parts(Path("trajectories"), rows, info=info, rows_per_group=8)
    return rows


def is_public(unit: str, public_fraction: float) -> bool:
    return bool(HashDraw(public_fraction)(pa.array([unit]))[0])


def run(public_fraction: float = 0.4) -> Manifest:
    return partition(Path("trajectories"), Path("partitions"), public_fraction=public_fraction)


def read(folder: str) -> pa.Table:
    return pa.concat_tables(
        [INFO.schema.empty_table(), *PartReader(Path(folder), made_by="partition").tables()]
    )


def test_the_partitions_are_disjoint_and_together_everything(ingested: pa.Table) -> None:
    manifest = run()
    public = pa.array([is_public(unit, 0.4) for unit in ingested["unit_id"].to_pylist()])
    assert read("partitions/public").equals(ingested.filter(public))
    assert read("partitions/private").equals(ingested.filter(pc.invert(public)))
    assert manifest.public_units == pc.count_distinct(ingested.filter(public)["unit_id"]).as_py()
    assert manifest.private_units == 20 - manifest.public_units
    assert 0 < manifest.public_units < 20
    for side in ("private", "public"):
        assert PartReader(Path("partitions") / side, made_by="partition").info == manifest.info
    listed = Membership(project_secret(), manifest.info.population)
    listed.update(read("partitions/private"))
    assert Path("partitions/units.bin").read_bytes() == listed.to_bytes()
    assert len(listed.to_bytes()) == 2 * DIGEST_BYTES * manifest.private_units


def test_the_manifest_says_public_things_only(ingested: pa.Table) -> None:
    manifest = run()
    assert set(json.loads(MANIFEST.read_text())) == set(SAID.split())
    assert Manifest.load(MANIFEST) == manifest
    MANIFEST.write_text("{}")
    with pytest.raises(PipelineError, match="not a manifest"):
        Manifest.load(MANIFEST)


def test_without_a_public_split_its_part_is_there_and_empty(ingested: pa.Table) -> None:
    manifest = run(public_fraction=0)
    assert (manifest.public_units, manifest.private_units) == (0, 20)
    assert read("partitions/private").equals(ingested)
    assert read("partitions/public").num_rows == 0
    assert Path("partitions/public_units.bin").read_bytes() == NOBODY, (
        "or DVC warns of an empty file at every stage"
    )
    assert dataset_version(manifest, Path("partitions")).public == b""


def batched(digests: bytes) -> list[bytes]:
    return [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)]


def test_equal_rows_of_different_people_are_allowed_where_the_entry_says_so(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(Path("raw"), [episode(5, 1)] * 20)
    with monkeypatch.context() as patch:
        patch.setattr(DuplicateCheck, "finish", lambda self: None)  # it would refuse them before
        ingest(Path("raw"), Path("trajectories"), "small", entry())
    with pytest.raises(PipelineError, match="rows are also those of another unit"):
        run()
    assert not Path("partitions/private").exists()
    ingest(Path("raw"), Path("trajectories"), "small", entry(ingestion={"duplicates": "allow"}))
    manifest = run()
    assert manifest.private_units + manifest.public_units == 20
    private, public = (
        set(batched(Path(f"partitions/{name}.bin").read_bytes()))
        for name in ("units", "public_units")
    )
    assert len(private) == manifest.private_units + 1, "the ledger knows private rows all the same"
    assert private.isdisjoint(public), "or every split would publish what was charged as private"


@given(
    present=st.sets(st.text(min_size=1), min_size=1),
    extra=st.text(min_size=1),
    fraction=st.floats(0.01, 0.99),
)
def test_a_unit_moves_no_other(present: set[str], extra: str, fraction: float) -> None:
    def public(units: set[str]) -> set[str]:
        drawn = HashDraw(fraction)(pa.array(sorted(units)))
        return {unit for unit, chosen in zip(sorted(units), drawn, strict=True) if chosen}

    assert public(present | {extra}) - {extra} == public(present) - {extra}


def test_the_draw_is_uniform_and_nested() -> None:
    units = pa.array([str(i) for i in range(20_000)])
    few, many = (HashDraw(share)(units) for share in (0.1, 0.3))
    assert (many | ~few).all()
    assert abs(few.sum() - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5
    assert abs(many.sum() - 6000) < 5 * (20_000 * 0.3 * 0.7) ** 0.5


def test_what_cannot_be_split_is_refused_and_the_last_split_stays(ingested: pa.Table) -> None:
    info = run().info
    before = snapshot(Path("partitions"))
    for fraction, side in ((1e-9, "public"), (1 - 1e-9, "private")):
        with pytest.raises(PipelineError, match=f"partition.public_fraction: .* no {side} unit"):
            run(public_fraction=fraction)
    less = pc.subtract(ingested["reward"], pa.scalar(1, pa.float32()))
    changed = ingested.set_column(5, "reward", less)
    write_parts(Path("trajectories"), changed.cast(ingested.schema), info=info)
    with pytest.raises(PipelineError, match="not the ingested ones"):
        run()
    write_parts(Path("trajectories"), ingested, info=info)
    run()
    Path(".primorl/secret").write_bytes(bytes(32))
    with pytest.raises(PipelineError, match="not the ingested ones"):
        run()
    assert snapshot(Path("partitions")) == before
