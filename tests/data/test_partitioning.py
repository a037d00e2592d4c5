"""Rows that arrive, people who withdrew, and the split into private and public units."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.base import PipelineError
from primorl.base.files import CONSENT as FOLDER
from primorl.base.files import WITHDRAWALS
from primorl.config.datasets import TabularDataset
from primorl.data.identity.membership import (
    DIGEST_BYTES,
    NOBODY,
    DuplicateCheck,
    Fingerprint,
    IdList,
    Membership,
    draw_public,
    project_secret,
    read_ids,
)
from primorl.data.ingestion import ingest
from primorl.data.partitioning import partition
from primorl.data.storage import rows as parquet
from primorl.data.storage.rows import PartReader
from primorl.data.storage.schema import DatasetInfo, Manifest
from tests.data.builders import (
    INFO,
    SPACES,
    entry,
    episode,
    episodes,
    made,
    snapshot,
    table,
    write_parts,
    write_raw,
)
from tests.data.sources import tabular_builders

SAID = """
dataset environment unit population trajectories_per_person spaces horizon termination duplicates
dataset_fingerprint observation_size action_size private_units public_units public_by secret_check
"""
MANIFEST = Path("partitions/manifest.json")


def ingest_small(raw: str = "raw", **changes: Any) -> DatasetInfo:
    return ingest(Path(raw), Path("trajectories"), "small", entry(**changes))


@pytest.mark.parametrize(("by", "told"), [(1.0, False), (1.000005, False), (1.5, True)])
def test_observations_beyond_the_declared_space_are_told(
    project: Path, by: float, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    content = episodes(3)
    for each in content:
        each.observations[:, 1] = by * np.sign(each.observations[:, 1])
    write_raw(Path("raw"), content)
    ingest_small()
    said = "beyond the space that is declared, in observation_1; correct data or environment"
    assert (said in capsys.readouterr().err) is told


def test_every_transition_arrives_and_a_bad_one_changes_nothing(project: Path) -> None:
    """The bound on an episode's length is the environment's."""
    content = episodes(12)
    path = write_raw(Path("raw"), content)
    info = ingest_small()
    names = [f"small-v0/{i:09d}" for i in range(12)]
    assert read("trajectories").equals(table(content, names=names))
    assert made().info == info
    assert (info.horizon, info.spaces) == (200, SPACES)
    with h5py.File(path, "a") as file:
        file["episode_5/actions"][1, 0] = -3.0
    before = snapshot(project)
    with pytest.raises(PipelineError, match="trajectory number 6, step 1: found an action"):
        ingest_small()
    assert snapshot(project) == before
    assert sorted(item.name for item in project.iterdir()) == [".primorl", "raw", "trajectories"]


def withdraw(*ids: str) -> dict[str, str]:
    return {"exclude_units": withdrawn(*ids)}


def test_who_withdrew_is_gone_and_everybody_else_stays_who_they_were(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list that the entry does not name, as after going back to an earlier one, is told."""
    content = episodes(12)
    write_raw(Path("raw"), content)
    all_of_them = ingest_small().dataset_fingerprint
    info = ingest_small(ingestion=withdraw("small-v0/000000003", "", "small-v0/000000007"))
    assert info.dataset_fingerprint != all_of_them
    assert "warning" not in capsys.readouterr().err
    assert ingest_small().dataset_fingerprint == all_of_them
    assert "gone.txt: not named by ingestion.exclude_units" in capsys.readouterr().err
    ingest_small(ingestion=withdraw("small-v0/000000003", "", "small-v0/000000007"))
    left = [i for i in range(12) if i not in (3, 7)]
    names = [f"small-v0/{i:09d}" for i in left]
    assert read("trajectories").equals(table([content[i] for i in left], names=names))
    before = snapshot(Path("trajectories"))
    unknown = "small-v0/000000099"
    for ingestion, place in (
        ({"exclude_units": "data/withdrawals/absent.txt"}, r"data/withdrawals/absent\.txt: "),
        ({"exclude_units": "data/withdrawals/../elsewhere.txt"}, "elsewhere"),
        (withdraw("small-v0/000000001", unknown), r"gone\.txt: line 2: "),
    ):
        with pytest.raises(PipelineError, match=place) as wrong:
            ingest_small(ingestion=ingestion)
        assert unknown not in str(wrong.value)
    with pytest.raises(PipelineError, match="found no transitions"):
        ingest_small(ingestion=withdraw(*(f"small-v0/{i:09d}" for i in range(12))))
    assert snapshot(Path("trajectories")) == before


