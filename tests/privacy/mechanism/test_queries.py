"""Neighbouring datasets move a query's sum by at most what is stated, and its noise is what is
accounted.
"""

import math

import pytest
import torch
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from primorl.privacy.mechanism.mechanism import ONE, BoundedSum, Fractions, GaussianQuery
from primorl.privacy.mechanism.sampling import SystemEntropy
from primorl.privacy.statement import Relation
from tests.hostile.fft_accountant import gaussian_delta

each_relation = pytest.mark.parametrize("relation", ["zero_out_one", "replace_one"])
AWKWARD = [0.0, 1.0, -1.0, 0.3, -0.999999, 1e-30, 1e30, -1e30, math.nan, math.inf, -math.inf]
COLUMNS, BINS = 3, 5

Unit = tuple[Tensor, Tensor]


def norm(difference: Tensor) -> float:
    return math.sqrt(sum(int(x) ** 2 for x in difference.flatten().tolist())) / ONE


def neighbours(
    relation: Relation, rest: list[Unit], odd: Unit, other: Unit
) -> tuple[list[Unit], list[Unit]]:
    """Datasets that differ in one unit: ``odd`` is there or not, or ``other`` is there in its
    place.
    """
    return [*rest, odd], ([*rest, other] if relation == "replace_one" else rest)


def histogram_sum(units: list[Unit]) -> Tensor:
    query, total = Fractions(COLUMNS, BINS), torch.zeros(COLUMNS, BINS, dtype=torch.int64)
    for bins, own in units:  # one by one, and all at once: padding changes nothing
        total += query.total(bins.unsqueeze(0), own.unsqueeze(0))
    if units:
        padded, owned = (
            pad_sequence([unit[i] for unit in units], batch_first=True) for i in (0, 1)
        )
        assert torch.equal(query.total(padded, owned), total)
    return total


FACTOR = {"zero_out_one": 1, "replace_one": 2}  # what a replaced unit moves is two contributions
BINNED = st.lists(
    st.lists(st.integers(-2, BINS + 1), min_size=COLUMNS, max_size=COLUMNS), min_size=1, max_size=9
).map(lambda rows: (torch.tensor(rows), torch.tensor([i % 4 != 3 for i in range(len(rows))])))


@each_relation
@settings(max_examples=80, deadline=None)
@given(odd=BINNED, other=BINNED, rest=st.lists(BINNED, max_size=2))
def test_histograms_of_neighbours(
    relation: Relation, odd: Unit, other: Unit, rest: list[Unit]
) -> None:
    one, two = neighbours(relation, rest, odd, other)
    moved = norm(histogram_sum(one) - histogram_sum(two))
    assert moved <= FACTOR[relation] * Fractions(COLUMNS, BINS).sensitivity


def test_the_sensitivities_are_reached() -> None:
    """So nothing less could be stated."""
    rows, own = torch.zeros(7, COLUMNS, dtype=torch.int64), torch.ones(7, dtype=torch.bool)
    there = histogram_sum([(rows, own)])
    assert norm(there) == Fractions(COLUMNS, BINS).sensitivity == math.sqrt(COLUMNS)
    # The twin: a unit that adds its rows, not its share, passes the bound by its length.
    each = sum(Fractions(COLUMNS, BINS).total(rows[None, [i]], own[None, [i]]) for i in range(7))
    assert norm(torch.as_tensor(each)) == pytest.approx(7 * Fractions(COLUMNS, BINS).sensitivity)


def test_the_sums_are_what_they_say_and_what_is_no_number_counts_nowhere() -> None:
    nothing = torch.full((4, COLUMNS), -1)
    assert not histogram_sum([(nothing, torch.ones(4, dtype=torch.bool))]).any()
    assert not histogram_sum([(nothing + 1, torch.zeros(4, dtype=torch.bool))]).any()
    bins = torch.tensor([[[0, 4, 2], [0, 4, 2], [1, 4, 9]]])
    expected = torch.zeros(COLUMNS, BINS)
    expected[0, 0], expected[0, 1], expected[1, 4], expected[2, 2] = 2 / 3, 1 / 3, 1, 2 / 3
    found = Fractions(COLUMNS, BINS).total(bins, torch.ones(1, 3, dtype=torch.bool)) / ONE
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_its_statement_is_the_accountants_and_without_noise_nothing_is_claimed() -> None:
    """ε of one Gaussian; the twin is the ε of two thirds of the noise."""
    query, exact = GaussianQuery("starts", 2.0, 0.0), torch.tensor([3.0], dtype=torch.float64)
    assert torch.equal(query.release(torch.tensor([3 * ONE]), SystemEntropy()), exact)
    assert query.event == dp_event.NonPrivateDpEvent()
    assert query.statement(1e-5).epsilon is None
    epsilon = GaussianQuery("starts", 2.0, 10.0).statement(1e-5).epsilon
    assert 0.97e-5 < gaussian_delta(1 / 10, epsilon) <= 1e-5 * (1 + 1e-6)
    assert gaussian_delta(3 / 20, epsilon) > 1e-5 * (1 + 1e-6)


@each_relation
def test_one_unit_moves_a_bounded_sum_by_no_more_than_stated(relation: Relation) -> None:
    """Vectors of any length, NaN and infinite ones among them; the twin's bound is half as wide,
    and broken.
    """
    contribution = BoundedSum(3, 2.0)
    short, whole = [[0.1, 0.2, -0.3], [2.0, 0.0, 0.0]], [[5.0, -7.0, 1e300]]
    no_numbers = [[math.nan, 1.0, 1.0], [1.0, math.inf, 0.0], [0, 0, 0]]
    rows = torch.tensor([*whole, *short, *no_numbers], dtype=torch.float64)
    alone = [contribution.total(row.unsqueeze(0)) for row in torch.cat((rows, -rows))]
    nothing = torch.zeros(3, dtype=torch.int64)
    others = alone if relation == "replace_one" else [nothing]
    moves = [norm(one - other) for one in alone for other in others]
    assert max(moves) <= FACTOR[relation] * contribution.sensitivity
    assert max(moves) > FACTOR[relation] * BoundedSum(3, 1.0).sensitivity
    assert torch.equal(sum(alone[:6], nothing), contribution.total(rows))
    assert not alone[3].any()
