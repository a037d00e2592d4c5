"""The paper's benchmark: its sweeps fit params.yaml, rows merge in any order, statistics are what their names say."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.quality.paper import figures, report, results, sheets
from benchmarks.quality.paper import rows as table
from benchmarks.quality.paper.published import TASKS
from benchmarks.quality.paper.statistics import (
    _bootstrapped,
    interquartile_mean,
    iqm,
    probability_of_improvement,
    profile,
)
from primorl.commands import frontier
from primorl.config.params import DATASETS, PARAMS, parse
from primorl.config.reading import read_yaml
from primorl.project.errors import PipelineError

ROOT = Path(sheets.__file__).resolve().parents[3]
NOBODY_PUBLIC = "alone-pendulum"


def params_with(settings: dict[str, Any], public_fraction: float) -> Any:
    raw = read_yaml(ROOT / PARAMS, "test")
    for key, value in {"partition.public_fraction": public_fraction, **settings}.items():
        *path, last = key.split(".")
        block = raw
        for part in path:
            block = block[part]
        assert last in block, f"{key} is no key of params.yaml"
        block[last] = value
    return parse(raw, ROOT / PARAMS)


@pytest.mark.parametrize("name", sheets.names())
def test_a_sweep_fits_params(name: str) -> None:
    for _, same in itertools.groupby(sheets.trials(name), lambda trial: trial[0]):
        _, settings = next(same)
        assert not any(key.startswith("partition") for key in settings)  # the project's, shared by all trials
        params = params_with(settings, 0 if name == NOBODY_PUBLIC else 0.01)
        assert (ROOT / DATASETS / f"{params.dataset}.yaml").exists()


def test_a_wrong_key_or_value_of_a_sweep_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no key"):
        params_with({"privacy.noise": 1.0}, 0.01)
    with pytest.raises(PipelineError, match="noise_multiplier"):
        params_with({"privacy.noise_multiplier": 0.001}, 0.01)  # HalfCheetah's z in the paper


def test_the_two_sides_of_a_frontier_share_the_policys_settings() -> None:
    for name in sheets.names():
        if name.startswith("frontier"):
            for settings in sheets.content(name)["cases"].values():
                assert not any(key.startswith("policy") for key in settings)


def test_the_noise_that_the_figure_of_primorl_plan_colours_is_what_the_frontiers_runs_could_bear() -> None:
    """Within the first bound every run kept 70% of its MOPO's return, soon after not; the second is where runs end."""
    found = table.read()
    finished: list[tuple[float, float]] = []
    for task in TASKS:
        best = results.estimate(results.finals(results.of_table(found, task.slug, results.MOPO)))
        for _, sweep in figures.frontiers(task):
            for one in results.of(found, sweep):
                noise, score = results.noise(one), results.finals([one])
                if score and noise is not None and best is not None:
                    finished.append((noise.coordinate, score[0] / best.value))
    assert min(share for noise, share in finished if noise <= frontier.BORNE) > 0.7
    assert min(share for noise, share in finished if noise <= 1.2 * frontier.BORNE) < 0.7
    assert 0.9 * frontier.BORNE_BY_SOME < max(noise for noise, _ in finished) <= frontier.BORNE_BY_SOME


def row(trial: str, made: str, **others: Any) -> table.Row:
    settings = json.dumps({"dataset": "pendulum-paper"})
    given = {"sweep": "s", "trial": trial, "made": made, "settings": settings, **others}
    return dict.fromkeys(table.SCHEMA.names) | {"curve": [], "returns_by_seed": []} | given


def test_rows_merge_in_any_order_and_the_newest_wins(tmp_path: Path) -> None:
    rows = [row(trial, f"2026-01-0{day}", return_final=float(day)) for trial in "abc" for day in (1, 2, 3)]
    rows.append(row("a", "2026-01-03", return_final=3.0, behaviour=1.0))  # as new as another, and fuller
    expected = table.merged(rows)
    assert [(r["trial"], r["return_final"], r["behaviour"]) for r in expected] == [
        ("a", 3.0, 1.0),
        ("b", 3.0, None),
        ("c", 3.0, None),
    ]
    for seed in range(20):
        random.Random(seed).shuffle(rows)
        split = seed % len(rows)
        assert table.merged([*table.merged(rows[split:]), *rows[:split]]) == expected
    file = tmp_path / "rows.parquet"
    table.add(rows[:4], file)
    table.add(rows[4:], file)
    assert table.add(rows, file) == table.read(file) == expected  # again: nothing changes


