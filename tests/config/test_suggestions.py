"""params.yaml decides, a dataset suggests, and a log without an environment gets shares of the
model's ε.
"""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import dp_event

from primorl.base.errors import PipelineError
from primorl.config import params, suggestions
from primorl.config.suggestions import FITTED, TO_FIT, leaves
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.accounting.gaussian import gaussian_mean
from tests.projects import ROOT

AUTO: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
AUTO["partition"]["public_fraction"] = 0.02
BLOCKS = ("partition", "privacy", "dynamics", "behaviour", "policy", "evaluation")
OWN, DEFAULTS = "datasets/pendulum-replay.yaml", "datasets/defaults.yaml"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "datasets", tmp_path / "datasets")


def with_keys(**keys: Any) -> dict[str, Any]:
    raw = copy.deepcopy(AUTO)
    for key, value in keys.items():
        *path, last = key.split("__")
        block = raw
        for part in path:
            block = block[part]
        block[last] = value
    return raw


def rewrite(file: str, **changes: Any) -> None:
    content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    Path(file).write_text(yaml.safe_dump(content | changes), encoding="utf-8")


def suggest(suggested: dict[str, Any], file: str = OWN) -> None:
    rewrite(file, suggested={name: {} for name in BLOCKS} | suggested)


def refusal(raw: dict[str, Any]) -> str:
    with pytest.raises(PipelineError) as refused:
        params.parse(raw)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("said", "own", "common", "expected"),
    [
        (("auto", "auto"), {}, {"target_epsilon": 0.5}, (0.5, None)),
        (("auto", "auto"), {"noise_multiplier": 4.0}, {"target_epsilon": 0.5}, (None, 4.0)),
        (("auto", 3.0), {"target_epsilon": 2.0}, {"target_epsilon": 0.5}, (None, 3.0)),
        ((None, "auto"), {"noise_multiplier": 4.0}, {"target_epsilon": 0.5}, (None, 4.0)),
        ((None, "auto"), {"target_epsilon": 2.0}, {}, "noise_multiplier: found auto, and neither"),
        ((None, None), {"target_epsilon": 2.0}, {}, "found neither of target_epsilon"),
        ((0.3, 3.0), {}, {}, "found both of target_epsilon and noise_multiplier"),
        (("auto", "auto"), {}, {}, "privacy.target_epsilon: found auto, and neither"),
    ],
)
def test_exactly_one_of_target_and_noise_is_used(
    said: tuple[Any, Any], own: dict[str, Any], common: dict[str, Any], expected: Any
) -> None:
    suggest({"privacy": own})
    privacy = yaml.safe_load(Path(DEFAULTS).read_text(encoding="utf-8"))["privacy"]
    del privacy["total_epsilon"]
    rewrite(DEFAULTS, privacy=privacy | common)
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
    more |= {"model_check": 1.5}
    beyond = with_keys(
        dataset="csv-log", privacy__total_epsilon=2.0, evaluation__private__estimators=more
    )
    assert "evaluation.private.estimators it comes to 2." in refusal(beyond)
    assert params.parse(with_keys(privacy__total_epsilon=2.0)).privacy.target_epsilon == 2.0
    assert suggestions.model_of(1e-6, 1e-5) == 5e-7, "δ alone allows it"
    for total in (0.01, 0.9, 8.0):
        model = suggestions.model_of(total, 1e-5)
        for factor, within in ((1.0, True), (1.12, False)):
            parts = [
                factor * model,
                suggestions.clone(factor * model),
                *suggestions.estimators(factor * model).values(),
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
    auto = {"partition__public_fraction": "auto"}
    asked = {"privacy__statistics__normaliser": "auto", "privacy__statistics__starts": "auto"}
    asked |= {"dynamics__hidden": "auto", "dynamics__start": "auto"}
    by_column = params.parse(
        with_keys(dataset="csv-log", partition__public=consent, **auto)
    ).partition
    assert by_column.public_fraction is None
    assert (by_column.public.column, by_column.public.values) == ("consent", ("yes", "1", "true"))
    by_file = params.parse(with_keys(partition__public=listed, **auto)).partition
    assert (by_file.public_fraction, by_file.public.file) == (None, "data/consent/a.txt")
    heads = params.parse(
        with_keys(partition__public=listed, dynamics__model="auto", **asked, **auto)
    )
    assert (heads.dynamics.model, heads.privacy.statistics.normaliser) == ("linear", "private"), (
        "they may differ"
    )
    rest = params.parse(with_keys(partition__public_fraction=0.1, dynamics__model="auto", **asked))
    assert (rest.dynamics.model, rest.privacy.statistics.normaliser) == ("network", "public")
    both = with_keys(partition__public=consent, partition__public_fraction=0.1)
    assert "found both of public_fraction and public" in refusal(both)
    drawn = params.parse(with_keys(partition__public_fraction=0.1)).partition
    assert (drawn.public_fraction, drawn.public) == (0.1, None)


def test_nobody_is_public_by_a_default_where_units_are_people() -> None:
    """Twins: a share that the entry suggests, and one that params.yaml has, hold."""
    rewrite(
        DEFAULTS,
        **yaml.safe_load(Path(DEFAULTS).read_text()) | {"partition": {"public_fraction": 0.02}},
    )
    asked = {"privacy__statistics": {"normaliser": "private", "starts": True}}
    for suggested, said, expected in (
        ({}, "auto", 0),
        ({"public_fraction": 0.3}, "auto", 0.3),
        ({}, 0.2, 0.2),
    ):
        suggest({"partition": suggested}, "datasets/csv-log.yaml")
        found = params.parse(with_keys(dataset="csv-log", partition__public_fraction=said, **asked))
        assert found.partition.public_fraction == expected
    found = params.parse(with_keys(partition__public_fraction="auto"))
    assert found.partition.public_fraction == 0.02, "no people"


def test_what_was_taken_from_where_is_known() -> None:
    checked = params.parse(
        with_keys(dataset="csv-log", policy__penalty=0.9, partition__public_fraction="auto")
    )
    assert set(checked.origins) == set(leaves())
    assert (
        checked.origins.items()
        >= {
            "policy.penalty": "params.yaml",
            "privacy.delta": "params.yaml",
            "privacy.total_epsilon": "datasets/csv-log.yaml",
            "privacy.target_epsilon": "privacy.total_epsilon",
            "dynamics.early_stopping.every": DEFAULTS,
            "dynamics.learning_rate": TO_FIT,
        }.items()
    )
    suggested = checked.suggested()
    assert (suggested["privacy.target_epsilon"], suggested["policy.hidden"]) == (0.777, [64, 64])
    assert not {"policy.penalty", "dynamics.learning_rate"} & suggested.keys()


def test_only_what_nobody_gives_is_fitted_and_a_fit_touches_nothing_else() -> None:
    suggest({"privacy": {"rounds": 9}})
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


def test_a_key_that_nobody_may_or_does_suggest_a_value_for_is_named() -> None:
    for value, said in (("auto", "auto"), (None, "null")):
        found = refusal(with_keys(dynamics__batch_size=value))
        assert f"dynamics.batch_size: found {said}, and neither {OWN} " in found
    for key in (
        "privacy__budget__epsilon",
        "dynamics__variant",
        "privacy__draw",
        "dynamics__train_anyway",
    ):
        assert f"{key.replace('__', '.')}: found auto; " in refusal(with_keys(**{key: "auto"}))


def test_a_wrong_suggestion_is_named_where_it_stands_used_or_not() -> None:
    raw = with_keys(policy__horizon=5, privacy__target_epsilon=1.0)
    both = {"target_epsilon": 1, "noise_multiplier": 4}
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"dynamics": {"hiden": [7]}}, "suggested.dynamics.hiden: unknown key"),
        ({"policy": {"horizon": 0}}, "suggested.policy.horizon: found 0"),
        ({"policy": {"horizon": "auto"}}, "suggested.policy.horizon: found auto"),
        ({"privacy": {"budget": {"epsilon": 3}}}, "suggested.privacy.budget.epsilon: all runs"),
        ({"dynamics": {"variant": "no_privacy"}}, "suggested.dynamics.variant: whether a run"),
        ({"privacy": both}, "found 2 values; suggest one of them"),
        ({"ledger": {}}, "suggested.ledger: unknown key"),
        ({"dynamics": [1]}, "suggested.dynamics: a block of keys is needed"),
        ({"dynamics": {"x" * 10_000: 1}}, "xxx..."),
    )
    for suggested, message in wrong:
        suggest(suggested)
        found = refusal(raw)
        assert found.startswith(f"{OWN}: ")
        assert message in found
        assert len(found) < 400
    suggest({})
    path = Path(DEFAULTS)
    path.write_text(
        path.read_text(encoding="utf-8").replace("every: 5", "every: 0"), encoding="utf-8"
    )
    assert f"{DEFAULTS}: dynamics.early_stopping.every: found 0" in refusal(AUTO)


def test_without_an_environment_the_clone_and_two_questions_get_their_shares() -> None:
    suggest({}, "datasets/csv-log.yaml")
    found = params.parse(with_keys(dataset="csv-log", privacy__target_epsilon=0.5))
    assert found.evaluation.private.estimators == {"behaviour": 0.1, "model_check": 0.1}
    assert found.behaviour.target_epsilon == 0.175
    assert found.evaluation.private.return_bounds == "public"
    assert found.origins[suggestions.ESTIMATORS] == DEFAULTS
    by_noise = {"privacy__target_epsilon": None, "privacy__noise_multiplier": 4.0}
    found = params.parse(with_keys(dataset="csv-log", **by_noise))
    assert found.evaluation.private.estimators == {}
    assert found.origins[suggestions.ESTIMATORS] == suggestions.STATED, (
        "the model's statement says what a share is"
    )
    assert found.behaviour.target_epsilon is None
    assert suggestions.estimators(0.3) == {"behaviour": 0.06, "model_check": 0.06}
