"""The settings of this folder's runs, and which rows are results of them."""

import itertools
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.quality.paper.rows import Row, canonical
from primorl.config.datasets import Score
from primorl.config.reading import read_yaml

FOLDER = Path(__file__).resolve().parent / "settings"
_TARGET = "privacy.target_epsilon"
_REASON = "it says which runs a table consists of"


def names() -> list[str]:
    """Names of all grids."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def content(name: str) -> dict[str, Any]:
    """The blocks of a grid's file."""
    found: dict[str, Any] = read_yaml(FOLDER / f"{name}.yaml", _REASON)
    return found


def trials(name: str) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Case and settings, by dotted key, of every run of a grid."""
    grid = content(name)
    axes = grid["grid"]
    for case, own in grid.get("cases", {None: {}}).items():
        for values in itertools.product(*axes.values()):
            yield case, {**grid.get("settings", {}), **own, **dict(zip(axes, values, strict=True))}


def results(rows: Iterable[Row]) -> list[Row]:
    """Keep rows of settings that a grid has, with any seed, under its names of cases."""
    planned = {
        (name, any_seed(settings)): case for name in names() for case, settings in trials(name)
    }
    found = []
    for row in rows:
        key = row["sweep"], any_seed(json.loads(row["settings"]))
        if key in planned:
            found.append(row | {"case": planned[key]})
    return found


def any_seed(settings: dict[str, Any]) -> str:
    """Write settings as `canonical` does, without the seed: a grid names the least number
    of seeds.
    """
    return canonical({key: value for key, value in settings.items() if key != "seed"})


def place(row: Row) -> tuple[int, str, float]:
    """Where a row stands in its grid: its case, its values on the axes apart from seed and ε, and
    the ε asked for.
    """
    grid, settings = content(row["sweep"]), json.loads(row["settings"])
    axes = [key for key in grid["grid"] if key not in ("seed", _TARGET)]
    words = [f"{key.rpartition('.')[2]} {settings[key]}" for key in axes if key in settings]
    case = row["case"]
    order = list(grid.get("cases", {})).index(case) if case in grid.get("cases", {}) else -1
    return order, ", ".join([*([case] if case else []), *words]), settings.get(_TARGET) or 0.0


@cache
def _score(dataset: str) -> Score | None:
    block = read_yaml(ROOT / f"datasets/{dataset}.yaml", "it says what a dataset is").get("score")
    return None if block is None else Score(**block)


def score(row: Row) -> float | None:
    """Score of the last policy as the dataset declares it, or its return; None: the run failed."""
    if row["return_final"] is None:
        return None
    scale = _score(row["dataset"])
    value = float(row["return_final"])
    return value if scale is None else scale.of(value)
