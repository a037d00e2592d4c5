"""Logs that name the probability of each logged action: from the column to the partitions and their description."""

from pathlib import Path
from typing import Any

import pytest

from primorl.config.datasets import TabularDataset
from primorl.project.errors import PipelineError
from tests.trajectories.sources.tabular_builders import DISCRETE, Row, discrete, entry, rows, run, text, write

CHOSEN = [0.5, 0.25, 1.0, 0.125, 0.75, None, 0.0625, None]
KEPT = [0.5, 0.25, 1.0, 0.125, 0.75, 0.0625]


def named(columns: dict[str, Any] | None = None, **changes: Any) -> TabularDataset:
    return entry({"behaviour_probability": "chosen with"} | (columns or {}), **changes)


def with_column(content: list[Row], values: list[Any]) -> list[Row]:
    return [each | {"chosen with": value} for each, value in zip(content, values, strict=True)]


@pytest.mark.parametrize("ordered", [True, False])
def test_every_transition_has_that_of_its_row(project: Path, ordered: bool) -> None:
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
    write(with_column(discrete(), [*CHOSEN[:4], value, *CHOSEN[5:]]))
    with pytest.raises(PipelineError) as error:
        run(named(DISCRETE))
    assert f"part-0.parquet: row 5: found {found}; allowed: " in str(error.value)
    assert "73" not in str(error.value).partition("row 5")[2]  # the path before it is random
