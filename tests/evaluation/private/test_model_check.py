"""The model check: its errors against loops over steps, its bound, and when it says that a model is believable."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import EvaluationState, run
from primorl.evaluation.private.model_check import ModelCheck, Verdict, _factor
from primorl.evaluation.private.problem import Problem
from tests.evaluation.private.logs import wander, wanderers

LENGTHS = [[3], [12, 1, 4], [1], [8, 8], [2, 1], [5, 6, 1, 2]]
CHECK = ModelCheck(horizons=(1, 3, 5, 9), starts=3, cap=1.5)


def slow_errors(asked: Problem, rows: Episodes, unit: int, begin: int, h: int) -> list[float]:
    """Squared errors after h steps from one start: reward and state, of the model and of the trivial prediction."""
    low, high, scale = asked.observation_low, asked.observation_high, asked.observation_scale
    normaliser = asked.ensemble.normaliser
    start = state = rows.observation[unit, begin].clamp(low, high)
    for row in range(begin, begin + h):
        change = asked.ensemble.predict(state[None].float(), rows.action[unit, row][None].float())[0].mean(0)[0]
        state = (state + change[:3]).clamp(low, high)
    last = begin + h - 1
    reward, said = (
        min(max(float(value), asked.reward_low), asked.reward_high) for value in (rows.reward[unit, last], change[3])
    )
    seen, spread = rows.following[unit, last].clamp(low, high), float(normaliser.target_scale[-1])
    gaps = (said - reward) / spread, (reward - float(normaliser.target_mean[-1])) / spread
    states = [float((((one - seen) / scale) ** 2).mean()) for one in (state, start)]
    return [min(square, 1.5**2) for square in (gaps[0] ** 2, gaps[1] ** 2, *states)]


def slow_unit(asked: Problem, lengths: list[int], rows: Episodes, unit: int, h: int, starts: int) -> list[float] | None:
    """Mean over the trajectories that have h steps of the mean over their evenly spaced starts."""
    of_trajectories, first = [], 0
    for length in lengths:
        begins = sorted({i * length // starts for i in range(starts)})
        found = [slow_errors(asked, rows, unit, first + b, h) for b in begins if b + h <= length]
        if found:
            of_trajectories.append([sum(column) / len(found) for column in zip(*found, strict=True)])
        first += length
    if not of_trajectories:
        return None
    return [sum(column) / len(of_trajectories) for column in zip(*of_trajectories, strict=True)]


class Unbounded(ModelCheck):
    """Forgets how many numbers share the norm."""

    def contributions(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        return 3 * super().contributions(problem, values, episodes)


@pytest.mark.parametrize("starts", [1, 3, 50])
def test_errors_equal_the_slow_ones(starts: int) -> None:
    rows, asked = wander(LENGTHS).episodes(), wanderers(6)
    errors, has = replace(CHECK, starts=starts).errors(asked, rows)
    for u, lengths in enumerate(LENGTHS):
        for i, h in enumerate((1, 3, 5)):  # 9 is beyond the declared horizon of 8
            expected = slow_unit(asked, lengths, rows, u, h, starts)
            assert bool(has[u, i]) == (expected is not None)
            assert errors[u, i].flatten().tolist() == pytest.approx(expected or [0.0] * 4, abs=1e-5)
    with pytest.raises(ValueError, match="horizons"):
        replace(CHECK, horizons=(9, 20)).plan(asked, 0.1)


@pytest.mark.parametrize("number", [math.nan, 3e38, math.inf])
def test_one_unit_moves_the_sum_by_its_own_contribution_only(number: float) -> None:
    source, asked = wander(LENGTHS), wanderers(6)
    broken = source.spoilt(1, number).episodes()
    before, after = (CHECK.contributions(asked, {}, rows) for rows in (source.episodes(), broken))
    for unit in (0, 2, 3, 4, 5):
        alone = CHECK.contributions(asked, {}, Episodes.read(source, torch.tensor([unit])))[0]
        assert torch.allclose(torch.stack((before[unit], after[unit])), alone, rtol=0, atol=1e-12)
    assert bool(after.isfinite().all())
    assert bool((after.norm(dim=1) <= 1 + 1e-12).all())
    assert bool((Unbounded(**vars(CHECK)).contributions(asked, {}, broken).norm(dim=1) > 1).any())


def test_estimates_without_noise_are_means_over_the_units_that_have_so_many_steps() -> None:
    source, asked = wander(LENGTHS * 20), wanderers(120)
    errors, has = CHECK.errors(asked, source.episodes())
    plan = replace(CHECK.plan(asked, 0.5), noise_multiplier=1e-7)
    state = run(CHECK, asked, plan, source)
    expected = (errors.sum(0) / has.sum(0)[:, None, None]).sqrt().flatten().tolist()
    said = CHECK.estimates(asked, plan, state)
    assert [estimate.value for estimate in said] == pytest.approx(expected, abs=1e-4)
    assert said[-1].what == "state error, 5 steps ahead, of no change"


def judged(model: float, trivial: float, noise: float) -> Verdict:
    """The verdict on 3,000 units that all have these squared errors, for rewards; states are predicted well."""
    check = ModelCheck(horizons=(1, 5), starts=1, cap=1.5)
    asked = wanderers(3000)
    x = 2 * torch.tensor([[model, trivial], [0.01, 0.5]], dtype=torch.float64) / 1.5**2 - 1
    pairs = torch.stack((x, 1 - x**2), -1).expand(2, 2, 2, 2)
    released = torch.cat((pairs.flatten(), torch.ones(1))) * _factor((1, 5))
    plan = replace(check.plan(asked, 0.1), noise_multiplier=noise * asked.units)
    return check.verdict(asked, plan, EvaluationState(check.stepped(asked, {}, released, 0)))


def test_the_verdict_is_sure_or_says_that_it_is_not() -> None:
    for model, noise, believable in (
        (0.1, 1e-6, "yes"),
        (0.1, 0.2, "doubtful"),
        (0.8, 1e-6, "doubtful"),
        (1.1, 1e-6, "no"),
        (2.0, 1e-3, "no"),
    ):
        assert judged(model, 1.0, noise).believable == believable
    assert judged(0.1, 1.0, 0.2).rule.endswith("of a trivial guess's, but noise hides whether it is below 0.5")
    assert judged(0.8, 1.0, 1e-6).rule.endswith("about 0.8 of a trivial guess's, not below 0.5")
    assert judged(0.8, 1.0, 1e-6).figure == pytest.approx(0.8)
    assert math.isfinite(judged(0.0, 0.0, 0.5).figure) or judged(0.0, 0.0, 0.5).believable == "doubtful"
    assert "reward" in judged(2.0, 1.0, 1e-3).rule