def test_a_list_that_a_copy_of_dvc_lacks_names_the_option_that_brings_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: in the project itself."""
    Path("params.yaml").touch()
    for place, told in ((project, False), (project / ".dvc/tmp/exps/tmpabc", True)):
        (place / WITHDRAWALS).mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(place)
        with pytest.raises(PipelineError) as wrong:
            read_ids(f"{WITHDRAWALS}/ids.txt", WITHDRAWALS, "key")
        assert (f"`--copy-paths {WITHDRAWALS}/ids.txt`" in str(wrong.value)) is told


@pytest.mark.parametrize(
    ("later", "counts"),
    [(range(20), (0, 0)), (range(2, 25), (5, 2)), (range(20, 40), (20, 20)), (range(3), (0, 17))],
)
def test_who_joined_and_who_left_between_two_versions_is_counted(
    project: Path, later: range, counts: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all units, public ones too, whatever their population is called."""
    for name, units in (("one", range(20)), ("two", later)):
        people = [f"p{unit:02d}" for unit in units]
        content = [episode(2, 100 + unit) for unit in units]
        rows, fingerprint = table(content, names=people), Fingerprint(INFO.schema)
        fingerprint.update(rows)
        version = fingerprint.keyed_digest(project_secret())
        info = replace(INFO, dataset_fingerprint=version, population=name)
        write_parts(Path(name), rows, info=info)
        partition(Path(name), Path("partitions"), public_fraction=0)
    told = "partition: {} units joined and {} left since the version before\n".format(*counts)
    assert capsys.readouterr().err == (told if any(counts) else "")


@pytest.fixture
def ingested(project: Path, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """Twenty units in ``trajectories/``, in many row groups."""
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", 8)
    write_raw(Path("raw"), episodes(20))
    info, rows = ingest(Path("raw"), Path("trajectories"), "small", entry()), read("trajectories")
    write_parts(Path("trajectories"), rows, info=info, rows_per_group=8)
    return rows


def run(public_fraction: float = 0.4) -> Manifest:
    return partition(Path("trajectories"), Path("partitions"), public_fraction=public_fraction)


def read(folder: str) -> pa.Table:
    return pa.concat_tables(
        [INFO.schema.empty_table(), *PartReader(Path(folder), made_by="partition").tables()]
    )


def test_the_partitions_are_disjoint_and_together_everything(ingested: pa.Table) -> None:
    manifest = run()
    public = pa.array(draw_public(ingested["unit_id"].combine_chunks(), 0.4))
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


def batched(digests: bytes) -> list[bytes]:
    return [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)]


