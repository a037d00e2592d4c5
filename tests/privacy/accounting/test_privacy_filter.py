"""The filter holds for adaptive choices: it covers every event, and nobody passes a budget by
choosing late.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import NeighboringRelation, dp_event, pld
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.privacy.accounting.epsilon import Training, compose, gaussian_epsilon
from primorl.privacy.accounting.figures import right_guesses
from primorl.privacy.accounting.privacy_filter import (
    ESCAPED,
    UNBOUNDED,
    Cost,
    cost,
    gaussian_cost,
    total,
)
from tests.hostile.fft_accountant import gaussian_delta

DELTA = 1e-5
Floats = npt.NDArray[np.float64]
# The default run, and one of little noise.
EVENTS = [
    Training(0.1, 8.76, 150).event,
    Training(0.01, 0.8, 500).event,
]


@pytest.mark.parametrize("event", EVENTS)
def test_the_gaussian_covers_the_event_and_a_smaller_one_does_not(event: dp_event.DpEvent) -> None:
    """On a grid finer than the filter's; the twin has 2% less."""
    mean, epsilon = gaussian_cost(event), np.linspace(0, 30, 601)
    profile = _delta_beyond(event, epsilon, 5e-5)
    assert (profile - gaussian_delta(mean, epsilon)).max() <= 1.05 * ESCAPED
    assert (profile - gaussian_delta(0.98 * mean, epsilon)).max() > 2 * ESCAPED


def test_epsilon_of_a_gaussian_is_where_its_profile_meets_delta() -> None:
    for mean in (0.01, 0.143, 1.0, 8.0):
        epsilon = gaussian_epsilon(mean, DELTA)
        assert gaussian_delta(mean, epsilon) <= DELTA < gaussian_delta(mean, 0.999 * epsilon)


@pytest.mark.parametrize(
    ("runs", "slack"),
    [(EVENTS[:1] * 3, 1.05), (EVENTS, 1.8), ([Training(1.0, 20.0, 40).event] * 2, 1.05)],
)
def test_a_coin_is_told_as_often_as_the_composition_says_and_little_more(
    runs: list[dp_event.DpEvent], slack: float
) -> None:
    """The twin has a quarter of the cost."""
    together = total([cost(event) for event in runs])
    (exact,) = _delta_beyond(dp_event.ComposedDpEvent(runs), np.zeros(1), 5e-5)
    assert exact <= together.total_variation() <= slack * exact
    less = replace(together, squared_mean=0.25 * together.squared_mean, escaped=0.0)
    assert less.total_variation() < exact
    assert right_guesses(runs) == 50 * (1 + together.total_variation())


_settings = [
    st.sampled_from(values) for values in ([1e-3, 0.1, 0.5, 1.0], [0.9, 4.0, 20.0], [1, 40])
]
_runs = st.builds(Training, *_settings)


@settings(max_examples=5)
@given(runs=st.lists(_runs, min_size=1, max_size=4))
def test_the_filter_is_never_below_what_settings_fixed_beforehand_come_to(
    runs: list[Training],
) -> None:
    costs = [cost(run.event) for run in runs]
    fixed = compose([run.event for run in runs], DELTA).epsilon_pld
    assert total(costs).epsilon(DELTA) >= fixed * (1 - 1e-6)
    assert total(costs[::-1]).epsilon(DELTA) == pytest.approx(total(costs).epsilon(DELTA), rel=1e-9)
    assert total([*costs, costs[0]]).epsilon(DELTA) >= total(costs).epsilon(DELTA)


def test_without_a_guarantee_nothing_is_granted_also_when_it_was_written_down() -> None:
    assert cost(dp_event.NonPrivateDpEvent()) == UNBOUNDED
    assert (Cost() + UNBOUNDED).epsilon(DELTA) == math.inf
    assert Cost().epsilon(DELTA) == 0.0
    for each in (cost(EVENTS[0]), UNBOUNDED):
        assert Cost.from_json(each.to_json()) == each


def test_what_escapes_has_a_share_of_delta_too() -> None:
    """So many tiny charges that the uncovered masses alone would be too much are refused by the
    Gaussian part.
    """
    tiny = Cost(1e-12, ESCAPED, (math.inf,) * 8)
    assert total([tiny] * 1999).epsilon(DELTA) < 1
    assert total([tiny] * 2001).epsilon(DELTA) == math.inf


FIRST = dp_event.GaussianDpEvent(8.0)
# As little noise as a budget of ε 1 allows after FIRST, by either rule: a Gaussian, and rounds that
# few units join.
BY_PLD = [4.2173, (1e-4, 0.2865), (1e-3, 0.4308), (1e-2, 0.6801)]
BY_FILTER = [4.2516, (1e-4, 0.5206), (1e-3, 0.6906), (1e-2, 0.9915)]


def options(noise: list[Any]) -> list[dp_event.DpEvent]:
    gaussian, *rounds = noise
    return [dp_event.GaussianDpEvent(gaussian), *(Training(q, z, 1).event for q, z in rounds)]


def reached(choices: list[dp_event.DpEvent], epsilon: float) -> float:
    losses, masses, infinite = _masses(FIRST)
    worst = np.max([_delta_beyond(choice, epsilon - losses) for choice in choices], axis=0)
    return infinite + float((masses * worst).sum())


def _masses(event: dp_event.DpEvent, grid: float = 1e-3) -> tuple[Floats, Floats, float]:
    accountant = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, grid)
    pmf = accountant.compose(event)._pld._pmf_remove.to_dense_pmf()
    return (np.arange(pmf.size) + pmf._lower_loss) * grid, pmf._probs, pmf._infinity_mass


def _delta_beyond(event: dp_event.DpEvent, epsilon: Floats, grid: float = 1e-3) -> Floats:
    losses, masses, infinite = _masses(event, grid)
    upper = np.append(np.cumsum(masses[::-1])[::-1], 0.0) + infinite
    lower = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)
    at = np.searchsorted(losses, epsilon)
    beyond: Floats = upper[at] - np.exp(epsilon) * lower[at]
    return beyond


def test_nobody_passes_the_budget_by_choosing_the_second_run_after_the_first() -> None:
    """The twin is the rule that was here before: each choice fits by PLD, and together they pass δ
    by half.
    """
    late, filtered = options(BY_PLD), options(BY_FILTER)
    assert all(compose([FIRST, option], DELTA).epsilon_pld <= 1.0 for option in late)
    assert reached(late, 1.0) > 1.5 * DELTA
    assert any(total([cost(FIRST), cost(option)]).epsilon(DELTA) > 1.0 for option in late)
    assert all(
        0.999 < total([cost(FIRST), cost(option)]).epsilon(DELTA) <= 1.0 for option in filtered
    )
    assert reached(filtered, 1.0) <= DELTA
