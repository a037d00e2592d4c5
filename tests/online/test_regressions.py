"""DP-NPG and DP-REBEL solve the least squares that they say."""

import pytest
import torch
from torch import Tensor

from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort, online_plan
from primorl.online.policy_optimisation import (
    FromReturns,
    NaturalGradientByDescent,
    Rebel,
    predictions,
)
from primorl.online.trajectories import Trajectories
from research.natural_gradient import step_scores
from tests.online.cohorts import USERS, begun, met, network, recorded

SHAPE, LINEAR = network((3,)), network()


def unprotected(releases: int = 1) -> Cohort:
    return Cohort(
        online_plan(users=9, cohort=USERS, noise_multiplier=0.0, releases=releases, appearances=1, delta=1e-5), releases
    )


def least_squares(update: FromReturns, values: Values, data: Trajectories) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The minimiser of the mean over users of the mean over their steps, by rows scaled to it."""
    weights = (data.valid / data.valid.sum(1, keepdim=True)).sqrt().flatten().double()
    rows = step_scores(LINEAR, values[PARAMETERS], data).flatten(0, 1).double()
    targets = update.advantages(data).flatten().double()
    found = torch.linalg.pinv(rows * weights.unsqueeze(1), rtol=1e-4) @ (targets * weights)
    return rows, targets, weights, found


def test_many_descent_steps_come_near_least_squares() -> None:
    update = NaturalGradientByDescent(1.0, 1.0, 150, 1.0, 100.0)
    values, data = begun(update, LINEAR), met(LINEAR)
    rows, targets, weights, best = least_squares(update, values, data)

    step = update.updated(LINEAR, values, data, unprotected(150), 0)[PARAMETERS] - values[PARAMETERS]

    def loss(direction: Tensor) -> float:
        return float(((targets - rows @ direction) * weights).square().sum())

    least = loss(best)
    assert loss(step.double()) - least < 0.1 * (loss(torch.zeros_like(best)) - least)


def test_directions_stay_in_the_ball() -> None:
    update = NaturalGradientByDescent(1.0, 1.0, 3, 100.0, 0.2)
    values = begun(update, SHAPE)

    step = update.updated(SHAPE, values, met(SHAPE), unprotected(3), 0)[PARAMETERS] - values[PARAMETERS]

    torch.testing.assert_close(torch.linalg.vector_norm(step), torch.tensor(0.2))


def test_products_with_the_jacobian_are_those_of_the_scores() -> None:
    data = met(SHAPE)
    parameters, direction = torch.randn(2, SHAPE.parameters, generator=torch.Generator().manual_seed(0))

    found = predictions(SHAPE, parameters, data, direction) * data.valid

    torch.testing.assert_close(found, step_scores(SHAPE, parameters, data) @ direction, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("step", [0, 1])
def test_rebel_descends_the_loss_over_all_pairs_of_a_users_decisions(step: int) -> None:
    update = Rebel(0.7, 0.5, 2, 0.3)
    values, data = begun(update, SHAPE), met(SHAPE)
    seen = recorded(update, SHAPE, data)
    before = recorded(Rebel(0.7, 0.5, step, 0.3), SHAPE, data).values[PARAMETERS]
    advantages = update.advantages(data)
    for user in range(USERS):
        valid = data.valid[user]
        own = before.clone().requires_grad_()
        inputs = data.observations[user : user + 1], data.actions[user : user + 1]
        old = SHAPE.log_probabilities(values[PARAMETERS].unsqueeze(0), *inputs)[0]
        relative = (SHAPE.log_probabilities(own.unsqueeze(0), *inputs)[0] - old)[valid] / update.temperature
        errors = relative - advantages[user, valid]
        loss = (errors.unsqueeze(0) - errors.unsqueeze(1)).square().mean() / 4
        (gradient,) = torch.autograd.grad(loss, own)
        torch.testing.assert_close(seen.rows[step][user], -gradient * update.temperature, atol=1e-5, rtol=1e-3)
