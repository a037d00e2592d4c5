"""Values in the released model are those of models in which they are known, and count steps as recordings have them."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.termination import RULES, Rule
from primorl.evaluation.private.model_values import Clone, ModelQ, values_in_model
from primorl.evaluation.private.problem import PublicTrajectories, public_return_bounds
from primorl.evaluation.private.results import GAIN
from primorl.evaluation.statistics import ModelValue
from primorl.policy.member_values import returns_by_member, step_weights
from tests.evaluation.conftest import random_policy
from tests.evaluation.private import tiny_mdp
from tests.evaluation.private.conftest import model, payers, problem

HALVES = torch.tensor([1.0, 0.5, 0.25, 0.125, 0.0], dtype=torch.float64)
HALF_LIVED = float((HALVES * 0.9 ** torch.arange(5, dtype=torch.float64)).sum())  # a return of ones


@pytest.mark.parametrize("horizon", [5, None])
def test_action_values_are_what_the_steps_that_are_left_pay(horizon: int | None) -> None:
    asked = replace(tiny_mdp.problem(10), horizon=horizon, discount=0.8).with_return_bounds(None)
    model, steps = ModelQ(asked, features=8, rollouts=64), torch.arange(6)
    observation = torch.eye(3)[steps % 3]
    found = model.action_values(model.fit(), observation, tiny_mdp.act(observation), steps)
    left = 5 - steps if horizon else torch.full_like(steps, 100)
    expected = 0.5 * (1 - 0.8 ** left.double()) / (1 - 0.8)
    torch.testing.assert_close(found, expected.expand(2, -1), atol=0.01, rtol=0)


def test_action_values_follow_the_seed_stay_within_bounds_and_depend_on_no_other_row() -> None:
    asked, generator = replace(tiny_mdp.problem(10), reward_high=0.3), torch.Generator().manual_seed(0)
    first, again, other = (ModelQ(replace(asked, seed=seed), 8, 64).fit()["model_values"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    absurd = torch.tensor([[float("nan")] * 3, [1e300, -1e300, 0.0]], dtype=torch.float64)
    found = ModelQ(asked, 8, 64).action_values({"model_values": first}, absurd, absurd[:, :2], torch.tensor([0, 1]))
    assert ((found >= 0) & (found <= 0.3 * asked.effective_horizon + 1e-12)).all()
    shape = Architecture(tiny_mdp.STATES, tiny_mdp.ACTIONS, 2, (64, 64), -1.0, 0.0)
    ensemble = replace(asked.ensemble, architecture=shape, weights=shape.initial_weights(0))
    wide = ModelQ(replace(tiny_mdp.problem(10), ensemble=ensemble), 8, 64)
    rows = torch.rand(99, 3, generator=generator), torch.rand(99, 2, generator=generator), torch.arange(99) % 5
    fitted = wide.fit()
    together = wide.action_values(fitted, *rows)
    alone = torch.cat([wide.action_values(fitted, *(part[[row]] for part in rows)) for row in range(99)], 1)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-12)  # float32 is off by 1e-8 and more


def values(ensemble: GaussianEnsemble, start: float = 0.0) -> list[float]:
    """Of rollouts of ten steps, by each member."""
    policy, starts = random_policy(2, 1, 1.0), torch.full((5, 1), start)
    found = returns_by_member(ensemble, policy, starts, rollouts=6, weights=step_weights(10), seed=0).mean(-1)
    assert torch.equal(found[0], found[1]), "whatever the policy does"
    one: list[float] = found[0].tolist()
    return one


def test_every_member_is_rolled_out_alone_unpenalised_until_it_terminates(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the members disagree, nothing is taken off for it. The step that ends a rollout still counts."""
    found = values(model([1.0, -2.0, 1.5], [0.0, 0.0, 0.0]))
    assert found == pytest.approx([10.0, -20.0, 15.0], rel=1e-5)
    spread = ModelValue.of(torch.tensor(found))
    assert (spread.mean, spread.low, spread.high) == pytest.approx((5 / 3, -20.0, 15.0), rel=1e-5)
    monkeypatch.setitem(RULES, "far", Rule(1, lambda observation, action, following: following[:, 0] > 2.5))
    ensemble = replace(model([1.0, 0.75, -1.0], [1.0, 0.75, -0.1]), termination="far")
    assert values(ensemble) == pytest.approx([3.0, 3.0, -10.0], rel=1e-5)
    assert values(ensemble, start=2.0)[0] == pytest.approx(1.0, rel=1e-5), "from where it is begun"


def trajectories(
    lengths: list[int], terminated: list[bool] | None = None, weight: list[float] | None = None
) -> PublicTrajectories:
    count = len(lengths)
    weights = torch.tensor(weight or [1.0] * count, dtype=torch.float64)
    ended, rewards = torch.tensor(terminated or [False] * count), torch.zeros(count, max(lengths)).double()
    return PublicTrajectories(torch.tensor(lengths), ended, weights, rewards)


