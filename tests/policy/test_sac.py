from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pipeline.errors import PipelineError
from pipeline.policy.exported import DeterministicPolicy
from pipeline.policy.networks import Adam
from pipeline.policy.replay import Columns, ReplayBuffer, Scaling
from pipeline.policy.sac import Sac, squashed_sample, train
from tests.policy.pendulum import CONFIG, Pendulum, PendulumStep, resets
from tests.policy.reference import Reference, distribution, module

CPU = torch.device("cpu")
COLUMNS = Columns(observation_size=5, action_size=2)
SHORT = replace(CONFIG, epochs=2, updates_per_epoch=10, rollout_every=5, rollout_batch=4, batch_size=16)


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers so exact that a formula is right or wrong, and nothing between."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(columns: Columns = COLUMNS) -> tuple[Sac, Reference]:
    sac = Sac(CONFIG, columns, CPU, torch.Generator().manual_seed(1))
    sac.target.vector.add_(0.01)  # so that targets and critics cannot be mistaken for each other
    sac.log_alpha.fill_(-0.7)
    return sac, Reference(sac, CONFIG, columns)


def some_rows(count: int, seed: int = 0, columns: Columns = COLUMNS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, columns.width, generator=generator)
    rows[:, columns.continues] = (torch.rand(count, generator=generator) < 0.8).to(rows.dtype)
    return rows


def gradients(parameters: Iterator[Tensor]) -> list[Tensor]:
    found = [parameter.grad for parameter in parameters]
    return [gradient for gradient in found if gradient is not None]


def test_the_critics_loss_and_gradient_are_those_of_two_plain_networks() -> None:
    sac, reference = made()
    rows, noise = some_rows(64), torch.randn(64, 2, generator=torch.Generator().manual_seed(2))
    loss, expected = sac.critic_loss(rows, noise), reference.critic_loss(rows, noise)
    torch.testing.assert_close(loss, expected)
    expected.backward()
    layers = torch.autograd.grad(loss, sac.critic.layers)
    for i, critic in enumerate(reference.critics):
        for found, true in zip(layers, gradients(critic.parameters()), strict=True):
            torch.testing.assert_close(found[i].view_as(true), true, atol=1e-6, rtol=1e-4)


def test_the_actors_loss_and_gradient_are_those_of_a_plain_network() -> None:
    sac, reference = made()
    rows, noise = some_rows(64), torch.randn(64, 2, generator=torch.Generator().manual_seed(3))
    loss, log_density, _ = sac.actor_loss(rows, noise)
    expected, expected_density = reference.actor_loss(rows, noise)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(log_density, expected_density.mean())
    expected.backward()
    true = torch.cat([gradient.flatten() for gradient in gradients(reference.actor.parameters())])
    torch.testing.assert_close(sac.actor.gradient(loss), true, atol=1e-6, rtol=1e-4)


@pytest.mark.usefixtures("double")
def test_whole_updates_are_those_of_the_reference() -> None:
    """Order of the steps, which networks are detached, Adam, targets and α: all of it, several times over."""
    sac, reference = made()
    generator = torch.Generator().manual_seed(1)
    for step in range(8):
        rows = some_rows(32, seed=step)
        sac.update(rows)
        reference.update(rows, *(torch.randn(32, 2, generator=generator) for _ in range(2)))
    for i, (critic, target) in enumerate(zip(reference.critics, reference.targets, strict=True)):
        for found, true in zip(sac.critic.layers, critic.parameters(), strict=True):
            torch.testing.assert_close(found[i].view_as(true), true)
        for found, true in zip(sac.target.layers, target.parameters(), strict=True):
            torch.testing.assert_close(found[i].view_as(true), true)
    for found, true in zip(sac.actor.layers, reference.actor.parameters(), strict=True):
        torch.testing.assert_close(found.view_as(true), true)
    torch.testing.assert_close(sac.log_alpha, reference.log_alpha.detach())


def test_targets_move_by_their_rate_towards_the_new_critics() -> None:
    """target ← target + τ (critic - target), with the critic after its step."""
    sac, _ = made()
    before = sac.target.vector.clone()
    sac.update(some_rows(32))
    moved = before + CONFIG.target_rate * (sac.critic.vector - before)
    torch.testing.assert_close(sac.target.vector, moved)
    assert not torch.equal(sac.target.vector, before)


