"""The grids of this folder, and which rows are results of them."""

import itertools
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.quality.paper.rows import Row, canonical
from primorl.config.datasets import Score
from primorl.config.reading import read_yaml

SWEEPS = Path(__file__).resolve().parent / "sweeps"
DATASETS = SWEEPS.parents[3] / "datasets"
TUNING = "tune-"
"""How the names of sweeps begin whose rows are no results."""
MOPO = "MOPO"
_REASON = "it says which runs a sweep consists of"


def names() -> list[str]:
    """Names of all sweeps."""
    return sorted(file.stem for file in SWEEPS.glob("*.yaml"))


def tables(slug: str) -> list[str]:
    """Names of the sweeps that make up a task's table: MOPO and ours, and the paper's regime where it is apart."""
    return [name for name in (f"table-{slug}", f"regime-{slug}") if name in names()]


def content(name: str) -> dict[str, Any]:
    """The blocks of a sweep's file."""
    found: dict[str, Any] = read_yaml(SWEEPS / f"{name}.yaml", _REASON)
    return found


def trials(name: str) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Case and settings, by dotted key, of every trial of a sweep."""
    sheet = content(name)
    grid = sheet["grid"]
    for case, own in sheet.get("cases", {None: {}}).items():
        for values in itertools.product(*grid.values()):
            yield case, {**sheet.get("settings", {}), **own, **dict(zip(grid, values, strict=True))}


def divided(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Results, which are of settings that a sweep has today with any seed, and all other rows: those were tuning."""
    planned = {
        (name, any_seed(settings)): case
        for name in names()
        if not name.startswith(TUNING)
        for case, settings in trials(name)
    }
    results, tuning = [], []
    for row in rows:
        key = row["sweep"], any_seed(json.loads(row["settings"]))
        if key in planned:
            results.append(row | {"case": planned[key]})
        elif row["case"] == MOPO:  # `research.mopo` trains the baseline, no sweep does
            results.append(row)
        else:
            tuning.append(row)
    return results, tuning


def any_seed(settings: dict[str, Any]) -> str:
    """Write settings as `canonical` does, without the seed: a sweep names the least number of seeds."""
    return canonical({key: value for key, value in settings.items() if key != "seed"})


@cache
def _score(dataset: str) -> Score | None:
    block = read_yaml(DATASETS / f"{dataset}.yaml", "it says what a dataset is").get("score")
    return None if block is None else Score(**block)


def score(dataset: str, episode_return: float) -> float:
    """The score that the dataset declares, as the paper's for Pendulum; the return itself if it declares none."""
    scale = _score(dataset)
    return episode_return if scale is None else scale.of(episode_return)
