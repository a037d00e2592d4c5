"""The paper's benchmark: its sweeps fit params.yaml, rows merge in any order, statistics are what their names say."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.machine import ROOT, put
from benchmarks.quality.paper import report, results, sheets
from benchmarks.quality.paper import rows as table
from primorl.config.params import DATASETS, parse
from primorl.config.reading import read_yaml
from primorl.project.paths import PARAMS

NOBODY_PUBLIC = "alone-pendulum"


def test_every_sweep_fits_params() -> None:
    for name in sheets.names():
        for case, same in itertools.groupby(sheets.trials(name), lambda trial: trial[0]):
            _, settings = next(same)
            raw = read_yaml(ROOT / PARAMS, "test")
            fraction = 0 if name == NOBODY_PUBLIC else 0.01
            for key, value in {"partition.public_fraction": fraction, **settings}.items():
                *path, last = key.split(".")
                block = raw
                for part in path:
                    block = block[part]
                assert last in block, f"{name}: {case}: {key} is no key of params.yaml"
                block[last] = value
            assert (ROOT / DATASETS / f"{parse(raw, ROOT / PARAMS).dataset}.yaml").exists()


def row(trial: str, made: str, **others: Any) -> table.Row:
    given = {
        "sweep": "s",
        "trial": trial,
        "made": made,
        "settings": json.dumps({"dataset": "pendulum-paper"}),
        **others,
    }
    return dict.fromkeys(table.SCHEMA.names) | {"curve": [], "returns_by_seed": []} | given


def test_rows_merge_in_any_order_and_the_newest_wins(tmp_path: Path) -> None:
    rows = [row(trial, f"2026-01-0{day}", return_final=float(day)) for trial in "abc" for day in (1, 2, 3)]
    rows.append(row("a", "2026-01-03", return_final=3.0, behaviour=1.0))  # as new as another, and fuller
    expected = table.merged(rows)
    found = [(each["trial"], each["return_final"], each["behaviour"]) for each in expected]
    assert found == [("a", 3.0, 1.0), ("b", 3.0, None), ("c", 3.0, None)]
    random.Random(0).shuffle(rows)
    assert table.merged([*table.merged(rows[4:]), *rows[:4]]) == expected
    file = tmp_path / "rows.parquet"
    table.add(rows[:4], file)
    assert table.add(rows, file) == table.add(rows, file) == table.read(file) == expected


def test_a_trials_folder_becomes_a_row_and_a_refused_one_does_not(tmp_path: Path) -> None:
    for trial, status in (("one", "finished"), ("two", "refused")):
        folder = tmp_path / ".primorl" / "sweeps" / "table-pendulum" / trial
        folder.mkdir(parents=True)
        content = {
            **{"sweep": "table-pendulum", "trial": trial, "case": "Ours", "status": status, "error": None},
            **{"settings": {"dataset": "pendulum-paper", "seed": 3}, "curve": [-900.0, -140.0], "seconds": 9.0},
            **{"summary": {"return_mean": -150.0, "units": 29393, "seconds": {}}},
            **{"machine": "m", "commit": "c", "command": "primorl sweep"},
        }
        (folder / "row.json").write_text(json.dumps(content), encoding="utf-8")
        (folder / "privacy.json").write_text(json.dumps({"noise_multiplier": 395.6, "rounds": 100}), encoding="utf-8")
    (found,) = table.gather(tmp_path)
    assert (found["return_final"], found["return_best"], found["noise_multiplier"]) == (-150.0, -140.0, 395.6)
    assert sheets.score(found["dataset"], found["return_final"]) == pytest.approx(900.0)


def test_only_settings_that_a_sweep_has_are_results() -> None:
    case, settings = next(sheets.trials("table-pendulum"))
    planned = row("a", "2026", settings=json.dumps(settings | {"seed": 0.0})) | {"sweep": "table-pendulum"}
    other = row("b", "2026", settings=json.dumps(settings | {"seed": 99})) | {"sweep": "table-pendulum"}
    tuned = row("c", "2026", settings=json.dumps(next(sheets.trials("tune-eta-pendulum"))[1]))
    found, tuning = sheets.divided([planned, other, tuned | {"sweep": "tune-eta-pendulum"}])
    assert [each["case"] for each in found] == [case]
    assert [each["trial"] for each in tuning] == ["b", "c"]


def finished(case: str, value: float, **others: Any) -> table.Row:
    named = {"sweep": "table-pendulum", "case": case, "dataset": "pendulum-paper", "status": "finished", "seconds": 1.0}
    return row(f"{case}{value}", "2026", **named, return_final=value, **others)


def test_a_target_is_reached_only_within_its_epsilon_with_all_seeds_and_without_failures() -> None:
    def answer(rows: list[table.Row]) -> str:
        return report.targets(rows).splitlines()[2].split(" | ")[-2]

    mopo = [finished("MOPO", -150.0), finished("MOPO", -151.0)]
    ours = [finished("Ours", -150.0 - seed, epsilon=0.02) for seed in range(10)]
    assert answer([*mopo, *ours]) == "yes"
    assert answer([*mopo, *ours[:9]]) == "so far"
    assert answer([*mopo, *ours, finished("Ours", -150.0, epsilon=0.03)]) == "no"
    failed = finished("Ours", -150.0, epsilon=0.02) | {"status": "failed", "return_final": None}
    assert answer([*mopo, *ours, failed]) == "no"
    assert answer([*mopo, *(each | {"return_final": -400.0} for each in ours)]) == "no"


def test_noise_is_counted_as_the_plan_does() -> None:
    given = {"noise_multiplier": 8.763, "sampling_probability": 0.1, "rounds": 150, "units": 2947, "parameters": 15000}
    found = results.noise(row("a", "2026", variant="private", **given))
    assert found is not None
    assert (round(found.coordinate, 4), round(found.norm, 1), round(found.share, 2)) == (0.0297, 3.6, 0.3)


def test_the_interquartile_mean_is_of_the_middle_half_and_its_interval_covers_the_truth() -> None:
    assert results.iqm([0.0, 2.0, 4.0, 100.0]).value == 3.0  # a mean would say 26.5
    assert results.iqm([1.0]).high == np.inf
    generator = np.random.default_rng(0)
    found = [results.iqm(generator.normal(size=40).tolist()) for _ in range(30)]
    assert sum(each.low <= 0 <= each.high for each in found) >= 24
    assert sum(each.low <= 0.6 <= each.high for each in found) < 10  # and not of everything


def test_a_table_goes_between_its_marks_again_and_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- table -->\n<!-- /table -->\nbelow\n", encoding="utf-8")
    for content in ("one", "two"):
        put(page, "table", content)
    assert page.read_text(encoding="utf-8") == "above\n<!-- table -->\ntwo\n<!-- /table -->\nbelow\n"
    with pytest.raises(ValueError, match="no marks"):
        put(page, "targets", "three")
