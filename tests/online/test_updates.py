"""Advantages and updates are those of the equations, and of one user's data."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.model.workspace import Workspace
from primorl.online.learning import PARAMETERS, Trajectories, Update
from primorl.online.updates import (
    DPPG,
    NaturalGradientByDescent,
    Rebel,
    by_pieces,
    generalised_advantages,
    normalised,
    own_baseline,
    own_mean,
    returns_to_go,
)
from research.natural_gradient import gain, step_scores
from research.paper_mode import AdamDPPG
from tests.online.cohorts import USERS, begun, met, network, recorded, with_user, without_noise
from tests.online.reference import Looped, Policy
from tests.online.test_sensitivity import UPDATES

SHAPE, LINEAR = network((5,)), network()
DESCENT = NaturalGradientByDescent(
    learning_rate=1.0, clipping_norm=1e6, steps=150, step_size=1.0, ball=100.0
)
ONE_BATCH = DPPG(clipping_norm=0.2, local_learning_rate=0.5, epochs=2, minibatches=1)
REBEL = Rebel(temperature=0.7, step_size=0.5, steps=2, clipping_norm=0.3)


def test_generalised_advantages_are_those_of_the_sum() -> None:
    data = met(LINEAR)
    before, after = torch.randn(2, USERS, data.steps, generator=torch.Generator().manual_seed(0))
    found = generalised_advantages(data, before, after, 0.9, 0.8)
    for user in range(USERS):
        for step in range(data.steps):
            total, weight = 0.0, float(data.valid[user, step])
            for later in range(step, data.steps):
                following = 0.0 if data.terminated[user, later] else float(after[user, later])
                total += weight * (
                    float(data.rewards[user, later]) + 0.9 * following - float(before[user, later])
                )
                weight *= 0.9 * 0.8
                if data.ends[user, later]:
                    break
            assert abs(float(found[user, step]) - total) < 1e-5


def test_where_nobody_fails_nothing_is_learned_from_rounding() -> None:
    """Returns are equal to the last digit; in float32 they are not, and advantages were made of the
    differences.
    """
    data = met(SHAPE)
    data.rewards[:] = data.valid.float()
    data.terminated[:] = False
    returns = returns_to_go(data, 0.99)
    torch.testing.assert_close(returns[data.valid], torch.full_like(returns[data.valid], 100.0))
    assert not normalised(returns, data.valid).any()
    noisy = normalised(returns + torch.randn(USERS, data.steps) * 1e-5, data.valid)
    assert noisy.abs().max() > 1, "the twin"
    update = DPPG(clipping_norm=0.05, local_learning_rate=0.02, epochs=2, minibatches=3)
    assert not recorded(update, SHAPE, data).rows[0].any()


def test_the_baseline_is_each_users_own_regression() -> None:
    data = met(LINEAR, users=3)
    found, targets = own_baseline(LINEAR, data, 0.9), returns_to_go(data, 0.9)
    for both, alone in zip(found, own_baseline(LINEAR, data.of(slice(1, 2)), 0.9), strict=True):
        torch.testing.assert_close(both[1:2], alone)
    residuals = torch.where(data.valid, targets - found[0], 0.0)
    spread = torch.where(data.valid, targets - own_mean(targets, data.valid), 0.0)
    assert (residuals.square().sum(1) < 0.7 * spread.square().sum(1)).all()
    assert (residuals.sum(1).abs() < 0.05 * data.valid.sum(1)).all()


@pytest.mark.parametrize("update", [*UPDATES, ONE_BATCH], ids=lambda update: update.name)
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize(("hidden", "fixed"), [((), 0), ((5,), 0), ((7, 6), 0), ((), 5), ((4,), 5)])
def test_contributions_are_those_of_the_loop_with_autograd(
    update: Update, discrete: bool, hidden: tuple[int, ...], fixed: int
) -> None:
    shape = network(hidden, discrete=discrete, actions=3, fixed=fixed)
    data = with_user(met(shape, users=19), None)
    found, loop = recorded(update, shape, data), recorded(Looped(update), shape, data)
    for rows, looped in zip(found.rows, loop.rows, strict=True):
        torch.testing.assert_close(rows, looped, atol=1e-4, rtol=1e-4)
        assert rows.abs().amax() > 0.01
    ours, expected = (each.values[PARAMETERS] for each in (found, loop))
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_an_empty_cohort_contributes_nothing() -> None:
    nobody = met(SHAPE, users=0)
    assert all(not len(recorded(each, SHAPE, nobody).rows[0]) for each in UPDATES)


def test_few_pieces_are_computed_ahead_and_threads_are_as_before_where_nobody_takes_them() -> None:
    data, started, before = met(SHAPE, users=320), list[int](), torch.get_num_threads()

    def rows(own: Trajectories, values: Tensor, workspace: Workspace, number: int) -> Tensor:
        started.append(number)
        return values

    torch.set_num_threads(2)
    try:
        pieces = by_pieces(rows, data, data.rewards)
        assert torch.equal(next(pieces), data.rewards[:16])
        pieces.close()
        assert len(started) <= 3
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.cat(list(by_pieces(rows, data, data.rewards))), data.rewards)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("bound", [0.05, math.inf])
@pytest.mark.parametrize("update", [DPPG, AdamDPPG])
def test_all_users_at_once_are_one_after_the_other(update: type[DPPG], bound: float) -> None:
    """Against torch's own optimisers; every user stays within S at every step."""
    adam = update is AdamDPPG
    sizes = {"clipping_norm": bound, "local_learning_rate": 0.02 if adam else 0.5}
    asked = update(**sizes, epochs=2, minibatches=3)
    data, start = met(SHAPE), begun(SHAPE)[PARAMETERS]
    drawn = torch.randn(USERS, data.steps, generator=torch.Generator().manual_seed(0))
    advantages = normalised(drawn, data.valid)
    schedule = asked.schedule(data.steps, 3)
    found = asked.local_updates(SHAPE, start, data, advantages, schedule, Workspace())
    for user in range(USERS):
        own = start[None].clone().requires_grad_()
        kind = torch.optim.Adam if adam else torch.optim.SGD
        optimiser = kind([own], asked.local_learning_rate, maximize=True)
        observations, actions = data.observations[user], data.actions[user]
        old = Policy(SHAPE, start).logs(observations, actions).detach()
        for steps in schedule:
            steps = steps[data.valid[user, steps]]
            policy = Policy(SHAPE, own.detach()[0])
            ratios = (policy.logs(observations[steps], actions[steps]) - old[steps]).exp()
            own.grad = policy.gradient((ratios * advantages[user, steps]).mean()).unsqueeze(0)
            optimiser.step()
            with torch.no_grad():
                delta = own - start
                own.copy_(start + delta * min(1.0, bound / float(delta.norm())))
        torch.testing.assert_close(found[user], (own - start).detach()[0], atol=2e-5, rtol=1e-3)
    norms = torch.linalg.vector_norm(found, dim=1)
    assert norms.max() <= bound * (1 + 1e-6)
    assert norms.max() > (0.04 if bound < 1 else 0.1)
    schedules = [asked.schedule(data.steps, number) for number in (3, 3, 4)]
    assert torch.equal(torch.cat(schedules[0]), torch.cat(schedules[1])), "public permutations"
    assert not torch.equal(torch.cat(schedules[0]), torch.cat(schedules[2]))


