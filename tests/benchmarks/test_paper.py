"""The paper's benchmark: its grids fit params.yaml, rows merge in any order, statistics are what
their names say.
"""

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.machine import ROOT
from benchmarks.quality.paper import grids
from benchmarks.quality.paper import rows as table
from benchmarks.quality.paper.__main__ import as_costs, changed
from benchmarks.quality.paper.report import iqm
from primorl.base.files import DATASETS, PARAMS
from primorl.config.params import flat, parse
from primorl.config.reading import read_yaml


def test_every_grid_fits_params() -> None:
    template = read_yaml(ROOT / PARAMS, "test")
    for name in grids.names():
        for _, same in itertools.groupby(grids.trials(name), lambda trial: trial[0]):
            raw = changed(template, {"partition.public_fraction": 0.01} | next(same)[1])
            assert (ROOT / DATASETS / f"{parse(raw, ROOT / PARAMS).dataset}.yaml").exists()


def test_the_recipe_of_halfcheetah_is_that_of_its_row() -> None:
    recipe = read_yaml(ROOT / DATASETS / "halfcheetah-mixture.yaml", "test")["recipe"]
    known = dict(flat(recipe))
    (settings, *_) = (each for case, each in grids.trials("table-halfcheetah") if case == "Ours")
    assert recipe["partition"] == grids.content("table-halfcheetah")["partition"]
    for key, value in as_costs(settings).items():
        if key not in ("dataset", "seed", "dynamics.train_anyway"):
            close = key in ("privacy.target_epsilon", "privacy.shares")  # rounded for people
            assert known[key] == (pytest.approx(value, 1e-2) if close else value), key


def row(trial: str, made: str, **others: Any) -> table.Row:
    given = {"sweep": "s", "trial": trial, "made": made, "settings": "{}"}
    return dict.fromkeys(table.SCHEMA.names) | {"curve": [], "returns_by_seed": []} | given | others


def test_rows_merge_in_any_order_and_the_newest_wins(tmp_path: Path) -> None:
    rows = [
        row(trial, f"2026-01-0{day}", return_final=float(day))
        for trial in "abc"
        for day in (1, 2, 3)
    ]
    expected = table.merged(rows)
    assert [each["return_final"] for each in expected] == [3.0, 3.0, 3.0]
    random.Random(0).shuffle(rows)
    assert table.merged([*table.merged(rows[4:]), *rows[:4]]) == expected
    file = tmp_path / "rows.parquet"
    table.add(rows[:4], file)
    assert table.add(rows, file) == table.add(rows, file) == table.read(file) == expected


def test_a_kept_row_is_of_a_command_that_is_there() -> None:
    kept = table.read()
    assert len(grids.results(kept)) == len(kept)


def test_the_interquartile_mean_is_of_the_middle_half_and_its_interval_covers_the_truth() -> None:
    assert iqm([0.0, 2.0, 4.0, 100.0])[0] == 3.0  # a mean would say 26.5
    assert iqm([1.0])[2] == np.inf
    generator = np.random.default_rng(0)
    found = [iqm(generator.normal(size=40).tolist()) for _ in range(30)]
    assert sum(low <= 0 <= high for _, low, high in found) >= 24
    assert sum(low <= 0.6 <= high for _, low, high in found) < 10  # and not of everything
