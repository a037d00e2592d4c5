"""Both kinds of SAC, plain and near a prior, are the slow reference's, learn, and keep
seeds apart.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal
from torch.nn.functional import one_hot

from primorl.base.errors import PipelineError
from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import Step
from primorl.policy.behaviour import BehaviourPolicy, KLConstraint
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Scaling
from primorl.policy.sac import ActorCritic, DiscreteSac, Sac, Squashed, train
from tests.policy.counter import CONFIG, STARTS, Counter
from tests.policy.reference import DiscreteReference, Networks, Reference

CPU = torch.device("cpu")
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
        inside = self.cdf(torch.ones(())) - self.cdf(-torch.ones(()))
        return super().log_prob(value) - inside.log()


def made(discrete: bool, seeds: int = 1, prior: bool = False) -> tuple[ActorCritic, list[Networks]]:
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
    return sac, [
        reference(sac, BATCHES, scaling.columns, own, given, kappas[own]) for own in range(seeds)
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
    sac: ActorCritic, references: list[Networks], rows: Tensor, seen: Tensor, noises: list[Any]
) -> None:
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
    """Gradients, order of the steps, which networks are detached, Adam, targets and α, several
    times over.

    The reference has autograd, a module a network and ``torch.distributions``, and one seed at a
    time. The twin sees one reward that is off by a thousandth in one seed, in that seed only.
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
    probabilities = reference.policy(observation[0]).probs  # type: ignore[attr-defined]
    # 4 standard deviations.
    torch.testing.assert_close(drawn.mean(0), probabilities, atol=0.015, rtol=0)
    assert probabilities.max() - probabilities.min() > 0.05


def trained(*seeds: int) -> list[Tensor]:
    """Each seed's last policy, as a vector."""
    *_, last = train(Counter(), STARTS, SHORT, ReplayBuffer.batches, seeds=seeds)  # type: ignore[arg-type]
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
    first, last = train(Counter(), STARTS, config, counting)  # type: ignore[arg-type]
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
        *_, epoch = train(Counter(), STARTS, SHORT, ReplayBuffer.batches, **options)  # type: ignore[arg-type]
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

    with pytest.raises(PipelineError, match="SAC diverged in epoch 1, seed 0"):
        list(train(Broken(), STARTS, SHORT, ReplayBuffer.batches))  # type: ignore[arg-type]
