"""Returns and advantages are those of the equations, and of one user's data."""

import torch

from primorl.online.advantages import generalised_advantages, normalised, own_baseline, own_mean, returns_to_go
from primorl.online.trajectories import Trajectories
from tests.online.cohorts import USERS, met, network

SHAPE = network()


def test_generalised_advantages_are_those_of_the_sum() -> None:
    data = met(SHAPE)
    generator = torch.Generator().manual_seed(0)
    before, after = torch.randn(2, USERS, data.steps, generator=generator)
    found = generalised_advantages(data, before, after, 0.9, 0.8)

    for user in range(USERS):
        for step in range(data.steps):
            total, weight = 0.0, float(data.valid[user, step])
            for later in range(step, data.steps):
                following = 0.0 if data.terminated[user, later] else float(after[user, later])
                total += weight * (float(data.rewards[user, later]) + 0.9 * following - float(before[user, later]))
                weight *= 0.9 * 0.8
                if data.ends[user, later]:
                    break
            assert abs(float(found[user, step]) - total) < 1e-5


def test_equal_returns_are_equal_to_the_last_digit() -> None:
    """In float32 they are not, and normalisation made advantages of the differences."""
    data = met(SHAPE)
    data.rewards[:] = data.valid.float()
    data.terminated[:] = False

    assert torch.equal(normalised(returns_to_go(data, 0.99), data.valid), torch.zeros(USERS, data.steps))
    rounded = returns_to_go(data, 0.99) + torch.randn(USERS, data.steps) * 1e-5
    assert normalised(rounded, data.valid).abs().max() > 1


def test_the_baseline_is_each_users_own_regression() -> None:
    data = met(SHAPE, users=3)
    before, after = own_baseline(SHAPE, data, 0.9)
    alone = own_baseline(SHAPE, Trajectories(**{name: value[1:2] for name, value in vars(data).items()}), 0.9)
    targets = returns_to_go(data, 0.9)
    residuals = torch.where(data.valid, targets - before, 0.0)
    spread = torch.where(data.valid, targets - own_mean(targets, data.valid), 0.0)

    torch.testing.assert_close(before[1:2], alone[0])
    torch.testing.assert_close(after[1:2], alone[1])
    assert (residuals.square().sum(1) < 0.7 * spread.square().sum(1)).all()
    assert (residuals.sum(1).abs() < 0.05 * data.valid.sum(1)).all()
