"""The policy's action-values in the model: those of a model in which they are known, and the same for a seed."""

from dataclasses import replace

import pytest
import torch

from primorl.evaluation.private import policy_q as module
from primorl.evaluation.private.policy_q import model_q, q_values
from tests.evaluation.private import tiny_mdp


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UPDATES", 200)
    monkeypatch.setattr(module, "_ROWS", 4000)
    monkeypatch.setattr(module, "_ROLLOUTS", (200, 1000))


@pytest.mark.parametrize("horizon", [5, None])
def test_values_are_what_the_steps_that_are_left_pay(horizon: int | None) -> None:
    problem = replace(tiny_mdp.problem(10), horizon=horizon, discount=0.8).with_return_bounds(None)
    values = model_q(problem)
    steps = torch.arange(5)
    observation = torch.eye(3)[steps % 3]
    found = q_values(problem, values, observation, tiny_mdp.act(observation), steps)
    left = 5 - steps if horizon else torch.full_like(steps, 100)
    expected = 0.5 * (1 - 0.8 ** left.double()) / (1 - 0.8)
    torch.testing.assert_close(found, expected, atol=0.06, rtol=0)


def test_values_follow_the_seed_and_stay_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UPDATES", 3)
    problem = tiny_mdp.problem(10).with_return_bounds((0.0, 0.7))
    first, again, other = (model_q(replace(problem, seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model_q.0"], other["model_q.0"])
    observation = torch.tensor([[float("nan")] * 3, [1e300, -1e300, 0.0]], dtype=torch.float64)
    action = torch.tensor([[1.0, 0.0], [float("nan"), 1e9]], dtype=torch.float64)
    found = q_values(problem, first, observation, action, torch.tensor([0, 1]))
    assert found.isfinite().all()
    assert (found >= 0).all()
    assert (found <= 0.7).all()
