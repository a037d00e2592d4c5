"""The behaviour's return: what a unit contributes, and what is made of the release."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.evaluate.private.behaviour import QUANTILES, Behaviour, _haar, isotonic, scale_returns
from primorl.evaluate.private.problem import Problem
from tests.evaluate.private.conftest import Log, payers, question

BEHAVIOUR = Behaviour(levels=4, mean_share=0.5)


def asked(units: int, **changes: Any) -> Problem:
    return question(units, 1, 1, **{"return_low": -3.0, "return_high": 2.0} | changes)


@pytest.mark.parametrize("changes", [{}, {"horizon": None}, {"discount": 1.0}, {"horizon": 3}])
def test_a_contribution_is_two_blocks_of_the_return(changes: dict[str, Any]) -> None:
    rows, problem = payers(5, 0.2, noise=1.0).episodes(), asked(5, **changes)
    contributed = BEHAVIOUR.contributions(problem, rows)
    for unit in range(5):
        returns: list[float] = []
        for row in range(int(rows.own[unit].sum())):
            step, reward = int(rows.step[unit, row]), float(rows.reward[unit, row])
            if step == 0:
                returns.append(0.0)
            if problem.horizon is None or step < problem.horizon:
                returns[-1] += problem.discount**step * min(max(reward, -1.0), 1.0)
        x = (sum(min(max(total, -3.0), 2.0) for total in returns) / len(returns) + 0.5) / 2.5
        assert float(scale_returns(problem, rows)[unit]) == pytest.approx(x, abs=1e-6)
        place = min(int((x + 1) / 2 * 16), 15)
        node = 0
        expected = torch.zeros(17, dtype=torch.float64)
        expected[:2] = torch.tensor([x, 1 - x**2]) * math.sqrt(0.5)
        for level in range(4):  # down the tree
            upper = place >> (3 - level) & 1
            expected[2 + node] = math.sqrt(0.5 / 4) * (-1 if upper else 1)
            node = 2 * node + 1 + upper
        assert torch.allclose(contributed[unit], expected, atol=1e-6)


def exact(problem: Problem, x: Tensor, behaviour: Behaviour) -> Tensor:
    """A release without noise of units with these scaled returns."""
    bins = 1 << behaviour.levels
    place = ((x + 1) / 2 * bins).long().clamp(0, bins - 1)
    nodes = _haar(behaviour.levels)[place] * math.sqrt(
        (1 - behaviour.mean_share) / behaviour.levels
    )
    blocks = torch.cat((torch.stack((x, 1 - x**2), 1) * math.sqrt(0.5), nodes), 1)
    return blocks.mean(0)


def test_estimates_without_noise_are_those_of_the_sample() -> None:
    problem, behaviour = asked(4000), Behaviour(levels=9, mean_share=0.5)
    x = (
        torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 2 * 1.5
        - 0.7
    )
    returns = x * 2.5 - 0.5
    released = exact(problem, x, behaviour)
    mean, *quantiles = behaviour.estimates(problem, 1e-9, released)
    assert mean.ci95 is not None
    half = 1.96 * float(returns.std()) / math.sqrt(4000)
    assert mean.value == pytest.approx(float(returns.mean()), abs=1e-5)
    assert (mean.ci95[1] - mean.ci95[0]) / 2 == pytest.approx(half, rel=1e-3)
    for p, said in zip(QUANTILES, quantiles, strict=True):
        assert said.ci95 is not None
        assert said.value == pytest.approx(float(returns.quantile(p)), abs=5 / 512)
        assert said.ci95[0] < float(returns.quantile(p)) < said.ci95[1]
    place = ((x + 1) / 2 * 16).long()
    shares = torch.tensor(behaviour.histogram(problem, released).shares, dtype=torch.float64)
    assert torch.allclose(shares, place.bincount(minlength=16).double() / 4000, atol=1e-5)
    pooled = isotonic(torch.tensor([0.0, 0.3, 0.1, 0.2, 0.9, 0.8], dtype=torch.float64))
    assert pooled.tolist() == pytest.approx([0.0, 0.2, 0.2, 0.2, 0.85, 0.85])


def test_a_units_bin_does_not_depend_on_how_many_trajectories_another_unit_has() -> None:
    problem = asked(
        7, return_low=0.0, return_high=10.0, reward_low=0.0, reward_high=10.0, horizon=1
    )
    six, found = torch.tensor([5.0, 3.0, 0.0, 4.0, 2.0, 1.0]), []
    for others in (1, 16):
        count = torch.tensor([6, others])
        width = int(count.max())
        reward = torch.nn.functional.pad(six, (0, width - 6)).repeat(2, 1)
        targets = torch.nn.functional.pad(reward[..., None], (1, 1))
        log = Log(torch.zeros(2, width, 2), targets, torch.ones(2, width, dtype=torch.bool), count)
        found.append(BEHAVIOUR.contributions(problem, log.episodes())[0])
    assert torch.equal(*found)
