"""The behaviour's return: what a unit contributes, its bound, and what is made of the release."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private.behaviour import QUANTILES, Behaviour, _haar, isotonic, scaled_returns
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import EvaluationState, run
from primorl.evaluation.private.problem import Problem
from tests.evaluation.private.logs import Log, wander, wanderers

LENGTHS = [[3], [12, 1, 4], [1], [8, 8], [2, 1]]
BEHAVIOUR = Behaviour(levels=4, mean_share=0.5)


def slow_return(asked: Problem, rows: Episodes, unit: int) -> float:
    """Loops over trajectories and steps."""
    returns: list[float] = []
    for row in range(int(rows.own[unit].sum())):
        step, reward = int(rows.step[unit, row]), float(rows.reward[unit, row])
        if step == 0:
            returns.append(0.0)
        if asked.horizon is None or step < asked.horizon:
            returns[-1] += asked.discount**step * min(max(reward, asked.reward_low), asked.reward_high)
    return sum(min(max(total, asked.return_low), asked.return_high) for total in returns) / len(returns)


class Unbounded(Behaviour):
    """Forgets to hold a unit to its blocks."""

    def contributions(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        return 2 * super().contributions(problem, values, episodes)


def test_a_contribution_is_two_blocks_of_the_return() -> None:
    rows = wander(LENGTHS).episodes()
    for changes in ({"horizon": None}, {"discount": 1.0}, {}):
        asked = wanderers(5, **changes)
        middle, half = (asked.return_low + asked.return_high) / 2, (asked.return_high - asked.return_low) / 2
        x = scaled_returns(asked, rows)
        assert x.tolist() == pytest.approx([(slow_return(asked, rows, u) - middle) / half for u in range(5)], abs=1e-6)
    contributed = BEHAVIOUR.contributions(asked, {}, rows)
    assert torch.allclose(contributed[:, :2], torch.stack((x, 1 - x**2), 1) * math.sqrt(0.5))
    for own, nodes in zip(x.tolist(), contributed[:, 2:], strict=True):
        place, node, expected = min(int((own + 1) / 2 * 16), 15), 0, torch.zeros(15, dtype=torch.float64)
        for level in range(4):  # down the tree
            upper = place >> (3 - level) & 1
            expected[node] = math.sqrt(0.5 / 4) * (-1 if upper else 1)
            node = 2 * node + 1 + upper
        assert torch.allclose(nodes, expected)


@pytest.mark.parametrize("number", [math.nan, 3e38, math.inf])
def test_one_unit_moves_the_sum_by_its_own_contribution_only(number: float) -> None:
    source, asked = wander(LENGTHS), wanderers(5)
    broken = source.spoilt(1, number).episodes()
    before, after = (BEHAVIOUR.contributions(asked, {}, rows) for rows in (source.episodes(), broken))
    assert torch.equal(before[[0, 2, 3, 4]], after[[0, 2, 3, 4]])
    assert bool((after.norm(dim=1) <= 1 + 1e-12).all())
    assert bool((Unbounded(levels=4, mean_share=0.5).contributions(asked, {}, broken).norm(dim=1) > 1).any())


def test_the_driver_clips_what_forgets_its_bound() -> None:
    source, asked = wander([[3]] * 20), wanderers(20)
    careless = Unbounded(levels=4, mean_share=0.5)
    plan = replace(careless.plan(asked, 0.5), noise_multiplier=1e-9)
    total = run(careless, asked, plan, source).values["released"] * 20
    honest = BEHAVIOUR.contributions(asked, {}, source.episodes()).sum(0)
    assert not torch.allclose(total, 2 * honest, atol=1e-3)
    assert float(total.norm()) <= 20 * plan.clip.sensitivity


def exact(asked: Problem, x: Tensor, noise: float, behaviour: Behaviour) -> tuple[EvaluationState, Any]:
    """The state after a release of units with these scaled returns, and a plan of so much noise."""
    bins = 1 << behaviour.levels
    place = ((x + 1) / 2 * bins).long().clamp(0, bins - 1)
    nodes = _haar(behaviour.levels)[place] * math.sqrt((1 - behaviour.mean_share) / behaviour.levels)
    blocks = torch.cat((torch.stack((x, 1 - x**2), 1) * math.sqrt(0.5), nodes), 1)
    plan = replace(behaviour.plan(asked, 1.0), noise_multiplier=noise * asked.units)
    released = plan.release((blocks.sum(0),))[0]
    return EvaluationState(behaviour.stepped(asked, {}, released, 0), finished=True), plan


def test_estimates_without_noise_are_those_of_the_sample() -> None:
    asked, behaviour = wanderers(4000), Behaviour(levels=9, mean_share=0.5)
    x = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 2 * 1.5 - 0.7
    returns = x * 2.5 - 0.5
    state, plan = exact(asked, x, 1e-9, behaviour)
    mean, *quantiles = behaviour.estimates(asked, plan, state)
    assert mean.ci95 is not None
    half = 1.96 * float(returns.std()) / math.sqrt(4000)
    assert mean.value == pytest.approx(float(returns.mean()), abs=1e-5)
    assert (mean.ci95[1] - mean.ci95[0]) / 2 == pytest.approx(half, rel=1e-3)
    for p, said in zip(QUANTILES, quantiles, strict=True):
        assert said.ci95 is not None
        assert said.value == pytest.approx(float(returns.quantile(p)), abs=5 / 512)
        assert said.ci95[0] < float(returns.quantile(p)) < said.ci95[1]
    place = ((x + 1) / 2 * 16).long()
    assert torch.allclose(state.values["histogram"], place.bincount(minlength=16).double() / 4000, atol=1e-5)
    pooled = isotonic(torch.tensor([0.0, 0.3, 0.1, 0.2, 0.9, 0.8], dtype=torch.float64))
    assert pooled.tolist() == pytest.approx([0.0, 0.2, 0.2, 0.2, 0.85, 0.85])


def test_quantiles_rise_and_cover_under_noise() -> None:
    asked, behaviour = wanderers(500), Behaviour(levels=6, mean_share=0.5)
    draw, hits, silent = torch.Generator().manual_seed(5), 0, 0

    def holds(said: Any) -> bool:
        return bool(said.ci95[0] <= -0.5 <= said.ci95[1])

    for _ in range(120):
        x = torch.rand(500, generator=draw, dtype=torch.float64) * 1.4 - 0.7
        state, plan = exact(asked, x, 0.05, behaviour)
        quantiles = behaviour.estimates(asked, plan, state)[1:]
        values = [said.value for said in quantiles]
        assert values == sorted(values)
        hits += holds(quantiles[2])
        silent += holds(behaviour.estimates(asked, replace(plan, noise_multiplier=1e-9), state)[3])
    assert hits >= 0.88 * 120
    assert silent < 0.8 * 120  # the twin: intervals of sampling alone


def test_a_units_bin_does_not_depend_on_how_many_trajectories_another_unit_has() -> None:
    """Padded sums of six returns take another order in a wider batch; their last bit must not decide about a bin."""
    changes = {"return_low": 0.0, "return_high": 10.0, "reward_low": 0.0, "reward_high": 10.0, "horizon": 1}
    six, found = torch.tensor([5.0, 3.0, 0.0, 4.0, 2.0, 1.0]), []
    for others in (1, 16):
        count = torch.tensor([6, others])
        width = int(count.max())
        reward = torch.nn.functional.pad(six, (0, width - 6)).repeat(2, 1)
        targets = torch.nn.functional.pad(reward[..., None], (3, 1))
        log = Log(torch.zeros(2, width, 5), targets, torch.ones(2, width, dtype=torch.bool), count)
        found.append(BEHAVIOUR.contributions(wanderers(7, **changes), {}, log.episodes())[0])
    assert torch.equal(*found)
