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
from tests.evaluation.private.query_units import Logged, extreme, people, problem

LENGTHS = [[3], [12, 1, 4], [1], [8, 8], [2, 1]]
BEHAVIOUR = Behaviour(levels=4, mean_share=0.5)


def read(source: Logged) -> Episodes:
    return Episodes.read(source, torch.arange(source.units))


def slow_return(asked: Problem, source: Logged, unit: int) -> float:
    """Loops over trajectories and steps."""
    returns = []
    for trajectory in source.people[unit]:
        total = 0.0
        for t, step in enumerate(trajectory):
            if asked.horizon is None or t < asked.horizon:
                total += asked.discount**t * min(max(step.reward, asked.reward_low), asked.reward_high)
        returns.append(min(max(total, asked.return_low), asked.return_high))
    return sum(returns) / len(returns)


class Unbounded(Behaviour):
    """Forgets to hold a unit to its blocks."""

    def contributions(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        return 2 * super().contributions(problem, values, episodes)


@pytest.mark.parametrize("changes", [{}, {"horizon": None}, {"discount": 1.0}])
def test_returns_equal_the_slow_ones(changes: dict[str, Any]) -> None:
    source, asked = people(LENGTHS), problem(5, **changes)
    middle, half = (asked.return_low + asked.return_high) / 2, (asked.return_high - asked.return_low) / 2
    expected = [(slow_return(asked, source, u) - middle) / half for u in range(5)]
    assert scaled_returns(asked, read(source)).tolist() == pytest.approx(expected, abs=1e-6)


def test_a_contribution_is_two_blocks() -> None:
    source, asked = people(LENGTHS), problem(5)
    x = scaled_returns(asked, read(source))
    contributed = BEHAVIOUR.contributions(asked, {}, read(source))
    assert torch.allclose(contributed[:, :2], torch.stack((x, 1 - x**2), 1) * math.sqrt(0.5))
    for own, nodes in zip(x.tolist(), contributed[:, 2:], strict=True):
        place, node, expected = min(int((own + 1) / 2 * 16), 15), 0, torch.zeros(15, dtype=torch.float64)
        for level in range(4):  # down the tree
            upper = place >> (3 - level) & 1
            expected[node] = math.sqrt(0.5 / 4) * (-1 if upper else 1)
            node = 2 * node + 1 + upper
        assert torch.allclose(nodes, expected)


@pytest.mark.parametrize("kind", ["nan", "huge", "infinite"])
def test_one_unit_moves_the_sum_by_its_own_contribution_only(kind: str) -> None:
    source, asked = people(LENGTHS), problem(5)
    broken = source.replaced(1, extreme(kind))
    before, after = (BEHAVIOUR.contributions(asked, {}, read(s)) for s in (source, broken))
    others = [0, 2, 3, 4]
    assert torch.equal(before[others], after[others])
    norms = after.norm(dim=1)
    assert bool((norms <= 1 + 1e-12).all())
    assert bool((Unbounded(levels=4, mean_share=0.5).contributions(asked, {}, read(broken)).norm(dim=1) > 1).any())


def test_the_driver_clips_what_forgets_its_bound() -> None:
    source, asked = people([[3]] * 20), problem(20)
    careless = Unbounded(levels=4, mean_share=0.5)
    plan = replace(careless.plan(asked, 0.5), noise_multiplier=1e-9)
    total = run(careless, asked, plan, source).values["released"] * 20
    honest = BEHAVIOUR.contributions(asked, {}, read(source)).sum(0)
    assert not torch.allclose(total, 2 * honest, atol=1e-3)
    assert float(total.norm()) <= 20 * plan.clip.sensitivity


def test_haar_columns_are_orthogonal_and_rows_have_one_entry_a_level() -> None:
    table = _haar(5)
    gram = table.T @ table
    assert torch.equal(gram, gram.diag().diag())
    assert bool((table.abs().sum(1) == 5).all())


def test_isotonic_pools_violators() -> None:
    found = isotonic(torch.tensor([0.0, 0.3, 0.1, 0.2, 0.9, 0.8], dtype=torch.float64))
    assert found.tolist() == pytest.approx([0.0, 0.2, 0.2, 0.2, 0.85, 0.85])


def exact(asked: Problem, x: Tensor, noise: float, behaviour: Behaviour) -> tuple[EvaluationState, Any]:
    """The state after a release of units with these scaled returns, and a plan of so much noise."""
    blocks = torch.cat((torch.stack((x, 1 - x**2), 1) * math.sqrt(0.5), _nodes(x, behaviour)), 1)
    plan = replace(behaviour.plan(asked, 1.0), noise_multiplier=noise * asked.units)
    released = plan.release((blocks.sum(0),))[0]
    return EvaluationState(behaviour.stepped(asked, {}, released, 0), finished=True), plan


def _nodes(x: Tensor, behaviour: Behaviour) -> Tensor:
    bins = 1 << behaviour.levels
    place = ((x + 1) / 2 * bins).long().clamp(0, bins - 1)
    return _haar(behaviour.levels)[place] * math.sqrt((1 - behaviour.mean_share) / behaviour.levels)


def test_estimates_without_noise_are_those_of_the_sample() -> None:
    asked, behaviour = problem(4000), Behaviour(levels=9, mean_share=0.5)
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
    assert float(state.values["histogram"].sum()) == pytest.approx(1)
    place = ((x + 1) / 2 * 16).long()
    assert torch.allclose(state.values["histogram"], place.bincount(minlength=16).double() / 4000, atol=1e-5)


def test_quantiles_rise_and_cover_under_noise() -> None:
    asked, behaviour = problem(500), Behaviour(levels=6, mean_share=0.5)
    draw, hits, silent = torch.Generator().manual_seed(5), 0, 0
    for _ in range(120):
        x = torch.rand(500, generator=draw, dtype=torch.float64) * 1.4 - 0.7
        state, plan = exact(asked, x, 0.05, behaviour)
        quantiles = behaviour.estimates(asked, plan, state)[1:]
        values = [said.value for said in quantiles]
        assert values == sorted(values)
        hits += _holds(quantiles[2], -0.5)
        silent += _holds(behaviour.estimates(asked, replace(plan, noise_multiplier=1e-9), state)[3], -0.5)
    assert hits >= 0.88 * 120
    assert silent < 0.8 * 120  # the twin: intervals of sampling alone


def _holds(said: Any, truth: float) -> bool:
    return bool(said.ci95[0] <= truth <= said.ci95[1])


def test_a_units_bin_does_not_depend_on_how_many_trajectories_another_unit_has() -> None:
    """Padded sums of six returns take another order in a wider batch; their last bit must not decide about a bin."""
    asked = replace(problem(7), return_low=0.0, return_high=10.0, reward_low=0.0, reward_high=10.0, horizon=1)
    six = torch.tensor([5.0, 3.0, 0.0, 4.0, 2.0, 1.0], dtype=torch.float64)
    found = []
    for others in (1, 16):
        width = max(6, others)
        own = torch.arange(width)[None] < torch.tensor([[6], [others]])
        reward = torch.nn.functional.pad(six, (0, width - 6)).repeat(2, 1)
        size = torch.zeros(2, width, asked.observation_size, dtype=torch.float64)
        flat = torch.zeros(2, width, dtype=torch.int64)
        action = torch.zeros(2, width, asked.action_size, dtype=torch.float64)
        batch = Episodes(size, action, reward, size, flat > 0, flat, own, own, own)
        found.append(BEHAVIOUR.contributions(asked, {}, batch)[0])
    assert torch.equal(*found)
