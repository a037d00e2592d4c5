"""Both kinds of SAC, plain and near a prior, are the slow reference's, learn, and keep seeds apart."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal
from torch.nn.functional import one_hot

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.behaviour import BehaviourPolicy, KLConstraint, Normals
from primorl.policy.exported import DeterministicPolicy, Layers, side_by_side
from primorl.policy.networks import initial_layers
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Scaling
from primorl.policy.sac import ActorCritic, DiscreteSac, Sac, Squashed, train
from primorl.project.errors import PipelineError
from tests.policy import cartpole, pendulum
from tests.policy.cartpole import CartPole
from tests.policy.pendulum import CONFIG, Pendulum, PendulumStep, resets
from tests.policy.reference import DiscreteReference, Networks, Reference, distribution, gradient, module

CPU = torch.device("cpu")
BATCHES = replace(CONFIG, batch_size=16)
SHORT = replace(CONFIG, epochs=2, updates_per_epoch=10, rollout_every=5, rollout_batch=4, batch_size=16)
KAPPAS = (0.1, 0.7, 2.0)
KINDS = pytest.mark.parametrize("discrete", [False, True])


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers so exact that a formula is right or wrong, and nothing between."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def scaling_of(discrete: bool) -> Scaling:
    A = 3 if discrete else 2
    return Scaling(torch.arange(5.0), torch.arange(1.0, 6.0), torch.zeros(A), torch.ones(A), 1.0, discrete)


def prior_of(weight: Tensor, discrete: bool) -> BehaviourPolicy:
    """A clone whose output is ``observation @ weight``, with a hidden layer of ±observations."""
    size, A = len(weight), weight.shape[1] if discrete else weight.shape[1] // 2
    hidden = torch.cat((torch.eye(size), -torch.eye(size)))[None]
    output = torch.cat((weight, -weight)).T[None]
    biases = torch.zeros(1, 1, 2 * size), torch.zeros(1, 1, len(output[0]))
    policy = DeterministicPolicy(
        (hidden, biases[0], output[:, :A], biases[1][..., :A]),
        torch.zeros(size),
        torch.ones(size),
        -torch.ones(A),
        torch.ones(A),
        discrete,
    )
    return BehaviourPolicy(
        policy, None if discrete else (output[:, A:], biases[1][..., A:]), None if discrete else (-3.0, 1.0)
    )


class Truncated(Normal):
    """A normal that is known to lie in [-1, 1]."""

    def log_prob(self, value: Tensor) -> Tensor:
        inside = self.cdf(torch.ones(())) - self.cdf(-torch.ones(()))
        return super().log_prob(value) - inside.log()


def made(discrete: bool, seeds: int = 1, prior: bool = False) -> tuple[ActorCritic, list[Networks]]:
    """Policies of SAC and the reference of each. With a prior all are of one seed, each with a κ of its own."""
    scaling, numbers = scaling_of(discrete), [0] * seeds if prior else list(range(seeds))
    constraint, given = None, None
    if prior:
        weight = 0.1 * torch.randn(5, 3 if discrete else 4, generator=torch.Generator().manual_seed(9))
        clone = prior_of(weight, discrete)
        constraint = KLConstraint.of(clone, scaling, KAPPAS[:seeds], CPU)

        def given(observation: Tensor) -> Categorical | Independent:  # type: ignore[misc]
            raw = observation * scaling.observation_scale + scaling.observation_mean
            if discrete:
                return Categorical(logits=raw @ weight)
            return Independent(Truncated(*clone.mean_and_std(raw)), 1)

    kind: Any = DiscreteSac if discrete else Sac
    reference: Any = DiscreteReference if discrete else Reference
    sac = kind(BATCHES, scaling.columns, SeedGenerators.of(numbers, CPU), constraint)
    sac.target.vector.add_(0.01)  # so that targets and critics cannot be mistaken for each other
    sac.log_alpha.copy_(torch.linspace(-0.7, 4.999 if prior else 0.3, seeds))
    kappas = [kappa * (1 if discrete else 2) for kappa in KAPPAS]
    return sac, [reference(sac, BATCHES, scaling.columns, own, given, kappas[own]) for own in range(seeds)]


def some_rows(columns: ReplayColumns, seed: int, seeds: int = 1) -> Tensor:
    generator, shape = torch.Generator().manual_seed(seed), (seeds, BATCHES.batch_size)
    rows = torch.randn(*shape, columns.width, generator=generator)
    if columns.action_size == 3:
        rows[..., columns.action] = one_hot(torch.randint(3, shape, generator=generator), 3).to(rows.dtype)
    rows[..., columns.continues] = (torch.rand(shape, generator=generator) < 0.8).to(rows.dtype)
    return rows


def step_both(sac: ActorCritic, references: list[Networks], rows: Tensor, seen: Tensor, noises: list[Any]) -> None:
    """One update of each on ``rows``, and of the references on ``seen``."""
    sac.update(rows)
    for own, reference, noise in zip(seen, references, noises, strict=True):
        if isinstance(reference, Reference):
            reference.update(own, *torch.randn(2, len(own), 2, generator=noise))
        else:
            reference.update(own)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("double")
@KINDS
def test_whole_updates_are_those_of_the_reference(discrete: bool) -> None:
    """Gradients, order of the steps, which networks are detached, Adam, targets and α, several times over.

    The reference has autograd, a module a network and ``torch.distributions``, and one seed at a time. The twin sees
    one reward that is off by a thousandth in one seed, in that seed only.
    """
    seeds = 2 if discrete else 3
    sac, references = made(discrete, seeds)
    noises = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    for number in range(3 if discrete else 8):
        rows = some_rows(references[0].columns, number, seeds)
        step_both(sac, references, rows, rows, noises)
        for reference in references:
            reference.assert_same(sac)
    other = rows.clone()
    other[1, 0, references[0].columns.reward] += 1e-3
    step_both(sac, references, other, rows, noises)
    references[0].assert_same(sac)
    with pytest.raises(AssertionError):
        references[1].assert_same(sac)


@pytest.mark.usefixtures("double")
@KINDS
def test_updates_near_a_prior_are_those_of_the_reference(discrete: bool) -> None:
    """Both gradients through the prior, α's own step, its bounds, and every κ for itself.

    The twins: without the prior, or with another κ, the reference ends elsewhere.
    """
    for wrong in (False, True):
        sac, references = made(discrete, 3, prior=True)
        if wrong:
            references[0].prior = None
            references[1].kappa = -30.0
        rows = some_rows(references[0].columns, 0, 3)
        step_both(sac, references, rows, rows, [torch.Generator().manual_seed(0) for _ in references])
        for reference in references[2:] if wrong else references:
            reference.assert_same(sac)
        for reference in references[:2] if wrong else ():
            with pytest.raises(AssertionError):
                reference.assert_same(sac, atol=1e-5, rtol=1e-4)
        assert sac.log_alpha[2] <= 5


def test_in_single_precision_gradients_are_autograds_to_five_digits() -> None:
    sac, (reference,) = made(discrete=False)
    rows = some_rows(reference.columns, 0)
    step_both(sac, [reference], rows, rows, [torch.Generator().manual_seed(0)])
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
    output[..., 0] -= 30.0
    leaf = output.requires_grad_()
    found = Squashed.of(leaf, noise)
    assert 0 < int(found.free.sum()) < found.free.numel()
    action_slope, density_slope = torch.randn_like(found.action), 0.3
    (true,) = torch.autograd.grad((found.action * action_slope).sum() + density_slope * found.log_density.sum(), leaf)
    torch.testing.assert_close(found.slope(action_slope, torch.full((1, 1, 1), density_slope)).detach(), true)


@pytest.mark.usefixtures("double")
def test_log_densities_are_those_of_the_transformed_distribution() -> None:
    """The tanh correction, against torch.distributions; inputs up to where tanh is nearly ±1."""
    sac, _ = made(discrete=False)
    for spread in (1.0, 30.0):
        generator = torch.Generator().manual_seed(4)
        observation, noise = torch.randn(200, 5, generator=generator) * spread, torch.randn(200, 2, generator=generator)
        found = Squashed.of(sac.actor.forward(observation[None]), noise[None])
        policy = distribution(module(sac.actor.layers), observation)
        x = policy.base_dist.mean + policy.base_dist.stddev * noise
        torch.testing.assert_close(found.action[0], x.tanh().detach())
        torch.testing.assert_close(found.log_density[0], policy.log_prob(policy.transforms[0](x)).detach())


def test_log_densities_stay_finite_where_tanh_saturates() -> None:
    """In single precision 1 - tanh² is exactly 0 beyond |x| of 10; its logarithm must not be taken."""
    sac, _ = made(discrete=False)
    far = torch.randn(1, 100, 5, generator=torch.Generator().manual_seed(5)) * 1e4
    found = Squashed.of(sac.actor.forward(far), torch.zeros(1, 100, 2))
    assert bool((found.action.abs() == 1).any())
    assert bool(found.log_density.isfinite().all())


@pytest.mark.usefixtures("double")
def test_a_truncated_normal_is_a_density() -> None:
    """It integrates to one over [-1, 1], also with its mean at the edge."""
    action = torch.linspace(-1, 1, 20_001)[:, None]
    for mean, std in ((0.0, 0.8), (0.999, 0.05), (-1.0, 2.0)):
        density = Normals(torch.tensor([mean]), torch.tensor([std])).log_density(action).exp()
        assert float(torch.trapezoid(density, action[:, 0])) == pytest.approx(1.0, abs=1e-4)


def test_discrete_actions_are_drawn_with_the_policys_probabilities() -> None:
    sac, (reference,) = made(discrete=True)
    observation = 3 * torch.randn(1, 5, generator=torch.Generator().manual_seed(2))
    drawn = sac.act(observation.expand(1, 20_000, -1))[0]
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(drawn.sum(1), torch.ones(20_000))
    probabilities = reference.policy(observation[0]).probs  # type: ignore[attr-defined]
    torch.testing.assert_close(drawn.mean(0), probabilities, atol=0.015, rtol=0)  # 4 standard deviations
    assert probabilities.max() - probabilities.min() > 0.05


@KINDS
def test_the_snapshot_is_the_actors_mean_or_likeliest_action(discrete: bool) -> None:
    """In the environment's units."""
    scaling = scaling_of(discrete)
    if not discrete:
        scaling = replace(scaling, action_low=torch.tensor([-2.0, 0.0]), action_high=torch.tensor([2.0, 5.0]))
    sac, (reference,) = made(discrete)
    observation = 9 * torch.randn(40, 5, generator=torch.Generator().manual_seed(6))
    output = reference.actor(scaling.observation(observation)).detach()
    found = sac.snapshot(scaling).act(observation[None])[0]
    if discrete:
        assert torch.equal(found, one_hot(output.argmax(1), 3).float())
        assert len(output.argmax(1).unique()) > 1
    else:
        torch.testing.assert_close(found, torch.tensor([0.0, 2.5]) + torch.tensor([2.0, 2.5]) * output[:, :2].tanh())


