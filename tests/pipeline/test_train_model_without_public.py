"""No unit is public: what standardises, where rollouts begin, what is asked of private units and
what that costs.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import clone_behaviour
from primorl.base import PipelineError
from primorl.base.files import PLAN
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.model.architecture import ModelConfig
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.starts import StartModel
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.epsilon import event_from_json
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.stages.policy import PublicLog
from primorl.work.bill import Bill
from primorl.work.data import Partitions
from primorl.work.jobs import RunPlan
from primorl.work.rules import epsilon_of
from tests.data.builders import SPACES, episode
from tests.mechanisms import watch
from tests.pipeline.training_project import (
    OUTPUT,
    charged,
    edited,
    killed,
    noise_of_model,
    statement,
    states,
    trained,
    with_changes,
    write_partitions,
)
from tests.privacy.ledger.ledgers import adaptive

CPU = torch.device("cpu")
NOBODY = {"partition": {"public_fraction": 0, "public": None}, "policy": {"starts": "released"}}
ASKED = ["scales", "finer_scales", "explained", "first_states"]


def without_public(small: Params, privacy: Any = None, **blocks: Any) -> Params:
    return with_changes(small, privacy=privacy or {}, **NOBODY | blocks)


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    noise_of_model(monkeypatch, 1.0)
    write_partitions([episode(5 + i % 4, i) for i in range(80)])
    return small


def test_every_query_is_charged_with_the_rounds_and_first(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    watch(monkeypatch, Mechanism, "answer", lambda *_: seen.append(states(data)))
    trained(without_public(data))
    assert seen == [["reserved"]] * 4
    said = statement()
    assert [query["what"] for query in said["queries"]] == ASKED
    whole = accounting.Training(1.0, 1.0, 4, (14.0,) * 4)
    assert event_from_json(said["event"]) == whole.event
    assert said["epsilon"] == whole.spent(1e-3).epsilon_pld
    alone = accounting.Training(1.0, 1.0, 4).spent(1e-3).epsilon_pld
    assert alone < said["epsilon"]
    (charge,) = charged(data)
    assert charge.event == said["event"]
    assert "no unit: there is no public split" in said["public_assumptions"]
    told = ModelConfig.read(OUTPUT).explained
    assert told is not None
    assert len(told) == 4, "the observation's dimensions and the reward"
    reason = RunPlan.read(PLAN).reason
    assert re.search(r"the noise may hide a reward whose standard deviation is below \d", reason)
    starts, high = StartModel.load(OUTPUT, CPU), torch.tensor(SPACES.observation_high)
    bounds = GaussianEnsemble.load(OUTPUT, CPU).bounds
    assert torch.equal(starts.high, high), "as declared: bounds see nobody"
    assert torch.equal(bounds.observation_high, high)
    begun = PublicLog(OUTPUT, None).first_states(seed=0)
    assert bool((begun >= starts.low).all() & (begun <= starts.high).all())


def test_what_needs_public_units_charges_nobody(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = {"early_stopping": {"every": 2, "patience": 3}}
    by_reward = {"bounds": {"observation": "space", "reward": "public"}}
    by_rows = {"bounds": {"observation": "public", "reward": [-17.0, 0.0]}}
    beyond = {"bounds": {"observation": "space", "reward": [-17.0, 0.0], "angles": [[0, 3]]}}
    drawn = {"partition": {"public_fraction": 0.5, "public": None}, "policy": {}}
    refusals: list[tuple[dict[str, Any], str]] = [
        (drawn, r"partition.public_fraction: needs public"),
        ({"dynamics": patient}, r"patience: needs .* allowed: null"),
        ({"chosen": by_rows}, r"bounds.observation: needs .* allowed: space"),
        ({"chosen": beyond}, r"bounds.angles: found column 3, .* from 0 to 2"),
        ({"chosen": by_reward}, r"bounds.reward: needs .* allowed: \[low, high\]"),
    ]
    for blocks, says in refusals:
        with pytest.raises(PipelineError, match=says) as refused:
            trained(without_public(data, **blocks))
        assert re.match(r"params.yaml: |datasets/[a-z-]+\.yaml: ", str(refused.value))
        assert "\n" not in str(refused.value)
    assert not OUTPUT.exists()
    assert charged(data) == []


def test_nothing_is_asked_twice_under_one_charge(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anybody charged anew for an answer that is lost; another draw is charged."""
    params = without_public(data)
    with killed(2, "answer"):
        trained(params)
    with pytest.raises(PipelineError, match=r"one answer only; it stays spent; .*privacy\.draw"):
        trained(params)
    assert states(data) == ["reserved"]
    partitions = Partitions.open(params)
    assert Bill.of(params, RunPlan.read_for(params, partitions), partitions).unpaid == []

    params = edited(params, privacy={"draw": 1})
    with killed(3, "release"):
        trained(params)
    assert states(data) == ["reserved"] * 2
    asked: list[str] = []
    watch(monkeypatch, Mechanism, "answer", lambda _, query, total: asked.append(query.what))
    trained(params)
    assert asked == ["explained", "first_states"], "nothing is asked twice under one charge"
    assert states(data) == ["reserved", "committed"]
    assert json.loads((OUTPUT / "config.json").read_text())["rounds"] == 3
    once, spent = event_from_json(statement()["event"]), statement()["spent_on_dataset"]
    twice = adaptive(once, once, delta=spent["delta"])
    assert spent["epsilon"] == pytest.approx(twice, rel=1e-9)


