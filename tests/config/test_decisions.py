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

from primorl.base.errors import PipelineError
from primorl.config import decisions, params
from primorl.config.decisions import DEFAULT, FITTED, TO_FIT, leaves
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.accounting.gaussian import gaussian_mean
from tests.projects import ROOT

OPEN: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
OPEN["partition"]["public_fraction"] = 0.02
OWN = "datasets/pendulum-replay.yaml"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "datasets", tmp_path / "datasets")


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


@pytest.mark.parametrize(
    ("said", "recipe", "expected"),
    [
        ((None, None), {}, (0.5, None)),
        ((None, None), {"noise_multiplier": 4.0}, (None, 4.0)),
        ((None, 3.0), {"target_epsilon": 2.0}, (None, 3.0)),
        ((0.3, 3.0), {}, "found both of target_epsilon and noise_multiplier"),
    ],
)
def test_exactly_one_of_target_and_noise_is_used(
    said: tuple[Any, Any], recipe: dict[str, Any], expected: Any
) -> None:
    cook({"privacy": recipe})
    raw = with_keys(privacy__target_epsilon=said[0], privacy__noise_multiplier=said[1])
    if isinstance(expected, str):
        assert expected in refusal(raw)
    else:
        chosen = params.parse(raw).privacy
        assert (chosen.target_epsilon, chosen.noise_multiplier) == expected


def test_a_total_is_shared_by_what_a_log_needs_and_given_alone() -> None:
    """The model's ε does not depend on what is asked. With a simulator it is the total."""
    log = params.parse(with_keys(dataset="csv-log", privacy__total_epsilon=2.0))
    assert (log.privacy.target_epsilon, log.behaviour.target_epsilon) == (1.7, 0.595)
    more = {"behaviour": 0.1, "model_check": 0.1}
    asked = params.parse(
        with_keys(
            dataset="csv-log", privacy__total_epsilon=2.0, evaluation__private__estimators=more
        )
    )
    assert asked.privacy == log.privacy
    assert params.parse(with_keys(privacy__total_epsilon=2.0)).privacy.target_epsilon == 2.0
    assert decisions.model_of(1e-6, 1e-5) == 5e-7, "δ alone allows it"
    for total in (0.01, 0.9, 8.0):
        model = decisions.model_of(total, 1e-5)
        for factor, within in ((1.0, True), (1.12, False)):
            parts = [
                factor * model,
                decisions.clone(factor * model),
                *decisions.estimators(factor * model).values(),
            ]
            events = [dp_event.GaussianDpEvent(1 / gaussian_mean(each, 1e-5)) for each in parts]
            assert (compose(events, 1e-5).epsilon_pld <= total) is within
    for wrong in (float("inf"), -1.0, "much"):
        assert "privacy.total_epsilon: found" in refusal(with_keys(privacy__total_epsilon=wrong))
    both = with_keys(privacy__total_epsilon=2.0, privacy__target_epsilon=1.0)
    assert "privacy.total_epsilon: found beside target_epsilon or noise_multiplier" in refusal(both)


def test_consent_takes_the_place_of_a_draw() -> None:
    consent = {"column": "consent", "values": ["yes", 1, True]}
    listed = {"file": "data/consent/a.txt"}
    empty: dict[str, Any] = {"partition__public_fraction": None}
    by_column = params.parse(
        with_keys(dataset="csv-log", partition__public=consent, **empty)
    ).partition
    assert by_column.public_fraction is None
    assert (by_column.public.column, by_column.public.values) == ("consent", ("yes", "1", "true"))
    heads = params.parse(with_keys(partition__public=listed, **empty))
    assert (heads.partition.public_fraction, heads.partition.public.file) == (
        None,
        "data/consent/a.txt",
    )
    assert (heads.dynamics.model, heads.privacy.statistics.normaliser) == ("linear", "private"), (
        "they may differ"
    )
    rest = params.parse(with_keys(partition__public_fraction=0.1))
    assert (rest.dynamics.model, rest.privacy.statistics.normaliser) == ("network", "public")
    both = with_keys(partition__public=consent, partition__public_fraction=0.1)
    assert "found both of public_fraction and public" in refusal(both)


def test_nobody_is_public_where_nobody_said_so() -> None:
    """Twin: a share that the recipe has."""
    for recipe, expected in (({}, 0), ({"public_fraction": 0.3}, 0.3)):
        cook({"partition": recipe}, "datasets/csv-log.yaml")
        found = params.parse(with_keys(dataset="csv-log", partition__public_fraction=None))
        assert found.partition.public_fraction == expected


def test_what_decided_each_key_is_known() -> None:
    checked = params.parse(
        with_keys(dataset="csv-log", policy__penalty=0.9, partition__public_fraction=None)
    )
    assert set(checked.origins) == set(leaves())
    assert (
        checked.origins.items()
        >= {
            "policy.penalty": "params.yaml",
            "privacy.delta": DEFAULT,
            "privacy.total_epsilon": "datasets/csv-log.yaml",
            "privacy.target_epsilon": "privacy.total_epsilon",
            "dynamics.early_stopping.every": DEFAULT,
            "dynamics.learning_rate": TO_FIT,
        }.items()
    )
    assert (checked.privacy.target_epsilon, checked.policy.hidden) == (0.777, (64, 64))


