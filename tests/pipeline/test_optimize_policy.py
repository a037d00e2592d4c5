import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline import optimize_policy
from primorl.config.params import Params
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.dynamics.termination import RULES, Rule
from primorl.policy.exported import DeterministicPolicy, seed_folders
from primorl.policy.replay import ReplayColumns
from primorl.policy.sac import DiscreteSac
from primorl.project.errors import PipelineError
from primorl.project.files import read_json
from primorl.trajectories.storage.store import UnitStore
from tests.pipeline.tiny_policy import RememberingRun, tiny, write_model, write_partition
from tests.statements import NOT_PRIVATE, PRIVATE
from tests.trajectories.builders import episodes, snapshot, table

OUTPUT = Path("models/policy")
FILES = ("config.json", "epochs.safetensors", "policy.safetensors", "privacy.json")


def trained(params: Params) -> RememberingRun:
    run = RememberingRun()
    optimize_policy.body(params, run)
    return run


@pytest.mark.parametrize("starts", ["reset", "pool"])
def test_it_needs_no_data_at_all(small: Params, starts: str) -> None:
    ensemble = write_model(PRIVATE)
    run = trained(tiny(small, starts=starts))
    assert not Path("data").exists()
    assert json.loads((OUTPUT / "privacy.json").read_text(encoding="utf-8")) == PRIVATE
    config = json.loads((OUTPUT / "config.json").read_text(encoding="utf-8"))
    assert config.items() >= {"variant": "private", "policy": "models/policy", "environment": "Pendulum-v1"}.items()
    assert sorted(item.name for item in OUTPUT.iterdir()) == [
        *("config.json", "epochs.safetensors", "policy.safetensors", "privacy.json")
    ]
    assert set(run.artifacts) == {"config.json", "privacy.json"}
    assert run.logged.items() >= {"private": "True", "epsilon": "1.19", "delta": "1e-05", "unit": "trajectory"}.items()
    assert run.logged["policy"]["starts"] == starts
    assert {name: steps for name, steps in run.steps.items() if steps != [1, 2]} == {}
    assert {"critic_loss", "model_reward", "model_uncertainty"} <= set(run.steps)

    policy, epochs = DeterministicPolicy.load(OUTPUT), DeterministicPolicy.load_epochs(OUTPUT)
    assert (policy.policies, epochs.policies) == (1, 2)
    assert torch.equal(policy.observation_mean, ensemble.normaliser.input_mean[:3])
    assert torch.equal(policy.observation_scale, ensemble.normaliser.input_scale[:3])
    assert torch.equal(policy.action_high, torch.tensor([2.0]))


def test_public_starts_read_the_public_split_and_nothing_else(small: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(PRIVATE)
    content = episodes(5)
    write_partition(Path("data/partitions/public"), table(content))
    begun: list[Tensor] = []
    write = optimize_policy.write_trained

    def watched(*arguments: object, starts: Tensor, **named: object) -> None:
        begun.append(starts)
        write(*arguments, starts=starts, **named)

    monkeypatch.setattr(optimize_policy, "write_trained", watched)
    trained(tiny(small, starts="public"))
    states = np.concatenate([np.stack(item.observations[:-1]) for item in content])
    assert torch.equal(begun[0], torch.from_numpy(states))
    assert DeterministicPolicy.load(OUTPUT).policies == 1


def test_several_seeds_have_a_folder_and_a_run_each(small: Params) -> None:
    write_model(PRIVATE)
    run = trained(tiny(small, seeds=[5, 0, 9]))
    assert sorted(snapshot(OUTPUT)) == sorted(
        f"{folder}{name}" for folder in ("", "seeds/0/", "seeds/9/") for name in FILES
    )
    assert read_json(OUTPUT / "config.json")["seeds"] == [5, 0, 9]
    for folder in seed_folders(OUTPUT, [5, 0, 9]):
        assert read_json(folder / "privacy.json") == PRIVATE
    assert list(run.inner) == ["seed 5", "seed 0", "seed 9"]
    assert [inner.logged["seed"] for inner in run.inner.values()] == [5, 0, 9]
    for name, steps in run.steps.items():
        assert steps == [1, 2]
        assert run.logged[name] == pytest.approx(np.mean([inner.logged[name] for inner in run.inner.values()]))
        assert {tuple(inner.steps[name]) for inner in run.inner.values()} == {(1, 2)}
    for inner in run.inner.values():
        assert inner.logged.items() >= {"private": "True", "epsilon": "1.19", "delta": "1e-05"}.items()
    assert len({inner.logged["critic_loss"] for inner in run.inner.values()}) == 3


def test_variant_mopo_only_points_to_its_policy(small: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(NOT_PRIVATE, variant="mopo")
    monkeypatch.setattr(UnitStore, "open", lambda folder: pytest.fail(f"{folder} was opened"))
    trained(tiny(small, variant="mopo"))
    assert json.loads((OUTPUT / "config.json").read_text(encoding="utf-8")) == {
        "variant": "mopo",
        "policy": "models/mopo",
    }
    assert json.loads((OUTPUT / "privacy.json").read_text(encoding="utf-8")) == NOT_PRIVATE
    with pytest.raises(PipelineError, match="policy"):
        DeterministicPolicy.load(OUTPUT)


def test_a_model_of_another_variant_is_refused(small: Params) -> None:
    write_model(PRIVATE)
    with pytest.raises(PipelineError, match=r"found variant 'private'.*params.yaml asks for 'no_clip'"):
        trained(tiny(small, variant="no_clip"))
    assert not OUTPUT.exists()


def test_discrete_actions_make_a_discrete_policy(small: Params) -> None:
    write_model(PRIVATE, actions=2)
    params = tiny(small)
    run = trained(params)
    assert read_json(OUTPUT / "config.json").items() >= {"discrete_actions": True, "action_size": 2}.items()
    policy = DeterministicPolicy.load(OUTPUT)
    assert policy.discrete_actions
    assert policy.layers[-1].shape == (1, 1, 2)
    assert params.policy.entropy_of(2) == pytest.approx(params.policy.discrete_target_entropy * np.log(2))
    sac = DiscreteSac(params.policy, ReplayColumns(3, 2), SeedGenerators.of([0], torch.device("cpu")), None)
    assert sac._target_entropy == params.policy.entropy_of(2)
    assert {name: steps for name, steps in run.steps.items() if steps != [1, 2]} == {}


@pytest.mark.parametrize("termination", ["learned", "upright"])
def test_models_whose_episodes_end_are_trained_in(
    small: Params, monkeypatch: pytest.MonkeyPatch, termination: str
) -> None:
    monkeypatch.setitem(RULES, "upright", Rule(3, lambda observation, action, following: following[:, 0] < 0))
    write_model(PRIVATE, termination=termination)
    write_partition(Path("data/partitions/public"), table(episodes(5)))
    trained(tiny(small))
    assert DeterministicPolicy.load(OUTPUT).policies == 1