def test_linear_heads_and_all_that_they_ask_are_one_charge(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two of the late queries loses their answers, and nobody is asked again."""
    heads = {"model": "linear", "degree": 2, "hidden": [], "learning_rate": 1.0}
    heads["max_transitions_per_unit"] = 8
    shares = {"model": 0.4, "clone": 0.1}
    params = without_public(data, dynamics=heads, privacy={"shares": shares})
    trained(params)
    said = statement()
    asked = [query["what"] for query in said["queries"]]
    assert asked == ["scales", "finer_scales", "residuals", "explained", "first_states"]
    whole = accounting.Training(1.0, 1.0, 4, (14.0,) * 5)
    assert event_from_json(said["event"]) == whole.event
    members = GaussianEnsemble.load(OUTPUT, CPU).architecture.members
    assert members == params.dynamics.ensemble_size
    assert StartModel.load(OUTPUT, CPU).survival is None
    clone_behaviour.body(params, StageLog())
    clone = json.loads(Path("models/behaviour/privacy.json").read_text(encoding="utf-8"))
    of_model, of_clone = clone["mechanisms"]  # it acts in the scales that the model was told
    assert [query["what"] for query in of_clone["queries"]] == ["persistence"]
    assert 0.9 < of_clone["epsilon"] / epsilon_of(params, "clone") <= 1.0
    events = [charge.event for charge in charged(data)]
    assert events == [said["event"], of_clone["event"]] == [of_model["event"], of_clone["event"]]
    both = [event_from_json(event) for event in events]
    assert clone["epsilon"] == accounting.compose(both, clone["delta"]).epsilon_pld
    assert [clone["charge"], said["charge"]] == [of_clone["charge"], of_model["charge"]]
    other = edited(params, privacy={"draw": 1})
    asked = []
    watch(monkeypatch, Mechanism, "answer", lambda _, query, total: asked.append(query.what))
    with killed(4, "answer"):
        trained(other)
    trained(other)
    assert asked == ["scales", "finer_scales", "residuals"]
    assert not (OUTPUT / "starts.safetensors").exists(), "the answer is gone"
    config = json.loads((OUTPUT / "config.json").read_text())
    assert any("explains of the reward is not known" in line for line in config["warnings"])
    assert states(data) == ["committed"] * 3