def mean_return(policy: DeterministicPolicy, episodes: int = 100) -> float:
    observation, total = resets(episodes, seed=99), torch.zeros(episodes)
    model, generators = Pendulum(), SeedGenerators.of([0], CPU)
    for _ in range(200):
        step = model.step(observation, policy.act(observation.unsqueeze(0))[0], generators)
        total += step.reward
        observation = step.next_observation
    return total.mean().item()


@pytest.mark.parametrize("reset_fraction", [1.0, 0.1])
def test_several_seeds_learn_to_swing_a_pendulum_up(reset_fraction: float) -> None:
    """A random policy gets about -1,200, the best about -150; rollouts carried on must learn as well."""
    seeds = (0, 1, 2) if reset_fraction == 1.0 else (0,)
    options: dict[str, Any] = {"seeds": seeds, "reset_fraction": reset_fraction}
    first, *_, last = train(Pendulum(), resets(1024, 0), CONFIG, ReplayBuffer.batches, **options)  # type: ignore[arg-type]
    assert mean_return(first.policies.one(0)) < -800
    assert last.policies.policies == len(last.metrics) == len(seeds)
    returns = [mean_return(last.policies.one(number)) for number in range(len(seeds))]
    assert min(returns) > -400
    assert len(set(returns)) == len(seeds)


