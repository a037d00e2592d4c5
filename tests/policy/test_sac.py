"""Both kinds of SAC, plain and near a prior, are the slow reference's, learn, and keep seeds apart;
rollouts in the model, and the rows that a seed draws from.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    Normal,
    TransformedDistribution,
)
from torch.distributions.transforms import TanhTransform
from torch.nn.functional import one_hot

from primorl.base import PipelineError
from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import Step
from primorl.policy import sac as fast
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import SacConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Rollouts, Scaling
from primorl.policy.sac import ActorCritic, DiscreteSac, KLConstraint, Sac, Squashed, train

CONFIG = SacConfig(
    target_rate=0.01,
    reward_scale=0.1,
    target_entropy=-3.0,
    epochs=5,
    updates_per_epoch=400,
    buffer_size=50_000,
    horizon=30,
    rollout_every=100,
    rollout_batch=64,
)
STARTS = torch.linspace(-2, 2, 64).unsqueeze(1)


@dataclass(frozen=True)
class Counter:
    """Every step adds 1 to the state; the reward is ten times the state, the uncertainty the
    action.
    """

    discrete_actions = False
    action_low: Tensor = field(default_factory=lambda: torch.tensor([2.0]))
    action_high: Tensor = field(default_factory=lambda: torch.tensor([6.0]))
    observation_mean: Tensor = field(default_factory=lambda: torch.tensor([1.0]))
    observation_scale: Tensor = field(default_factory=lambda: torch.tensor([2.0]))

    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> Step:
        known = torch.ones(len(action), dtype=torch.bool)
        return Step(observation + 1, 10 * observation[:, 0], action[:, 0], None, known)


CPU = torch.device("cpu")


def numbered(start: int, count: int) -> Tensor:
    return torch.arange(start, start + count, dtype=torch.float32).view(1, count, 1)


@given(
    st.integers(1, 12).flatmap(
        lambda size: st.tuples(st.just(size), st.lists(st.integers(0, size), max_size=12))
    )
)
def test_the_ring_keeps_the_newest_rows_and_nothing_else(case: tuple[int, list[int]]) -> None:
    capacity, writes = case
    buffer, expected, written = ReplayBuffer(capacity, 1, CPU), deque[float](maxlen=capacity), 0
    for count in writes:
        rows = numbered(written + 1, count)
        buffer.extend(rows)
        expected.extend(rows.flatten().tolist())
        written += count
        assert sorted(buffer.rows.flatten().tolist()) == list(expected)
        assert len(buffer) == len(expected)


def test_each_seed_draws_from_all_of_its_own_rows_what_it_draws_alone() -> None:
    both, first = ReplayBuffer(600, 1, CPU, seeds=2), ReplayBuffer(600, 1, CPU)
    for begin, count in ((1, 400), (401, 400)):
        rows = numbered(begin, count)
        both.extend(torch.cat((rows, -rows)))
        first.extend(rows)
    together = torch.stack(list(both.batches(200, 32, SeedGenerators.of([3, 4], CPU))))
    alone = torch.stack(list(first.batches(200, 32, SeedGenerators.of([3], CPU))))
    assert torch.equal(together[:, :1], alone)
    assert set(together[:, 1].flatten().tolist()) == {float(-i) for i in range(201, 801)}
    assert not torch.equal(together[:, 1], -together[:, 0])


def rollouts(
    batch: int, horizon: int, reset_fraction: float, model: Any = None
) -> tuple[Rollouts, Scaling]:
    model = model or Counter()
    config = replace(CONFIG, rollout_batch=batch, horizon=horizon, reward_scale=0.1)
    made = Rollouts(
        model,
        torch.zeros(7, 1),
        config,
        SeedGenerators.of([0], torch.device("cpu")),
        reset_fraction,
    )
    return made, Scaling.of(model, 0.1)


def halfway(observation: Tensor) -> Tensor:
    return torch.full((*observation.shape[:2], 1), 0.5)


def test_rows_are_the_steps_of_unbroken_rollouts_that_never_terminate() -> None:
    made, scaling = rollouts(batch=3, horizon=4, reset_fraction=1.0)
    seen: list[Tensor] = []

    def act(observation: Tensor) -> Tensor:
        seen.append(observation)
        return halfway(observation)

    columns, (rows, reward, uncertainty) = scaling.columns, made.collect(act)
    assert torch.cat(seen).flatten().tolist() == [-0.5] * 3 + [0.0] * 3 + [0.5] * 3 + [1.0] * 3, (
        "standardised"
    )
    rows = rows.view(4, 3, columns.width)
    states = torch.arange(5.0).view(5, 1, 1).expand(5, 3, 1)
    torch.testing.assert_close(rows[..., columns.observation], scaling.observation(states[:4]))
    torch.testing.assert_close(rows[..., columns.next_observation], scaling.observation(states[1:]))
    torch.testing.assert_close(rows[..., columns.reward], states[:4, :, 0])
    assert bool((rows[..., columns.observation_action][..., 1] == 0.5).all())
    assert bool((rows[..., columns.continues] == 1).all())
    assert (reward.item(), uncertainty.item()) == (15.0, 5.0)


@dataclass(frozen=True)
class Mortal(Counter):
    """Ends where the state reaches 3."""

    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> Step:
        step = super().step(observation, action, generators)
        return replace(step, terminated=step.next_observation[:, 0] >= 3)


@pytest.mark.parametrize("reset_fraction", [1.0, 0.5])
def test_a_rollout_that_terminates_is_not_bootstrapped_and_begins_again(
    reset_fraction: float,
) -> None:
    made, scaling = rollouts(batch=400, horizon=8, reset_fraction=reset_fraction, model=Mortal())
    columns = scaling.columns
    for number in range(3):
        rows = made.collect(halfway)[0].view(8, 400, columns.width)
        before = rows[..., columns.observation][..., 0] * 2 + 1
        after = rows[..., columns.next_observation][..., 0] * 2 + 1
        torch.testing.assert_close(after, before + 1)
        assert torch.equal(rows[..., columns.continues] == 0, after >= 3)
        assert torch.equal(before[1:], torch.where(after[:-1] >= 3, 0.0, after[:-1]))
        # A fresh one was at 2 after the 8 steps, and after 8 more at 1.
        carried_on = {0.0, 2.0, 1.0} if number == 2 else {0.0, 2.0} if number == 1 else {0.0}
        assert set(before[0].tolist()) == ({0.0} if reset_fraction == 1.0 else carried_on)
        if number == 1:
            assert abs(float((before[0] == 0).float().mean()) - reset_fraction) < 0.1, (
                "4 standard deviations"
            )


Prior = Callable[[Tensor], Distribution] | None


def gradient_layers(networks: fast.Networks) -> tuple[Tensor, ...]:
    """The gradient, laid out as ``layers``."""
    return (networks._gradients[0].mT, *networks._gradients[1:])


def module(layers: tuple[Tensor, ...], network: int = 0) -> nn.Sequential:
    """The given one of the networks that ``layers`` describe, as a module of its own."""
    parts: list[nn.Module] = []
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        w, b = weight[network], bias[network]
        linear = nn.Linear(w.shape[1], w.shape[0])
        with torch.no_grad():
            linear.weight.copy_(w)
            linear.bias.copy_(b[0])
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def distribution(actor: nn.Module, observation: Tensor) -> TransformedDistribution:
    mean, log_std = actor(observation).chunk(2, dim=-1)
    normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1)
    return TransformedDistribution(normal, [TanhTransform(cache_size=1)])


def sampled(actor: nn.Module, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    policy = distribution(actor, observation)
    normal: Any = policy.base_dist
    x = normal.base_dist.loc + normal.base_dist.scale * noise
    action = policy.transforms[0](x)
    return action, policy.log_prob(action)


class Reference:
    """SAC with autograd, a module a network and ``torch.distributions``.

    Starts from the fast one's weights of one seed (by its place). With a ``prior``, from
    standardised observations to a distribution, and κ, KL(π‖prior) is held at κ.
    """

    def __init__(
        self,
        sac: ActorCritic,
        config: SacConfig,
        columns: ReplayColumns,
        seed: int,
        prior: Prior,
        kappa: float,
    ) -> None:
        self.config, self.columns, self.seed = config, columns, seed
        self.prior, self.kappa, self.discrete = prior, kappa, isinstance(sac, DiscreteSac)
        self.actor = module(sac.actor.layers, seed)
        self.critics = [module(sac.critic.layers, 2 * seed + i) for i in range(2)]
        self.targets = [module(sac.target.layers, 2 * seed + i) for i in range(2)]
        self.critic_gradients: list[Tensor] = []
        self.log_alpha = sac.log_alpha[seed : seed + 1].clone().requires_grad_()
        critics = [each for critic in self.critics for each in critic.parameters()]
        parts: Any = ([*self.actor.parameters()], critics, [self.log_alpha])
        self.adams = [torch.optim.Adam(part, config.learning_rate) for part in parts]

    def policy(self, observation: Tensor) -> Categorical:
        return Categorical(logits=self.actor(observation))

    def soft_value(
        self, critics: list[nn.Sequential], observation: Tensor, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """E[min Q - α log π] of each row, and E[log π]; with a prior log π/π_b."""
        alpha = self.log_alpha.exp().detach()
        if noise is None:
            policy, prior = self.policy(observation), self.prior and self.prior(observation)
            logs = policy.logits - (prior.logits if isinstance(prior, Categorical) else 0.0)
            least = torch.minimum(*(critic(observation) for critic in critics))
            value = (policy.probs * (least - alpha * logs)).sum(1)
            return value, (policy.probs * logs).sum(1)
        action, logs = sampled(self.actor, observation, noise)
        if self.prior is not None:
            logs = logs - self.prior(observation).log_prob(action)
        inputs = torch.cat((observation, action), 1)
        least = torch.minimum(*(critic(inputs)[:, 0] for critic in critics))
        return least - alpha * logs, logs

    def predictions(self, observation: Tensor, action: Tensor) -> list[Tensor]:
        """Q of what was done, by each critic."""
        if self.discrete:
            chosen = action.argmax(1, keepdim=True)
            return [critic(observation).gather(1, chosen)[:, 0] for critic in self.critics]
        inputs = torch.cat((observation, action), 1)
        return [critic(inputs)[:, 0] for critic in self.critics]

    def update(self, rows: Tensor, critic_noise: Tensor | None, actor_noise: Tensor | None) -> None:
        """Take the noise that the other draws for itself; None: actions are discrete."""
        S, A, config = self.columns.observation_size, self.columns.action_size, self.config
        following, observation, action, reward, continues = rows.split([S, S, A, 1, 1], dim=1)
        of_actor, of_critics, of_alpha = self.adams
        with torch.no_grad():
            value, _ = self.soft_value(self.targets, following, critic_noise)
            wanted = reward[:, 0] + config.discount * continues[:, 0] * value
        of_critics.zero_grad()
        for predicted in self.predictions(observation, action):
            nn.functional.mse_loss(predicted, wanted).backward()
        gradients = [each.grad for critic in self.critics for each in critic.parameters()]
        self.critic_gradients = [each.clone() for each in gradients if each is not None]
        of_critics.step()
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.lerp_(new, config.target_rate)
        of_actor.zero_grad()
        value, logs = self.soft_value(self.critics, observation, actor_noise)
        (-value.mean()).backward()
        of_actor.step()
        logs = logs.detach()
        if self.prior is not None:
            with torch.no_grad():
                self.log_alpha -= 3e-3 * (self.kappa - logs.mean()).clamp(-1, 1)
                self.log_alpha.clamp_(-7, 5)
            return
        entropy = config.discrete_target_entropy * math.log(A)
        entropy = entropy if self.discrete else config.target_entropy
        of_alpha.zero_grad()
        (-self.log_alpha * (logs + entropy)).mean().backward()
        of_alpha.step()

    def assert_same(self, sac: ActorCritic, **tolerance: Any) -> None:
        """Parameters and last gradients of the seed in ``sac`` are these."""
        own, actor = self.seed, [*self.actor.parameters()]
        of_actor = [part[own] for part in (*sac.actor.layers, *gradient_layers(sac.actor))]
        found = [*of_actor, sac.log_alpha[own : own + 1]]
        true: list[Any] = [*actor, *(each.grad for each in actor), self.log_alpha]
        for i in range(2):
            ours = *sac.critic.layers, *sac.target.layers
            found += [part[2 * own + i] for part in ours]
            true += [*self.critics[i].parameters(), *self.targets[i].parameters()]
        found += [part[2 * own + i] for i in range(2) for part in gradient_layers(sac.critic)]
        true += self.critic_gradients
        for one, other in zip(found, true, strict=True):
            torch.testing.assert_close(one.view_as(other), other.detach(), **tolerance)


BATCHES = replace(CONFIG, batch_size=16)
SHORT = replace(
    CONFIG, epochs=2, updates_per_epoch=10, rollout_every=5, rollout_batch=4, batch_size=16
)
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
    return Scaling(
        torch.arange(5.0), torch.arange(1.0, 6.0), torch.zeros(A), torch.ones(A), 1.0, discrete
    )


def prior_of(weight: Tensor, discrete: bool) -> BehaviourPolicy:
    """A clone whose output is ``observation @ weight``, with a hidden layer of ±observations."""
    size, A = len(weight), weight.shape[1] if discrete else weight.shape[1] // 2
    hidden = torch.cat((torch.eye(size), -torch.eye(size)))[None]
    output = torch.cat((weight, -weight)).T[None]
    biases, one = (torch.zeros(1, 1, 2 * size), torch.zeros(1, 1, len(output[0]))), torch.ones(A)
    layers = (hidden, biases[0], output[:, :A], biases[1][..., :A])
    policy = DeterministicPolicy(layers, torch.zeros(size), torch.ones(size), -one, one, discrete)
    if discrete:
        return BehaviourPolicy(policy, None, None)
    return BehaviourPolicy(policy, (output[:, A:], biases[1][..., A:]), (-3.0, 1.0))


class Truncated(Normal):
    """A normal that is known to lie in [-1, 1]."""

    def log_prob(self, value: Tensor) -> Tensor:
        inside = Normal.cdf(self, torch.ones(())) - Normal.cdf(self, -torch.ones(()))
        return Normal.log_prob(self, value) - inside.log()


def made(
    discrete: bool, seeds: int = 1, prior: bool = False
) -> tuple[ActorCritic, list[Reference]]:
    """Policies of SAC and the reference of each.

    With a prior all are of one seed, each with a κ of its own.
    """
    scaling, numbers = scaling_of(discrete), [0] * seeds if prior else list(range(seeds))
    constraint, given = None, None
    if prior:
        weight = 0.1 * torch.randn(
            5, 3 if discrete else 4, generator=torch.Generator().manual_seed(9)
        )
        clone = prior_of(weight, discrete)
        constraint = KLConstraint.of(clone, scaling, KAPPAS[:seeds], CPU)

        def given(observation: Tensor) -> Distribution:
            raw = observation * scaling.observation_scale + scaling.observation_mean
            if discrete:
                return Categorical(logits=raw @ weight)
            return Independent(Truncated(*clone.mean_and_std(raw)), 1)

    kind: Any = DiscreteSac if discrete else Sac
    sac = kind(BATCHES, scaling.columns, SeedGenerators.of(numbers, CPU), constraint)
    sac.target.vector.add_(0.01)  # so that targets and critics cannot be mistaken for each other
    sac.log_alpha.copy_(torch.linspace(-0.7, 4.999 if prior else 0.3, seeds))
    kappas = [kappa * (1 if discrete else 2) for kappa in KAPPAS]
    return sac, [
        Reference(sac, BATCHES, scaling.columns, own, given, kappas[own]) for own in range(seeds)
    ]


def some_rows(columns: ReplayColumns, seed: int, seeds: int = 1) -> Tensor:
    generator, shape = torch.Generator().manual_seed(seed), (seeds, BATCHES.batch_size)
    rows = torch.randn(*shape, columns.width, generator=generator)
    if columns.action_size == 3:
        rows[..., columns.action] = one_hot(torch.randint(3, shape, generator=generator), 3).to(
            rows.dtype
        )
    rows[..., columns.continues] = (torch.rand(shape, generator=generator) < 0.8).to(rows.dtype)
    return rows


def step_both(
    sac: ActorCritic, references: list[Reference], rows: Tensor, seen: Tensor, noises: list[Any]
) -> None:
    """One update of each on ``rows``, and of the references on ``seen``."""
    sac.update(rows)
    for own, reference, noise in zip(seen, references, noises, strict=True):
        drawn: Any = torch.randn(2, len(own), 2, generator=noise)
        reference.update(own, *((None, None) if reference.discrete else drawn))


@pytest.mark.usefixtures("double")
@KINDS
def test_whole_updates_are_those_of_the_reference(discrete: bool) -> None:
    """Gradients, order of the steps, which networks are detached, Adam, targets and α, several
    times over.

    The twin sees one reward that is off by a thousandth in one seed, in that seed only.
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
        step_both(
            sac, references, rows, rows, [torch.Generator().manual_seed(0) for _ in references]
        )
        for reference in references[2:] if wrong else references:
            reference.assert_same(sac)
        for reference in references[:2] if wrong else ():
            with pytest.raises(AssertionError):
                reference.assert_same(sac, atol=1e-5, rtol=1e-4)
        assert sac.log_alpha[2] <= 5


