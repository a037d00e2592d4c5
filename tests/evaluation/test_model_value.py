"""The value in the model: whole rollouts of one member at a time, ended by the model's own terminations."""

import pytest
import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.dynamics.termination import RULES, Rule
from primorl.evaluation.statistics import ModelValue
from primorl.policy.member_values import returns_by_member, step_weights
from tests.evaluation.conftest import random_policy

SURE = -40.0  # logarithm of a variance so small that a rollout is as good as deterministic


def ensemble(changes: list[float], termination: str = "none") -> GaussianEnsemble:
    """Member i moves the first of two states by ``changes[i]`` and is paid that much."""
    shape = Architecture(2, 1, len(changes), (4,), SURE - 1, SURE, termination == "learned")
    weights = [torch.zeros_like(w) for w in shape.initial_weights(0)]
    for member, change in enumerate(changes):
        weights[-1][member, 0, 0] = weights[-1][member, 0, 2] = change
        if termination == "learned":
            weights[-1][member, 0, -1] = 40.0 * (2 * member - 1)  # member 0 never ends, member 1 at once
    box = torch.full((2,), 100.0)
    bounds = Bounds(-box, box, torch.tensor([-1.0]), torch.tensor([1.0]), -50.0, 50.0)
    normaliser = Normaliser(torch.zeros(3), torch.ones(3), torch.zeros(3), torch.ones(3))
    return GaussianEnsemble(shape, tuple(weights), normaliser, bounds, termination)


def values(model: GaussianEnsemble, starts: Tensor, horizon: int = 10) -> Tensor:
    weights = step_weights(horizon)
    return returns_by_member(model, random_policy(2, 2, 1.0), starts, rollouts=6, weights=weights, seed=0).mean(-1)


def test_every_member_is_rolled_out_alone_undiscounted_and_unpenalised() -> None:
    """However much the members disagree: nothing is taken off for it, and the spread shows it."""
    found = values(ensemble([1.0, -2.0, 3.0]), torch.zeros(5, 2))
    torch.testing.assert_close(found, torch.tensor([[10.0, -20.0, 30.0]] * 2, dtype=torch.float64))
    assert ModelValue.of(found[0]) == ModelValue(pytest.approx(20 / 3), pytest.approx(-20), pytest.approx(30))


def test_a_rollout_that_terminates_earns_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that ends it still counts; one that goes on is worth its whole horizon."""
    monkeypatch.setitem(RULES, "far", Rule(2, lambda observation, action, following: following[:, 0] > 2.5))
    found = values(ensemble([1.0, 0.5, -1.0], "far"), torch.zeros(5, 2))
    torch.testing.assert_close(found, torch.tensor([[3.0, 3.0, -10.0]] * 2, dtype=torch.float64))
    near_the_end = values(ensemble([1.0], "far"), torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(near_the_end, torch.ones(2, 1, dtype=torch.float64))
    learned = values(ensemble([1.0, 1.0], "learned"), torch.zeros(5, 2))
    torch.testing.assert_close(learned, torch.tensor([[10.0, 1.0]] * 2, dtype=torch.float64))
