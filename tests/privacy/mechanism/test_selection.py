"""The choice is ε-DP for neighbouring datasets, with exactly the probabilities that it claims."""

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch import Tensor

from primorl.privacy.accounting.events import PureDpEvent
from primorl.privacy.mechanism import selection as module
from primorl.privacy.mechanism.sampling import SeededEntropy
from primorl.privacy.mechanism.selection import ONE, ROUNDING, Scores, Selection, flip
from primorl.privacy.statement import Statement

EPSILON = 0.7


def chooser(candidates: int, epsilon: float = EPSILON) -> Selection:
    return Selection(100, "person", candidates, epsilon, 1e-5)


@dataclass
class Script:
    """Coins and a draw that were decided beforehand, in place of `flip` and `below`."""

    coins: tuple[bool, ...]
    place: int
    chance: float = 1.0
    flipped: int = 0

    def flip(self, entropy: object, exponent: Fraction) -> bool:
        coin = self.coins[self.flipped]
        self.flipped += 1
        self.chance *= math.exp(-exponent) if coin else 1 - math.exp(-exponent)
        return coin

    def below(self, entropy: object, limit: int) -> int:
        assert limit == sum(self.coins)
        self.chance /= limit
        return self.place


def probabilities(selection: Selection, total: Tensor) -> list[float]:
    """With which probability each candidate wins: `choose` is run on every outcome of its coins and its draw."""
    found = [0.0] * selection.candidates
    with pytest.MonkeyPatch.context() as patched:
        for coins in itertools.product((True, False), repeat=selection.candidates):
            for place in range(sum(coins)):
                script = Script(coins, place)
                patched.setattr(module, "flip", script.flip)
                patched.setattr(module, "below", script.below)
                found[selection.choose(total)] += script.chance
    return found


def whole(*sums: float) -> Tensor:
    return torch.tensor([int(value * ONE) for value in sums])


def worst_ratio(selection: Selection, one: Tensor, other: Tensor) -> float:
    pairs = zip(probabilities(selection, one), probabilities(selection, other), strict=True)
    return max(max(a / b, b / a) for a, b in pairs)


@given(
    sums=st.lists(st.integers(ONE, 12 * ONE), min_size=3, max_size=3),
    unit=st.lists(st.floats(-0.5, 1.5), min_size=3, max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_zeroing_out_a_unit_moves_no_probability_by_more_than_the_factor(
    sums: list[int], unit: list[float]
) -> None:
    total = torch.tensor(sums)
    without = total - Scores(3).total(torch.tensor([unit]))
    assert worst_ratio(chooser(3), total, without) <= math.exp(EPSILON) * (1 + 1e-9)


def test_the_bound_is_reached_and_half_the_noise_or_two_directions_break_it() -> None:
    """One unit scores the best candidate one and the others zero: its rivals' chances fall by nearly e^ε."""
    one, other = whole(9.0, 2.0, 2.0), whole(8.0, 2.0, 2.0)
    assert (
        0.95 * math.exp(EPSILON)
        < worst_ratio(chooser(3), one, other)
        <= math.exp(EPSILON) * (1 + 1e-9)
    )
    assert sum(probabilities(chooser(3), one)) == pytest.approx(1.0)
    assert worst_ratio(chooser(3, 2 * EPSILON), one, other) > math.exp(EPSILON)
    assert worst_ratio(chooser(3), one, whole(8.0, 3.0, 2.0)) > math.exp(
        EPSILON
    )  # what replacing a unit could do


def test_a_unit_adds_at_most_one_and_at_least_nothing() -> None:
    others = torch.rand(5, 3, dtype=torch.float64)
    for row, kept in (
        ([0.5, 2.0, -3.0], [ONE // 2, ONE, 0]),
        ([math.nan, math.inf, -math.inf], [0, ONE, 0]),
        ([1e300, 1e-11, 1 - 1e-12], [ONE, 0, ONE - 1]),
    ):
        mine = torch.tensor([row], dtype=torch.float64)
        moved = Scores(3).total(torch.cat((others, mine))) - Scores(3).total(others)
        assert Scores(3).total(mine).tolist() == moved.tolist() == kept


def test_coins_fall_as_often_as_they_should() -> None:
    for exponent in (Fraction(0), Fraction(1, 3), Fraction(1), Fraction(0.7), Fraction(5, 2)):
        entropy, tries = SeededEntropy(7), 3000
        heads = sum(flip(entropy, exponent) for _ in range(tries))
        assert binomtest(heads, tries, math.exp(-exponent)).pvalue > 1e-4
        assert exponent == 0 or binomtest(heads, tries, math.exp(-2 * exponent)).pvalue < 1e-9


def test_the_margin_covers_what_rounding_may_move() -> None:
    """One unit goes, and all others' scores move against it; the twin without the margin is refuted."""
    units, moved = 1 << 26, int(ROUNDING * ONE) << 26
    one = torch.tensor([9 * ONE, 2 * ONE, 2 * ONE])
    other = one + torch.tensor([-ONE - moved, moved, moved])
    wide = Selection(units, "person", 3, EPSILON, 1e-9)
    assert worst_ratio(wide, one, other) <= math.exp(EPSILON) * (1 + 1e-9)
    assert worst_ratio(chooser(3), one, other) > math.exp(EPSILON)


def test_one_charge_for_any_number_of_candidates_and_a_statement_without_rounds() -> None:
    assert chooser(2).event == chooser(1000).event == PureDpEvent(EPSILON)
    statement = chooser(10).statement(
        dataset_fingerprint="ab" * 32, public_assumptions=["the candidates"]
    )
    assert statement.sound
    assert EPSILON * 0.999 < (statement.epsilon or 0) <= EPSILON
    assert statement.rounds is statement.noise_multiplier is None
    seeded = Selection(100, "person", 2, EPSILON, 1e-5, SeededEntropy(0))
    assert seeded.void() == ["noise is seeded"]
    assert Selection(100, "person", 2, EPSILON, 0.01).void() == [
        "delta is not below one over the number of units, 100"
    ]
    content = vars(chooser(2).statement(dataset_fingerprint="ab" * 32, public_assumptions=[]))
    with pytest.raises(ValueError, match="has no rounds, yet rounds is given"):
        Statement(**content | {"rounds": 3})
    with pytest.raises(
        ValueError, match="sampling_probability, noise_multiplier, clipping_norm, rounds is null"
    ):
        Statement(**content | {"event": {"type": "GaussianDpEvent", "noise_multiplier": 2.0}})


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in (
        {"units": 0},
        {"candidates": 0},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": 101.0},
    ):
        with pytest.raises(ValueError, match="allowed"):
            replace(chooser(2), **wrong)  # type: ignore[arg-type]
    for total in (torch.zeros(3), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="allowed is int64"):
            chooser(3).choose(total)
    with pytest.raises(ValueError, match="allowed is"):
        Scores(3).total(torch.zeros(2, 2))