def steps_survived(policy: DeterministicPolicy, episodes: int = 100) -> float:
    """Mean length of episodes in the true task, at most 500 steps."""
    observation, alive, total = cartpole.resets(episodes, seed=99), torch.ones(episodes, dtype=torch.bool), 0.0
    for _ in range(500):
        step = CartPole().step(observation, policy.act(observation.unsqueeze(0))[0], SeedGenerators.of([0], CPU))
        assert step.terminated is not None
        total += float(alive.sum())
        alive &= ~step.terminated
        observation = step.next_observation
    return total / episodes


def test_it_learns_to_balance_a_pole_where_falling_ends_an_episode() -> None:
    """A random policy falls after about 22 steps. The twin: a reward of 1 for every step says nothing without ends."""

    class Immortal(CartPole):
        def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> PendulumStep:
            return replace(super().step(observation, action, generators), terminated=None)

    def survived(model: Any, epochs: int) -> float:
        config, starts = replace(cartpole.CONFIG, epochs=epochs), cartpole.resets(512, 0)
        *_, last = train(model, starts, config, ReplayBuffer.batches, seeds=(1,), reset_fraction=0.3)
        return steps_survived(last.policies)

    assert survived(CartPole(), 3) > 150
    assert survived(Immortal(), 2) < 100