@pytest.mark.usefixtures("double")
def test_where_log_sigma_is_held_it_has_no_slope() -> None:
    output = 12 * torch.randn(1, 64, 4, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(1, 64, 2, generator=torch.Generator().manual_seed(1))
    output[..., 0] -= 30.0
    leaf = output.requires_grad_()
    found = Squashed.of(leaf, noise)
    assert 0 < int(found.free.sum()) < found.free.numel()
    action_slope, density_slope = torch.randn_like(found.action), 0.3
    (true,) = torch.autograd.grad(
        (found.action * action_slope).sum() + density_slope * found.log_density.sum(), leaf
    )
    torch.testing.assert_close(
        found.slope(action_slope, torch.full((1, 1, 1), density_slope)).detach(), true
    )


def test_discrete_actions_are_drawn_with_the_policys_probabilities() -> None:
    sac, (reference,) = made(discrete=True)
    observation = 3 * torch.randn(1, 5, generator=torch.Generator().manual_seed(2))
    drawn = sac.act(observation.expand(1, 20_000, -1))[0]
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(drawn.sum(1), torch.ones(20_000))
    probabilities = reference.policy(observation[0]).probs
    # 4 standard deviations.
    torch.testing.assert_close(drawn.mean(0), probabilities, atol=0.015, rtol=0)
    assert probabilities.max() - probabilities.min() > 0.05


def counter() -> Any:
    return Counter()


def trained(*seeds: int) -> list[Tensor]:
    """Each seed's last policy, as a vector."""
    *_, last = train(counter(), STARTS, SHORT, ReplayBuffer.batches, seeds=seeds)
    return [
        torch.cat([layer[number].flatten() for layer in last.policies.layers])
        for number in range(len(seeds))
    ]


@pytest.mark.usefixtures("double")
def test_a_seed_learns_what_it_learns_alone_whatever_else_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights, rollouts, batches and noise are the seed's; torch's global generator neither enters
    nor is touched.

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
    held: list[int] = []

    def counting(
        buffer: ReplayBuffer, updates: int, batch_size: int, generators: SeedGenerators
    ) -> Iterator[Tensor]:
        held.extend([len(buffer)] * updates)
        return buffer.batches(updates, batch_size, generators)

    config = replace(SHORT, rollout_every=4, horizon=3)
    first, last = train(counter(), STARTS, config, counting)
    assert held == [12 * (1 + update // 4) for update in range(20)]
    assert (first.number, last.number) == (1, 2)
    names = {"critic_loss", "actor_loss", "q_mean", "entropy", "alpha"}
    assert {*first.metrics[0]} == names | {"model_reward", "model_uncertainty"}
    assert not torch.equal(first.policies.layers[0], last.policies.layers[0]), (
        "a snapshot must not follow the actor"
    )


AT_REST = prior_of(torch.zeros(1, 2), discrete=False)
"""Acts around 0, with one standard deviation, whatever it sees."""


def test_every_seed_and_divergence_has_a_policy() -> None:
    def last(seeds: tuple[int, ...], divergences: tuple[float, ...]) -> Any:
        options: dict[str, Any] = {"seeds": seeds, "prior": AT_REST, "divergences": divergences}
        *_, epoch = train(counter(), STARTS, SHORT, ReplayBuffer.batches, **options)
        return epoch

    found = last((3, 8), (0.1, 2.0))
    together = found.policies.layers[-2]
    assert len(together) == 4
    assert "divergence" in found.metrics[0]
    for place, (seed, kappa) in ((1, (3, 2.0)), (2, (8, 0.1))):
        alone = last((seed,), (kappa,)).policies.layers[-2][0]
        torch.testing.assert_close(alone, together[place])
    assert not torch.allclose(together[0], together[1], atol=1e-6)


def test_what_cannot_be_trained_is_said() -> None:
    class Broken(Counter):
        def step(self, *given: Any) -> Step:
            step = super().step(*given)
            return replace(step, reward=step.reward * torch.nan)

    broken: Any = Broken()
    with pytest.raises(PipelineError, match="SAC diverged in epoch 1, seed 0"):
        list(train(broken, STARTS, SHORT, ReplayBuffer.batches))
