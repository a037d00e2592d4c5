"""The behaviour's return: what a unit contributes, which is bounded and nobody else's, and what is
made of noisy releases.
"""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from primorl.evaluate.private.behaviour import (
    QUANTILES,
    Asked,
    Behaviour,
    _haar,
    ask,
    noise_of,
    noisy_mean,
    pair,
    scale_returns,
)
from primorl.evaluate.private.problem import Episodes, Problem
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism
from tests.evaluate.private.conftest import Log, mechanism_of, payers, problem, question
from tests.mechanisms import SeededEntropy, watch

BEHAVIOUR, NOTHING = Behaviour(levels=4), torch.empty(0, dtype=torch.float64)
FINE, NOISE = Behaviour(levels=9), 0.02


def asked(units: int, **changes: Any) -> Problem:
    return question(units, 1, 1, **{"return_low": -3.0, "return_high": 2.0} | changes)


@pytest.mark.parametrize("changes", [{}, {"horizon": 3}])
def test_a_contribution_is_the_returns_way_down_a_tree_then_its_place(
    changes: dict[str, Any],
) -> None:
    rows, problem = payers(5, 0.2, noise=1.0).episodes(), asked(5, **changes)
    first = BEHAVIOUR.contributions(problem, rows, 1.0, NOTHING)
    second = BEHAVIOUR.contributions(problem, rows, 1.0, first.mean(0))
    edges = BEHAVIOUR._edges(problem).tolist()
    assert edges[:: len(edges) - 1] == [-3.0, 2.0]
    assert len(edges) == 17
    for unit in range(5):
        returns: list[float] = []
        for row in range(int(rows.own[unit].sum())):
            step, reward = int(rows.step[unit, row]), float(rows.reward[unit, row])
            if step == 0:
                returns.append(0.0)
            if step < problem.horizon:
                returns[-1] += min(max(reward, -1.0), 1.0)
        mean = sum(min(max(total, -3.0), 2.0) for total in returns) / len(returns)
        x = (mean + 0.5) / 2.5
        assert float(scale_returns(problem, rows)[unit]) == pytest.approx(x, abs=1e-6)
        assert second[unit].tolist() == pytest.approx([x, 1 - x**2], abs=1e-6)
        place = max(number for number in range(16) if edges[number] <= mean)
        node, expected = 0, torch.zeros(15, dtype=torch.float64)
        for level in range(4):  # down the tree
            upper = place >> (3 - level) & 1
            expected[node] = -0.5 if upper else 0.5
            node = 2 * node + 1 + upper
        assert torch.allclose(first[unit], expected, atol=1e-6)


def release(problem: Problem, returns: Tensor, noise: float = 0.0, seed: int = 0) -> Tensor:
    """What units with these returns would be released as."""
    generator = torch.Generator().manual_seed(seed)

    def noised(blocks: Tensor) -> Tensor:
        mean = blocks.mean(0)
        return mean + noise * torch.randn(mean.shape, generator=generator, dtype=torch.float64)

    edges = FINE._edges(problem)
    place = torch.searchsorted(edges, returns, right=True) - 1
    nodes = _haar(FINE.levels)[place.clamp(0, len(edges) - 2)]
    first = noised(nodes / math.sqrt(FINE.levels))
    low, high = FINE.find_range(problem, noise, first)
    x = ((2 * returns - low - high) / (high - low)).clamp(-1, 1)
    return torch.cat((first, noised(torch.stack((x, 1 - x**2), 1))))