def trained(*seeds: int) -> list[Tensor]:
    """Each seed's last policy, as a vector."""
    *_, last = train(Pendulum(), resets(64, 0), SHORT, ReplayBuffer.batches, seeds=seeds)  # type: ignore[arg-type]
    return [torch.cat([layer[number].flatten() for layer in last.policies.layers]) for number in range(len(seeds))]


@pytest.mark.usefixtures("double")
def test_a_seed_learns_what_it_learns_alone_whatever_else_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, rollouts, batches and noise are the seed's; torch's global generator neither enters nor is touched.

    The twin has one generator for all.
    """
    torch.manual_seed(0)
    state = torch.get_rng_state()
    together = trained(3, 11, 4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(torch.stack(trained(3, 11, 4)), torch.stack(together))
    for seed, found in zip((3, 11, 4), together, strict=True):
        torch.testing.assert_close(found, trained(seed)[0])
    assert not torch.allclose(together[0], together[1], rtol=0.01)
    shared = lambda seeds, device: SeedGenerators([torch.Generator().manual_seed(3)] * len(seeds))  # noqa: E731
    monkeypatch.setattr(SeedGenerators, "of", shared)
    assert not torch.allclose(trained(3, 11)[1], together[1])


def test_rollouts_come_when_they_are_due_and_every_update_is_made() -> None:
    """Also where the interval does not divide the epoch: 10 updates an epoch, rollouts at 0, 4, 8, 12 and 16."""
    held: list[int] = []

    def counting(buffer: ReplayBuffer, updates: int, batch_size: int, generators: SeedGenerators) -> Iterator[Tensor]:
        held.extend([len(buffer)] * updates)
        return buffer.batches(updates, batch_size, generators)

    config = replace(SHORT, rollout_every=4, horizon=3)
    first, last = train(Pendulum(), resets(64, 0), config, counting)  # type: ignore[arg-type]
    assert held == [12 * (1 + update // 4) for update in range(20)]
    assert (first.number, last.number) == (1, 2)
    names = {"critic_loss", "actor_loss", "q_mean", "entropy", "alpha", "model_reward", "model_uncertainty"}
    assert set(first.metrics[0]) == names
    assert not torch.equal(first.policies.layers[0], last.policies.layers[0]), "a snapshot must not follow the actor"


AT_REST = prior_of(torch.zeros(3, 2), discrete=False)
"""Acts around 0, with one standard deviation, whatever it sees."""


def test_every_seed_and_divergence_has_a_policy() -> None:
    """All of the first seed's come first, and each is what it is alone."""

    def last(seeds: tuple[int, ...], divergences: tuple[float, ...]) -> tuple[tuple[dict[str, float], ...], Tensor]:
        options: dict[str, Any] = {"seeds": seeds, "prior": AT_REST, "divergences": divergences}
        *_, epoch = train(Pendulum(), resets(64, 0), SHORT, ReplayBuffer.batches, **options)  # type: ignore[arg-type]
        return epoch.metrics, epoch.policies.layers[-2]

    metrics, together = last((3, 8), (0.1, 2.0))
    assert len(metrics) == len(together) == 4
    assert "divergence" in metrics[0]
    assert "entropy" not in metrics[0]
    for place, (seed, kappa) in enumerate(((3, 0.1), (3, 2.0), (8, 0.1), (8, 2.0))):
        torch.testing.assert_close(last((seed,), (kappa,))[1][0], together[place])
    assert not torch.allclose(together[0], together[1], atol=1e-6)


