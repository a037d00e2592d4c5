"""The candidate that is written gains most in the member that likes it least; nothing else has a
say.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.base import PipelineError
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.optimisation import CandidateChoice, CandidateComparison, choose
from tests.model.models import plain_maps

SURE = -40.0


def ensemble(slopes: list[float]) -> GaussianEnsemble:
    """Member i pays ``slopes[i]`` times the action, and moves the state to the action."""
    shape = Architecture(1, 1, len(slopes), (2,), SURE - 1, SURE)
    weights = [torch.zeros_like(weight) for weight in shape.initial_weights(0)]
    for member, slope in enumerate(slopes):
        weights[0][member, 1, 0] = 40.0  # swish of a large number is the number
        weights[0][member, 1, 1] = -40.0
        for unit, sign in enumerate((1.0, -1.0)):
            weights[2][member, unit, 1] = sign * slope / 40
    box = torch.full((1,), 5.0)
    bounds = Bounds(-box, box, -box, box, -50.0, 50.0)
    return GaussianEnsemble(shape, tuple(weights), plain_maps(2, 2), bounds)


def constant(*actions: float) -> DeterministicPolicy:
    """P policies that always do the same; actions lie in [-5, 5]."""
    layers = (
        torch.zeros(len(actions), 1, 1),
        torch.atanh(torch.tensor(actions) / 5).view(-1, 1, 1),
    )
    box = torch.full((1,), 5.0)
    return DeterministicPolicy(layers, torch.zeros(1), torch.ones(1), -box, box)


def judged(
    slopes: list[float], weights: Tensor, *actions: float, observed: float | None = None
) -> CandidateChoice:
    asked: Any = {
        "clone": constant(1.0),
        "prior": None,
        "starts": torch.zeros(4, 1),
        "divergences": (0.3, 1.0, 3.0),
        "seed": 0,
    }
    known = None if observed is None else (observed, 0.25)
    return CandidateComparison(
        ensemble=ensemble(slopes), weights=weights, observed=known, **asked
    ).compare(constant(*actions))


WEIGHTS = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)


def gains(found: CandidateChoice) -> Tensor:
    return torch.tensor([[each.gains for each in own] for own in found.candidates])


def test_gains_are_weighted_returns_above_the_clones_in_each_member() -> None:
    actions = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 4.0]])
    found = judged([2.0, -1.0], WEIGHTS, *actions.flatten().tolist())
    expected = 1.75 * (actions - 1).unsqueeze(-1) * torch.tensor([2.0, -1.0])
    torch.testing.assert_close(gains(found), expected, atol=2e-3, rtol=1e-3)
    alone = judged([2.0, -1.0], WEIGHTS, *actions[1].tolist())
    assert torch.equal(gains(alone)[0], gains(found)[1]), "all share first states and draws"
    assert [each.divergence for each in found.candidates[1]] == [0.3, 1.0, 3.0]
    assert [found.policy(seed) for seed in (0, 1)] == [0, 3], "each member likes another"


def test_a_model_without_finite_predictions_compares_nothing() -> None:
    with pytest.raises(PipelineError, match="models/dynamics: "):
        judged([1.0, torch.nan], WEIGHTS, 1.0, 2.0, 3.0)


def test_the_largest_smallest_gain_is_chosen() -> None:
    of_seeds = torch.tensor([[[0.0, 0.0], [1.0, 9.0], [2.0, -3.0]]] * 2)
    sure, unsure = torch.zeros(2, 3), torch.tensor([[0.0] * 3, [0.0, 99.0, 0.0]])
    assert choose(of_seeds, sure, 0.0) == [1, 1]
    assert choose(of_seeds, unsure, 0.0) == [1, 0], "the model is less sure there"
    assert choose(of_seeds, sure, 2.0) == [0, 0], "half of the model's error on the clone"


@pytest.mark.parametrize(
    ("observed", "chosen"), [(2.5, 2), (1.75, 2), (-5.5, 0), (11.0, 0), (None, 2)]
)
def test_a_gain_counts_above_what_the_model_gets_wrong_of_the_clone(
    observed: float | None, chosen: int
) -> None:
    """The clone returns 1.75 in one member and 3.5 in the other; the boldest candidate gains 3.5 at
    least.

    Half of the difference to 2.625 counts, beyond two standard errors of 0.25.
    """
    found = judged([1.0, 2.0], WEIGHTS, 1.0, 2.0, 3.0, observed=observed)
    of_seeds = gains(found)
    assert choose(of_seeds, torch.zeros(of_seeds.shape[:2]), found.error) == [chosen]
    expected = 0.0 if observed is None else max(0.0, abs(2.625 - observed) - 0.5)
    assert found.error == pytest.approx(expected, abs=1e-2)
