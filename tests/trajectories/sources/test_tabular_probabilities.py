"""Logs that name the probability of each logged action: from the column to the partitions and their description."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primorl.config.datasets import TabularDataset
from primorl.project.errors import PipelineError
from primorl.trajectories.description import describe
from primorl.trajectories.partitioning import partition
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.parquet import PartReader
from tests.trajectories.sources.tabular_builders import DISCRETE, Row, discrete, entry, rows, run, text, write

CHOSEN = [0.5, 0.25, 1.0, 0.125, 0.75, None, 0.0625, None]
KEPT = [0.5, 0.25, 1.0, 0.125, 0.75, 0.0625]


def named(columns: dict[str, Any] | None = None, **changes: Any) -> TabularDataset:
    return entry({"behaviour_probability": "chosen with"} | (columns or {}), **changes)


def with_column(content: list[Row], values: list[Any]) -> list[Row]:
    return [each | {"chosen with": value} for each, value in zip(content, values, strict=True)]


@pytest.mark.parametrize("ordered", [True, False])
def test_every_transition_has_that_of_its_row(project: Path, ordered: bool) -> None:
    """The last row of an unfinished trajectory has none; that of a terminated one has."""
    content = with_column(rows(), CHOSEN)
    write(content if ordered else content[::-1])
    table = run(named(sorted=ordered))
    assert table["behaviour_probability"].to_pylist() == KEPT
    write(rows())
    assert table.drop_columns("behaviour_probability").equals(run(entry(sorted=ordered)))


def test_csv_leaves_it_empty_where_there_is_no_action(project: Path) -> None:
    lines = ["2,0,0,1.0,A,0.1,1.0,0,0,0.5", "2,0,1,2.0,B,0.2,2.0,0,0,2.5", "2,0,2,3.0,A,,,0,1,"]
    text("user,visit,time,x,ward,dose,gain,died,left,chosen with\n" + "\n".join(lines) + "\n")
    assert run(named())["behaviour_probability"].to_pylist() == [0.5, 2.5], "a density may exceed 1"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, "a missing, NaN or infinite behaviour_probability (column 'chosen with')"),
        (float("nan"), "a missing, NaN or infinite behaviour_probability (column 'chosen with')"),
        (float("inf"), "a missing, NaN or infinite behaviour_probability (column 'chosen with')"),
        (0.0, "a behaviour_probability out of range (column 'chosen with')"),
        (-0.73, "a behaviour_probability out of range (column 'chosen with')"),
        (1.73, "a behaviour_probability out of range (column 'chosen with')"),
    ],
)
def test_a_value_out_of_range_is_named_by_its_row(project: Path, value: float | None, found: str) -> None:
    """And never quoted."""
    write(with_column(discrete(), [*CHOSEN[:4], value, *CHOSEN[5:]]))
    with pytest.raises(PipelineError) as error:
        run(named(DISCRETE))
    assert f"part-0.parquet: row 5: found {found}; allowed: " in str(error.value)
    assert "73" not in str(error.value)


def test_a_column_that_is_not_there_is_named(project: Path) -> None:
    write(rows())
    with pytest.raises(PipelineError, match="column 'chosen with' is missing"):
        run(named())


def test_the_partitions_hold_it_and_the_description_names_it(project: Path) -> None:
    """That the log has it is public; its values lie with the rows."""
    write(with_column(rows(), CHOSEN))
    whole = run(named())
    manifest = partition(Path("trajectories"), Path("partitions"), public_fraction=0.5, salt="salt 0")
    assert manifest.info.behaviour_probabilities
    assert Manifest.load(Path("partitions/manifest.json")) == manifest
    parts = [
        value
        for side in ("private", "public")
        for table in PartReader(Path("partitions") / side, made_by="partition").tables()
        for value in zip(table["unit_id"].to_pylist(), table["behaviour_probability"].to_pylist(), strict=True)
    ]
    assert sorted(parts) == sorted(zip(whole["unit_id"].to_pylist(), KEPT, strict=True))
    about, _ = describe(Path("partitions"))
    assert about["schema"]["behaviour_probability"] == "float"
    assert about["behaviour_probabilities"] is True


def test_a_changed_probability_is_noticed_by_partition(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is part of the fingerprint that ingest left."""
    write(with_column(rows(), CHOSEN))
    run(named())
    original = PartReader.tables

    def changed(self: PartReader, *columns: Any) -> Any:
        for table in original(self, *columns):
            place = table.column_names.index("behaviour_probability")
            values = np.nextafter(table["behaviour_probability"].to_numpy(), np.float32(0))
            yield table.set_column(place, table.schema.field(place), [values])

    monkeypatch.setattr(PartReader, "tables", changed)
    with pytest.raises(PipelineError, match="are not those that were ingested"):
        partition(Path("trajectories"), Path("partitions"), public_fraction=0.5, salt="salt 0")
