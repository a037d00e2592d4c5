from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Scaling
from primorl.policy.sac import Sac, Squashed, train
from primorl.project.errors import PipelineError
from tests.policy.pendulum import CONFIG, Pendulum, PendulumStep, resets
from tests.policy.reference import Reference, distribution, gradient, module

CPU = torch.device("cpu")
COLUMNS = ReplayColumns(observation_size=5, action_size=2)
BATCHES = replace(CONFIG, batch_size=32)
SHORT = replace(CONFIG, epochs=2, updates_per_epoch=10, rollout_every=5, rollout_batch=4, batch_size=16)


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers so exact that a formula is right or wrong, and nothing between."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(columns: ReplayColumns = COLUMNS, seeds: int = 1) -> tuple[Sac, list[Reference]]:
    sac = Sac(BATCHES, columns, SeedGenerators.of(range(1, seeds + 1), CPU), range(seeds))
    sac.target.vector.add_(0.01)  # so that targets and critics cannot be mistaken for each other
    sac.log_alpha.copy_(torch.linspace(-0.7, 0.3, seeds))
    return sac, [Reference(sac, BATCHES, columns, seed) for seed in range(seeds)]


def some_rows(seed: int = 0, seeds: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(seeds, BATCHES.batch_size, COLUMNS.width, generator=generator)
    rows[..., COLUMNS.continues] = (torch.rand(rows.shape[:2], generator=generator) < 0.8).to(rows.dtype)
    return rows


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("seeds", [1, 3])
def test_whole_updates_are_those_of_the_reference(seeds: int) -> None:
    """Gradients, order of the steps, which networks are detached, Adam, targets and α, several times over.

    The reference has autograd, a module a network and ``torch.distributions``, and one seed at a time.
    """
    sac, references = made(seeds=seeds)
    generators = [torch.Generator().manual_seed(seed + 1) for seed in range(seeds)]
    for step in range(8):
        rows = some_rows(step, seeds)
        sac.update(rows)
        for own, reference, generator in zip(rows, references, generators, strict=True):
            following, current = torch.randn(2, len(own), 2, generator=generator)
            reference.update(own, following, current)
            reference.assert_same(sac)


@pytest.mark.usefixtures("double")
def test_the_agreement_can_fail() -> None:
    """The twin: one reward that is off by a thousandth in one seed is told apart, in that seed only."""
    sac, references = made(seeds=2)
    rows = some_rows(seeds=2)
    other = rows.clone()
    other[1, 0, COLUMNS.reward] += 1e-3
    sac.update(other)
    for seed, reference in enumerate(references):
        noise = torch.randn(2, 32, 2, generator=torch.Generator().manual_seed(seed + 1))
        reference.update(rows[seed], *noise)
    references[0].assert_same(sac)
    with pytest.raises(AssertionError):
        references[1].assert_same(sac)


def test_in_single_precision_gradients_are_autograds_to_five_digits() -> None:
    sac, (reference,) = made()
    rows = some_rows()
    sac.update(rows)
    reference.update(rows[0], *torch.randn(2, 32, 2, generator=torch.Generator().manual_seed(1)))
    for i in range(2):
        true = torch.cat([part.flatten() for part in reference.critic_gradients[6 * i : 6 * i + 6]])
        found = torch.cat([part[i].flatten() for part in sac.critic.gradient_layers])
        torch.testing.assert_close(found, true, atol=1e-5, rtol=1e-5)
    true = torch.cat([gradient(parameter).flatten() for parameter in reference.actor.parameters()])
    found = torch.cat([part[0].flatten() for part in sac.actor.gradient_layers])
    torch.testing.assert_close(found, true, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("double")
def test_where_log_sigma_is_held_it_has_no_slope() -> None:
    """Both bounds, against autograd of torch's own formula."""
    output = 12 * torch.randn(1, 64, 4, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(1, 64, 2, generator=torch.Generator().manual_seed(1))
    output[..., 0] = -30.0 + output[..., 0]
    mean, raw = output.clone().requires_grad_().chunk(2, dim=-1)
    leaf = torch.cat((mean, raw), dim=-1).detach().requires_grad_()
    found = Squashed.of(leaf, noise)
    assert 0 < int(found.free.sum()) < found.free.numel()
    action_slope, density_slope = torch.randn_like(found.action), 0.3
    (true,) = torch.autograd.grad((found.action * action_slope).sum() + density_slope * found.log_density.sum(), leaf)
    torch.testing.assert_close(found.slope(action_slope, torch.full((1, 1, 1), density_slope)).detach(), true)


def test_targets_move_by_their_rate_towards_the_new_critics() -> None:
    """target ← target + τ (critic - target), with the critic after its step."""
    sac, _ = made()
    before = sac.target.vector.clone()
    sac.update(some_rows())
    moved = before + CONFIG.target_rate * (sac.critic.vector - before)
    torch.testing.assert_close(sac.target.vector, moved)
    assert not torch.equal(sac.target.vector, before)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_log_densities_are_those_of_the_transformed_distribution(spread: float) -> None:
    """The tanh correction, against torch.distributions; inputs up to where tanh is nearly ±1."""
    sac, _ = made()
    generator = torch.Generator().manual_seed(4)
    observation, noise = torch.randn(200, 5, generator=generator) * spread, torch.randn(200, 2, generator=generator)
    found = Squashed.of(sac.actor.forward(observation[None]), noise[None])
    assert bool((found.action.abs() <= 1).all())
    policy = distribution(module(sac.actor.layers), observation)
    x = policy.base_dist.mean + policy.base_dist.stddev * noise
    torch.testing.assert_close(found.action[0], x.tanh().detach())
    torch.testing.assert_close(found.log_density[0], policy.log_prob(policy.transforms[0](x)).detach())


def test_log_densities_stay_finite_where_tanh_saturates() -> None:
    """In single precision 1 - tanh² is exactly 0 beyond |x| of 10; its logarithm must not be taken."""
    sac, _ = made()
    far = torch.randn(1, 100, 5, generator=torch.Generator().manual_seed(5)) * 1e4
    found = Squashed.of(sac.actor.forward(far), torch.zeros(1, 100, 2))
    assert bool((found.action.abs() == 1).any())
    assert bool(found.log_density.isfinite().all())


def test_alpha_falls_while_the_policy_is_more_random_than_asked() -> None:
    sac, _ = made()
    for step in range(5):
        sac.update(some_rows(step))
    (figures,) = sac.pop_figures()
    assert figures["entropy"] > CONFIG.target_entropy
    assert sac.log_alpha.item() < -0.7


def mean_return(policy: DeterministicPolicy, episodes: int = 100) -> float:
    observation, total = resets(episodes, seed=99), torch.zeros(episodes)
    model, generators = Pendulum(), SeedGenerators.of([0], CPU)
    for _ in range(200):
        step = model.step(observation, policy.act(observation.unsqueeze(0))[0], generators)
        total += step.reward
        observation = step.next_observation
    return total.mean().item()


@pytest.mark.parametrize("reset_fraction", [1.0, 0.1])
def test_it_learns_to_swing_a_pendulum_up(reset_fraction: float) -> None:
    """A random policy gets about -1,200, the best about -150; rollouts carried on must learn as well."""
    epochs = list(train(Pendulum(), resets(1024, 0), CONFIG, ReplayBuffer.batches, reset_fraction=reset_fraction))
    assert mean_return(epochs[0].policies) < -900
    assert mean_return(epochs[-1].policies) > -300


def test_the_same_seed_gives_the_same_weights_whatever_else_is_drawn() -> None:
    """Training owns its generator: torch's global one neither enters nor is touched."""

    def weights(seed: int) -> Tensor:
        epochs = list(train(Pendulum(), resets(64, 0), SHORT, ReplayBuffer.batches, seeds=(seed,)))
        return torch.cat([layer.flatten() for layer in epochs[-1].policies.layers])

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = weights(7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(weights(7), first)
    assert not torch.equal(weights(8), first)


def trained(*seeds: int) -> list[Tensor]:
    """Each seed's last policy, as a vector."""
    *_, last = train(Pendulum(), resets(64, 0), SHORT, ReplayBuffer.batches, seeds=seeds)
    return [torch.cat([layer[number].flatten() for layer in last.policies.layers]) for number in range(len(seeds))]


@pytest.mark.usefixtures("double")
def test_a_seed_learns_what_it_learns_alone() -> None:
    """Weights, rollouts, batches and noise of one seed do not depend on which others train beside it."""
    together = trained(3, 11, 4)
    for seed, found in zip((3, 11, 4), together, strict=True):
        torch.testing.assert_close(found, trained(seed)[0])
    assert not torch.allclose(together[0], together[1], rtol=0.01)
    assert torch.equal(torch.stack(trained(3, 11, 4)), torch.stack(together))


@pytest.mark.usefixtures("double")
def test_seeds_that_shared_their_randomness_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: one generator for all."""
    alone = trained(11)[0]
    monkeypatch.setattr(
        SeedGenerators, "of", lambda seeds, device: SeedGenerators([torch.Generator().manual_seed(3)] * len(seeds))
    )
    assert not torch.allclose(trained(3, 11)[1], alone)


def test_several_seeds_learn_to_swing_the_pendulum_up_together() -> None:
    *_, last = train(Pendulum(), resets(1024, 0), CONFIG, ReplayBuffer.batches, seeds=(0, 1, 2))
    assert last.policies.policies == len(last.metrics) == 3
    returns = [mean_return(last.policies.one(number)) for number in range(3)]
    assert min(returns) > -400
    assert len(set(returns)) == 3


def test_rollouts_come_when_they_are_due_and_every_update_is_made() -> None:
    """Also where the interval does not divide the epoch: 10 updates an epoch, rollouts at 0, 4, 8, 12 and 16."""
    held: list[int] = []

    def counting(buffer: ReplayBuffer, updates: int, batch_size: int, generators: SeedGenerators) -> Iterator[Tensor]:
        held.extend([len(buffer)] * updates)
        return buffer.batches(updates, batch_size, generators)

    config = replace(SHORT, rollout_every=4, horizon=3)
    epochs = list(train(Pendulum(), resets(64, 0), config, counting))
    assert held == [12 * (1 + update // 4) for update in range(20)]
    assert [epoch.number for epoch in epochs] == [1, 2]
    assert set(epochs[0].metrics[0]) == {
        *("critic_loss", "actor_loss", "q_mean", "entropy", "alpha"),
        *("model_reward", "model_uncertainty"),
    }
    first, last = (epoch.policies.layers[0] for epoch in epochs)
    assert not torch.equal(first, last), "a snapshot must not follow the actor"


def test_divergence_is_said_in_one_line() -> None:
    class Broken(Pendulum):
        def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> PendulumStep:
            step = super().step(observation, action, generators)
            return PendulumStep(step.next_observation, step.reward * torch.nan, step.uncertainty)

    with pytest.raises(PipelineError, match=r"SAC diverged in epoch 1, seed 0.*lower learning_rate"):
        list(train(Broken(), resets(64, 0), SHORT, ReplayBuffer.batches))


def test_the_snapshot_is_the_actors_mean_in_the_environments_units() -> None:
    scaling = Scaling(
        observation_mean=torch.arange(5.0),
        observation_scale=torch.arange(1.0, 6.0),
        action_low=torch.tensor([-2.0, 0.0]),
        action_high=torch.tensor([2.0, 5.0]),
        reward_scale=1.0,
    )
    sac, (reference,) = made()
    observation = torch.randn(40, 5, generator=torch.Generator().manual_seed(6)) * 3
    mean = reference.actor(scaling.observation(observation))[:, :2].detach()
    expected = torch.tensor([0.0, 2.5]) + torch.tensor([2.0, 2.5]) * mean.tanh()
    torch.testing.assert_close(sac.snapshot(scaling).act(observation.unsqueeze(0))[0], expected)
