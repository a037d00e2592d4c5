"""The declared rules say of real transitions what the real environments say."""

import functools
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from primorl.model.termination import RULES

ENVIRONMENTS = {
    "cartpole": "CartPole-v1",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
}
STEPS = 3000


@functools.cache
def rollout(environment: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(observation, action, next_observation, terminated) of random actions, held for a while so
    that it gets far.
    """
    if not environment.startswith("CartPole"):
        pytest.importorskip("mujoco")
    env = gymnasium.make(environment)
    env.action_space.seed(0)
    before, actions, after, ends = [], [], [], []
    observation, _ = env.reset(seed=0)
    for step in range(STEPS):
        if step % 3 == 0:
            action = env.action_space.sample()
        following, _, terminated, truncated, _ = env.step(action)
        before.append(observation)
        actions.append(np.atleast_1d(action))
        after.append(following)
        ends.append(terminated)
        observation = env.reset()[0] if terminated or truncated else following
    env.close()
    flags = torch.tensor(ends)
    assert 30 < flags.sum() < STEPS / 3
    return (*(torch.from_numpy(np.stack(part)).float() for part in (before, actions, after)), flags)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_rule_is_the_environments_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some thousand transitions.

    The twin, a rule that looks at the observation before the step, finds no end.
    """
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    observation, action, following, flags = rollout(ENVIRONMENTS[name])
    assert observation.shape[1] == RULES[name].observation_size
    assert torch.equal(RULES[name](observation, action, following), flags)
    assert not RULES[name](observation, action, observation)[flags].any()


def test_what_is_not_a_number_ends_an_episode() -> None:
    for rule in RULES.values():
        nowhere = torch.full((2, rule.observation_size), torch.nan)
        assert bool(rule(nowhere, torch.zeros(2, 1), nowhere).all())
