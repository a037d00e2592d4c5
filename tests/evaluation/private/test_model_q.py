"""The policy's action-values in the model: those of a model in which they are known, and the same for a seed."""

from dataclasses import replace

import pytest
import torch

from primorl.dynamics.architecture import Architecture
from primorl.evaluation.private.model_values import ModelQ
from tests.evaluation.private import tiny_mdp


@pytest.mark.parametrize("horizon", [5, None])
def test_values_are_what_the_steps_that_are_left_pay(horizon: int | None) -> None:
    problem = replace(tiny_mdp.problem(10), horizon=horizon, discount=0.8).with_return_bounds(None)
    model = ModelQ(problem, features=8, rollouts=64)
    steps = torch.arange(6)
    observation = torch.eye(3)[steps % 3]
    found = model.action_values(model.fit(), observation, tiny_mdp.act(observation), steps)
    left = 5 - steps if horizon else torch.full_like(steps, 100)
    expected = 0.5 * (1 - 0.8 ** left.double()) / (1 - 0.8)
    torch.testing.assert_close(found, expected.expand(2, -1), atol=0.01, rtol=0)


def test_values_follow_the_seed_and_stay_within_what_rewards_allow() -> None:
    problem = replace(tiny_mdp.problem(10), reward_high=0.3)
    first, again, other = (ModelQ(replace(problem, seed=seed), 8, 64).fit() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    observation = torch.tensor([[float("nan")] * 3, [1e300, -1e300, 0.0]], dtype=torch.float64)
    action = torch.tensor([[1.0, 0.0], [float("nan"), 1e300]], dtype=torch.float64)
    found = ModelQ(problem, 8, 64).action_values(first, observation, action, torch.tensor([0, 1]))
    assert found.isfinite().all()
    assert ((found >= 0) & (found <= 0.3 * problem.effective_horizon + 1e-12)).all()


def test_values_of_a_row_do_not_depend_on_its_batch() -> None:
    shape = Architecture(tiny_mdp.STATES, tiny_mdp.ACTIONS, 2, (64, 64), -1.0, 0.0)
    ensemble = replace(tiny_mdp.ensemble(), architecture=shape, weights=shape.initial_weights(0))
    model = ModelQ(replace(tiny_mdp.problem(10), ensemble=ensemble), features=8, rollouts=64)
    fitted, generator = model.fit(), torch.Generator().manual_seed(0)
    rows = torch.rand(200, 3, generator=generator), torch.rand(200, 2, generator=generator), torch.arange(200) % 5
    together = model.action_values(fitted, *rows)
    alone = torch.cat([model.action_values(fitted, *(part[[row]] for part in rows)) for row in range(200)], 1)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-12)  # float32 is off by 1e-8 and more
