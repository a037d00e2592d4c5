"""The policy stage near a clone: its statement, its candidates, and what it decides by itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import optimize_policy
from primorl.config.params import Params
from primorl.config.suggestions import TO_FIT
from primorl.policy import behaviour, member_values
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from tests.pipeline.tiny_policy import RememberingRun, tiny, write_model, write_partition
from tests.statements import OF_TRAINING
from tests.trajectories.builders import episodes, table

OUTPUT, CLONE = Path("models/policy"), Path("models/behaviour")
DELTA = 1e-5


@pytest.fixture(autouse=True)
def _few_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_values, "_ROLLOUTS", 8)


def stated(multiplier: float, charge: str) -> Statement:
    event = training_event(1.0, multiplier, 1)
    epsilon = compose([event], DELTA).epsilon_pld
    return replace(OF_TRAINING, event=event_to_json(event), epsilon=epsilon, charge=charge)


def write_clone(*, high: float = 2.0, variant: str = "private", discrete: bool = False) -> None:
    A = 2 if discrete else 1
    low, top = (torch.zeros(A), torch.ones(A)) if discrete else (-torch.full((A,), high), torch.full((A,), high))
    policy = DeterministicPolicy(
        (torch.zeros(1, A, 3), torch.zeros(1, 1, A)), torch.zeros(3), torch.ones(3), low, top, discrete
    )
    spread = None if discrete else (torch.zeros(1, A, 3), torch.zeros(1, 1, A))
    behaviour.save(
        CLONE,
        BehaviourPolicy(policy, spread, None if discrete else (-5.0, 1.0)),
        variant=variant,  # type: ignore[arg-type]
        environment="Pendulum-v1",
        names=None,
        observation_range=None,
        rounds=1,
        engine_version=1,
        public_loss=None,
    )
    stated(12.0, "clone").write(CLONE)


def trained(params: Params) -> RememberingRun:
    run = RememberingRun()
    optimize_policy.body(params, run)  # type: ignore[arg-type]
    return run


def prepared(**model: Any) -> None:
    write_model(stated(8.0, "model").to_json(), **model)
    write_partition(Path("data/partitions/public"), table(episodes(5)))


@pytest.mark.parametrize("actions", [None, 2])
def test_the_statement_counts_model_and_clone(small: Params, actions: int | None) -> None:
    prepared(actions=actions)
    write_clone(discrete=actions is not None)
    run = trained(tiny(small, seeds=[4, 7]))
    events = [training_event(1.0, 8.0, 1), training_event(1.0, 12.0, 1)]
    for folder in (OUTPUT, OUTPUT / "seeds/7"):
        statement, config = Statement.read(folder), PolicyConfig.read(folder)
        assert statement.epsilon == compose(events, DELTA).epsilon_pld
        assert [part.charge for part in statement.mechanisms] == ["model", "clone"]
        gains = [min(each.gains) for each in config.candidates]
        assert config.clone_error is not None
        best = gains.index(max(gains)) if max(gains) > member_values._SHARE_OF_ERROR * config.clone_error else 0
        assert [each.chosen for each in config.candidates] == [place == best for place in range(3)]
        assert [each.divergence for each in config.candidates] == list(member_values.DIVERGENCES)
    assert run.logged["epsilon"] == str(statement.epsilon)
    for inner in run.inner.values():
        assert {"chosen_divergence", "smallest_gain_0.3", "smallest_gain_3", "divergence"} <= set(inner.steps)


def test_without_a_clone_the_statement_is_the_models(small: Params) -> None:
    prepared()
    trained(tiny(small))
    assert Statement.read(OUTPUT) == stated(8.0, "model")
    assert PolicyConfig.read(OUTPUT).candidates == ()


@pytest.mark.parametrize(
    ("clone", "says"),
    [({"variant": "no_clip"}, "found variant 'no_clip'"), ({"high": 3.0}, "of other observations or actions than")],
)
def test_a_clone_of_something_else_is_refused(small: Params, clone: dict[str, Any], says: str) -> None:
    prepared()
    write_clone(**clone)
    with pytest.raises(PipelineError, match=says):
        trained(tiny(small))
    assert not OUTPUT.exists()


def test_a_learned_end_without_evidence_is_not_used(small: Params, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(termination="learned")
    trained(tiny(small))
    assert PolicyConfig.read(OUTPUT).ends == "none"
    assert "learned terminations are not used: 2 public terminations (needed 20)" in capsys.readouterr().err


def test_keys_that_nobody_decides_are_fitted(small: Params) -> None:
    prepared()
    params = replace(
        tiny(small, starts="public"), origins=dict.fromkeys(("policy.reward_scale", "policy.uncertainty"), TO_FIT)
    )
    run = trained(params)
    found = run.logged["policy"]
    assert found["uncertainty"] == "standardised_difference"
    assert found["reward_scale"] != params.policy.reward_scale
    assert found["penalty"] == params.policy.penalty
    assert found["horizon"] == params.policy.horizon
