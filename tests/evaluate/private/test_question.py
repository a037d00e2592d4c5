"""Whatever a unit holds, its part in a release is bounded, and nobody else's changes; means from
noisy releases keep their word at any K and noise.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from primorl.evaluate.private.behaviour import Asked, Behaviour, ask, noise_of, noisy_mean, pair
from primorl.evaluate.private.problem import Episodes, Problem
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism
from tests.evaluate.private.conftest import Log, payers, problem, question
from tests.mechanisms import SeededEntropy, watch

UNITS, SPOILT = 12, 4
HOSTILE = (math.nan, math.inf, -1e300, 3e38, 1e8)
CHAIN = problem(UNITS)
BEHAVIOUR = Behaviour(levels=4)
NOTHING = torch.empty(0, dtype=torch.float64)
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
    mechanism, others = BEHAVIOUR.build_mechanism(CHAIN, 1.0, 1), torch.arange(UNITS) != SPOILT
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
    mechanism = replace(
        careless.build_mechanism(CHAIN, 1.0, 1), noise_multiplier=1e-9, entropy=SeededEntropy(0)
    )
    assert (contributed.norm(dim=1) > mechanism.clip.sensitivity).any()
    total = ask(careless, CHAIN, mechanism, source, BEGIN).released[:15] * UNITS
    assert not torch.allclose(total, contributed.sum(0), atol=1e-3)
    assert float(total.norm()) <= UNITS * mechanism.clip.sensitivity


def test_a_release_is_announced_before_its_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    source, mechanism = payers(UNITS, 1.0), BEHAVIOUR.build_mechanism(CHAIN, 1.0, 2)
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
    mechanism = Behaviour(levels=1).build_mechanism(question(10, 1, 1), 10.0, 2)
    vectors = torch.nn.functional.normalize(torch.randn(50, 7, dtype=torch.float64))
    assert isinstance(mechanism.clip, L2Clip)
    assert torch.equal(mechanism.clip.finish(vectors.clone()), vectors)
    assert noise_of(mechanism) == pytest.approx(1 / (0.1 * 10), rel=1e-3)
