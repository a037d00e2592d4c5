"""DPPG computes all users at once as one after the other, and keeps each within S at every step."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.online.advantages import normalised, own_baseline
from primorl.online.dppg import DPPG, RELEASED
from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort, online_plan
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories
from tests.online.cohorts import USERS, begun, met, network, recorded

UPDATE = DPPG(0.05, 0.02, 2, 3, 0.1)
SHAPE = network((5,))


def reference(
    update: DPPG, shape: PolicyNetwork, values: Values, data: Trajectories, advantages: Tensor, bound: float
) -> Tensor:
    """One user after the other, by torch's Adam."""
    found = []
    generator = torch.Generator().manual_seed(3)
    schedule = [torch.randperm(data.steps, generator=generator).tensor_split(3) for _ in range(update.epochs)]
    start = values[PARAMETERS].unsqueeze(0)
    for user in range(data.users):
        own = start.clone().requires_grad_()
        adam = torch.optim.Adam([own], update.local_learning_rate, maximize=True)
        observations, actions = data.observations[user : user + 1], data.actions[user : user + 1]
        old = shape.log_probabilities(start, observations, actions)
        for steps in (part for epoch in schedule for part in epoch):
            steps = steps[data.valid[user, steps]]
            outputs = shape.outputs(own, observations[:, steps])
            ratios = (shape.scores(own, outputs, actions[:, steps]) - old[:, steps]).exp()
            entropy = update.entropy_coefficient * shape.entropy(own, outputs)
            (own.grad,) = torch.autograd.grad((ratios * advantages[user, steps] + entropy).mean(), own)
            adam.step()
            with torch.no_grad():
                delta = own - start
                own.copy_(start + delta * min(1.0, bound / float(delta.norm())))
        found.append((own - start).detach()[0])
    return torch.stack(found)


@pytest.mark.parametrize("bound", [0.05, math.inf])
def test_all_users_at_once_are_one_after_the_other(bound: float) -> None:
    data = met(SHAPE)
    values = begun(UPDATE, SHAPE) | {RELEASED: torch.zeros(SHAPE.parameters)}
    advantages = normalised(torch.randn(USERS, data.steps, generator=torch.Generator().manual_seed(0)), data.valid)

    found = UPDATE.local_updates(SHAPE, values, data, advantages, UPDATE.schedule(data.steps, 3), bound)

    torch.testing.assert_close(found, reference(UPDATE, SHAPE, values, data, advantages, bound), atol=2e-5, rtol=1e-3)
    assert torch.linalg.vector_norm(found, dim=1).max() > (0.04 if bound < 1 else 0.1)


def test_moments_begin_at_the_released_mean_for_all_users_alike() -> None:
    moments = replace(UPDATE, moments="released")._moments(torch.tensor([0.1, -0.2]), 3)

    assert torch.equal(moments.first, torch.tensor([[0.1, -0.2]]).expand(3, 2))
    assert torch.equal(moments.second, torch.tensor([[0.1, -0.2]]).expand(3, 2).square())
    # Uphill, the first step goes on where the released mean went.
    assert torch.equal(moments.direction(torch.zeros(3, 2)).sign(), torch.tensor([[1.0, -1.0]]).expand(3, 2))


def test_local_updates_stay_within_the_bound() -> None:
    seen = recorded(UPDATE, SHAPE, met(SHAPE))

    norms = torch.linalg.vector_norm(seen.rows[0], dim=1)
    assert norms.max() <= 0.05 * (1 + 1e-6)
    assert norms.min() > 0.04


def test_without_noise_there_is_no_clip() -> None:
    plan = online_plan(users=9, cohort=USERS, noise_multiplier=0.0, releases=1, appearances=1, delta=1e-5)
    values = begun(UPDATE, SHAPE)
    made = UPDATE.updated(SHAPE, values, met(SHAPE), Cohort(plan, 1), 3)

    assert torch.linalg.vector_norm(made[RELEASED]) > 2 * UPDATE.clipping_norm
    assert torch.equal(made[PARAMETERS], values[PARAMETERS] + made[RELEASED])


def test_where_nobody_fails_nothing_is_learned_from_rounding() -> None:
    data = met(SHAPE)
    data.rewards[:] = data.valid.float()
    data.terminated[:] = False
    before, _ = own_baseline(SHAPE, data, 0.99)

    torch.testing.assert_close(before[data.valid], torch.full_like(before[data.valid], 100.0))
    values = begun(UPDATE, SHAPE) | {RELEASED: torch.zeros(SHAPE.parameters)}
    seen = recorded(DPPG(0.05, 0.02, 2, 3), SHAPE, data, values)
    assert torch.equal(seen.rows[0], torch.zeros_like(seen.rows[0]))
