"""The declared rules say of real transitions what the real environments say."""

import functools
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.dynamics.termination import RULES
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.entropy import SeededEntropy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training.training import train
from tests.dynamics.models import box
from tests.units import Ragged, local_training, server_training, training_setup

ENVIRONMENTS = {
    "cartpole": "CartPole-v1",
    "hopper": "Hopper-v5",
    "inverted_pendulum": "InvertedPendulum-v5",
    "walker2d": "Walker2d-v5",
}
STEPS = 3000


@functools.cache
def rollout(environment: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(observation, action, next_observation, terminated) of random actions, held for a while so that it gets far."""
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
def test_a_rule_is_the_environments_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some thousand transitions. The twin, a rule that looks at the observation before the step, finds no end."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    observation, action, following, flags = rollout(ENVIRONMENTS[name])
    assert observation.shape[1] == RULES[name].observation_size
    assert torch.equal(RULES[name](observation, action, following), flags)
    assert not RULES[name](observation, action, observation)[flags].any()


def test_a_misplaced_parenthesis_would_be_seen() -> None:
    """The twin: ``abs(x <= limit)`` for ``abs(x) <= limit``, as in public code, misses half of the ends."""
    _, _, following, flags = rollout(ENVIRONMENTS["cartpole"])
    on = torch.ones(len(flags), dtype=torch.bool)
    for column, limit in {0: 2.4, 2: np.radians(12)}.items():
        on &= (following[:, column] <= limit).int().abs() == 1
    assert not torch.equal(~on, flags)


def test_what_is_not_a_number_ends_an_episode() -> None:
    for rule in RULES.values():
        nowhere = torch.full((2, rule.observation_size), torch.nan)
        assert bool(rule(nowhere, torch.zeros(2, 1), nowhere).all())


def walks(count: int, seed: int) -> Ragged:
    """Units that drift to the right, at a speed of their action, until they are beyond 1: that ends them."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = [], []
    for _ in range(count):
        position, rows = torch.rand((), generator=generator) - 1, []
        while position < 1:
            action, noise = torch.rand(2, generator=generator).unbind()
            step = 0.1 * action + 0.02 * noise
            rows.append(torch.stack((position, action, step, noise, (position + step >= 1).float())))
            position = position + step
        whole = torch.stack(rows)
        inputs.append(whole[:, :2])
        targets.append(whole[:, 2:])
    return Ragged(inputs, targets)


def test_a_head_learns_where_episodes_end_inside_the_noised_vector() -> None:
    """Ends are one row in 25. The head tells them apart, and its probabilities mean what they say."""
    shape = Architecture(1, 1, 2, (16,), -10.0, 0.5, learned_termination=True)
    source, others = walks(400, 0), walks(100, 1)
    inputs, targets = torch.cat(others.inputs), torch.cat(others.targets)
    normaliser = Normaliser.from_public(inputs, targets, flag=True)
    clip = EnsembleClip(0.5, "flat", 2, 2)
    plan = Plan(source.units, "trajectory", PoissonSampler(0.5), clip, 1.0, 60, 1e-3, entropy=SeededEntropy(0))
    local, server = local_training(learning_rate=0.01, batch_size=16), server_training(0.6, 0.8, 60, None)
    setup = training_setup(plan, shape, local=local, server=server)
    trained = train(setup, source, (inputs, targets))
    model = GaussianEnsemble(shape, trained.weights, normaliser, box(9.0, 1, (-9.0, 9.0)), "learned")
    _, _, ends = model.predict(inputs[:, :1], inputs[:, 1:])
    assert ends is not None
    probability, ended = ends.mean(0), targets[:, -1] > 0
    higher = probability[ended].unsqueeze(1) > probability[~ended]
    assert higher.float().mean() > 0.95  # the area under the ROC curve
    assert probability.mean().item() == pytest.approx(ended.float().mean().item(), rel=0.5)
    assert trained.evaluations[-1].error[-1] < 0.9  # of the flag's variance, which is what a constant would be off by
