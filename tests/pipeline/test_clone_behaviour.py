"""How `clone_behaviour` pays, clones and writes; it is idle unless an ε is given, and nothing is
paid twice.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import clone_behaviour, plan
from primorl.base.errors import PipelineError
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.engine import public
from primorl.engine.training import ENGINE_VERSION
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import BehaviourConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.epsilon import gaussian_epsilon, gaussian_mean
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.work.jobs import RunPlan
from tests.data.builders import INFO
from tests.pipeline.training_project import (
    charged,
    quick_clone,
    states,
    watch_private,
    with_changes,
)

FOLDER = Path("models/behaviour")
CLONED = {"shares": {"model": 0.4, "clone": 0.2}}


@pytest.fixture
def asked(data: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    quick_clone(monkeypatch, rounds=4, q=0.5, noise=lambda _: 1.0)
    monkeypatch.setattr(public, "_POOLED", replace(public._POOLED, max_epochs=3))
    return with_changes(data, privacy=CLONED)


def cloned(params: Params) -> StageLog:
    run = StageLog()
    plan.body(params, run)
    if not clone_behaviour.idle(params):
        clone_behaviour.body(params, run)
    return run


def test_it_is_idle_unless_an_epsilon_is_given(data: Params) -> None:
    cloned(with_changes(data))
    assert sorted(file.name for file in FOLDER.iterdir()) == ["behaviour.json"]
    assert not BehaviourConfig.read(FOLDER).made
    assert not Path(".primorl/ledger.db").exists()


def test_a_clone_is_charged_before_it_is_trained(
    asked: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    watch_private(monkeypatch, lambda: seen.append(states(asked)))
    release, released = Mechanism.release, []

    def spying(self: Mechanism, total: Any) -> Any:
        released.append((self.noise_multiplier, self.sampling_probability, self.units))
        return release(self, total)

    monkeypatch.setattr(Mechanism, "release", spying)
    cloned(asked)
    assert {tuple(each) for each in seen} == {("reserved",)}
    assert released == [(1.0, 0.5, 9)] * 4, "no noise is drawn beside the mechanism"
    (charge,) = charged(asked)
    assert (charge.state, charge.stage) == ("committed", "clone_behaviour")
    assert (charge.dataset, charge.units) == (INFO.dataset, 9)
    stated: dict[str, Any] = json.loads((FOLDER / "privacy.json").read_text(encoding="utf-8"))
    assert stated["epsilon"] == pytest.approx(charge.epsilon, rel=1e-3)
    assert (stated["charge"], stated["private"], stated["rounds"]) == (charge.id, True, 4)
    config = BehaviourConfig.read(FOLDER)
    assert (config.made, config.rounds, config.engine_version) == (True, 4, ENGINE_VERSION)
    cloned(asked)
    assert len(charged(asked)) == 1
    policy, rows = DeterministicPolicy.load(FOLDER), torch.randn(1, 7, 3)
    mean, _ = BehaviourPolicy.load(FOLDER, torch.device("cpu")).mean_and_std(rows[0])
    torch.testing.assert_close(policy.act(rows)[0], 2 * mean)  # Pendulum's torque


def test_what_cannot_be_cloned_is_refused_before_the_charge(
    asked: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_clone(monkeypatch, rounds=4, q=0.5, noise=lambda _: 2000.0)
    with pytest.raises(PipelineError, match=r"behaviour\.hidden: found \[2048, 2048\], .* weights"):
        cloned(with_changes(asked, privacy=CLONED, behaviour={"hidden": [2048, 2048]}))
    assert not charged(asked)
    assert not FOLDER.exists()


def test_a_clone_costs_what_was_asked_for(data: Params) -> None:
    """A fifth of 1/z² of a Gaussian release at ε 5."""
    params = with_changes(data, privacy=CLONED)
    plan.body(params, StageLog())
    _, price = RunPlan.load().jobs
    assert price.epsilon is not None
    whole = gaussian_mean(5.0, params.privacy.delta)
    asked = gaussian_epsilon(math.sqrt(0.2) * whole, params.privacy.delta)
    assert 0.9 * asked < price.epsilon <= asked
