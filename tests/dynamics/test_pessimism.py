"""The pessimistic MDP: u as the paper defines it, random members, bounded states and rewards."""

import pytest
import torch
from torch import Tensor

from pipeline.dynamics.ensemble import Architecture, Bounds, GaussianEnsemble, Normaliser
from pipeline.dynamics.pessimism import PessimisticModel, max_aleatoric, max_pairwise_difference

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
    """Member i predicts a change of 10·i in every state and a reward of i, without doubt of its own."""

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        member = torch.arange(3.0).view(3, 1, 1)
        mean = torch.cat((10 * member.expand(3, len(observation), 3), member.expand(3, len(observation), 1)), dim=-1)
        return mean, torch.zeros_like(mean)


def model(reward_high: float = 100.0, limit: float = 1000.0, penalty: float = 0.0) -> PessimisticModel:
    shape = Architecture(3, 1, 3, (8,), -10.0, 0.5)
    normaliser = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4))
    box = torch.full((3,), limit)
    bounds = Bounds(-box, box, torch.tensor([-1.0]), torch.tensor([1.0]), -1.0, reward_high)
    ensemble = Announcing(shape, shape.initial_weights(0), normaliser, bounds)
    return PessimisticModel(ensemble, uncertainty="max_pairwise_difference", penalty=penalty)


def test_every_row_follows_one_member_drawn_anew() -> None:
    """State and reward come from the same member, and all members come up, equally often."""
    step = model().step(torch.zeros(3000, 3), torch.zeros(3000, 1), torch.Generator().manual_seed(0))
    assert torch.equal(step.next_observation, 10 * step.reward.unsqueeze(1).expand(-1, 3))
    counts = step.reward.long().bincount(minlength=3)
    assert torch.all((counts - 1000).abs() < 150)


def test_the_penalty_is_taken_off_after_the_bounds() -> None:
    """r̃ = clamp(r̂) - λu, u = ‖μ_2 - μ_0‖ = √(3·20² + 2²)."""
    doubt = (3 * 20**2 + 4) ** 0.5
    step = model(reward_high=0.5, penalty=2.0).step(torch.zeros(64, 3), torch.zeros(64, 1), torch.Generator())
    torch.testing.assert_close(step.uncertainty, torch.full((64,), doubt))
    assert set(step.reward.add(2 * doubt).mul(10).round().long().tolist()) == {0, 5}


def test_states_stay_within_bounds() -> None:
    step = model(limit=7.0).step(torch.zeros(64, 3), torch.zeros(64, 1), torch.Generator().manual_seed(0))
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
    step = broken.step(torch.full((4, 3), 0.25), torch.zeros(4, 1), torch.Generator())
    assert torch.equal(step.next_observation, torch.full((4, 3), 0.25))