def test_equal_rows_of_different_people_are_allowed_where_the_entry_says_so(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(Path("raw"), [episode(5, 1)] * 20)
    with monkeypatch.context() as patch:
        patch.setattr(DuplicateCheck, "finish", lambda self: None)  # it would refuse them before
        ingest(Path("raw"), Path("trajectories"), "small", entry())
    with pytest.raises(PipelineError, match="also those of another unit"):
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


@settings(max_examples=10, deadline=None)
@given(
    present=st.sets(st.text(min_size=1), min_size=1),
    extra=st.text(min_size=1),
    fraction=st.floats(0.01, 0.99),
)
def test_a_unit_moves_no_other(present: set[str], extra: str, fraction: float) -> None:
    def public(units: set[str]) -> set[str]:
        drawn = draw_public(pa.array(sorted(units)), fraction)
        return {unit for unit, chosen in zip(sorted(units), drawn, strict=True) if chosen}

    assert public(present | {extra}) - {extra} == public(present) - {extra}


def test_the_draw_is_uniform_and_nested() -> None:
    units = pa.array([str(i) for i in range(20_000)])
    few, many = (draw_public(units, share) for share in (0.1, 0.3))
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


def log(exclude: str | None = None) -> TabularDataset:
    """Two visits of two rows for each of four people, in ``raw/log.csv``, people not in order."""
    rows = [
        tabular_builders.row(who, visit, time, x=float(i), left=time == 1)
        for i, who in enumerate(("dan", "cid", "bob", "ann"))
        for visit in (0, 1)
        for time in (0, 1)
    ]
    Path("raw").mkdir(exist_ok=True)
    pacsv.write_csv(pa.Table.from_pylist(rows), "raw/log.csv")
    return tabular_builders.entry(
        ingestion={"duplicates": "allow", "exclude_units": exclude}, sorted=False
    )


def units(side: str) -> set[str]:
    tables = PartReader(Path("partitions") / side, made_by="partition").tables(columns=["unit_id"])
    return {unit for table in tables for unit in pc.unique(table["unit_id"]).to_pylist()}


def split(public: str, dataset: TabularDataset | None = None) -> Manifest:
    ingest(Path("raw"), Path("trajectories"), "log", dataset or log())
    return partition(Path("trajectories"), Path("partitions"), public_fraction=None, public=public)


def withdrawn(*ids: str) -> str:
    Path("data/withdrawals").mkdir(parents=True, exist_ok=True)
    Path("data/withdrawals/gone.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")
    return "data/withdrawals/gone.txt"


def listed(*ids: str) -> str:
    Path("data/consent").mkdir(parents=True, exist_ok=True)
    Path("data/consent/public.txt").write_text("\n".join(ids) + "\n")
    return "data/consent/public.txt"


def test_who_consented_is_public_and_nobody_else(project: Path) -> None:
    manifest = split(listed("bob", "", "dan"))
    assert (units("public"), units("private")) == ({"bob", "dan"}, {"ann", "cid"})
    assert (manifest.public_by, manifest.public_units, manifest.private_units) == ("file", 2, 2)
    assert Manifest.load(Path("partitions/manifest.json")) == manifest


def test_who_withdrew_and_is_gone_at_the_source_too_is_counted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twins: an id that no version had, that another dataset had, or of those who consented."""

    def ingest_without_dan(*ids: str, name: str = "log") -> None:
        dataset = log(withdrawn(*ids))
        rows = pacsv.read_csv("raw/log.csv")
        pacsv.write_csv(rows.filter(pc.not_equal(rows["user"], "dan")), "raw/log.csv")
        ingest(Path("raw"), Path("trajectories"), name, dataset)

    split(listed("bob", "dan"))
    ingest_without_dan("cid", "dan")
    said = "gone.txt: 1 listed ids are no longer in the log"
    assert said in capsys.readouterr().err
    for ids, name in ((("eve", "dan"), "log"), (("dan",), "og")):
        with pytest.raises(PipelineError, match="line 1: found an id that no unit has"):
            ingest_without_dan(*ids, name=name)
    with pytest.raises(PipelineError, match="line 1: found an id that no unit has"):
        partition(
            Path("trajectories"), MANIFEST.parent, public_fraction=None, public=listed("dan", "bob")
        )


def test_what_does_not_fit_is_refused(project: Path) -> None:
    for public, place in (
        ("elsewhere.txt", r"partition\.public\.file: "),
        (listed("bob", "nobody"), r"public\.txt: line 2: "),
    ):
        with pytest.raises(PipelineError, match=place) as wrong:
            split(public)
        assert "nobody" not in str(wrong.value)
        assert not Path("partitions/private").exists()
    for ids, side in (((), "public"), (("ann", "bob", "cid", "dan"), "private")):
        with pytest.raises(PipelineError, match=f"no {side} unit"):
            split(listed(*ids))
    empty = log(withdrawn(" "))  # as a failed copy leaves it
    with pytest.raises(PipelineError, match=r"gone\.txt: found no id; allowed is one a line; or"):
        ingest(Path("raw"), Path("trajectories"), "log", empty)


def test_ids_of_digits_need_no_zeros_in_front(project: Path) -> None:
    file = listed("3", "a7", "000000000005", "12")
    ids = IdList(read_ids(file, FOLDER, "partition.public.file"), file)
    found = ids.contains(pa.array(["000000000003", "000000000004", "000000000005", "a7"]))
    assert found.tolist() == [True, False, True, True]
    with pytest.raises(PipelineError, match="line 4: found an id that no unit has"):
        ids.check_all_met()
