"""Who is public by consent: a column of the log, or a file of ids."""

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pytest

from primorl.base.errors import PipelineError
from primorl.base.paths import CONSENT as FOLDER
from primorl.config.datasets import TabularDataset
from primorl.data.identity.consent import IdList
from primorl.data.ingestion import ingest
from primorl.data.partitioning import partition
from primorl.data.storage.parquet import PartReader
from primorl.data.storage.schema import Manifest
from tests.data.builders import entry, episodes, write_raw
from tests.data.sources import tabular_builders

CONSENT = {"dan": "yes", "cid": "", "bob": "no", "ann": "yes"}


def by_column(column: str = "consent", values: tuple[object, ...] = ("yes",)) -> SimpleNamespace:
    return SimpleNamespace(column=column, values=values)


def log(spoil: bool = False, exclude: str | None = None) -> TabularDataset:
    """Two visits of two rows for each of four people, in ``raw/log.csv``, people not in order."""
    rows = [
        tabular_builders.row(who, visit, time, x=float(i), left=time == 1) | {"consent": consent}
        for i, (who, consent) in enumerate(CONSENT.items())
        for visit in (0, 1)
        for time in (0, 1)
    ]
    if spoil:
        rows[1]["consent"] = "no"
    Path("raw").mkdir(exist_ok=True)
    pacsv.write_csv(pa.Table.from_pylist(rows), "raw/log.csv")
    return tabular_builders.entry(
        ingestion={"duplicates": "allow", "exclude_units": exclude}, sorted=False
    )


def units(side: str) -> set[str]:
    tables = PartReader(Path("partitions") / side, made_by="partition").tables(columns=["unit_id"])
    return {unit for table in tables for unit in pc.unique(table["unit_id"]).to_pylist()}


def split(
    public: object, dataset: TabularDataset | None = None, column: str | None = "consent"
) -> Manifest:
    ingest(Path("raw"), Path("trajectories"), "log", dataset or log(), public_column=column)
    return partition(Path("trajectories"), Path("partitions"), public_fraction=None, public=public)


def listed(*ids: str) -> SimpleNamespace:
    Path("data/consent").mkdir(parents=True, exist_ok=True)
    Path("data/consent/public.txt").write_text("\n".join(ids) + "\n")
    return SimpleNamespace(file="data/consent/public.txt")


def test_who_consented_in_a_column_or_a_file_is_public_and_nobody_else(project: Path) -> None:
    manifest = split(by_column())
    assert (units("public"), units("private")) == ({"ann", "dan"}, {"bob", "cid"})
    assert (manifest.public_by, manifest.public_units, manifest.private_units) == ("column", 2, 2)
    assert Manifest.load(Path("partitions/manifest.json")) == manifest
    values = by_column(values=("yes", "no"))
    partition(Path("trajectories"), Path("partitions"), public_fraction=None, public=values)
    assert units("private") == {"cid"}, "other values need no new ingest"
    manifest = split(listed("bob", "", "dan"), column=None)
    assert (units("public"), units("private")) == ({"bob", "dan"}, {"ann", "cid"})
    assert manifest.public_by == "file"


def test_all_rows_of_a_unit_must_agree(project: Path) -> None:
    with pytest.raises(PipelineError, match=r"row 2: .*partition\.public\.column") as wrong:
        split(by_column(), log(spoil=True))
    assert "dan" not in str(wrong.value)
    assert not Path("trajectories").exists()


def test_who_withdrew_leaves_no_trace_of_consent(project: Path) -> None:
    Path("data/withdrawals").mkdir(parents=True)
    Path("data/withdrawals/gone.txt").write_text("ann\n")
    split(by_column(), log(exclude="data/withdrawals/gone.txt"))
    assert units("public") == {"dan"}
    assert not any(b"ann" in file.read_bytes() for file in Path("trajectories").iterdir())


def test_what_does_not_fit_is_refused(project: Path) -> None:
    for public, column, place in (
        (by_column("other"), "consent", r"partition\.public\.column: found 'other'"),
        (by_column(), None, r"partition\.public\.column: found 'consent'"),
        (by_column(values=("maybe",)), "consent", "no public unit"),
        (by_column(values=("yes", "no", "")), "consent", "no private unit"),
        (by_column("nowhere"), "nowhere", r"column 'nowhere' is missing"),
        (SimpleNamespace(file="elsewhere.txt"), None, r"partition\.public\.file: "),
        (listed("bob", "nobody"), None, r"public\.txt: line 2: "),
        (None, None, "found neither public_fraction nor public"),
    ):
        with pytest.raises(PipelineError, match=place) as wrong:
            split(public, column=column)
        assert "nobody" not in str(wrong.value)
        assert not Path("partitions/private").exists()
    write_raw(Path("minari"), episodes(3))
    with pytest.raises(PipelineError, match="the source minari has no columns"):
        ingest(Path("minari"), Path("trajectories"), "small", entry(), public_column="consent")


def test_ids_of_digits_need_no_zeros_in_front(project: Path) -> None:
    ids = IdList(listed("3", "a7", "000000000005", "12").file, FOLDER, "partition.public.file")
    found = ids.contains(pa.array(["000000000003", "000000000004", "000000000005", "a7"]))
    assert found.tolist() == [True, False, True, True]
    with pytest.raises(PipelineError, match="line 4: found an id that no unit has"):
        ids.check_all_met()
