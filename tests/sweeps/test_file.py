import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.base.errors import PipelineError
from primorl.sweeps.file import Sweep, SweepFile, Trial, expand, with_settings
from tests.sweeps.conftest import sweep_of

VALUES = st.lists(
    st.one_of(st.integers(0, 50), st.booleans(), st.text("xyz", max_size=3)), min_size=1, max_size=3
)
NAMED = st.dictionaries(
    st.sampled_from(["seed", "policy.epochs", "privacy.rounds"]), VALUES, max_size=3
)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"grids": {}}, "grids: unknown key"),
    ({"grid": {"seed": []}}, "grid.seed"),
    ({"grid": {"seed": [1]}, "cases": {"A": {"seed": 0}}}, "seed: given in grid and elsewhere"),
    (
        {"settings": {"privacy.budget.epsilon": 9}},
        "privacy.budget.epsilon: all trials share the project's",
    ),
    (
        {"settings": {"privacy": {"budget": None}}},
        "privacy: all trials share the project's privacy.budget",
    ),
    (
        {"settings": {"policy": {"epochs": 1}}, "grid": {"policy.epochs": [2]}},
        "policy: found beside policy.epochs",
    ),
    ({"grid": {"policy.penalty": [1.0, float("nan")]}}, "grid.policy.penalty"),
    ({"settings": {"policy.hidden": {1: 2, "a": 3}}}, "settings.policy.hidden.1: found 1"),
]


def sweep(**content: Any) -> Sweep:
    return Sweep("tiny", Path("tiny.yaml"), SweepFile(**content))


def test_a_file_is_read_whole_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for content, said in WRONG:
        with pytest.raises(PipelineError, match=r"^tiny\.yaml: [^\n]+$") as refused:
            sweep_of(content)
        assert said in str(refused.value)


@settings(max_examples=40, deadline=None)
@given(
    NAMED.map(
        lambda grid: {
            key: list({repr(v): v for v in values}.values()) for key, values in grid.items()
        }
    ),
    st.integers(0, 3),
)
def test_a_grid_is_every_combination_for_every_case_once(
    grid: dict[str, list[Any]], cases: int
) -> None:
    named = {f"case {number}": {"dynamics.batch_size": number} for number in range(cases)}
    trials = expand(sweep(settings={"dataset": "d"}, cases=named, grid=grid))
    assert len(trials) == max(1, cases) * math.prod(len(values) for values in grid.values())
    assert len({trial.name for trial in trials}) == len(trials)
    assert {trial.case for trial in trials} == (set(named) or {None})
    for trial in trials:
        assert all(trial.settings[key] in values for key, values in grid.items())


def test_a_trial_is_its_settings_whatever_they_are_called() -> None:
    one = Trial({"a": 1, "b": [0.5]}, "A")
    assert one.name == Trial({"b": [0.5], "a": 1.0}, "B").name == "ae0b2f96ff845b66"
    assert one.name != Trial({"a": 2, "b": [0.5]}, "A").name
    assert Trial({"a": True}).name != Trial({"a": 1}).name
    (trial,) = expand(sweep(settings={"seed": 0, "policy.epochs": 3}, cases={"A": {"seed": 1}}))
    raw = {"policy": {"epochs": 1, "hidden": [8]}, "seed": 0}
    assert with_settings(raw, trial.settings) == {"policy": {"epochs": 3, "hidden": [8]}, "seed": 1}
    assert raw["policy"] == {"epochs": 1, "hidden": [8]}
    with pytest.raises(PipelineError, match="polcy"):
        with_settings(raw, {"polcy.epochs": 2})
    for cases, grid, said in (
        ({"A": {"x": 1}, "B": {"x": 1}}, {}, "cases 'A' and 'B'"),
        ({}, {"x": [1, 1.0]}, "grid"),
    ):
        with pytest.raises(PipelineError, match=f"{said}: the same settings twice"):
            expand(sweep(cases=cases, grid=grid))
