import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primorl.project.errors import PipelineError
from primorl.setup.accounts import dataset_version
from primorl.trajectories.identity.consent import HashDraw
from primorl.trajectories.identity.fingerprint import project_secret
from primorl.trajectories.identity.membership import DIGEST_BYTES, NOBODY, DuplicateCheck, Membership
from primorl.trajectories.ingestion import ingest
from primorl.trajectories.partitioning import check_disjoint, partition
from primorl.trajectories.storage import parquet
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.parquet import PartReader
from primorl.trajectories.storage.schema import arrow_schema
from tests.trajectories.builders import SPACES, entry, episode, episodes, snapshot, table, write_parts, write_raw


@pytest.fixture(params=[2**16, 8], ids=["one row group", "many row groups"])
def ingested(project: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """Twenty units in ``trajectories/``."""
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", request.param)
    write_raw(Path("raw"), episodes(20))
    ingest(Path("raw"), Path("trajectories"), "small", entry())
    return read(Path("trajectories"))


def is_public(unit: str, public_fraction: float, salt: str) -> bool:
    return bool(HashDraw(public_fraction, salt)(pa.array([unit]))[0])


def run(public_fraction: float = 0.4, salt: str = "salt") -> Manifest:
    return partition(Path("trajectories"), Path("partitions"), public_fraction=public_fraction, salt=salt)


def read(folder: Path) -> pa.Table:
    tables = PartReader(folder, made_by="partition").tables()
    return pa.concat_tables([arrow_schema(SPACES).empty_table(), *tables])


def test_the_partitions_are_disjoint_and_together_everything(ingested: pa.Table) -> None:
    manifest = run()
    public = pa.array([is_public(unit, 0.4, "salt") for unit in ingested["unit_id"].to_pylist()])
    assert read(Path("partitions/public")).equals(ingested.filter(public))
    assert read(Path("partitions/private")).equals(ingested.filter(pc.invert(public)))
    assert manifest.public_units == pc.count_distinct(ingested.filter(public)["unit_id"]).as_py()
    assert manifest.private_units == 20 - manifest.public_units
    assert 0 < manifest.public_units < 20
    for side in ("private", "public"):
        assert PartReader(Path("partitions") / side, made_by="partition").info == manifest.info
        assert pq.read_schema(f"partitions/{side}/part-00000.parquet").names == ingested.column_names
    listed = Membership(project_secret(), manifest.info.dataset)
    listed.update(read(Path("partitions/private")))
    assert Path("partitions/units.bin").read_bytes() == listed.to_bytes()
    assert len(listed.to_bytes()) == 2 * DIGEST_BYTES * manifest.private_units


def test_the_same_rows_on_both_sides_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = [episode(5, 1)] * 20
    write_raw(Path("raw"), twice)
    monkeypatch.setattr(DuplicateCheck, "finish", lambda self: None)  # it would refuse them before
    ingest(Path("raw"), Path("trajectories"), "small", entry())
    with pytest.raises(PipelineError, match="rows are also those of another unit, and one is drawn private"):
        run()
    assert not Path("partitions/private").exists()


def test_equal_rows_of_different_people_are_allowed_where_the_entry_says_so(project: Path) -> None:
    write_raw(Path("raw"), [episode(5, 1)] * 20)
    ingest(Path("raw"), Path("trajectories"), "small", entry(ingestion={"duplicates": "allow"}))
    manifest = run()
    assert manifest.private_units + manifest.public_units == 20
    private, public = (Path(f"partitions/{name}.bin").read_bytes() for name in ("units", "public_units"))
    assert len(private) == 2 * DIGEST_BYTES * manifest.private_units, "the ledger knows private rows all the same"
    known = [{side[i : i + DIGEST_BYTES] for i in range(0, len(side), DIGEST_BYTES)} for side in (private, public)]
    assert known[0].isdisjoint(known[1]), "or every split would publish what was charged as private"


def test_without_a_public_split_its_part_is_there_and_empty(ingested: pa.Table) -> None:
    manifest = run(public_fraction=0)
    assert (manifest.public_units, manifest.private_units) == (0, 20)
    assert read(Path("partitions/private")).equals(ingested)
    assert read(Path("partitions/public")).num_rows == 0
    assert Path("partitions/public_units.bin").read_bytes() == NOBODY, "or DVC warns of an empty file at every stage"
    assert dataset_version(manifest, Path("partitions")).public == b""


def test_the_manifest_says_public_things_only(ingested: pa.Table) -> None:
    manifest = run()
    content = json.loads(Path("partitions/manifest.json").read_text())
    assert set(content) == {
        "dataset",
        "environment",
        "unit",
        "population",
        "trajectories_per_person",
        "spaces",
        "horizon",
        "termination",
        "duplicates",
        "dataset_fingerprint",
        "observation_size",
        "action_size",
        "private_units",
        "public_units",
        "public_by",
        "secret_check",
    }
    assert Manifest.load(Path("partitions/manifest.json")) == manifest
    Path("partitions/manifest.json").write_text("{}")
    with pytest.raises(PipelineError, match="not a manifest"):
        Manifest.load(Path("partitions/manifest.json"))


@given(
    present=st.sets(st.text(min_size=1), min_size=1),
    extra=st.text(min_size=1),
    fraction=st.floats(0.01, 0.99),
    salt=st.text(),
)
def test_a_unit_moves_no_other(present: set[str], extra: str, fraction: float, salt: str) -> None:
    def public(units: set[str]) -> set[str]:
        return {unit for unit in units if is_public(unit, fraction, salt)}

    assert public(present | {extra}) - {extra} == public(present) - {extra}


def test_the_draw_is_uniform_and_nested() -> None:
    units = [str(i) for i in range(20_000)]
    few, many = ({unit for unit in units if is_public(unit, share, "s")} for share in (0.1, 0.3))
    assert few < many
    assert abs(len(few) - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5
    assert abs(len(many) - 6000) < 5 * (20_000 * 0.3 * 0.7) ** 0.5


def test_an_empty_side_is_refused(ingested: pa.Table) -> None:
    run()
    before = snapshot(Path.cwd())
    for fraction, side in ((1e-9, "public"), (1 - 1e-9, "private")):
        with pytest.raises(PipelineError, match=f"partition.public_fraction: found .* leaves no {side} unit"):
            run(public_fraction=fraction)
    assert snapshot(Path.cwd()) == before


def test_changed_rows_and_another_secret_are_noticed(ingested: pa.Table) -> None:
    run()
    before = snapshot(Path("partitions"))
    changed = ingested.set_column(5, "reward", pc.subtract(ingested["reward"], pa.scalar(1, pa.float32())))
    rewrite(changed.cast(ingested.schema))
    with pytest.raises(PipelineError, match="not those that were ingested"):
        run()
    rewrite(ingested)
    run()
    Path(".primorl/secret").write_bytes(bytes(32))
    with pytest.raises(PipelineError, match="not those that were ingested"):
        run()
    assert snapshot(Path("partitions")) == before


def test_a_unit_in_both_partitions_is_found(tmp_path: Path) -> None:
    for side, names in (("private", ["a", "b"]), ("public", ["b", "c"])):
        write_parts(tmp_path / side, table(episodes(2), names=names))
    with pytest.raises(PipelineError, match=r"found a unit that is in .*public too"):
        check_disjoint(tmp_path / "private", tmp_path / "public")


def rewrite(rows: pa.Table) -> None:
    """Other rows under the same facts."""
    info = PartReader(Path("trajectories"), made_by="ingest").info
    for part in Path("trajectories").iterdir():
        part.unlink()
    write_parts(Path("trajectories"), rows, info=info)
