"""Rows are flat tables with one column a setting and one a figure."""

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from primorl.project.errors import PipelineError
from primorl.sweeps.rows import Row, read_rows, write_flat, write_row

SUMMARY = {
    "return_mean": -3.5,
    "return_ci95": [-4.0, -3.0],
    "epsilon": None,
    "void": ["not private", "old engine"],
    "spent_on_dataset": {"epsilon": 2.5, "charges": 3},
    "seconds": {"train": 1.0},
    "seed": 9,
}


def row(**changes: object) -> Row:
    content = {
        "sweep": "tiny",
        "trial": "abc",
        "case": None,
        "settings": {"seed": 1, "dynamics.hidden": [32, 32]},
        "status": "finished",
        "error": None,
        "summary": SUMMARY,
        "curve": [-4.0, -3.5],
        "machine": "m",
        "commit": None,
        "command": "primorl sweep tiny.yaml",
        "seconds": 2.5,
    }
    return Row(**content | changes)  # type: ignore[arg-type]


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_row(tmp_path / "abc", row())
    assert read_rows(tmp_path) == [row()]
    (tmp_path / "abc/row.json").write_text("{}")
    with pytest.raises(PipelineError, match="the sweep runs the trial again"):
        read_rows(tmp_path)


def test_tables_have_a_column_a_setting_and_a_figure(tmp_path: Path) -> None:
    rows = [row(), row(trial="d", settings={"seed": 2.5, "privacy.rounds": 3}, case="A")]
    write_flat(tmp_path / "t.csv", rows, {"d": ["policy.epochs", "data/partitions"]})
    first, second = csv.DictReader((tmp_path / "t.csv").open())
    assert first["dynamics.hidden"] == "[32, 32]"
    assert (first["return_ci95_low"], first["epsilon"], first["seed"]) == ("-4.0", "", "1")
    assert (second["privacy.rounds"], second["case"], second["curve"]) == ("3", "A", "[-4.0, -3.5]")
    assert "seconds" in first
    assert first["spent_on_dataset"] == "2.5"
    assert first["void"] == "not private; old engine", "a row without its reasons would look like a sound one"
    assert (first["stale"], second["stale"]) == ("", "policy.epochs, data/partitions")
    write_flat(tmp_path / "t.parquet", rows, {})
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.column("seed").to_pylist() == [1.0, 2.5]
    assert table.column("case").to_pylist() == [None, "A"]
    assert table.column("seconds").to_pylist() == [2.5, 2.5]


def test_values_of_several_types_become_text(tmp_path: Path) -> None:
    rows = [row(settings={"a": value}) for value in (1, "auto", True)]
    write_flat(tmp_path / "t.parquet", rows, {})
    assert pq.read_table(tmp_path / "t.parquet").column("a").to_pylist() == ["1", "auto", "true"]


def test_other_forms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"allowed are \.csv and \.parquet"):
        write_flat(tmp_path / "t.xlsx", [row()], {})
