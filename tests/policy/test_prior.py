"""SAC on a leash is the slow reference's; its α holds the divergence where it is asked to."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal
from torch.nn.functional import one_hot, softplus

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.behaviour import KLConstraint, Normals
from primorl.policy.exported import Layers
from primorl.policy.networks import initial_layers
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Scaling
from primorl.policy.sac import DiscreteSac, Sac, train
from tests.policy.pendulum import CONFIG, Pendulum, resets
from tests.policy.reference import DiscreteReference, Networks, Reference

CPU = torch.device("cpu")
BATCHES = replace(CONFIG, batch_size=16)
KAPPAS = (0.1, 0.7, 2.0)


@dataclass(frozen=True)
class Linear:
    """A prior that is a linear map of observations in the environment's units."""

    weight: Tensor
    discrete_actions: bool

    def mean_and_std(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = (observation @ self.weight).chunk(2, -1)
        return mean.tanh(), 0.1 + softplus(raw)

    def log_probabilities(self, observation: Tensor) -> Tensor:
        return (observation @ self.weight).log_softmax(-1)

    def actor_layers(self, observation_mean: Tensor, observation_scale: Tensor) -> Layers:
        weight, bias, *rest = initial_layers(
            (len(self.weight), 8, self.weight.shape[1]), 1, torch.Generator().manual_seed(5)
        )
        return (weight * observation_scale, bias + observation_mean.sum(), *rest)


class Truncated(Normal):
    """A normal that is known to lie in [-1, 1]."""

    def log_prob(self, value: Tensor) -> Tensor:
        inside = self.cdf(torch.ones(())) - self.cdf(-torch.ones(()))
        return super().log_prob(value) - inside.log()


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(*, discrete: bool) -> tuple[Sac | DiscreteSac, list[Networks]]:
    """Three policies of one seed, each with a κ of its own, and the reference of each."""
    A = 3 if discrete else 2
    scaling = Scaling(torch.arange(5.0), torch.arange(1.0, 6.0), torch.zeros(A), torch.ones(A), 1.0, discrete)
    weight = 0.1 * torch.randn(5, 3 if discrete else 4, generator=torch.Generator().manual_seed(9))
    prior = Linear(weight, discrete)
    columns, generators = scaling.columns, SeedGenerators.of([1, 1, 1], CPU)
    leash = KLConstraint.of(prior, scaling, KAPPAS, CPU)
    kind, reference = (DiscreteSac, DiscreteReference) if discrete else (Sac, Reference)
    sac = kind(BATCHES, columns, generators, [0, 0, 0], leash)
    sac.target.vector.add_(0.01)
    sac.log_alpha.copy_(torch.tensor([-0.7, 0.3, 4.999]))

    def distribution(observation: Tensor) -> Categorical | Independent:
        raw = observation * scaling.observation_scale + scaling.observation_mean
        if discrete:
            return Categorical(logits=raw @ weight)
        return Independent(Truncated(*prior.mean_and_std(raw)), 1)

    targets = [kappa * (1 if discrete else 2) for kappa in KAPPAS]
    return sac, [reference(sac, BATCHES, columns, own, distribution, kappa) for own, kappa in enumerate(targets)]


def some_rows(columns: ReplayColumns, seed: int, *, discrete: bool) -> Tensor:
    generator, shape = torch.Generator().manual_seed(seed), (3, BATCHES.batch_size)
    rows = torch.randn(*shape, columns.width, generator=generator)
    if discrete:
        rows[..., columns.action] = one_hot(torch.randint(3, shape, generator=generator), 3).to(rows.dtype)
    rows[..., columns.continues] = (torch.rand(shape, generator=generator) < 0.8).to(rows.dtype)
    return rows


def step(sac: Sac | DiscreteSac, references: list[Networks], number: int, *, discrete: bool) -> None:
    rows = some_rows(references[0].columns, number, discrete=discrete)
    sac.update(rows)
    noise = torch.randn(2, BATCHES.batch_size, 2, generator=torch.Generator().manual_seed(1))
    for own, reference in zip(rows, references, strict=True):
        reference.update(own, *(() if discrete else noise))  # type: ignore[attr-defined]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("discrete", [False, True])
def test_updates_on_a_leash_are_those_of_the_reference(discrete: bool) -> None:
    """Both gradients through the prior, α's own step, its bounds, and every κ for itself."""
    sac, references = made(discrete=discrete)
    step(sac, references, 0, discrete=discrete)
    for reference in references:
        reference.assert_same(sac)
    assert sac.log_alpha[2] <= 5
    if discrete:  # draws nothing, so that more steps stay side by side
        step(sac, references, 1, discrete=True)
        references[1].assert_same(sac)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("discrete", [False, True])
def test_the_agreement_can_fail(discrete: bool) -> None:
    """The twin: without the prior, or with the next one's κ, the reference ends elsewhere."""
    sac, references = made(discrete=discrete)
    references[0].prior = None
    references[1].kappa = -30.0
    step(sac, references, 0, discrete=discrete)
    for reference in references[:2]:
        with pytest.raises(AssertionError):
            reference.assert_same(sac, atol=1e-5, rtol=1e-4)
    references[2].assert_same(sac)


SHORT = replace(CONFIG, epochs=1, updates_per_epoch=10, rollout_every=5, rollout_batch=4, batch_size=16)
AT_REST = Linear(torch.zeros(3, 2), False)
"""Acts around 0, with the standard deviation 0.1 + log 2, whatever it sees."""


@pytest.mark.usefixtures("double")
def test_a_truncated_normal_is_a_density() -> None:
    """It integrates to one over [-1, 1], also with its mean at the edge."""
    action = torch.linspace(-1, 1, 20_001)[:, None]
    for mean, std in ((0.0, 0.8), (0.999, 0.05), (-1.0, 2.0)):
        density = Normals(torch.tensor([mean]), torch.tensor([std])).log_density(action).exp()
        assert float(torch.trapezoid(density, action[:, 0])) == pytest.approx(1.0, abs=1e-4)


def test_every_seed_and_divergence_has_a_policy() -> None:
    """All of the first seed's come first, and each is what it is alone."""

    def last(seeds: tuple[int, ...], divergences: tuple[float, ...]) -> tuple[tuple[dict[str, float], ...], Tensor]:
        *_, epoch = train(
            *(Pendulum(), resets(64, 0), SHORT, ReplayBuffer.batches),
            seeds=seeds,
            prior=AT_REST,
            divergences=divergences,
        )
        return epoch.metrics, epoch.policies.layers[-2]

    metrics, together = last((3, 8), (0.1, 2.0))
    assert len(metrics) == len(together) == 4
    assert set(metrics[0]) >= {"divergence", "alpha"}
    assert "entropy" not in metrics[0]
    for place, (seed, kappa) in enumerate(((3, 0.1), (3, 2.0), (8, 0.1), (8, 2.0))):
        torch.testing.assert_close(last((seed,), (kappa,))[1][0], together[place])
    assert not torch.allclose(together[0], together[1], atol=1e-6)


def test_alpha_holds_the_divergence_where_it_is_asked_to() -> None:
    """A short leash keeps the policy at its prior; with a long one the prior vanishes: α falls to nothing."""
    config = replace(CONFIG, epochs=3, updates_per_epoch=600, batch_size=64, rollout_batch=16, reward_scale=0.3)
    *_, epoch = train(
        *(Pendulum(), resets(256, 0), config, ReplayBuffer.batches), prior=AT_REST, divergences=(0.2, 1.0, 50.0)
    )
    held, middle, free = epoch.metrics
    assert held["divergence"] < 0.3
    assert 0.5 < middle["divergence"] < 1.5
    assert 2 < free["divergence"] < 50
    assert free["alpha"] < 0.03 < middle["alpha"] < held["alpha"]
    observation = resets(200, 1)[None].expand(3, -1, -1)
    size = epoch.policies.act(observation).abs().mean((1, 2))
    assert float(size[0]) < 1 < 1.6 < float(size[2])


def test_a_prior_needs_divergences_and_actions_of_the_same_kind() -> None:
    arguments = (Pendulum(), resets(64, 0), SHORT, ReplayBuffer.batches)
    with pytest.raises(ValueError, match="both a prior and divergences"):
        next(train(*arguments, prior=AT_REST))
    with pytest.raises(ValueError, match="both a prior and divergences"):
        next(train(*arguments, divergences=(1.0,)))
    with pytest.raises(ValueError, match="discrete actions"):
        next(train(*arguments, prior=Linear(torch.zeros(3, 2), True), divergences=(1.0,)))


@pytest.mark.parametrize("discrete", [False, True])
def test_policies_begin_as_a_prior_of_their_size(discrete: bool) -> None:
    """All of them, whatever their seed. The twin: with other hidden layers they begin with weights of their own."""
    A = 3 if discrete else 2
    mean, scale = torch.arange(5.0), torch.arange(1.0, 6.0)
    scaling = Scaling(mean, scale, torch.zeros(A), torch.ones(A), 1.0, discrete)
    prior = Linear(torch.zeros(5, 3 if discrete else 4), discrete)
    leash, kind = KLConstraint.of(prior, scaling, (0.1, 0.1), CPU), DiscreteSac if discrete else Sac

    def actor(hidden: tuple[int, ...]) -> Layers:
        config = replace(BATCHES, hidden=hidden)
        return kind(config, scaling.columns, SeedGenerators.of([1, 2], CPU), [1, 2], leash).actor.layers

    for began, wanted in zip(actor((8,)), prior.actor_layers(mean, scale), strict=True):
        assert torch.equal(began, wanted.expand_as(began))
    other = actor((7,))
    assert other[0].shape[1] == 7
    assert not torch.equal(other[0][0], other[0][1])
