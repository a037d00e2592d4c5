"""The paper's benchmark: its sweeps fit params.yaml, rows merge in any order, statistics are what their names say."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import ROOT
from benchmarks.quality.paper import report, results, sheets
from benchmarks.quality.paper import rows as table
from benchmarks.quality.paper.__main__ import changed
from primorl.base.paths import PARAMS
from primorl.config.params import DATASETS, parse
from primorl.config.reading import read_yaml

NOBODY_PUBLIC = "alone-pendulum"


def test_every_sweep_fits_params() -> None:
    template = read_yaml(ROOT / PARAMS, "test")
    for name in sheets.names():
        fraction = {"partition.public_fraction": 0 if name == NOBODY_PUBLIC else 0.01}
        for _, same in itertools.groupby(sheets.trials(name), lambda trial: trial[0]):
            raw = changed(template, fraction | next(same)[1])
            assert (ROOT / DATASETS / f"{parse(raw, ROOT / PARAMS).dataset}.yaml").exists()


def row(trial: str, made: str, **others: Any) -> table.Row:
    given = {
        "sweep": "s",
        "trial": trial,
        "made": made,
        "settings": json.dumps({"dataset": "pendulum-paper"}),
    }
    return dict.fromkeys(table.SCHEMA.names) | {"curve": [], "returns_by_seed": []} | given | others


def test_rows_merge_in_any_order_and_the_newest_wins(tmp_path: Path) -> None:
    rows = [
        row(trial, f"2026-01-0{day}", return_final=float(day))
        for trial in "abc"
        for day in (1, 2, 3)
    ]
    rows.append(
        row("a", "2026-01-03", return_final=3.0, behaviour=1.0)
    )  # as new as another, and fuller
    expected = table.merged(rows)
    found = [(each["trial"], each["return_final"], each["behaviour"]) for each in expected]
    assert found == [("a", 3.0, 1.0), ("b", 3.0, None), ("c", 3.0, None)]
    random.Random(0).shuffle(rows)
    assert table.merged([*table.merged(rows[4:]), *rows[:4]]) == expected
    file = tmp_path / "rows.parquet"
    table.add(rows[:4], file)
    assert table.add(rows, file) == table.add(rows, file) == table.read(file) == expected


def test_only_settings_that_a_sweep_has_are_results() -> None:
    case, settings = next(sheets.trials("table-pendulum"))
    tuned = next(sheets.trials("tune-eta-pendulum"))[1]
    rows = [
        row(trial, "2026", settings=json.dumps(given), sweep=sweep)
        for trial, given, sweep in (
            ("a", settings | {"seed": 0.0}, "table-pendulum"),
            ("b", settings | {"seed": 99}, "table-pendulum"),
            ("c", settings | {"policy.epochs": 99}, "table-pendulum"),
            ("d", tuned, "tune-eta-pendulum"),
        )
    ]
    found, tuning = sheets.divided(rows)
    assert [each["case"] for each in found] == [case, case]
    assert [each["trial"] for each in tuning] == ["c", "d"]


def test_a_target_is_reached_only_within_its_epsilon_with_all_seeds_and_without_failures() -> None:
    def finished(case: str, value: float, **others: Any) -> table.Row:
        named = {
            "sweep": "table-pendulum",
            "case": case,
            "dataset": "pendulum-paper",
            "status": "finished",
        }
        return row(f"{case}{value}", "2026", **named, seconds=1.0, return_final=value, **others)

    def answer(*rows: table.Row) -> str:
        mopo = [finished("MOPO", -150.0), finished("MOPO", -151.0)]
        return report.targets([*mopo, *rows]).splitlines()[2].split(" | ")[-2]

    ours = [finished("Ours", -150.0 - seed, epsilon=0.02) for seed in range(10)]
    assert answer(*ours) == "yes"
    assert answer(*ours[:2]) == "so far"
    assert answer(*ours, finished("Ours", -150.0, epsilon=0.03)) == "no"
    assert answer(*ours, ours[0] | {"status": "failed", "return_final": None}) == "no"
    assert answer(*(each | {"return_final": -400.0} for each in ours)) == "no"


def test_noise_is_counted_as_the_plan_does() -> None:
    given = {
        "noise_multiplier": 8.763,
        "sampling_probability": 0.1,
        "rounds": 150,
        "units": 2947,
        "parameters": 15000,
    }
    found = results.noise(row("a", "2026", variant="private", **given))
    assert found is not None
    assert (round(found.coordinate, 4), round(found.norm, 1), round(found.share, 2)) == (
        0.0297,
        3.6,
        0.3,
    )


def test_the_interquartile_mean_is_of_the_middle_half_and_its_interval_covers_the_truth() -> None:
    assert results.iqm([0.0, 2.0, 4.0, 100.0]).value == 3.0  # a mean would say 26.5
    assert results.iqm([1.0]).high == np.inf
    generator = np.random.default_rng(0)
    found = [results.iqm(generator.normal(size=40).tolist()) for _ in range(30)]
    assert sum(each.low <= 0 <= each.high for each in found) >= 24
    assert sum(each.low <= 0.6 <= each.high for each in found) < 10  # and not of everything
