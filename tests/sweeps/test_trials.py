"""Trials are every combination once, and their names depend on the settings alone."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.project.errors import PipelineError
from primorl.sweeps.file import Sweep, SweepFile
from primorl.sweeps.trials import Trial, expand, said, varying

VALUES = st.lists(st.one_of(st.integers(0, 50), st.booleans(), st.text("xyz", max_size=3)), min_size=1, max_size=3)
NAMED = st.dictionaries(st.sampled_from(["seed", "policy.epochs", "privacy.rounds"]), VALUES, max_size=3)


def sweep(content: SweepFile) -> Sweep:
    return Sweep("tiny", Path("tiny.yaml"), content)


@settings(max_examples=60, deadline=None)
@given(
    NAMED.map(lambda grid: {key: list({repr(v): v for v in values}.values()) for key, values in grid.items()}),
    st.integers(0, 3),
)
def test_a_grid_is_every_combination_for_every_case_once(grid: dict[str, list[object]], cases: int) -> None:
    named = {f"case {number}": {"dynamics.batch_size": number} for number in range(cases)}
    trials = expand(sweep(SweepFile(settings={"dataset": "d"}, cases=named, grid=grid)))
    assert len(trials) == max(1, cases) * math.prod(len(values) for values in grid.values())
    assert len({trial.name for trial in trials}) == len(trials)
    assert {repr(sorted(map(repr, trial.settings.items()))) for trial in trials}.__len__() == len(trials)
    assert {trial.case for trial in trials} == (set(named) or {None})
    for trial in trials:
        assert trial.settings.keys() == {"dataset", *grid} | ({"dynamics.batch_size"} if cases else set())
        assert all(trial.settings[key] in values for key, values in grid.items())
    again = {key: grid[key] for key in reversed(grid)}
    other = expand(sweep(SweepFile(settings={"dataset": "d"}, cases=named, grid=again)))
    assert {trial.name for trial in other} == {trial.name for trial in trials}


def test_a_name_is_of_the_settings_whatever_they_are_called() -> None:
    one = Trial({"a": 1, "b": [0.5]}, "A")
    assert one.name == Trial({"b": [0.5], "a": 1.0}, "B").name
    assert one.name != Trial({"a": 2, "b": [0.5]}, "A").name
    assert Trial({"a": True}).name != Trial({"a": 1}).name


def test_a_case_wins_over_what_all_share() -> None:
    (trial,) = expand(sweep(SweepFile(settings={"seed": 0, "policy.epochs": 3}, cases={"A": {"seed": 1}})))
    assert trial.settings == {"seed": 1, "policy.epochs": 3}


def test_the_same_settings_twice_are_refused() -> None:
    with pytest.raises(PipelineError, match="cases 'A' and 'B': the same settings twice"):
        expand(sweep(SweepFile(cases={"A": {"seed": 1}, "B": {"seed": 1}})))
    with pytest.raises(PipelineError, match="grid: the same settings twice"):
        expand(sweep(SweepFile(grid={"seed": [1, 1.0]})))


def test_what_varies_is_named() -> None:
    trials = expand(sweep(SweepFile(settings={"dataset": "d"}, cases={"A": {}, "B": {"x": 1}}, grid={"seed": [0, 1]})))
    assert varying(trials) == ["seed"], "the case names what is its own"
    other = Trial({"dataset": "d", "seed": 0, "x": 2}, "B")
    assert varying([*trials, other]) == ["seed", "x"], "here x varies within B"
    assert said(trials[-1], ["seed"]) == "B, seed 1"
    assert said(trials[-1], []) == "B", "where only the case differs, it alone is the name"
    assert said(Trial({"x": 1}), []) == "x 1", "a trial without a case still has a name"