def trial_folder(root: Path, trial: str, status: str = "finished") -> None:
    folder = root / ".primorl" / "sweeps" / "table-pendulum" / trial
    folder.mkdir(parents=True)
    finished = {"return_mean": -150.0, "units": 29393, "seed": 3, "epsilon": 0.02, "seconds": {"evaluate": 1.0}}
    content = {
        **{"sweep": "table-pendulum", "trial": trial, "case": "Ours", "status": status, "error": None},
        **{"settings": {"dataset": "pendulum-paper", "seed": 3}, "summary": finished, "curve": [-900.0, -140.0]},
        **{"machine": "m", "commit": "c", "command": "primorl sweep", "seconds": 9.0},
    }
    (folder / "row.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "privacy.json").write_text(json.dumps({"noise_multiplier": 395.6, "rounds": 100}), encoding="utf-8")


def test_a_trials_folder_becomes_a_row_and_a_refused_one_does_not(tmp_path: Path) -> None:
    trial_folder(tmp_path, "one")
    trial_folder(tmp_path, "two", status="refused")
    (found,) = table.gather(tmp_path)
    assert found == table.gather(tmp_path / ".primorl" / "sweeps")[0]  # a copy of the folders alone
    assert (found["return_final"], found["return_best"], found["noise_multiplier"]) == (-150.0, -140.0, 395.6)
    assert json.loads(found["privacy"])["rounds"] == 100
    assert sheets.score(found["dataset"], found["return_final"]) == pytest.approx(900.0)


def test_only_settings_that_a_sweep_has_are_results() -> None:
    case, settings = next(sheets.trials("table-pendulum"))
    planned = row("a", "2026", settings=json.dumps(settings | {"seed": 0.0})) | {"sweep": "table-pendulum"}
    other = row("b", "2026", settings=json.dumps(settings | {"seed": 99})) | {"sweep": "table-pendulum"}
    tuned = row("c", "2026", settings=json.dumps(next(sheets.trials("tune-eta-pendulum"))[1]))
    results, tuning = sheets.divided([planned, other, tuned | {"sweep": "tune-eta-pendulum"}])
    assert [r["case"] for r in results] == [case]
    assert [r["trial"] for r in tuning] == ["b", "c"]


def answer(rows: list[table.Row], target: int = 0) -> str:
    return report.targets(rows).splitlines()[2 + target].split(" | ")[-2]


def finished(case: str, value: float, **others: Any) -> table.Row:
    named = {"sweep": "table-pendulum", "case": case, "dataset": "pendulum-paper", "status": "finished", "seconds": 1.0}
    return row(f"{case}{value}", "2026", **named, return_final=value, **others)


def test_a_target_is_reached_only_within_its_epsilon_with_all_seeds_and_without_failures() -> None:
    mopo = [finished("MOPO", -150.0), finished("MOPO", -151.0)]
    ours = [finished("Ours", -150.0 - seed, epsilon=0.02) for seed in range(10)]
    assert answer([*mopo, *ours]) == "yes"
    assert answer([*mopo, *ours[:9]]) == "so far"
    assert answer([*mopo, *ours, finished("Ours", -150.0, epsilon=0.03)]) == "no"
    failed = finished("Ours", -150.0, epsilon=0.02) | {"status": "failed", "return_final": None}
    assert answer([*mopo, *ours, failed]) == "no"
    assert answer([*mopo, *(each | {"return_final": -400.0} for each in ours)]) == "no"


def test_a_return_that_is_enough_for_any_mopo_needs_none() -> None:
    def balance(value: float) -> list[table.Row]:
        named = {"sweep": "table-balance", "dataset": "cartpole-balance-paper"}
        return [finished("Ours", value + seed, epsilon=0.15) | named for seed in range(5)]

    assert answer(balance(990.0), target=2) == "yes"
    assert answer(balance(900.0), target=2) == "no"
    assert answer(balance(990.0)[:4], target=2) == "so far"
    swingup = {"sweep": "table-swingup", "dataset": "cartpole-swingup-paper"}
    assert answer([each | swingup for each in balance(990.0)], target=1) == "–", "it needs our MOPO"


def test_a_table_has_the_paper_s_regime_between_mopo_and_ours() -> None:
    """Both files count, whichever of them has the case."""
    swingup = {"dataset": "cartpole-swingup-paper"}
    ours = [finished(case, 800.0) | swingup | {"sweep": "table-swingup"} for case in ("Ours", "MOPO")]
    theirs = finished("High", 600.0) | swingup | {"sweep": "regime-swingup"}
    lines = report.table([*ours, theirs]).splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["MOPO", "High", "Ours"]
    assert "75.0%" in lines[1]


def test_ingredients_stand_in_the_order_of_their_scores() -> None:
    named = {"sweep": "ingredients-pendulum"}
    rows = [finished(case, value) | named for case, value in (("Base", -900.0), ("C 0.1", -300.0), ("2 x 16", -1200.0))]
    failed = finished("200 rounds", 0.0) | named | {"status": "failed", "return_final": None}
    lines = report.ingredients([failed, *rows]).splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["C 0.1", "Base", "2 x 16", "200 rounds"]


def test_a_run_that_failed_is_below_every_other() -> None:
    failed = finished("Ours", 0.0) | {"status": "failed", "return_final": None}
    assert results.ranked([finished("Ours", -150.0), failed]) == [900.0, -np.inf]
    assert probability_of_improvement([[900.0]], [[-np.inf]]).value == 1.0
    assert probability_of_improvement([[-np.inf]], [[-np.inf]]).value == 0.5


def test_noise_is_counted_as_the_plan_does() -> None:
    given = {"noise_multiplier": 8.763, "sampling_probability": 0.1, "rounds": 150, "units": 2947, "parameters": 15000}
    found = results.noise(row("a", "2026", variant="private", **given))
    assert found is not None
    assert (round(found.coordinate, 4), round(found.norm, 1), round(found.share, 2)) == (0.0297, 3.6, 0.3)
    assert results.noise(row("a", "2026", variant="no_privacy", **given)) is None


def test_a_table_goes_between_its_marks_again_and_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- table -->\n<!-- /table -->\nbelow\n", encoding="utf-8")
    for content in ("one", "two"):
        report.put(page, "table", content)
    assert page.read_text(encoding="utf-8") == "above\n<!-- table -->\ntwo\n<!-- /table -->\nbelow\n"
    with pytest.raises(ValueError, match="no marks"):
        report.put(page, "targets", "three")


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    found = interquartile_mean([[0.0, 2.0, 4.0, 100.0]])
    assert found.value == 3.0  # a mean would say 26.5
    assert found.low <= 3.0 <= found.high
    assert interquartile_mean([[1.0]]).high == np.inf  # one run has no interval


def test_each_task_is_resampled_among_its_own_runs() -> None:
    tasks = [np.zeros(6), np.ones(6)]
    stratified = _bootstrapped(tasks, lambda *drawn, axis=-1: np.concatenate(drawn, -1).mean(axis))
    assert (stratified.low, stratified.high) == (0.5, 0.5)
    pooled = _bootstrapped([np.concatenate(tasks)], lambda drawn, axis=-1: drawn.mean(axis))
    assert pooled.high - pooled.low > 0.3  # the twin: what resampling all runs together would say


def test_the_interval_covers_the_truth_as_often_as_it_says_for_enough_runs() -> None:
    generator = np.random.default_rng(0)
    covered = [interquartile_mean([generator.normal(size=40)]) for _ in range(30)]
    hits = sum(found.low <= 0 <= found.high for found in covered)
    assert hits >= 24
    assert sum(found.low <= 0.6 <= found.high for found in covered) < 10  # and not of everything


def test_the_probability_of_improvement_counts_pairs() -> None:
    assert probability_of_improvement([[1.0, 3.0]], [[2.0, 2.0]]).value == 0.5
    assert probability_of_improvement([[3.0, 3.0], [2.0, 2.0]], [[1.0, 2.0], [2.0, 2.0]]).value == 0.75  # a tie is half
    assert float(iqm(np.array([1.0, 1.0, 1.0, 1.0]))) == 1.0


def test_a_profile_averages_tasks_and_not_runs() -> None:
    shares, low, high = profile([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0]], np.array([-1.0, 0.5, 1.0]))
    assert shares.tolist() == [1.0, 0.75, 0.0]  # above, not at, a threshold; of all six runs 0.83 are above 0.5
    assert (low <= shares).all()
    assert (high >= shares).all()
