"""params.yaml decides, then the dataset's recipe, then a default or a rule; a log without an
environment gets shares of the model's ε.
"""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import dp_event

from primorl.base import PipelineError
from primorl.config import params
from primorl.config.params import PUBLIC, RULED
from primorl.privacy.accounting.epsilon import compose, gaussian_mean
from primorl.work.rules import epsilon_of
from tests.projects import ROOT

OPEN: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
OPEN["partition"]["public_fraction"] = 0.02
OWN = "datasets/pendulum-replay.yaml"


@pytest.fixture(autouse=True)
def datasets(project: Path) -> None:
    shutil.copytree(ROOT / "datasets", "datasets")


def with_keys(**keys: Any) -> dict[str, Any]:
    raw = copy.deepcopy(OPEN)
    for key, value in keys.items():
        *path, last = key.split("__")
        block = raw
        for part in path:
            block = block.setdefault(part, {})
        block[last] = value
    return raw


def cook(recipe: dict[str, Any], file: str = OWN) -> None:
    content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    Path(file).write_text(yaml.safe_dump(content | {"recipe": recipe}), encoding="utf-8")


def refusal(raw: dict[str, Any]) -> str:
    with pytest.raises(PipelineError) as refused:
        params.parse(raw)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_one_key_says_what_a_run_may_cost_and_shares_divide_it() -> None:
    """A log without an environment gets a clone and a question; a simulator needs none."""
    cook({"privacy": {"target_epsilon": 2.0}})
    assert params.parse(OPEN).privacy.target_epsilon == 2.0
    assert params.parse(with_keys(privacy__target_epsilon=0.3)).privacy.target_epsilon == 0.3
    simulated = params.parse(OPEN)
    assert simulated.privacy.shares == {"model": 1.0}
    assert (simulated.clones, simulated.asks_today) == (False, False)
    log = params.parse(with_keys(dataset="csv-log"))
    assert (log.clones, log.asks_today) == (True, True)
    for shares, says in (
        ({"clone": 1.0}, "found none of the model"),
        ({"model": 0.9, "clone": 0.2}, "found 1.1 in all; allowed is at most 1"),
        ({"model": 1, "dptd": 0.1}, "privacy.shares"),
    ):
        assert says in refusal(with_keys(privacy__shares=shares))


def test_parts_of_gaussian_jobs_make_the_whole() -> None:
    """Twins: parts of a tenth more or less make another whole."""
    for epsilon in (0.01, 0.9, 8.0):
        chosen = params.parse(with_keys(dataset="csv-log", privacy__target_epsilon=epsilon))
        parts = [epsilon_of(chosen, job) for job in chosen.privacy.shares]
        for factor, within in ((1.001, True), (0.9, False), (1.1, False)):
            means = [gaussian_mean(factor * each, 1e-5) for each in parts]
            events = [dp_event.GaussianDpEvent(1 / mean) for mean in means]
            close = compose(events, 1e-5).epsilon_pld == pytest.approx(epsilon, rel=0.01)
            assert close is within


def test_consent_takes_the_place_of_a_draw() -> None:
    listed = {"file": "data/consent/a.txt"}
    empty: dict[str, Any] = {"partition__public_fraction": None}
    found = params.parse(with_keys(dataset="csv-log", partition__public=listed, **empty))
    assert found.partition.public_fraction is None
    assert found.partition.public == params.PublicFile(file="data/consent/a.txt")
    assert (found.dynamics.model, found.normaliser) == (None, "private"), "they may differ"
    rest = params.parse(with_keys(partition__public_fraction=0.1))
    assert (rest.dynamics.model, rest.normaliser) == ("network", "public")
    both = with_keys(partition__public=listed, partition__public_fraction=0.1)
    assert "found both of public_fraction and public" in refusal(both)


def test_nobody_is_public_where_nobody_said_so() -> None:
    """Twin: a share that the recipe has."""
    for recipe, expected in (({}, 0), ({"public_fraction": 0.3}, 0.3)):
        cook({"partition": recipe}, "datasets/csv-log.yaml")
        found = params.parse(with_keys(dataset="csv-log", partition__public_fraction=None))
        assert found.partition.public_fraction == expected


def test_a_key_that_is_empty_and_one_that_is_not_there_are_the_same() -> None:
    bare = dict.fromkeys(OPEN) | {"dataset": "csv-log", "seed": 0}
    full = with_keys(dataset="csv-log", partition__public_fraction=None)
    found = params.parse(full)
    assert params.parse(bare) == params.parse({"dataset": "csv-log"}) == found
    assert params.parse(bare).undecided == found.undecided


def test_only_what_nobody_gives_is_left_to_a_rule_and_a_rule_touches_nothing_else() -> None:
    cook({"privacy": {"rounds": 9}})
    checked = params.parse(with_keys(dynamics__hidden=[7]))
    assert checked.undecided == RULED - {"privacy.rounds", "dynamics.hidden", "dynamics.model"}
    found = checked.with_decided({"dynamics.learning_rate": 0.02, "privacy.clipping_norm": 0.7})
    assert (found.dynamics.learning_rate, found.privacy.clipping_norm) == (0.02, 0.7)
    assert (found.privacy.rounds, found.dynamics.hidden) == (9, (7,))
    origins = {"privacy.rounds": OWN, "dynamics.hidden": "params.yaml", "dynamics.model": PUBLIC}
    assert checked.origins.items() >= origins.items()
    assert {
        "dynamics.learning_rate",
        "privacy.clipping_norm",
    } == checked.undecided - found.undecided
    for key in ("privacy.rounds", "dynamics.hidden", "dynamics.batch_size"):
        assert checked.with_decided({key: 3}) == checked


def test_a_mistake_in_a_recipe_is_named_where_it_stands() -> None:
    raw = with_keys(privacy__target_epsilon=1.0)
    wrong: tuple[tuple[Any, str], ...] = (
        ({"dynamics": {"hiden": [7]}}, "recipe.dynamics.hiden: unknown key"),
        ({"policy": {"horizon": "auto"}}, "recipe.policy.horizon: found 'auto'"),
        ({"privacy": {"budget": {"epsilon": 3}}}, "recipe.privacy.budget.epsilon: all runs"),
        ({"dynamics": {"variant": "no_privacy"}}, "recipe.dynamics.variant: whether a run"),
        ({"dynamics": [1]}, "recipe.dynamics: a block of keys is needed"),
        ([1], "recipe: a block of keys is needed"),
    )
    for recipe, message in wrong:
        cook(recipe)
        found = refusal(raw)
        assert found.startswith(f"{OWN}: ")
        assert message in found
        assert len(found) < 400


def test_a_misspelt_key_is_refused_where_it_is_empty_too() -> None:
    unknown = "unknown key; remove it or check its spelling"
    assert f"policy.penalti: {unknown}" in refusal(with_keys(policy__penalti=None))
    Path("online.yaml").write_text("usrs:\n", encoding="utf-8")
    assert refusal(OPEN) == f"online.yaml: usrs: {unknown}"
    Path("online.yaml").unlink()
    cook({"policy": {"penalti": None, "penalty": None}})
    assert refusal(OPEN) == f"{OWN}: recipe.policy.penalti: {unknown}"
