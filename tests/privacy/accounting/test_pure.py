"""Pure ε-DP is accounted as randomized response, which dominates it, by every accountant of the house."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import binom

from primorl.privacy.accounting.epsilon import compose, grid_interval, spent
from primorl.privacy.accounting.events import PureDpEvent, pure_rdp
from primorl.privacy.accounting.figures import deltas, figures
from primorl.privacy.accounting.groups import grouped
from primorl.privacy.accounting.privacy_filter import ORDERS, cost, gaussian_cost

DELTA = 1e-5


def response_delta(epsilon: float, count: int, at: float) -> float:
    """δ of ``count`` randomized responses with odds e^ε: the sum over how many of them told the truth."""
    truths = np.arange(count + 1)
    loss = (2 * truths - count) * epsilon
    chances = binom.pmf(truths, count, 1 / (1 + math.exp(-epsilon)))
    return float((chances * np.maximum(0.0, -np.expm1(at - loss))).sum())


@pytest.mark.parametrize(("epsilon", "count"), [(0.2, 1), (0.2, 3), (0.05, 40), (1.0, 5), (5.0, 2)])
def test_the_profile_is_that_of_randomized_response(epsilon: float, count: int) -> None:
    """Never below it, and above it by the grid alone. dp-accounting's own event would count once."""
    event = dp_event.SelfComposedDpEvent(PureDpEvent(epsilon), count)
    at = [0.0, 0.3 * count * epsilon, 0.8 * count * epsilon]
    grid = grid_interval(event, count * epsilon, count)
    for point, found in zip(at, deltas(event, count * epsilon, at), strict=True):
        assert response_delta(epsilon, count, point) <= found * (1 + 1e-9)
        assert found <= response_delta(epsilon, count, max(0.0, point - 2 * count * grid)) + count * grid


@pytest.mark.parametrize("epsilon", [1e-3, 0.2, 1.0, 20.0])
def test_one_costs_no_more_than_it_says_and_little_less(epsilon: float) -> None:
    found = spent(PureDpEvent(epsilon), DELTA, rounds=1)
    exact = max(0.0, math.log(math.exp(epsilon) - DELTA * (1 + math.exp(epsilon))))
    assert exact <= found.epsilon_pld <= epsilon
    assert found.epsilon_rdp <= epsilon
    replaced = spent(PureDpEvent(epsilon), DELTA, rounds=1, relation="replace_one").epsilon_pld
    assert 2 * exact * (1 - 1e-3) <= replaced <= 2 * epsilon


@given(epsilon=st.floats(1e-3, 30.0), order=st.sampled_from(ORDERS))
@settings(max_examples=60, deadline=None)
def test_the_renyi_divergence_is_that_of_the_pair(epsilon: float, order: int) -> None:
    """Written anew from the two probabilities, in logarithms."""
    likely = -math.log1p(math.exp(-epsilon))
    rare = likely - epsilon
    exact = np.logaddexp(order * likely + (1 - order) * rare, order * rare + (1 - order) * likely) / (order - 1)
    assert pure_rdp(epsilon, [order])[0] == pytest.approx(float(exact), rel=1e-6, abs=1e-12)
    assert pure_rdp(epsilon, [order])[0] <= min(epsilon, order * epsilon**2 / 2) * (1 + 1e-9)  # Bun and Steinke 2016


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0, 5.0])
def test_the_filter_charges_the_gaussian_that_covers_it(epsilon: float) -> None:
    """The least one meets the trade-off function at its kink: μ = -2 Φ⁻¹(1 / (1 + e^ε)) (Dong, Roth and Su 2022)."""
    exact = -2 * float(ndtri(1 / (1 + math.exp(epsilon))))
    assert exact * (1 - 1e-5) <= gaussian_cost(PureDpEvent(epsilon)) <= 1.03 * exact
    found = cost(PureDpEvent(epsilon))
    assert found.renyi == pytest.approx(pure_rdp(epsilon, ORDERS))
    assert found.epsilon(DELTA) >= spent(PureDpEvent(epsilon), DELTA, rounds=1).epsilon_pld
    many = sum([found] * 50, cost(PureDpEvent(epsilon)))
    assert many.epsilon(DELTA) >= 0.99 * compose([PureDpEvent(epsilon)] * 51, DELTA).epsilon_pld


def test_a_group_of_k_is_k_times_as_far() -> None:
    assert grouped(PureDpEvent(0.2), 4) == PureDpEvent(0.8)
    assert figures(PureDpEvent(0.2), DELTA).groups[1][1] == pytest.approx(0.8, rel=1e-3)
    assert spent(grouped(PureDpEvent(0.2), 10**6), DELTA, rounds=1).epsilon_pld >= 1000
