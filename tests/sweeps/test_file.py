"""A sweep's file is read whole or refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from primorl.project.errors import PipelineError
from primorl.sweeps.file import Between, Choices, read_sweep, with_settings
from tests.sweeps.conftest import sweep_of

SEARCH = {"metric": "return_mean", "direction": "maximize", "trials": 3, "space": {"seed": {"low": 0, "high": 3}}}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_search_knows_whole_numbers_from_others() -> None:
    space = {"seed": {"low": 0, "high": 3}, "policy.penalty": {"low": 0.1, "high": 1}, "b": {"choices": [[1], None]}}
    search = sweep_of({"search": SEARCH | {"space": space}}).content.search
    assert search is not None
    seed, penalty, choices = search.space.values()
    assert isinstance(seed, Between)
    assert isinstance(penalty, Between)
    assert (type(seed.low), type(penalty.low)) == (int, float)
    assert choices == Choices(choices=[[1], None])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"grids": {}}, "grids: unknown key"),
        ({"grid": {"seed": []}}, "grid.seed"),
        ({"grid": {"seed": 1}}, "grid.seed"),
        ({"grid": {"seed": [1]}, "settings": {"seed": 0}}, "seed: given in grid and elsewhere"),
        ({"grid": {"seed": [1]}, "cases": {"A": {"seed": 0}}}, "seed: given in grid and elsewhere"),
        ({"grid": {"partition.salt": ["a"]}}, "partition.salt: all trials share the project's partition"),
        ({"settings": {"ledger.url": "sqlite:///other.db"}}, "ledger.url: all trials share the project's"),
        ({"settings": {"privacy.budget.epsilon": 9}}, "privacy.budget.epsilon: all trials share the project's"),
        ({"settings": {"privacy": {"budget": None}}}, "privacy: all trials share the project's privacy.budget"),
        ({"settings": {"policy": {"epochs": 1}}, "grid": {"policy.epochs": [2]}}, "policy: found beside policy.epochs"),
        ({"settings": {"compute.threads": 1}}, "compute.threads: all trials share"),
        ({"search": SEARCH, "grid": {"seed": [1]}}, "search: found beside grid or cases"),
        ({"search": SEARCH | {"metric": "public_loss"}}, "search.metric"),
        ({"search": SEARCH | {"space": {"seed": {"low": 3, "high": 0}}}}, "low < high"),
        ({"search": SEARCH | {"space": {"seed": {"low": 0, "high": 3, "log": True}}}}, "above 0"),
        ({"grid": {"policy.penalty": [1.0, float("nan")]}}, "grid.policy.penalty: found nan; allowed are finite"),
        ({"settings": {"policy.penalty": float("inf")}}, "settings.policy.penalty: found inf"),
        ({"settings": {"policy.hidden": {1: 2, "a": 3}}}, "settings.policy.hidden: found the key 1; keys are texts"),
    ],
)
def test_what_does_not_fit_is_one_line(content: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=r"^tiny\.yaml: ") as refused:
        sweep_of(content)
    assert said in str(refused.value)


def test_settings_of_a_project_stay_as_they_are() -> None:
    raw = {"policy": {"epochs": 1, "hidden": [8]}, "seed": 0}
    changed = with_settings(raw, {"policy.epochs": 2, "policy.penalty": 1, "seed": 4})
    assert changed == {"policy": {"epochs": 2, "hidden": [8], "penalty": 1}, "seed": 4}
    assert raw == {"policy": {"epochs": 1, "hidden": [8]}, "seed": 0}
    with pytest.raises(PipelineError, match="polcy"):
        with_settings(raw, {"polcy.epochs": 2})


def test_the_example_is_a_sweep() -> None:
    example = read_sweep(ROOT / "sweeps/pendulum-epsilon.yaml")
    assert example.name == "pendulum-epsilon"
    assert len(example.content.grid["seed"]) == 3