def test_alpha_holds_the_divergence_where_it_is_asked_to() -> None:
    """A small κ keeps the policy at its prior; with a large one the prior vanishes: α falls to nothing."""
    config = replace(CONFIG, epochs=3, updates_per_epoch=600, batch_size=64, rollout_batch=16, reward_scale=0.3)
    options: dict[str, Any] = {"prior": AT_REST, "divergences": (0.2, 1.0, 50.0)}
    *_, epoch = train(Pendulum(), resets(256, 0), config, ReplayBuffer.batches, **options)  # type: ignore[arg-type]
    held, middle, free = epoch.metrics
    assert held["divergence"] < 0.3
    assert 0.5 < middle["divergence"] < 1.5
    assert 2 < free["divergence"] < 50
    assert free["alpha"] < 0.03 < middle["alpha"] < held["alpha"]
    size = epoch.policies.act(resets(200, 1)[None].expand(3, -1, -1)).abs().mean((1, 2))
    assert float(size[0]) < 1 < 1.6 < float(size[2])


@KINDS
def test_policies_begin_as_a_prior_of_their_size(discrete: bool) -> None:
    """All of them, whatever their seed. The twin: with other hidden layers they begin with weights of their own."""
    scaling = scaling_of(discrete)
    prior = prior_of(torch.randn(5, 3 if discrete else 4), discrete)
    constraint = KLConstraint.of(prior, scaling, (0.1, 0.1), CPU)
    kind: Any = DiscreteSac if discrete else Sac

    def actor(hidden: tuple[int, ...]) -> Layers:
        config = replace(BATCHES, hidden=hidden)
        layers: Layers = kind(config, scaling.columns, SeedGenerators.of([1, 2], CPU), constraint).actor.layers
        return layers

    wanted = prior.actor_layers(scaling.observation_mean, scaling.observation_scale)
    assert all(torch.equal(own, one.expand_as(own)) for own, one in zip(actor((10,)), wanted, strict=True))
    other = actor((7,))
    assert other[0].shape[1] == 7
    assert not torch.equal(other[0][0], other[0][1])


def test_initial_weights_are_those_of_a_linear_layer() -> None:
    """Uniform within 1/√in, biases as well; networks of one draw differ."""
    layers = initial_layers((100, 50, 3), 2, torch.Generator().manual_seed(0))
    assert [tuple(layer.shape) for layer in layers] == [(2, 50, 100), (2, 1, 50), (2, 3, 50), (2, 1, 3)]
    assert 0.099 < float(layers[0].abs().max()) <= 0.1
    assert abs(float(layers[0].mean())) < 0.002
    assert not torch.equal(layers[0][0], layers[0][1])
    stacked = side_by_side([layers, layers])
    assert torch.equal(stacked[0][2:], layers[0])


def test_what_cannot_be_trained_is_said_in_one_line() -> None:
    class Broken(Pendulum):
        def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> PendulumStep:
            step = super().step(observation, action, generators)
            return PendulumStep(step.next_observation, step.reward * torch.nan, step.uncertainty)

    starts: Any = resets(64, 0)
    with pytest.raises(PipelineError, match=r"SAC diverged in epoch 1, seed 0.*lower learning_rate"):
        list(train(Broken(), starts, SHORT, ReplayBuffer.batches))  # type: ignore[arg-type]
    discrete = prior_of(torch.zeros(3, 2), discrete=True)
    for options, says in (
        ({"prior": AT_REST}, "both a prior and divergences"),
        ({"divergences": (1.0,)}, "both a prior and divergences"),
        ({"prior": discrete, "divergences": (1.0,)}, "discrete actions"),
    ):
        with pytest.raises(ValueError, match=says):
            next(train(Pendulum(), starts, SHORT, ReplayBuffer.batches, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1"])
def test_the_stand_ins_are_gymnasiums(name: str) -> None:
    """What the other tests learn on is the true task."""
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make(name).unwrapped
    env.action_space.seed(0)
    model: Any = Pendulum() if name == "Pendulum-v1" else CartPole()
    before = env.reset(seed=0)[0]
    for _ in range(200):
        action = env.action_space.sample()
        given = torch.tensor(action)[None] if name == "Pendulum-v1" else one_hot(torch.tensor([action]), 2).float()
        step = model.step(torch.tensor(before)[None], given, SeedGenerators.of([0], CPU))
        after, reward, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(step.next_observation[0].numpy(), after, atol=1e-4)
        np.testing.assert_allclose(float(step.reward), reward, atol=1e-3)
        assert bool(step.terminated is not None and step.terminated) is terminated
        before = env.reset()[0] if terminated else after
    torch.testing.assert_close(pendulum.resets(5000, 0).mean(0), torch.zeros(3), atol=0.05, rtol=0)
