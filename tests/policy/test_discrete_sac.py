"""SAC for discrete actions is the slow reference's, and learns to balance a pole whose episodes terminate."""

from collections.abc import Iterator
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pipeline.policy.exported import DeterministicPolicy
from pipeline.policy.replay import Columns, ReplayBuffer, Scaling
from pipeline.policy.sac import DiscreteSac, train
from tests.policy.cartpole import CONFIG, CartPole, resets
from tests.policy.reference import DiscreteReference

CPU = torch.device("cpu")
COLUMNS = Columns(observation_size=5, action_size=3)


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers so exact that a formula is right or wrong, and nothing between."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made() -> tuple[DiscreteSac, DiscreteReference]:
    sac = DiscreteSac(CONFIG, COLUMNS, CPU, torch.Generator().manual_seed(1))
    sac.target.vector.add_(0.01)  # so that targets and critics cannot be mistaken for each other
    sac.log_alpha.fill_(-0.7)
    return sac, DiscreteReference(sac, CONFIG, COLUMNS)


def some_rows(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, COLUMNS.width, generator=generator)
    rows[:, COLUMNS.action] = one_hot(torch.randint(3, (count,), generator=generator), 3).to(rows.dtype)
    rows[:, COLUMNS.continues] = (torch.rand(count, generator=generator) < 0.8).to(rows.dtype)
    return rows


@pytest.mark.usefixtures("double")
def test_whole_updates_are_those_of_the_reference() -> None:
    """Expectations, which networks are detached, Adam, targets and α: all of it, several times over."""
    sac, reference = made()
    for step in range(4):
        rows = some_rows(16, seed=step)
        torch.testing.assert_close(sac.critic_loss(rows), reference.critic_loss(rows))
        for ours, theirs in zip(sac.actor_loss(rows)[:2], reference.actor_loss(rows), strict=True):
            torch.testing.assert_close(ours, theirs)
        sac.update(rows)
        reference.update(rows)
    for ours, networks in ((sac.critic, reference.critics), (sac.target, reference.targets)):
        for i, network in enumerate(networks):
            for found, true in zip(ours.layers, network.parameters(), strict=True):
                torch.testing.assert_close(found[i].view_as(true), true)
    for found, true in zip(sac.actor.layers, reference.actor.parameters(), strict=True):
        torch.testing.assert_close(found.view_as(true), true)
    torch.testing.assert_close(sac.log_alpha, reference.log_alpha.detach())


@pytest.mark.usefixtures("double")
def test_the_agreement_can_fail() -> None:
    """The twin: values of the action that was taken, not of all that could be, are told apart by the tolerance."""
    sac, reference = made()
    rows = some_rows(16)
    other = rows.clone()
    other[:, COLUMNS.action] = other[:, COLUMNS.action].roll(1, dims=1)
    assert not torch.allclose(sac.critic_loss(other), reference.critic_loss(rows), rtol=1e-3)


def test_actions_are_drawn_with_the_policys_probabilities() -> None:
    sac, reference = made()
    observation = 3 * torch.randn(1, 5, generator=torch.Generator().manual_seed(2))
    drawn = sac.act(observation.expand(20_000, -1))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(drawn.sum(1), torch.ones(20_000))
    probabilities = reference.policy(observation[0]).probs
    torch.testing.assert_close(drawn.mean(0), probabilities, atol=0.015, rtol=0)  # 4 standard deviations
    assert probabilities.max() - probabilities.min() > 0.05


def test_the_snapshot_takes_the_likeliest_action() -> None:
    sac, reference = made()
    scaling = Scaling(torch.arange(5.0), torch.arange(1.0, 6.0), torch.zeros(3), torch.ones(3), 1.0, True)
    observation = 9 * torch.randn(40, 5, generator=torch.Generator().manual_seed(6))
    found = sac.snapshot(scaling).act(observation.unsqueeze(0))[0]
    likeliest = reference.policy(scaling.observation(observation)).probs.argmax(1)
    assert torch.equal(found, one_hot(likeliest, 3).float())
    assert len(likeliest.unique()) > 1


def steps_survived(policy: DeterministicPolicy, episodes: int = 100) -> float:
    """Mean length of episodes in the true task, at most 500 steps."""
    observation, alive, total = resets(episodes, seed=99), torch.ones(episodes, dtype=torch.bool), 0.0
    for _ in range(500):
        step = CartPole().step(observation, policy.act(observation.unsqueeze(0))[0], torch.Generator())
        assert step.terminated is not None
        total += float(alive.sum())
        alive &= ~step.terminated
        observation = step.next_observation
    return total / episodes


def test_it_learns_to_balance_a_pole() -> None:
    """A random policy falls after about 22 steps, and so does what a first epoch made of this seed."""
    config = replace(CONFIG, seed=1, reset_fraction=0.3)
    epochs = list(train(CartPole(), resets(512, 0), config, ReplayBuffer.batches))
    assert epochs[-1].policy.discrete_actions
    assert steps_survived(epochs[-1].policy) > 150


def test_without_terminations_it_does_not_learn() -> None:
    """The twin: a reward of 1 for every step says nothing unless falling ends it."""

    class Immortal(CartPole):
        def step(self, observation: Tensor, action: Tensor, generator: torch.Generator):  # type: ignore[no-untyped-def]
            return replace(super().step(observation, action, generator), terminated=None)

    epochs = list(train(Immortal(), resets(512, 0), replace(CONFIG, seed=1, epochs=2), ReplayBuffer.batches))
    assert steps_survived(epochs[-1].policy) < 100


def test_the_stand_in_is_gymnasiums_cartpole() -> None:
    """What the other tests learn on is the true task."""
    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    before = torch.tensor(env.reset(seed=0)[0])
    for _ in range(300):
        action = env.action_space.sample()
        after, reward, terminated, _, _ = env.step(action)
        step = CartPole().step(before[None], one_hot(torch.tensor([action]), 2).float(), torch.Generator())
        np.testing.assert_allclose(step.next_observation[0].numpy(), after, atol=1e-5)
        assert step.terminated is not None
        assert (bool(step.terminated), float(step.reward)) == (terminated, reward)
        before = torch.tensor(env.reset()[0] if terminated else after)
