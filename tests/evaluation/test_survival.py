"""How long recordings are: values in the model count a step as often as the people's own returns have it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private.model_values import Clone, ModelQ, values_in_model
from primorl.evaluation.private.problem import Problem, PublicTrajectories, public_return_bounds
from primorl.evaluation.private.results import GAIN
from tests.evaluation.private.conftest import model, payers, problem

MODEL = model([0.5, 0.9], [1.0, 1.0])
HALVES = torch.tensor([1.0, 0.5, 0.25, 0.125, 0.0], dtype=torch.float64)


def trajectories(
    lengths: list[int], terminated: list[bool] | None = None, weight: list[float] | None = None
) -> PublicTrajectories:
    count = len(lengths)
    return PublicTrajectories(
        torch.tensor(lengths),
        torch.tensor(terminated or [False] * count),
        torch.tensor(weight or [1.0] * count, dtype=torch.float64),
        torch.zeros(count, max(lengths), dtype=torch.float64),
    )


def geometric(units: int, horizon: int = 5) -> Tensor:
    """Half of those that are left are cut after each step."""
    drawn = torch.rand(units, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (drawn.log() / math.log(0.5)).ceil().clamp(1, horizon - 1).long()


def test_survival_is_the_share_that_is_longer_where_nothing_terminates() -> None:
    """Against the obvious count; every unit counts once, however many trajectories it has."""
    found = trajectories([1, 3, 3, 6], weight=[1.0, 0.5, 0.5, 2.0]).survival(8)
    expected = [sum(w for n, w in ((1, 1.0), (3, 1.0), (6, 2.0)) if n > step) / 4 for step in range(8)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_terminations_are_no_cut() -> None:
    """Cuts and terminations at random: what is found is the chance of the cuts alone, not the share that is longer."""
    generator = torch.Generator().manual_seed(1)
    cut, end = (torch.rand(20_000, 40, generator=generator) < chance for chance in (0.1, 0.2))
    stopped = (cut | end).long().argmax(1)
    whose = end[torch.arange(20_000), stopped]
    found = trajectories((stopped + 1).tolist(), whose.tolist()).survival(8)
    torch.testing.assert_close(found, 0.9 ** torch.arange(8, dtype=torch.float64), atol=0.02, rtol=0)
    naive = (stopped + 1 > torch.arange(8)[:, None]).double().mean(1)
    assert float((naive - found).abs().max()) > 0.3, "the twin: the share that is longer would be seen"


def test_public_trajectories_are_read_as_they_are() -> None:
    found = PublicTrajectories.of(payers(3, 1.0, length=4))  # of 1, 2 and 3 trajectories
    assert found.length.tolist() == [4] * 6
    torch.testing.assert_close(found.weight.sum(), torch.tensor(3.0, dtype=torch.float64))
    rows = payers(3, 1.0, length=4).episodes()
    torch.testing.assert_close(found.reward.sum(), rows.reward.where(rows.own, 0.0).sum())


def ended(units: int = 1) -> Problem:
    return replace(problem(MODEL, units), survival=HALVES)


def test_rollouts_weigh_steps_as_recordings_have_them() -> None:
    """The mean return of recordings that are cut, in the same chain, is what the model says of it."""
    (policy, *_) = values_in_model(ended(), 8)
    expected = float((HALVES * 0.9 ** torch.arange(5, dtype=torch.float64)).sum())
    assert policy.members == pytest.approx([0.5 * expected, 0.9 * expected], rel=1e-3)
    (whole, *_) = values_in_model(problem(MODEL, 1), 8)
    assert whole.value > 1.9 * policy.value, "the twin: whole rollouts are worth more"


def test_corrections_by_cut_recordings_find_the_value_of_cut_recordings() -> None:
    """Q̂ and the rows' own continuation agree: the temporal differences of rows that are cut have mean zero."""
    cut = replace(payers(20_000, 0.5, noise=0.0), rows=geometric(20_000))  # one trajectory a unit
    asked, rows = ended(), cut.episodes()
    public = ModelQ(asked, 8, 64)
    fitted = public.fit()
    starts = public.at_starts(fitted)
    expected = float((HALVES * 0.9 ** torch.arange(5, dtype=torch.float64)).sum())
    assert starts.tolist() == pytest.approx([0.5 * expected, 0.9 * expected], rel=0.03)
    q = public.action_values(fitted, rows.observation, rows.action, rows.step)[0]
    ahead = public.action_values(fitted, rows.following, rows.action, rows.step + 1)[0]
    error = rows.reward + 0.9 * asked.continues(rows.step, rows.terminated) * ahead - q
    assert abs(float(error[rows.own].mean())) < 0.02
    never = problem(MODEL, 1).continues(rows.step, rows.terminated)
    assert abs(float((rows.reward + 0.9 * never * ahead - q)[rows.own].mean())) > 0.1, "the twin: as if nobody was cut"


def test_without_public_recordings_the_declared_horizon_stands() -> None:
    asked, steps = problem(MODEL, 1), torch.arange(5)
    assert asked.continues(steps, torch.zeros(5, dtype=torch.bool)).tolist() == [1, 1, 1, 1, 0]
    full = replace(asked, survival=torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(full.rewards_left(torch.arange(6)), asked.rewards_left(torch.arange(6)))
    torch.testing.assert_close(full.continues(steps, steps > 2), asked.continues(steps, steps > 2))


def test_the_gain_is_the_least_that_a_member_says_of_the_same_rollouts() -> None:
    asked = problem(MODEL, 1)
    found = values_in_model(asked, 8, Clone(asked.policy, asked.policy))
    (gain,) = [each for each in found if each.what == GAIN]
    assert (gain.value, gain.ci95, gain.members) == (0.0, (0.0, 0.0), (0.0, 0.0)), "the clone does what the policy does"


def test_return_bounds_are_those_of_public_returns_and_a_spread_more() -> None:
    asked = problem(MODEL, 1, horizon=3, discount=1.0)
    rewards = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.5, 0.6]], dtype=torch.float64)
    public = replace(trajectories([3, 3]), reward=rewards)
    assert public_return_bounds(public, asked) == pytest.approx((-0.11, 3.2)), "1 to 2.1, rounded outwards"
    assert (asked.return_low, asked.return_high) == (-6.0, 6.0)
    wide = replace(public, reward=rewards * 4)  # held within the rewards' own bounds, [-2, 2], and what they allow
    low, high = public_return_bounds(wide, asked) or (0, 0)
    assert high == 6.0
    assert low == pytest.approx(2.0)
    assert public_return_bounds(replace(public, reward=rewards[[0, 0]]), asked) is None
