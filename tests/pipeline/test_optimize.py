"""Policies from a released model, also near a clone, and the baseline: what is read, written,
stated and charged.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pipeline import optimize_policy
from primorl.base import PipelineError
from primorl.base.files import BEHAVIOUR, PLAN, POLICY, PUBLIC, read_json, write_json
from primorl.base.reporting import StageLog
from primorl.config.params import Params, plain
from primorl.policy import behaviour, optimisation
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import BehaviourConfig, PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.epsilon import compose, event_from_json
from primorl.privacy.statement import Statement
from tests.data.builders import episodes, snapshot, table
from tests.pipeline.training_project import steps_of, tiny, write_model, write_partition
from tests.privacy.test_statements import DELTA, statement
from tests.statements import PRIVATE as STATEMENT

FILES = ("config.json", "epochs.safetensors", "policy.safetensors", "privacy.json")
PLANNED = {
    "uncertainty": "max_pairwise_difference",
    "penalty": 0.5,
    "target_entropy": -1.0,
    "reward_scale": 0.1,
    "reset_fraction": 1.0,
    "discount": 0.99,
    "target_rate": 0.005,
    "learning_rate": 3e-4,
    "hidden": [64, 64],
}


@pytest.fixture(autouse=True)
def few_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimisation, "_ROLLOUTS", 8)


def trained(params: Params, stage: ModuleType = optimize_policy) -> StageLog:
    run = StageLog()
    given = {key: value for key, value in plain(params.policy).items() if value is not None}
    write_json(PLAN, {"policy": PLANNED | given})
    if stage is optimize_policy or not stage.idle(params):
        stage.body(params, run)
    return run


def test_it_needs_no_data_at_all(small: Params) -> None:
    ensemble = write_model(STATEMENT)
    run = trained(tiny(small, starts="reset", reset_fraction=0.1))
    assert [path.name for path in Path("data").iterdir()] == ["plan.json"]
    assert read_json(POLICY / "privacy.json") == STATEMENT
    assert sorted(item.name for item in POLICY.iterdir()) == list(FILES)
    steps = steps_of(run)
    assert steps
    assert set(map(tuple, steps.values())) == {(1, 2)}
    policy, epochs = (
        DeterministicPolicy.load(POLICY),
        DeterministicPolicy.load(POLICY, "epochs.safetensors"),
    )
    assert (policy.policies, epochs.policies) == (1, 2)
    assert torch.equal(policy.observation_mean, ensemble.normaliser.input_mean[:3])
    assert torch.equal(policy.observation_scale, ensemble.normaliser.input_scale[:3])
    assert torch.equal(policy.action_high, torch.tensor([2.0]))


# Near a clone


def write_clone(*, high: float = 2.0, variant: str = "private", discrete: bool = False) -> None:
    A = 2 if discrete else 1
    low, top = (
        (torch.zeros(A), torch.ones(A))
        if discrete
        else (-torch.full((A,), high), torch.full((A,), high))
    )
    layers = (torch.zeros(1, A, 3), torch.zeros(1, 1, A))
    policy = DeterministicPolicy(layers, torch.zeros(3), torch.ones(3), low, top, discrete)
    clone = BehaviourPolicy(policy, None if discrete else layers, None if discrete else (-5.0, 1.0))
    made = BehaviourConfig(made=True, rounds=1, engine_version=1)
    facts: dict[str, Any] = {"variant": variant, "environment": "Pendulum-v1"}
    behaviour.save(BEHAVIOUR, clone, made, **facts)
    statement(12.0, charge="clone").write(BEHAVIOUR)


def prepared(**model: Any) -> None:
    write_model(statement(8.0, charge="model").to_json(), **model)
    write_partition(PUBLIC, table(episodes(5)))


@pytest.mark.parametrize("actions", [None, 2])
def test_the_statement_counts_model_and_clone_for_every_seed(
    small: Params, actions: int | None
) -> None:
    prepared(actions=actions)
    write_clone(discrete=actions is not None)
    trained(tiny(small, seeds=[4, 7], starts="public"))
    assert sorted(snapshot(POLICY)) == sorted(
        f"{folder}{name}" for folder in ("", "seeds/7/") for name in FILES
    )
    assert read_json(POLICY / "config.json")["seeds"] == [4, 7]
    events = [event_from_json(statement(each).event) for each in (8.0, 12.0)]
    for folder in (POLICY, POLICY / "seeds/7"):
        stated, config = Statement.read(folder), PolicyConfig.read(folder)
        assert stated.epsilon == compose(events, DELTA).epsilon_pld
        assert [part.charge for part in stated.mechanisms] == ["model", "clone"]
        assert config.clone_error is not None
        assert [each.chosen for each in config.candidates].count(True) == 1
        assert [each.divergence for each in config.candidates] == list(optimisation.DIVERGENCES)


def test_model_or_clone_of_something_else_is_refused(small: Params) -> None:
    prepared()
    for clone, says in (
        ({"variant": "no_clip"}, "found variant 'no_clip'"),
        ({"high": 3.0}, "of other observations or actions than"),
    ):
        write_clone(**clone)
        with pytest.raises(PipelineError, match=says):
            trained(tiny(small))
    with pytest.raises(PipelineError, match=r"found variant 'private'.* asks for 'no_clip'"):
        trained(tiny(small, variant="no_clip"))
    assert not POLICY.exists()
