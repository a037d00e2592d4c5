"""What `train_model` does about terminations, horizons and declared facts."""

import dataclasses
import json

import pytest
import torch

from primorl.config.params import Params
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.termination import RULES, Rule
from primorl.project.errors import PipelineError
from tests.pipeline import tiny_policy
from tests.pipeline.training_project import (
    OUTPUT,
    charged,
    statement,
    trained,
    with_changes,
    write_partitions,
)
from tests.trajectories.builders import INFO, episode


def declare(monkeypatch: pytest.MonkeyPatch, termination: str) -> None:
    monkeypatch.setattr(tiny_policy, "INFO", dataclasses.replace(INFO, termination=termination))


def some_episodes(*, terminated: bool) -> None:
    write_partitions(
        [episode(5, i, terminated=terminated) for i in range(3)], [episode(20, 9 + i, terminated) for i in range(2)]
    )


@pytest.mark.parametrize(
    ("termination", "says"),
    [
        (
            "none",
            r"replay.yaml: termination: found none, but episodes of .* terminate; allowed is learned",
        ),
        ("sideways", r"termination: found 'sideways'; allowed for observations of size 3 are none, learned, upright$"),
        ("hopper", r"termination: found 'hopper', a rule for observations of size 11; allowed for those of size 3"),
    ],
)
def test_terminations_that_nobody_declared_are_refused_before_anything_is_charged(
    small: Params, monkeypatch: pytest.MonkeyPatch, termination: str, says: str
) -> None:
    monkeypatch.setitem(RULES, "upright", Rule(3, lambda observation, action, following: following[:, 0] < 0))
    declare(monkeypatch, termination)
    some_episodes(terminated=True)
    with pytest.raises(PipelineError, match=says):
        trained(with_changes(small))
    assert not OUTPUT.exists()
    assert charged(small) == []


def test_a_learned_termination_is_part_of_the_model_and_of_what_is_stated(
    small: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, "learned")
    some_episodes(terminated=True)
    run = trained(with_changes(small))
    ensemble = GaussianEnsemble.load(OUTPUT, torch.device("cpu"))
    assert (ensemble.termination, ensemble.architecture.learned_termination) == ("learned", True)
    assert ensemble.weights[-1].shape == (3, 1, 9)
    assert bool((ensemble.weights[-1][..., -1] != ensemble.architecture.initial_weights(0)[-1][..., -1]).any())
    assert statement()["termination"] == "learned"
    assert json.loads((OUTPUT / "config.json").read_text())["termination"] == "learned"
    assert "public_error.termination" in run.steps


def test_a_declared_rule_is_stated_among_what_was_taken_as_public(
    small: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "upright", Rule(3, lambda observation, action, following: following[:, 0] < 0))
    declare(monkeypatch, "upright")
    some_episodes(terminated=True)
    run = trained(with_changes(small))
    assert statement()["termination"] == "upright"
    assert "when an episode ends: the declared rule upright" in statement()["public_assumptions"]
    assert GaussianEnsemble.load(OUTPUT, torch.device("cpu")).weights[-1].shape == (3, 1, 8)
    assert "public_error.termination" not in run.steps
