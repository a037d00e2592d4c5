"""SAC for discrete actions is the slow reference's, and learns to balance a pole whose episodes terminate."""

from collections.abc import Iterator
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Scaling
from primorl.policy.sac import DiscreteSac, train
from tests.policy.cartpole import CONFIG, CartPole, resets
from tests.policy.reference import DiscreteReference

CPU = torch.device("cpu")
COLUMNS = ReplayColumns(observation_size=5, action_size=3)
BATCHES = replace(CONFIG, batch_size=16)


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers so exact that a formula is right or wrong, and nothing between."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(seeds: int = 1) -> tuple[DiscreteSac, list[DiscreteReference]]:
    sac = DiscreteSac(BATCHES, COLUMNS, SeedGenerators.of(range(1, seeds + 1), CPU), range(seeds))
    sac.target.vector.add_(0.01)  # so that targets and critics cannot be mistaken for each other
    sac.log_alpha.copy_(torch.linspace(-0.7, 0.3, seeds))
    return sac, [DiscreteReference(sac, BATCHES, COLUMNS, seed) for seed in range(seeds)]


def some_rows(seed: int = 0, seeds: int = 1) -> Tensor:
    generator, shape = torch.Generator().manual_seed(seed), (seeds, BATCHES.batch_size)
    rows = torch.randn(*shape, COLUMNS.width, generator=generator)
    rows[..., COLUMNS.action] = one_hot(torch.randint(3, shape, generator=generator), 3).to(rows.dtype)
    rows[..., COLUMNS.continues] = (torch.rand(shape, generator=generator) < 0.8).to(rows.dtype)
    return rows


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("seeds", [1, 2])
def test_whole_updates_are_those_of_the_reference(seeds: int) -> None:
    """Gradients, expectations, which networks are detached, Adam, targets and α: all of it, several times over."""
    sac, references = made(seeds)
    for step in range(4):
        rows = some_rows(step, seeds)
        sac.update(rows)
        for own, reference in zip(rows, references, strict=True):
            reference.update(own)
            reference.assert_same(sac)


@pytest.mark.usefixtures("double")
def test_the_agreement_can_fail() -> None:
    """The twin: values of the action that was taken, not of all that could be, are told apart by the tolerance."""
    sac, (reference,) = made()
    rows = some_rows()
    other = rows.clone()
    other[..., COLUMNS.action] = other[..., COLUMNS.action].roll(1, dims=2)
    sac.update(other)
    reference.update(rows[0])
    with pytest.raises(AssertionError):
        reference.assert_same(sac, atol=1e-4, rtol=1e-3)


def test_actions_are_drawn_with_the_policys_probabilities() -> None:
    sac, (reference,) = made()
    observation = 3 * torch.randn(1, 5, generator=torch.Generator().manual_seed(2))
    drawn = sac.act(observation.expand(1, 20_000, -1))[0]
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(drawn.sum(1), torch.ones(20_000))
    probabilities = reference.policy(observation[0]).probs
    torch.testing.assert_close(drawn.mean(0), probabilities, atol=0.015, rtol=0)  # 4 standard deviations
    assert probabilities.max() - probabilities.min() > 0.05


def test_the_snapshot_takes_the_likeliest_action() -> None:
    sac, (reference,) = made()
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
        step = CartPole().step(observation, policy.act(observation.unsqueeze(0))[0], SeedGenerators.of([0], CPU))
        assert step.terminated is not None
        total += float(alive.sum())
        alive &= ~step.terminated
        observation = step.next_observation
    return total / episodes


def test_it_learns_to_balance_a_pole() -> None:
    """A random policy falls after about 22 steps, and so does what a first epoch made of this seed."""
    epochs = list(train(CartPole(), resets(512, 0), CONFIG, ReplayBuffer.batches, seeds=(1,), reset_fraction=0.3))
    assert epochs[-1].policies.discrete_actions
    assert steps_survived(epochs[-1].policies) > 150


def test_without_terminations_it_does_not_learn() -> None:
    """The twin: a reward of 1 for every step says nothing unless falling ends it."""

    class Immortal(CartPole):
        def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators):  # type: ignore[no-untyped-def]
            return replace(super().step(observation, action, generators), terminated=None)

    epochs = list(train(Immortal(), resets(512, 0), replace(CONFIG, epochs=2), ReplayBuffer.batches, seeds=(1,)))
    assert steps_survived(epochs[-1].policies) < 100


def test_the_stand_in_is_gymnasiums_cartpole() -> None:
    """What the other tests learn on is the true task."""
    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    before = torch.tensor(env.reset(seed=0)[0])
    for _ in range(300):
        action = env.action_space.sample()
        after, reward, terminated, _, _ = env.step(action)
        step = CartPole().step(before[None], one_hot(torch.tensor([action]), 2).float(), SeedGenerators.of([0], CPU))
        np.testing.assert_allclose(step.next_observation[0].numpy(), after, atol=1e-5)
        assert step.terminated is not None
        assert (bool(step.terminated), float(step.reward)) == (terminated, reward)
        before = torch.tensor(env.reset()[0] if terminated else after)