def test_survival_is_the_chance_that_a_trajectory_which_does_not_terminate_goes_on() -> None:
    """Every unit counts once. The twin of random cuts and terminations: the share that is longer would be seen."""
    found = trajectories([1, 3, 3, 6], weight=[1.0, 0.5, 0.5, 2.0]).survival(8)
    expected = [sum(w for n, w in ((1, 1.0), (3, 1.0), (6, 2.0)) if n > step) / 4 for step in range(8)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    generator = torch.Generator().manual_seed(1)
    cut, end = (torch.rand(20_000, 40, generator=generator) < chance for chance in (0.1, 0.2))
    stopped = (cut | end).long().argmax(1)
    found = trajectories((stopped + 1).tolist(), end[torch.arange(20_000), stopped].tolist()).survival(8)
    torch.testing.assert_close(found, 0.9 ** torch.arange(8, dtype=torch.float64), atol=0.02, rtol=0)
    longer = (stopped + 1 > torch.arange(8)[:, None]).double().mean(1)
    assert float((longer - found).abs().max()) > 0.3
    read, rows = PublicTrajectories.of(payers(3, 1.0, length=4)), payers(3, 1.0, length=4).episodes()
    assert read.length.tolist() == [4] * 6, "1, 2 and 3 trajectories"
    torch.testing.assert_close(read.weight.sum(), torch.tensor(3.0, dtype=torch.float64))
    torch.testing.assert_close(read.reward.sum(), rows.reward.where(rows.own, 0.0).sum())


def test_rollouts_weigh_steps_as_recordings_have_them() -> None:
    """The mean return of recordings that are cut, in the same chain, is what the model says of it."""
    asked = problem(1)
    (policy, *_), (whole, *others) = (
        values_in_model(each, 8, Clone(asked.policy, asked.policy)) for each in (replace(asked, survival=HALVES), asked)
    )
    assert policy.members == pytest.approx([0.5 * HALF_LIVED, 0.9 * HALF_LIVED], rel=1e-3)
    assert whole.value > 1.9 * policy.value, "the twin: whole rollouts are worth more"
    (gain,) = [each for each in others if each.what == GAIN]
    assert (gain.value, gain.ci95, gain.members) == (0.0, (0.0, 0.0), (0.0, 0.0)), "the clone does what the policy does"


def test_corrections_by_cut_recordings_find_the_value_of_cut_recordings() -> None:
    """Q̂ and the rows' own continuation agree: the temporal differences of rows that are cut have mean zero."""
    drawn = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths = (drawn.log() / math.log(0.5)).ceil().clamp(1, 4).long()  # half of those that are left are cut
    rows = replace(payers(20_000, 0.5, noise=0.0), rows=lengths).episodes()
    asked = replace(problem(1), survival=HALVES)
    public = ModelQ(asked, 8, 64)
    fitted = public.fit()
    expected = [0.5 * HALF_LIVED, 0.9 * HALF_LIVED]
    assert public.at_starts(fitted).mean(1).tolist() == pytest.approx(expected, rel=0.03)
    q = public.action_values(fitted, rows.observation, rows.action, rows.step)[0]
    ahead = public.action_values(fitted, rows.following, rows.action, rows.step + 1)[0]

    def error(continues: Tensor) -> float:
        return abs(float((rows.reward + 0.9 * continues * ahead - q)[rows.own].mean()))

    assert error(asked.continues(rows.step, rows.terminated)) < 0.02
    assert error(problem(1).continues(rows.step, rows.terminated)) > 0.1, "the twin: as if nobody was cut"
    plain, steps = problem(1), torch.arange(5)
    assert plain.continues(steps, steps > 9).tolist() == [1, 1, 1, 1, 0], "the declared horizon stands"
    full = replace(plain, survival=torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(full.rewards_left(torch.arange(6)), plain.rewards_left(torch.arange(6)))
    torch.testing.assert_close(full.continues(steps, steps > 2), plain.continues(steps, steps > 2))


def test_return_bounds_are_those_of_public_returns_and_a_spread_more() -> None:
    asked = problem(1, horizon=3, discount=1.0)
    rewards = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.5, 0.6]], dtype=torch.float64)
    public = replace(trajectories([3, 3]), reward=rewards)
    assert public_return_bounds(public, asked) == pytest.approx((-0.11, 3.2)), "1 to 2.1, rounded outwards"
    wide = replace(public, reward=rewards * 4)  # held within the rewards' own bounds, [-2, 2], and what they allow
    assert public_return_bounds(wide, asked) == (pytest.approx(2.0), 6.0)
    assert public_return_bounds(replace(public, reward=rewards[[0, 0]]), asked) is None