def test_a_key_that_is_empty_and_one_that_is_not_there_are_the_same() -> None:
    bare = dict.fromkeys(OPEN) | {"dataset": "csv-log", "seed": 0}
    full = with_keys(dataset="csv-log", partition__public_fraction=None)
    found = params.parse(full)
    assert params.parse(bare) == params.parse({"dataset": "csv-log"}) == found
    assert params.parse(bare).unfitted == found.unfitted


def test_only_what_nobody_gives_is_left_to_a_rule_and_a_rule_touches_nothing_else() -> None:
    cook({"privacy": {"rounds": 9}})
    checked = params.parse(with_keys(dynamics__hidden=[7]))
    assert checked.unfitted == FITTED.keys() - {
        "privacy.rounds",
        "dynamics.hidden",
        "dynamics.degree",
    }
    fitted = checked.fitted({"dynamics.learning_rate": 0.02, "privacy.clipping_norm": 0.7})
    assert (fitted.dynamics.learning_rate, fitted.privacy.clipping_norm) == (0.02, 0.7)
    assert (fitted.privacy.rounds, fitted.dynamics.hidden) == (9, (7,))
    assert {"dynamics.learning_rate", "privacy.clipping_norm"} == checked.unfitted - fitted.unfitted
    for key in ("privacy.rounds", "dynamics.hidden", "dynamics.batch_size"):
        assert checked.fitted({key: 3}) == checked


def test_a_mistake_in_a_recipe_is_named_where_it_stands_used_or_not() -> None:
    raw = with_keys(policy__horizon=5, privacy__target_epsilon=1.0)
    both = {"target_epsilon": 1, "noise_multiplier": 4}
    wrong: tuple[tuple[Any, str], ...] = (
        ({"dynamics": {"hiden": [7]}}, "recipe.dynamics.hiden: unknown key"),
        ({"policy": {"horizon": 0}}, "recipe.policy.horizon: found 0"),
        ({"policy": {"horizon": "auto"}}, "recipe.policy.horizon: found 'auto'"),
        ({"privacy": {"budget": {"epsilon": 3}}}, "recipe.privacy.budget.epsilon: all runs"),
        ({"dynamics": {"variant": "no_privacy"}}, "recipe.dynamics.variant: whether a run"),
        ({"ledger": {}}, "recipe.ledger: unknown key"),
        ({"dynamics": [1]}, "recipe.dynamics: a block of keys is needed"),
        ([1], "recipe: a block of keys is needed"),
        ({"dynamics": {"x" * 10_000: 1}}, "xxx..."),
    )
    for recipe, message in wrong:
        cook(recipe)
        found = refusal(raw)
        assert found.startswith(f"{OWN}: ")
        assert message in found
        assert len(found) < 400
    cook({"privacy": both})
    assert "found 2 values; give one of them" in refusal(OPEN)


def test_without_an_environment_the_clone_and_two_questions_get_their_shares() -> None:
    cook({}, "datasets/csv-log.yaml")
    found = params.parse(with_keys(dataset="csv-log", privacy__target_epsilon=0.5))
    assert found.evaluation.private.estimators == {"behaviour": 0.1, "model_check": 0.1}
    assert found.behaviour.target_epsilon == 0.175
    assert found.evaluation.private.return_bounds == "public"
    without = params.parse(
        with_keys(
            dataset="csv-log", behaviour__target_epsilon=0, evaluation__private__estimators={}
        )
    )
    assert (without.clones, without.evaluation.private.estimators) == (False, {})
    by_noise = params.parse(with_keys(dataset="csv-log", privacy__noise_multiplier=4.0))
    assert by_noise.evaluation.private.estimators == {}
    assert by_noise.origins[decisions.ESTIMATORS] == decisions.STATED, (
        "the model's ε says what a share is"
    )
    assert not by_noise.clones
    assert decisions.estimators(0.3) == {"behaviour": 0.06, "model_check": 0.06}


def test_a_misspelt_key_is_refused_where_it_is_empty_too() -> None:
    unknown = "unknown key; remove it or check its spelling"
    assert f"policy.penalti: {unknown}" in refusal(with_keys(policy__penalti=None))
    assert f"online.usrs: {unknown}" in refusal(with_keys(online__usrs=None))
    cook({"policy": {"penalti": None, "penalty": None}})
    assert refusal(OPEN) == f"{OWN}: recipe.policy.penalti: {unknown}"


def test_an_error_names_all_that_a_key_may_be() -> None:
    bounds = with_keys(evaluation__private__return_bounds="publik")
    assert "found 'publik'; allowed is 'public' or 'reward', or numbers" in refusal(bounds)
    number = "found 'auto'; allowed is a valid number; leave it empty to have it decided"
    assert f"policy.penalty: {number}" in refusal(with_keys(policy__penalty="auto"))
    cook({"policy": {"penalty": "auto"}})
    assert f"recipe.policy.penalty: {number}" in refusal(OPEN)