def skewed(units: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 3.75 * torch.rand(units, generator=generator, dtype=torch.float64) ** 2 - 2.25


def test_estimates_without_noise_are_those_of_the_sample() -> None:
    problem, returns = asked(4000), skewed(4000)
    mean, *quantiles = FINE.estimates(problem, 1e-9, release(problem, returns))
    assert mean.ci95 is not None
    ends = f"{problem.return_low:.4g} to {problem.return_high:.4g}"
    assert mean.bias == f"Returns outside {ends} (the bounds of a return) count as the nearer end."
    half = 1.96 * float(returns.std()) / math.sqrt(4000)
    assert mean.value == pytest.approx(float(returns.mean()), abs=1e-5)
    assert (mean.ci95[1] - mean.ci95[0]) / 2 == pytest.approx(half, rel=1e-3)
    for p, said in zip(QUANTILES, quantiles, strict=True):
        assert said.ci95 is not None
        assert said.value == pytest.approx(float(returns.quantile(p)), abs=5 / 256)
        assert said.ci95[0] < float(returns.quantile(p)) < said.ci95[1]


def test_the_interval_of_a_quantile_holds_an_outcome_that_lies_at_a_bound() -> None:
    problem, returns = asked(4000), torch.full((4000,), 2.0, dtype=torch.float64)
    returns[:240] = -3.0
    _, *quantiles = FINE.estimates(problem, 1e-9, release(problem, returns))
    for p, said in zip(QUANTILES, quantiles, strict=True):
        assert said.ci95 is not None
        assert said.ci95[0] <= float(returns.quantile(p)) <= said.ci95[1]


@pytest.mark.parametrize("wider", [1, 10, 100, 1000])
def test_a_range_that_is_found_is_as_good_as_the_right_bounds(wider: int) -> None:
    """Twin: the same noise within bounds that are taken as they are."""
    right, returns, covered = asked(1500), skewed(1500), 0
    wide = asked(1500, return_low=-3.0 * wider, return_high=2.0 * wider)
    halves: dict[str, list[float]] = {"right": [], "found": [], "as they are": []}
    for seed in range(40):
        for name, each in {
            "right": right,
            "found": replace(wide, return_is_sum=True),
            "as they are": wide,
        }.items():
            mean = FINE.estimates(each, NOISE, release(each, returns, NOISE, seed))[0]
            assert mean.ci95 is not None
            halves[name].append((mean.ci95[1] - mean.ci95[0]) / 2)
            if name == "found":
                covered += mean.ci95[0] <= float(returns.mean()) <= mean.ci95[1]
    of_right, of_found, of_twin = (sum(half) / 40 for half in halves.values())
    assert of_found < 1.5 * of_right
    assert covered >= 36
    assert wider == 1 or of_twin > 0.5 * wider * of_right


@pytest.mark.parametrize(("share", "far"), [(0.01, -2000.0), (0.03, 900.0), (0.0, 0.0)])
def test_what_may_lie_beyond_the_range_is_said(share: float, far: float) -> None:
    """Noise hides a few returns far away: the interval is of the others, and says so."""
    returns = skewed(1500)
    returns[: round(share * 1500)] = far
    problem = asked(1500, return_low=-3000.0, return_high=2000.0, return_is_sum=True)
    for seed in range(20):
        released = release(problem, returns, NOISE, seed)
        mean, *_ = FINE.estimates(problem, NOISE, released)
        low, high = FINE.find_range(problem, NOISE, released)
        assert mean.ci95 is not None
        assert mean.covers.endswith("of returns held within the range that was found")
        cut = float(returns.clamp(low, high).mean())
        slack = 0.05 * (high - low)
        assert mean.ci95[0] - slack < cut < mean.ci95[1] + slack
        found = re.search(r"At most (\d+)% of the units lie below it and at most (\d+)%", mean.bias)
        assert found is not None
        beyond = [float((returns < low).double().mean()), float((returns > high).double().mean())]
        assert all(
            int(said) / 100 + 0.006 >= part
            for said, part in zip(found.groups(), beyond, strict=True)
        )


def test_where_noise_tells_no_tails_the_bounds_stay() -> None:
    problem = asked(50, return_low=-300.0, return_high=200.0, return_is_sum=True)
    for noise, stays in ((0.01, False), (0.5, True)):
        found = FINE.find_range(problem, noise, release(problem, skewed(50), noise))
        assert (found == (-300.0, 200.0)) is stays


def test_a_unit_without_rows_contributes_nothing() -> None:
    rows, problem = payers(5, 0.2).episodes(), asked(5)
    empty = replace(rows, own=rows.own & (torch.arange(5) != 2)[:, None])
    empty = replace(empty, begins=empty.begins & empty.own)
    first = BEHAVIOUR.contributions(problem, empty, 1.0, NOTHING)
    assert first.norm(dim=1).tolist() == pytest.approx([1, 1, 0, 1, 1])


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
        log = Log(torch.zeros(2, width, 2), targets, count, torch.ones(2, width, dtype=torch.bool))
        found.append(BEHAVIOUR.contributions(problem, log.episodes(), 1.0, NOTHING)[0])
    assert torch.equal(*found)


# What a unit moves, and means from noisy releases

UNITS, SPOILT = 12, 4
HOSTILE = (math.nan, math.inf, -1e300, 3e38, 1e8)
CHAIN = problem(UNITS)
BEGIN = Asked(NOTHING)


def logged() -> tuple[Log, list[Log]]:
    """A log, and what it may be where one unit is hostile."""
    source = payers(UNITS, 1.0)
    mixed = source.spoilt(SPOILT, 1e300)
    mixed.inputs[SPOILT, 0], mixed.targets[SPOILT, 1:] = math.nan, -math.inf
    return source, [*(source.spoilt(SPOILT, number) for number in HOSTILE), mixed]


@pytest.mark.parametrize(
    "released", [NOTHING, torch.linspace(0.4, -0.4, 15).double()], ids=["first", "in its range"]
)
def test_a_unit_moves_a_release_by_at_most_its_sensitivity_and_nobody_else(
    released: Tensor,
) -> None:
    source, hostile = logged()
    mechanism, others = mechanism_of(UNITS, 1.0, 1), torch.arange(UNITS) != SPOILT
    before = BEHAVIOUR.contributions(CHAIN, source.episodes(), 0.001, released)
    norms = before.norm(dim=1)
    assert 0.7 < norms.max() <= 1 + 1e-12 < mechanism.clip.sensitivity, "the clip changes nothing"
    for each in hostile:
        after = BEHAVIOUR.contributions(CHAIN, each.episodes(), 0.001, released)
        torch.testing.assert_close(after[others], before[others], rtol=1e-9, atol=1e-12)
        for clip in (mechanism.clip, L2Clip(1e-3)):
            assert isinstance(clip, L2Clip)
            moved = clip.finish(after.clone()).sum(0) - clip.finish(after[others].clone()).sum(0)
            assert float(moved.norm()) <= clip.sensitivity * (1 + 1e-9)
    alone = [source.episodes(unit) for unit in range(UNITS)]
    apart = torch.cat([BEHAVIOUR.contributions(CHAIN, own, 0.001, released) for own in alone])
    torch.testing.assert_close(apart, before, rtol=1e-9, atol=1e-12)


class Careless(Behaviour):
    """Forgets to hold a unit to its blocks."""

    def contributions(
        self, problem: Problem, episodes: Episodes, noise: float, released: Tensor
    ) -> Tensor:
        return 2 * super().contributions(problem, episodes, noise, released)


def test_what_forgets_its_bound_is_clipped() -> None:
    source, careless = payers(UNITS, 1.0), Careless(levels=4)
    contributed = careless.contributions(CHAIN, source.episodes(), 1e-9, NOTHING)
    mechanism = replace(mechanism_of(UNITS, 1e-9, 1), entropy=SeededEntropy(0))
    assert (contributed.norm(dim=1) > mechanism.clip.sensitivity).any()
    total = ask(careless, CHAIN, mechanism, source, BEGIN).released[:15] * UNITS
    assert not torch.allclose(total, contributed.sum(0), atol=1e-3)
    assert float(total.norm()) <= UNITS * mechanism.clip.sensitivity


def test_a_release_is_announced_before_its_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    source, mechanism = payers(UNITS, 1.0), mechanism_of(UNITS, 1.0)
    seen: list[tuple[int, int]] = []
    before: list[list[tuple[int, int]]] = []

    def save(state: Asked) -> None:
        seen.append((state.started, state.made))

    watch(monkeypatch, Mechanism, "release", lambda *_: before.append([*seen]))
    state = ask(BEHAVIOUR, CHAIN, mechanism, source, BEGIN, save_checkpoint=save)
    assert before == [[(1, 0)], [(1, 0), (1, 1), (2, 1)]]
    assert seen == [(1, 0), (1, 1), (2, 1), (2, 2)]
    assert state.finished
    restored = Asked.restore(state.tensors(), state.facts())
    assert torch.equal(restored.released, state.released)
    with pytest.raises(ValueError, match="the number of private units differs"):
        ask(BEHAVIOUR, CHAIN, mechanism, payers(5, 1.0), BEGIN)


def covered(noise: float, units: int, seed: int, *, hide_noise: bool = False) -> float:
    """How often the interval holds the mean, over 2,000 draws of units and noise."""
    draw = torch.Generator().manual_seed(seed)
    x = (torch.rand(2000, units, generator=draw, dtype=torch.float64) ** 2) * 1.6 - 0.9
    truth = 1.6 / 3 - 0.9
    means = pair(x).mean(1) + noise * torch.randn(2000, 2, generator=draw, dtype=torch.float64)
    hits = 0
    for mean, rest in means.tolist():
        value, low, high = noisy_mean(units, mean, rest, 0.0 if hide_noise else noise)
        assert -1 <= low <= value <= high <= 1
        hits += low <= truth <= high
    return hits / 2000


@given(st.floats(-1, 1))
def test_the_second_moment_is_free(x: float) -> None:
    assert float(pair(torch.tensor([x], dtype=torch.float64)).norm()) <= 1


@pytest.mark.parametrize(("noise", "units"), [(0.02, 300), (0.3, 8)])
def test_intervals_cover(noise: float, units: int) -> None:
    assert covered(noise, units, seed=1) >= 0.935
    assert covered(1e-6, 300, seed=2) <= 0.965, "not too long"
    assert covered(0.05, 300, seed=3, hide_noise=True) < 0.9, "the twin: without the noise"


def test_no_contribution_within_the_norm_is_changed() -> None:
    mechanism = mechanism_of(10, 10.0)
    vectors = torch.nn.functional.normalize(torch.randn(50, 7, dtype=torch.float64))
    assert isinstance(mechanism.clip, L2Clip)
    assert torch.equal(mechanism.clip.finish(vectors.clone()), vectors)
    assert noise_of(mechanism) == pytest.approx(1 / (0.1 * 10), rel=1e-3)
