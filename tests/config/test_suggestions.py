"""params.yaml decides, a dataset suggests."""

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.config import params
from primorl.config.suggestions import FITTED, TO_FIT, leaves
from primorl.project.errors import PipelineError
from tests.projects import ROOT

AUTO: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "datasets", tmp_path / "datasets")
    return tmp_path


def with_keys(**keys: Any) -> dict[str, Any]:
    raw = copy.deepcopy(AUTO)
    for key, value in keys.items():
        *path, last = key.split("__")
        block = raw
        for part in path:
            block = block[part]
        block[last] = value
    return raw


def suggest(name: str, suggested: dict[str, Any]) -> None:
    path = Path("datasets") / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    empty: dict[str, Any] = {
        "partition": {},
        "privacy": {},
        "dynamics": {},
        "behaviour": {},
        "policy": {},
        "evaluation": {},
    }
    path.write_text(yaml.safe_dump(content | {"suggested": empty | suggested}), encoding="utf-8")


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
        (("auto", "auto"), {"target_epsilon": 2.0}, {"noise_multiplier": 4.0}, (2.0, None)),
        ((0.3, "auto"), {"noise_multiplier": 4.0}, {}, (0.3, None)),
        (("auto", 3.0), {"target_epsilon": 2.0}, {"target_epsilon": 0.5}, (None, 3.0)),
        ((None, "auto"), {"noise_multiplier": 4.0}, {"target_epsilon": 0.5}, (None, 4.0)),
        ((None, 3.0), {"target_epsilon": 2.0}, {"target_epsilon": 0.5}, (None, 3.0)),
        ((None, "auto"), {"target_epsilon": 2.0}, {}, "privacy.noise_multiplier: found auto, and neither"),
        ((None, None), {"target_epsilon": 2.0}, {}, "found neither of target_epsilon and noise_multiplier"),
        ((0.3, 3.0), {}, {}, "found both of target_epsilon and noise_multiplier"),
        (("auto", "auto"), {}, {}, "privacy.target_epsilon: found auto, and neither"),
    ],
)
def test_exactly_one_of_target_and_noise_is_used(
    project: Path, said: tuple[Any, Any], own: dict[str, Any], common: dict[str, Any], expected: Any
) -> None:
    suggest("pendulum-replay", {"privacy": own})
    path = Path("datasets/defaults.yaml")
    defaults = yaml.safe_load(path.read_text(encoding="utf-8"))
    del defaults["privacy"]["target_epsilon"]
    defaults["privacy"] |= common
    path.write_text(yaml.safe_dump(defaults), encoding="utf-8")
    raw = with_keys(privacy__target_epsilon=said[0], privacy__noise_multiplier=said[1])
    if isinstance(expected, str):
        assert expected in refusal(raw)
    else:
        privacy = params.parse(raw).privacy
        assert (privacy.target_epsilon, privacy.noise_multiplier) == expected


def test_consent_takes_the_place_of_a_draw(project: Path) -> None:
    consent = {"column": "consent", "values": ["yes", 1, True]}
    by_column = params.parse(with_keys(dataset="csv-log", partition__public=consent)).partition
    assert (by_column.public_fraction, by_column.public.column, by_column.public.values) == (  # type: ignore[union-attr]
        None,
        "consent",
        ("yes", "1", "true"),
    )
    by_file = params.parse(with_keys(partition__public={"file": "data/consent/a.txt"})).partition
    assert (by_file.public_fraction, by_file.public.file) == (None, "data/consent/a.txt")  # type: ignore[union-attr]
    assert "found both of public_fraction and public" in refusal(
        with_keys(partition__public=consent, partition__public_fraction=0.1)
    )
    drawn = params.parse(with_keys(partition__public_fraction=0.1)).partition
    assert (drawn.public_fraction, drawn.public) == (0.1, None)


def test_what_was_taken_from_where_is_known(project: Path) -> None:
    checked = params.parse(with_keys(dataset="csv-log", policy__penalty=0.9))
    assert checked.origins["policy.penalty"] == "params.yaml"
    assert checked.origins["privacy.target_epsilon"] == "datasets/csv-log.yaml"
    assert checked.origins["privacy.delta"] == "params.yaml"
    assert checked.origins["dynamics.early_stopping.every"] == "datasets/defaults.yaml"
    assert checked.origins["dynamics.learning_rate"] == TO_FIT
    assert set(checked.origins) == set(leaves())
    suggested = checked.suggested()
    assert suggested["privacy.target_epsilon"] == 0.8
    assert suggested["policy.hidden"] == [64, 64]
    assert "policy.penalty" not in suggested
    assert "dynamics.learning_rate" not in suggested, "nobody suggests what is to be fitted"
    line = checked.suggestions_line()
    assert line is not None
    assert "\n" not in line
    for taken in ("partition.public_fraction 0.1", "privacy.target_epsilon 0.8"):
        assert taken in line.partition("datasets/csv-log.yaml: ")[2].partition("datasets/defaults")[0]
    assert re.search(r"datasets/defaults.yaml: \d+ values$", line)