@pytest.mark.usefixtures("double")
def test_adam_is_torchs_adam() -> None:
    """Bias corrections included, over gradients of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(20, generator=generator)
    theirs = ours.clone().requires_grad_()
    adam, reference = Adam(ours, 0.01), torch.optim.Adam([theirs], 0.01)
    for _ in range(30):
        gradient = torch.randn(20, generator=generator) * 10.0 ** torch.arange(-10, 10)
        adam.step(gradient)
        theirs.grad = gradient
        reference.step()
    torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_log_densities_are_those_of_the_transformed_distribution(spread: float) -> None:
    """The tanh correction, against torch.distributions; inputs up to where tanh is nearly ±1."""
    sac, _ = made()
    generator = torch.Generator().manual_seed(4)
    observation, noise = torch.randn(200, 5, generator=generator) * spread, torch.randn(200, 2, generator=generator)
    action, log_density = squashed_sample(sac.actor.layers, observation, noise)
    assert bool((action.abs() <= 1).all())
    policy = distribution(module(sac.actor.layers), observation)
    x = policy.base_dist.mean + policy.base_dist.stddev * noise
    torch.testing.assert_close(action, x.tanh())
    torch.testing.assert_close(log_density, policy.log_prob(policy.transforms[0](x)))


def test_log_densities_stay_finite_where_tanh_saturates() -> None:
    """In single precision 1 - tanh² is exactly 0 beyond |x| of 10; its logarithm must not be taken."""
    sac, _ = made()
    far = torch.randn(100, 5, generator=torch.Generator().manual_seed(5)) * 1e4
    action, log_density = squashed_sample(sac.actor.layers, far, torch.zeros(100, 2))
    assert bool((action.abs() == 1).any())
    assert bool(log_density.isfinite().all())


def test_alpha_falls_while_the_policy_is_more_random_than_asked() -> None:
    sac, _ = made()
    for step in range(5):
        sac.update(some_rows(32, seed=step))
    figures = sac.pop_figures()
    assert figures["entropy"] > CONFIG.target_entropy
    assert sac.log_alpha.item() < -0.7


def mean_return(policy: DeterministicPolicy, episodes: int = 100) -> float:
    observation, total = resets(episodes, seed=99), torch.zeros(episodes)
    model, generator = Pendulum(), torch.Generator()
    for _ in range(200):
        step = model.step(observation, policy.act(observation.unsqueeze(0))[0], generator)
        total += step.reward
        observation = step.next_observation
    return total.mean().item()


@pytest.mark.parametrize("reset_fraction", [1.0, 0.1])
def test_it_learns_to_swing_a_pendulum_up(reset_fraction: float) -> None:
    """A random policy gets about -1,200, the best about -150; rollouts carried on must learn as well."""
    epochs = list(
        train(Pendulum(), resets(1024, 0), replace(CONFIG, reset_fraction=reset_fraction), ReplayBuffer.batches)
    )
    assert mean_return(epochs[0].policy) < -900
    assert mean_return(epochs[-1].policy) > -300


def test_the_same_seed_gives_the_same_weights_whatever_else_is_drawn() -> None:
    """Training owns its generator: torch's global one neither enters nor is touched."""

    def weights(seed: int) -> Tensor:
        epochs = list(train(Pendulum(), resets(64, 0), replace(SHORT, seed=seed), ReplayBuffer.batches))
        return torch.cat([layer.flatten() for layer in epochs[-1].policy.layers])

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = weights(7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(weights(7), first)
    assert not torch.equal(weights(8), first)


def test_rollouts_come_when_they_are_due_and_every_update_is_made() -> None:
    """Also where the interval does not divide the epoch: 10 updates an epoch, rollouts at 0, 4, 8, 12 and 16."""
    held: list[int] = []

    def counting(buffer: ReplayBuffer, updates: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
        held.extend([len(buffer)] * updates)
        return buffer.batches(updates, batch_size, generator)

    config = replace(SHORT, rollout_every=4, horizon=3)
    epochs = list(train(Pendulum(), resets(64, 0), config, counting))
    assert held == [12 * (1 + update // 4) for update in range(20)]
    assert [epoch.number for epoch in epochs] == [1, 2]
    assert set(epochs[0].metrics) == {
        *("critic_loss", "actor_loss", "q_mean", "entropy", "alpha"),
        *("model_reward", "model_uncertainty"),
    }
    first, last = (epoch.policy.layers[0] for epoch in epochs)
    assert not torch.equal(first, last), "a snapshot must not follow the actor"


def test_divergence_is_said_in_one_line() -> None:
    class Broken(Pendulum):
        def step(self, observation: Tensor, action: Tensor, generator: torch.Generator) -> PendulumStep:
            step = super().step(observation, action, generator)
            return PendulumStep(step.next_observation, step.reward * torch.nan, step.uncertainty)

    with pytest.raises(PipelineError, match=r"SAC diverged in epoch 1.*lower learning_rate"):
        list(train(Broken(), resets(64, 0), SHORT, ReplayBuffer.batches))


def test_the_snapshot_is_the_actors_mean_in_the_environments_units() -> None:
    scaling = Scaling(
        observation_mean=torch.arange(5.0),
        observation_scale=torch.arange(1.0, 6.0),
        action_low=torch.tensor([-2.0, 0.0]),
        action_high=torch.tensor([2.0, 5.0]),
        reward_scale=1.0,
    )
    sac, reference = made()
    observation = torch.randn(40, 5, generator=torch.Generator().manual_seed(6)) * 3
    mean = reference.actor(scaling.observation(observation))[:, :2].detach()
    expected = torch.tensor([0.0, 2.5]) + torch.tensor([2.0, 2.5]) * mean.tanh()
    torch.testing.assert_close(sac.snapshot(scaling).act(observation.unsqueeze(0))[0], expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_runs_on_a_gpu_unchanged() -> None:
    device = torch.device("cuda")
    epochs = list(train(Pendulum().to(device), resets(64, 0).to(device), SHORT, ReplayBuffer.batches))
    assert epochs[-1].policy.layers[0].device.type == "cpu"
