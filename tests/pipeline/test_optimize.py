"""Policies from a released model, also near a clone, and the baseline: what is read, written, stated and charged."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from pipeline import optimize_mopo, optimize_policy
from primorl import load_policy
from primorl.base.errors import PipelineError
from primorl.base.files import read_json
from primorl.base.paths import BEHAVIOUR, MODEL, MOPO, POLICY, PRIVATE, PUBLIC
from primorl.base.records import ElapsedTime
from primorl.config.params import Params, from_plain, plain
from primorl.config.suggestions import TO_FIT
from primorl.data.storage.rows import UnitStore
from primorl.model.architecture import ModelConfig
from primorl.model.termination import RULES, Rule
from primorl.policy import behaviour, member_values
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import PolicyConfig, write_nothing
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import Scaling, real_transitions
from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.statement import Statement
from tests.data.builders import INFO, episode, episodes, snapshot, table
from tests.pipeline import tiny_policy, training_project
from tests.pipeline.tiny_policy import (
    RememberingRun,
    tiny,
    write_model,
    write_partition,
    write_partitions,
)
from tests.pipeline.training_project import charged, edited, with_changes
from tests.statements import NOT_PRIVATE, OF_TRAINING
from tests.statements import PRIVATE as STATEMENT

FILES = ("config.json", "epochs.safetensors", "policy.safetensors", "privacy.json")
DELTA = 1e-5


@pytest.fixture(autouse=True)
def few_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_values, "_ROLLOUTS", 8)


def trained(params: Params, stage: ModuleType = optimize_policy) -> RememberingRun:
    run = RememberingRun()
    if stage is optimize_policy or not stage.idle(params):
        stage.body(params, run)
    return run


@pytest.mark.parametrize("starts", ["reset", "pool"])
def test_it_needs_no_data_at_all(small: Params, starts: str) -> None:
    ensemble = write_model(STATEMENT)
    run = trained(tiny(small, starts=starts))
    assert not Path("data").exists()
    assert read_json(POLICY / "privacy.json") == STATEMENT
    said = {"variant": "private", "policy": "models/policy", "environment": "Pendulum-v1"}
    assert read_json(POLICY / "config.json").items() >= said.items()
    assert sorted(item.name for item in POLICY.iterdir()) == list(FILES)
    assert set(run.artifacts) == {"config.json", "privacy.json"}
    assert (
        run.logged.items()
        >= {"private": "True", "epsilon": "1.19", "delta": "1e-05", "unit": "trajectory"}.items()
    )
    assert run.logged["policy"]["starts"] == starts
    assert {name: steps for name, steps in run.steps.items() if steps != [1, 2]} == {}
    assert {"critic_loss", "model_reward", "model_uncertainty"} <= set(run.steps)
    policy, epochs = DeterministicPolicy.load(POLICY), DeterministicPolicy.load_epochs(POLICY)
    assert (policy.policies, epochs.policies) == (1, 2)
    assert torch.equal(policy.observation_mean, ensemble.normaliser.input_mean[:3])
    assert torch.equal(policy.observation_scale, ensemble.normaliser.input_scale[:3])
    assert torch.equal(policy.action_high, torch.tensor([2.0]))


@pytest.mark.parametrize(
    "model", [{"actions": 2}, {"termination": "learned"}, {"termination": "upright"}]
)
def test_a_model_of_another_kind_is_trained_in(
    small: Params, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    monkeypatch.setitem(
        RULES, "upright", Rule(3, lambda observation, action, following: following[:, 0] < 0)
    )
    write_model(STATEMENT, **model)
    write_partition(PUBLIC, table(episodes(5)))
    run = trained(tiny(small))
    assert {name: steps for name, steps in run.steps.items() if steps != [1, 2]} == {}
    policy, config = DeterministicPolicy.load(POLICY), read_json(POLICY / "config.json")
    assert policy.discrete_actions == config["discrete_actions"] == ("actions" in model)
    assert policy.layers[-1].shape == (1, 1, config["action_size"])


def test_the_time_since_the_row_before_goes_on(
    small: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed = ElapsedTime(name="observation_2", unit="hours", most=4.0)
    monkeypatch.setattr(
        tiny_policy, "INFO", replace(INFO, spaces=replace(INFO.spaces, elapsed=elapsed))
    )
    training_project.write_partitions(
        [episode(9, i) for i in range(9)], [episode(20, 9 + i) for i in range(4)]
    )
    training_project.trained(with_changes(small))
    assert ModelConfig.read(MODEL).elapsed == elapsed
    write_nothing(BEHAVIOUR)
    trained(tiny(with_changes(small), starts="public"))
    assert load_policy("models/policy").elapsed == elapsed


# Near a clone


def stated(multiplier: float, charge: str) -> Statement:
    event = training_event(1.0, multiplier, 1)
    epsilon = compose([event], DELTA).epsilon_pld
    return replace(OF_TRAINING, event=event_to_json(event), epsilon=epsilon, charge=charge)


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
    facts: dict[str, Any] = {
        "variant": variant,
        "environment": "Pendulum-v1",
        "rounds": 1,
        "engine_version": 1,
    }
    behaviour.save(BEHAVIOUR, clone, **facts, names=None, observation_range=None, public_loss=None)
    stated(12.0, "clone").write(BEHAVIOUR)


def prepared(**model: Any) -> None:
    write_model(stated(8.0, "model").to_json(), **model)
    write_partition(PUBLIC, table(episodes(5)))


@pytest.mark.parametrize("actions", [None, 2])
def test_the_statement_counts_model_and_clone_for_every_seed(
    small: Params, actions: int | None
) -> None:
    prepared(actions=actions)
    write_clone(discrete=actions is not None)
    run = trained(tiny(small, seeds=[4, 7], starts="public"))
    assert sorted(snapshot(POLICY)) == sorted(
        f"{folder}{name}" for folder in ("", "seeds/7/") for name in FILES
    )
    assert read_json(POLICY / "config.json")["seeds"] == [4, 7]
    events = [training_event(1.0, 8.0, 1), training_event(1.0, 12.0, 1)]
    for folder in (POLICY, POLICY / "seeds/7"):
        statement, config = Statement.read(folder), PolicyConfig.read(folder)
        assert statement.epsilon == compose(events, DELTA).epsilon_pld
        assert [part.charge for part in statement.mechanisms] == ["model", "clone"]
        gains = [min(each.gains) for each in config.candidates]
        assert config.clone_error is not None
        best = (
            gains.index(max(gains))
            if max(gains) > member_values._SHARE_OF_ERROR * config.clone_error
            else 0
        )
        assert [each.chosen for each in config.candidates] == [place == best for place in range(3)]
        assert [each.divergence for each in config.candidates] == list(member_values.DIVERGENCES)
    assert run.logged["epsilon"] == str(statement.epsilon)
    assert {name: inner.logged["seed"] for name, inner in run.inner.items()} == {
        "seed 4": 4,
        "seed 7": 7,
    }
    for inner in run.inner.values():
        assert {"chosen_divergence", "smallest_gain_0.3", "smallest_gain_3", "divergence"} <= set(
            inner.steps
        )
    one, other = run.inner.values()
    assert one.logged["critic_loss"] != other.logged["critic_loss"]
    assert run.logged["critic_loss"] == pytest.approx(
        (one.logged["critic_loss"] + other.logged["critic_loss"]) / 2
    )


def test_model_or_clone_of_something_else_is_refused(small: Params) -> None:
    prepared()
    for clone, says in (
        ({"variant": "no_clip"}, "found variant 'no_clip'"),
        ({"high": 3.0}, "of other observations or actions than"),
    ):
        write_clone(**clone)
        with pytest.raises(PipelineError, match=says):
            trained(tiny(small))
    for variant, stage in (("no_clip", optimize_policy), ("mopo", optimize_mopo)):
        with pytest.raises(
            PipelineError, match=rf"found variant 'private'.*params.yaml asks for '{variant}'"
        ):
            trained(tiny(small, variant=variant), stage)
    assert not POLICY.exists()
    assert not MOPO.exists()


def test_what_nobody_decides_is_fitted(small: Params, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(termination="learned")
    keys = ("policy.reward_scale", "policy.uncertainty")
    params = replace(tiny(small, starts="public"), origins=dict.fromkeys(keys, TO_FIT))
    found = trained(params).logged["policy"]
    assert found["uncertainty"] == "standardised_difference"
    assert found["reward_scale"] != params.policy.reward_scale
    assert (found["penalty"], found["horizon"]) == (params.policy.penalty, params.policy.horizon)
    assert PolicyConfig.read(POLICY).ends == "none"
    assert (
        "learned terminations are not used: 2 public terminations (needed 20)"
        in capsys.readouterr().err
    )


# The baseline


def test_other_variants_open_nothing_and_point_to_their_policy(
    small: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnitStore, "open", lambda folder: pytest.fail(f"{folder} was opened"))
    assert trained(tiny(small), optimize_mopo).logged == {}
    assert [item.name for item in MOPO.iterdir()] == ["config.json"]
    assert read_json(MOPO / "config.json") == {"variant": "private", "policy": "models/policy"}
    write_model(NOT_PRIVATE, variant="mopo")
    trained(tiny(small, variant="mopo"))
    assert read_json(POLICY / "config.json") == {"variant": "mopo", "policy": "models/mopo"}
    assert read_json(POLICY / "privacy.json") == NOT_PRIVATE
    with pytest.raises(PipelineError, match="policy"):
        DeterministicPolicy.load(POLICY)


def test_the_baseline_is_charged_before_it_reads_data_and_marked_as_not_private(
    small: Params,
) -> None:
    write_model(
        {key: value for key, value in NOT_PRIVATE.items() if key != "charge"}, variant="mopo"
    )
    write_partitions(
        table(episodes(9)), table([episode(30, 77)], units=["public"], names=["public"])
    )
    shutil.move(PRIVATE, "aside")
    baseline = tiny(small, variant="mopo", seeds=[1, 2])
    with pytest.raises(PipelineError, match="budget"):
        trained(
            edited(baseline, privacy={"budget": {"epsilon": 1000.0, "delta": 1e-5}}), optimize_mopo
        )
    assert not MOPO.exists()
    shutil.move("aside", PRIVATE)
    run = trained(baseline, optimize_mopo)
    assert read_json(MOPO / "privacy.json")["private"] is False
    assert (
        read_json(MOPO / "config.json").items()
        >= {"variant": "mopo", "policy": "models/mopo"}.items()
    )
    assert (
        DeterministicPolicy.load(MOPO).policies,
        DeterministicPolicy.load_epochs(MOPO).policies,
    ) == (1, 2)
    assert run.logged["private"] == "False"
    (charge,) = charged(baseline)
    assert (charge.stage, charge.state, charge.epsilon) == ("optimize_mopo", "committed", None)
    assert PolicyConfig.read(MOPO).penalty == baseline.policy.penalty != 1.0
    trained(from_plain(plain(baseline), {"policy.penalty": TO_FIT}), optimize_mopo)
    assert PolicyConfig.read(MOPO).penalty == 1.0, "fitted, as for the private policy"


def test_real_transitions_keep_their_rewards_and_ends(tmp_path: Path) -> None:
    content = episodes(9)
    write_partition(tmp_path / "private", table(content))
    centre, spread = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 3.0])
    scaling = Scaling(centre, spread, torch.tensor([-2.0]), torch.tensor([2.0]), 0.1)
    data, columns = UnitStore.open(tmp_path / "private"), scaling.columns
    rows = real_transitions(*data.flat(), data.terminated(), scaling).rows[0]
    rewards = np.concatenate([item.rewards for item in content]).astype(np.float32)
    torch.testing.assert_close(rows[:, columns.reward], torch.from_numpy(rewards) * 0.1)
    ends = np.concatenate(
        [[False] * (len(item.rewards) - 1) + [item.terminated] for item in content]
    )
    assert 0 < ends.sum() < len(content)
    assert torch.equal(rows[:, columns.continues] == 0, torch.from_numpy(ends))
    for part, column in (
        (slice(None, -1), columns.observation),
        (slice(1, None), columns.next_observation),
    ):
        seen = torch.from_numpy(
            np.concatenate([np.stack(item.observations)[part] for item in content])
        )
        torch.testing.assert_close(rows[:, column], scaling.observation(seen))
    actions = torch.from_numpy(np.concatenate([np.stack(item.actions) for item in content]))
    torch.testing.assert_close(rows[:, columns.observation_action][:, 3:], actions / 2)
