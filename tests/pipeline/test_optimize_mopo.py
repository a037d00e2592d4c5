import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline import optimize_mopo
from primorl.config.blocks import Budget
from primorl.config.params import Params
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer, Scaling, real_transitions, with_real
from primorl.project.errors import PipelineError
from primorl.setup.accounts import project_ledger
from primorl.trajectories.storage.store import UnitStore
from tests.pipeline.tiny_policy import RememberingRun, tiny, write_model, write_partition, write_partitions
from tests.statements import NOT_PRIVATE, PRIVATE
from tests.trajectories.builders import episodes, table

OUTPUT = Path("models/mopo")
DATA = Path("data/partitions/private")
CPU = torch.device("cpu")


UNCHARGED = {key: value for key, value in NOT_PRIVATE.items() if key != "charge"}  # no ledger here has it


def trained(params: Params) -> RememberingRun:
    run = RememberingRun()
    optimize_mopo.body(params, run)
    return run


@pytest.mark.parametrize("variant", ["private", "no_privacy", "no_clip"])
def test_other_variants_open_nothing_and_point_to_their_policy(small: Params, variant: str) -> None:
    run = trained(tiny(small, variant=variant))
    assert [item.name for item in OUTPUT.iterdir()] == ["config.json"]
    assert json.loads((OUTPUT / "config.json").read_text(encoding="utf-8")) == {
        "variant": variant,
        "policy": "models/policy",
    }
    assert run.logged == {}


def test_the_baseline_is_trained_and_marked_as_not_private(small: Params) -> None:
    write_model(UNCHARGED, variant="mopo")
    write_partitions(table(episodes(9)), table(episodes(9)[:1], units=["public"], names=["public"]))
    run = trained(tiny(small, variant="mopo"))
    assert json.loads((OUTPUT / "privacy.json").read_text(encoding="utf-8"))["private"] is False
    config = json.loads((OUTPUT / "config.json").read_text(encoding="utf-8"))
    assert (config["variant"], config["policy"]) == ("mopo", "models/mopo")
    assert (DeterministicPolicy.load(OUTPUT).policies, DeterministicPolicy.load_epochs(OUTPUT).policies) == (1, 2)
    assert run.logged["private"] == "False"
    with closing(project_ledger(small)) as ledger:
        (charge,) = ledger.charges()
    assert (charge.stage, charge.state, charge.epsilon) == ("optimize_mopo", "committed", None)


def test_under_a_budget_it_is_refused_before_it_reads_data(small: Params) -> None:
    write_model(UNCHARGED, variant="mopo")
    write_partitions(table(episodes(9)), table(episodes(9)[:1], units=["public"], names=["public"]))
    shutil.rmtree(DATA)
    limited = replace(small.privacy, budget=Budget(epsilon=1000.0, delta=1e-5))
    with pytest.raises(PipelineError, match="budget"):
        trained(tiny(replace(small, privacy=limited), variant="mopo"))
    assert not OUTPUT.exists()


def test_a_private_model_is_refused(small: Params) -> None:
    write_model(PRIVATE)
    write_partitions(table(episodes(9)), table(episodes(9)[:1], units=["public"], names=["public"]))
    with pytest.raises(PipelineError, match="found variant 'private'"):
        trained(tiny(small, variant="mopo"))


def test_real_transitions_keep_their_rewards_and_terminations(tmp_path: Path) -> None:
    content = episodes(9)
    write_partition(tmp_path / "private", table(content))
    scaling = Scaling(
        torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 3.0]), torch.tensor([-2.0]), torch.tensor([2.0]), 0.1
    )
    data = UnitStore.open(tmp_path / "private")
    rows = real_transitions(*data.flat(), data.terminated(), scaling).rows[0]
    columns = scaling.columns
    rewards = np.concatenate([item.rewards for item in content]).astype(np.float32)
    torch.testing.assert_close(rows[:, columns.reward], torch.from_numpy(rewards) * 0.1)
    ends = np.concatenate([[False] * (len(item.rewards) - 1) + [item.terminated] for item in content])
    assert 0 < ends.sum() < len(content)
    assert torch.equal(rows[:, columns.continues] == 0, torch.from_numpy(ends))
    before, after = (
        torch.from_numpy(np.concatenate([np.stack(item.observations)[part] for item in content]))
        for part in (slice(None, -1), slice(1, None))
    )
    torch.testing.assert_close(rows[:, columns.observation], scaling.observation(before))
    torch.testing.assert_close(rows[:, columns.next_observation], scaling.observation(after))
    actions = torch.from_numpy(np.concatenate([np.stack(item.actions) for item in content]))
    torch.testing.assert_close(rows[:, columns.observation_action][:, 3:], actions / 2)


@pytest.mark.parametrize(("fraction", "expected"), [(0.05, 13), (0.5, 128), (0.0001, 1)])
def test_batches_mix_real_and_generated_rows_as_asked(fraction: float, expected: int) -> None:
    real, generated = ReplayBuffer(30, 2, CPU), ReplayBuffer(50, 2, CPU, seeds=2)
    real.extend(torch.ones(1, 30, 2))
    generated.extend(torch.full((2, 50, 2), -1.0))
    sampler = with_real(real, fraction)
    batches = list(sampler(generated, 7, 256, SeedGenerators.of([0, 1], CPU)))
    assert [tuple(rows.shape) for rows in batches] == [(2, 256, 2)] * 7
    assert [(rows[..., 0] == 1).sum(1).tolist() for rows in batches] == [[expected] * 2] * 7
