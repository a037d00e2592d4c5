"""The pessimistic MDP: u as the paper defines it, random members, bounded states and rewards."""

import pytest
import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.dynamics.pessimism import PessimisticModel, max_aleatoric, max_pairwise_difference
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.dynamics.termination import RULES, Rule

CPU = torch.device("cpu")
MEMBERS, BATCH, TARGETS = 4, 5, 3


@pytest.fixture
def predictions() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(MEMBERS, BATCH, TARGETS, generator=generator),
        torch.rand(MEMBERS, BATCH, TARGETS, generator=generator),
    )


def test_max_pairwise_difference_by_hand(predictions: tuple[Tensor, Tensor]) -> None:
    """max_{i,j} ‖μ_i - μ_j‖₂, by plain loops."""
    mean, std = predictions
    for b, ours in enumerate(max_pairwise_difference(mean, std)):
        by_hand = max(
            float((mean[i, b] - mean[j, b]).square().sum().sqrt()) for i in range(MEMBERS) for j in range(MEMBERS)
        )
        assert float(ours) == pytest.approx(by_hand)


def test_max_aleatoric_by_hand(predictions: tuple[Tensor, Tensor]) -> None:
    """max_i ‖Σ_i‖_F with Σ_i = diag(σ²), by plain loops."""
    mean, std = predictions
    for b, ours in enumerate(max_aleatoric(mean, std)):
        by_hand = max(float(torch.linalg.matrix_norm(torch.diag(std[i, b] ** 2))) for i in range(MEMBERS))
        assert float(ours) == pytest.approx(by_hand)


class Announcing(GaussianEnsemble):
    """Member i predicts a change of 10·i in every state, a reward of i and an end with probability i/2, surely."""

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        member = torch.arange(3.0).view(3, 1, 1)
        mean = torch.cat((10 * member.expand(3, len(observation), 3), member.expand(3, len(observation), 1)), dim=-1)
        ends = member.squeeze(-1).expand(3, len(observation)) / 2 if self.architecture.learned_termination else None
        return mean, torch.zeros_like(mean), ends


def model(
    reward_high: float = 100.0, limit: float = 1000.0, penalty: float = 0.0, termination: str = "none"
) -> PessimisticModel:
    shape = Architecture(3, 1, 3, (8,), -10.0, 0.5, termination == "learned")
    normaliser = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4))
    box = torch.full((3,), limit)
    bounds = Bounds(-box, box, torch.tensor([-1.0]), torch.tensor([1.0]), -1.0, reward_high)
    ensemble = Announcing(shape, shape.initial_weights(0), normaliser, bounds, termination)
    return PessimisticModel(ensemble, uncertainty="max_pairwise_difference", penalty=penalty)


def test_every_row_follows_one_member_drawn_anew() -> None:
    """State and reward come from the same member, and all members come up, equally often."""
    step = model().step(torch.zeros(3000, 3), torch.zeros(3000, 1), SeedGenerators.of([0], CPU))
    assert torch.equal(step.next_observation, 10 * step.reward.unsqueeze(1).expand(-1, 3))
    counts = step.reward.long().bincount(minlength=3)
    assert torch.all((counts - 1000).abs() < 150)


def test_the_penalty_is_taken_off_after_the_bounds() -> None:
    """r̃ = clamp(r̂) - λu, u = ‖μ_2 - μ_0‖ = √(3·20² + 2²)."""
    doubt = (3 * 20**2 + 4) ** 0.5
    step = model(reward_high=0.5, penalty=2.0).step(torch.zeros(64, 3), torch.zeros(64, 1), SeedGenerators.of([0], CPU))
    torch.testing.assert_close(step.uncertainty, torch.full((64,), doubt))
    assert set(step.reward.add(2 * doubt).mul(10).round().long().tolist()) == {0, 5}


def test_the_reward_is_the_one_that_the_drawn_member_expects() -> None:
    """A drawn reward that is held within its bounds would be worth less, or more, than the member says."""

    class Unsure(Announcing):
        def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            mean, _, ends = super().predict(observation, action)
            return mean, torch.full_like(mean, 50.0), ends

    sure = model()._ensemble
    unsure = PessimisticModel(Unsure(**vars(sure)), uncertainty="max_aleatoric", penalty=0.0)
    step = unsure.step(torch.zeros(300, 3), torch.zeros(300, 1), SeedGenerators.of([0], CPU))
    assert set(step.reward.tolist()) == {0.0, 1.0, 2.0}
    assert step.next_observation.std() > 40, "states are drawn"


def test_states_stay_within_bounds() -> None:
    step = model(limit=7.0).step(torch.zeros(64, 3), torch.zeros(64, 1), SeedGenerators.of([0], CPU))
    assert set(step.next_observation.flatten().tolist()) == {0.0, 7.0}


def test_a_prediction_that_is_not_a_number_does_not_spread() -> None:
    shape = Architecture(3, 1, 3, (8,), -10.0, 0.5)
    normaliser = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4))
    box = torch.ones(3)
    bounds = Bounds(-box, box, torch.tensor([-1.0]), torch.tensor([1.0]), -1.0, 1.0)
    weights = tuple(torch.full_like(w, torch.nan) for w in shape.initial_weights(0))
    broken = PessimisticModel(
        GaussianEnsemble(shape, weights, normaliser, bounds), uncertainty="max_aleatoric", penalty=0.0
    )
    step = broken.step(torch.full((4, 3), 0.25), torch.zeros(4, 1), SeedGenerators.of([0], CPU))
    assert torch.equal(step.next_observation, torch.full((4, 3), 0.25))


def test_a_learned_termination_is_that_of_the_member_that_gives_the_state() -> None:
    """Member 0 never ends an episode, member 2 always does, member 1 every other time; over all, their mean."""
    step = model(termination="learned").step(torch.zeros(3000, 3), torch.zeros(3000, 1), SeedGenerators.of([0], CPU))
    assert step.terminated is not None
    member = step.reward.long()
    shares = [step.terminated[member == i].float().mean().item() for i in range(3)]
    assert shares[0] == 0.0
    assert shares[1] == pytest.approx(0.5, abs=0.06)
    assert shares[2] == 1.0
    assert step.terminated.float().mean().item() == pytest.approx(0.5, abs=0.04)


def test_a_rule_ends_rollouts_and_sees_the_state_before_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds narrower than the range where the task goes on must not make a rollout immortal."""
    far = Rule(3, lambda observation, action, following: following[:, 0] > 15)
    monkeypatch.setitem(RULES, "far", far)
    step = model(limit=7.0, termination="far").step(
        torch.zeros(300, 3), torch.zeros(300, 1), SeedGenerators.of([0], CPU)
    )
    assert step.terminated is not None
    assert torch.equal(step.terminated, step.reward == 2)
    assert step.next_observation.max() == 7


def test_without_a_termination_nothing_more_is_drawn() -> None:
    """The same seed gives the same rollouts as before there were terminations."""
    generator, again = (torch.Generator().manual_seed(0) for _ in range(2))
    assert model().step(torch.zeros(5, 3), torch.zeros(5, 1), SeedGenerators([generator])).terminated is None
    torch.randint(3, (5,), generator=again)
    torch.randn(5, 4, generator=again)
    assert torch.equal(generator.get_state(), again.get_state())