def test_only_what_nobody_gives_is_fitted_and_a_fit_touches_nothing_else(project: Path) -> None:
    suggest("pendulum-replay", {"privacy": {"rounds": 9}})
    checked = params.parse(with_keys(dynamics__hidden=[7]))
    assert checked.unfitted == FITTED.keys() - {"privacy.rounds", "dynamics.hidden"}
    fitted = checked.fitted({"dynamics.learning_rate": 0.02, "privacy.clipping_norm": 0.7})
    assert (fitted.dynamics.learning_rate, fitted.privacy.clipping_norm) == (0.02, 0.7)
    assert (fitted.privacy.rounds, fitted.dynamics.hidden) == (9, (7,))
    assert {"dynamics.learning_rate", "privacy.clipping_norm"} == checked.unfitted - fitted.unfitted
    for key in ("privacy.rounds", "dynamics.hidden", "dynamics.batch_size"):
        assert checked.fitted({key: 3}) == checked


def test_what_nobody_says_is_one_error_that_names_both_places(project: Path) -> None:
    assert refusal(with_keys(dynamics__batch_size="auto")) == (
        "params.yaml: dynamics.batch_size: found auto, and neither datasets/pendulum-replay.yaml "
        "(suggested.dynamics.batch_size) nor datasets/defaults.yaml (dynamics.batch_size) suggests a value; give one"
    )
    assert "dynamics.batch_size: found null, and neither" in refusal(with_keys(dynamics__batch_size=None))


@pytest.mark.parametrize(
    "key", ["privacy__budget__epsilon", "dynamics__variant", "privacy__draw", "dynamics__train_anyway"]
)
def test_some_keys_are_decided_in_params_yaml_alone(project: Path, key: str) -> None:
    assert f"{key.replace('__', '.')}: found auto; " in refusal(with_keys(**{key: "auto"}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dynamics": {"hiden": [7]}}, "suggested.dynamics.hiden: unknown key"),
        (
            {"dynamics": {"processes": 2}},
            "suggested.dynamics.processes: unknown key; it is compute.processes, on which",
        ),
        ({"policy": {"horizon": 0}}, "suggested.policy.horizon: found 0; allowed is greater than 0"),
        ({"policy": {"horizon": "auto"}}, "suggested.policy.horizon: found auto; a suggestion is a value"),
        ({"privacy": {"budget": {"epsilon": 3}}}, "suggested.privacy.budget.epsilon: all runs share it; it is set in"),
        ({"dynamics": {"train_anyway": True}}, "suggested.dynamics.train_anyway: it must be said in so many words"),
        ({"dynamics": {"variant": "no_privacy"}}, "suggested.dynamics.variant: whether a run is private must be seen"),
        ({"privacy": {"target_epsilon": 1, "noise_multiplier": 4}}, "found both; suggest one of the two"),
        ({"ledger": {}}, "suggested.ledger: unknown key"),
        ({"dynamics": [1]}, "suggested.dynamics: a block of keys is needed"),
        ({"dynamics": {"x" * 10_000: 1}}, "xxx..."),
    ],
)
def test_a_wrong_suggestion_is_named_where_it_stands_used_or_not(
    project: Path, wrong: dict[str, Any], message: str
) -> None:
    suggest("pendulum-replay", wrong)
    raw = with_keys(policy__horizon=5, privacy__target_epsilon=1.0)
    found = refusal(raw)
    assert found.startswith("datasets/pendulum-replay.yaml: ")
    assert message in found
    assert len(found) < 400


def test_a_wrong_default_is_named_in_its_file(project: Path) -> None:
    path = Path("datasets/defaults.yaml")
    path.write_text(path.read_text(encoding="utf-8").replace("max_epochs: 60", "max_epochs: 0"), encoding="utf-8")
    assert "datasets/defaults.yaml: dynamics.mopo.max_epochs: found 0; allowed is greater than 0" in refusal(AUTO)


def test_old_settings_are_told_their_new_name(project: Path) -> None:
    path = Path("datasets/pendulum-replay.yaml")
    path.write_text(path.read_text(encoding="utf-8").replace("suggested:", "settings:"), encoding="utf-8")
    assert "settings: unknown key; it is called suggested, and holds where params.yaml says auto" in refusal(AUTO)