def length_of(update: Update) -> float:
    """How far a step without noise goes."""
    return float(torch.linalg.vector_norm(without_noise(update, SHAPE, met(SHAPE))))


def test_without_noise_the_clip_is_kept() -> None:
    update = DPPG(clipping_norm=0.05, local_learning_rate=0.5, epochs=2, minibatches=3)
    assert length_of(update) <= 0.05 + 1e-7
    assert length_of(replace(update, clipping_norm=1e6)) > 0.1


def test_many_descent_steps_come_near_least_squares_and_stay_in_the_ball() -> None:
    data, start = met(LINEAR), begun(LINEAR)[PARAMETERS]
    assert gain(LINEAR, start, data, DESCENT, without_noise(DESCENT, LINEAR, data)) > 0.9
    far = replace(DESCENT, steps=3, step_size=100.0, ball=0.2)
    assert length_of(far) == pytest.approx(0.2)
    generator = torch.Generator().manual_seed(0)
    parameters, direction = torch.randn(2, SHAPE.parameters, generator=generator)
    inputs = parameters.unsqueeze(0), data.observations, data.actions
    found = SHAPE.step_gradients(*inputs, Workspace()).products(direction) * data.valid
    expected = step_scores(SHAPE, parameters, data) @ direction
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("step", [0, 1])
def test_rebel_descends_the_loss_over_all_pairs_of_a_users_decisions(step: int) -> None:
    data, begin = met(SHAPE), begun(SHAPE)[PARAMETERS]
    seen = recorded(REBEL, SHAPE, data)
    before = recorded(replace(REBEL, steps=step), SHAPE, data).values[PARAMETERS]
    advantages = REBEL.advantages(data)
    for user in range(USERS):
        valid, policy = data.valid[user], Policy(SHAPE, before)
        rows = data.observations[user, valid], data.actions[user, valid]
        old = Policy(SHAPE, begin).logs(*rows).detach()
        errors = (policy.logs(*rows) - old) / REBEL.temperature - advantages[user, valid]
        loss = (errors.unsqueeze(0) - errors.unsqueeze(1)).square().mean() / 4
        gradient = policy.gradient(loss)
        torch.testing.assert_close(
            seen.rows[step][user], -gradient * REBEL.temperature, atol=1e-5, rtol=1e-3
        )
