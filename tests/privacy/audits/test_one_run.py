"""The one-run bound holds at its confidence on mechanisms of known ε and δ, and sees through weaker ones."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from primorl.privacy.audits.one_run import clopper_pearson, epsilon_lower_bound, guesses, p_value, refutes_trade_off


def test_the_p_value_is_the_binomial_tail_plus_the_correction() -> None:
    """By hand for two canaries, one guess, right: W ~ Bernoulli(p), so β = p and the slope is P[W = 0] = 1 - p."""
    p = 1 / (1 + math.exp(-0.7))
    assert p_value(2, 1, 1, 0.7, 0.0) == pytest.approx(p)
    assert p_value(2, 1, 1, 0.7, 0.01) == pytest.approx(p + 2 * 2 * 0.01 * (1 - p))
    assert p_value(2, 1, 0, 0.7, 0.01) == 1.0


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.9])
def test_an_intervals_coverage_is_exact_and_the_normal_approximation_is_told_apart(probability: float) -> None:
    """Summed over all outcomes, no end fails more often than it may. The twin: Wald's interval does."""
    trials, confidence = 50, 0.95
    counts = np.arange(trials + 1)
    weights = stats.binom.pmf(counts, trials, probability)
    low, high = clopper_pearson(counts, trials, confidence)
    assert weights[low > probability].sum() <= 0.025
    assert weights[high < probability].sum() <= 0.025
    share = counts / trials
    half = 1.96 * np.sqrt(share * (1 - share) / trials)
    assert weights[np.abs(share - probability) > half].sum() > 0.05


TRIALS, CANARIES = 4000, 400


def bounds_of(correct: np.ndarray, made: int, delta: float, confidence: float) -> np.ndarray:
    """The bound of every trial; there are few distinct counts."""
    distinct, back = np.unique(correct, return_inverse=True)
    bounds = [epsilon_lower_bound(CANARIES, made, int(v), delta, confidence) for v in distinct]
    return np.array(bounds)[back]


@pytest.mark.parametrize(("epsilon", "weaker"), [(0.5, 1.0), (2.0, 3.0)])
def test_randomised_response_keeps_its_bound_and_a_weaker_one_does_not(epsilon: float, weaker: float) -> None:
    """At 95% the bound passes the truth in about one run of twenty: no more, and (it is tight here) not far fewer.

    The twin answers at a larger ε and is found out in nearly every run.
    """
    generator = np.random.default_rng(1)
    failures = {}
    for truth in (epsilon, weaker):
        right = generator.binomial(CANARIES, 1 / (1 + math.exp(-truth)), TRIALS)
        failures[truth] = int((bounds_of(right, CANARIES, 0.0, 0.95) > epsilon).sum())
    assert stats.binom.sf(failures[epsilon] - 1, TRIALS, 0.05) > 1e-9
    assert failures[epsilon] > 0.02 * TRIALS
    assert failures[weaker] > 0.9 * TRIALS


def test_delta_that_tells_one_canary_now_and_then_is_covered() -> None:
    """Randomised response that, with probability δ a canary, gives its coin away: (ε, δ)-DP, and the bound holds.

    The twin forgets δ: guesses are made on the given-away alone, and a bound at δ = 0 is passed too often.
    """
    generator = np.random.default_rng(2)
    epsilon, delta = 0.5, 1 / (2 * CANARIES)
    given_away = generator.binomial(CANARIES, delta, TRIALS)
    noisy = generator.binomial(CANARIES - given_away, 1 / (1 + math.exp(-epsilon)))
    whole = bounds_of(given_away + noisy, CANARIES, delta, 0.95)
    assert (whole > epsilon).mean() < 0.05 + 5 * math.sqrt(0.05 * 0.95 / TRIALS)
    # One guess, on a canary given away if there is one.
    lucky = (given_away > 0) | (generator.random(TRIALS) < 1 / (1 + math.exp(-epsilon)))
    alone = bounds_of(lucky.astype(int), 1, delta, 0.3)
    forgetful = bounds_of(lucky.astype(int), 1, 0.0, 0.3)
    assert (alone > epsilon).mean() < 0.7
    assert (forgetful > epsilon).mean() > 0.7


def test_guesses_are_the_extremes() -> None:
    scores = np.array([0.9, -3.0, 0.1, 5.0, -1.0, 0.2])
    included = np.array([True, False, False, True, True, False])
    assert guesses(scores, included, 2, 2) == (4, 3)  # 5.0 and 0.9 are in; -3.0 is out, -1.0 is not
    assert guesses(scores, included, 0, 1) == (1, 1)
    assert guesses(scores, included, 0, 0) == (0, 0)
    assert guesses(scores, included, 6, 0) == (6, 3)
    assert epsilon_lower_bound(1000, 500, 500, 1e-5, 0.95) > 1.5


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (p_value, (10, 11, 5, 1.0, 0.0)),
        (p_value, (10, 5, 5, 1.0, 0.06)),
        (epsilon_lower_bound, (10, 5, 5, 0.0, 1.0)),
        (guesses, (np.zeros(4), np.zeros(4, dtype=bool), 3, 2)),
        (guesses, (np.array([math.nan, 0.0]), np.zeros(2, dtype=bool), 1, 1)),
        (refutes_trade_off, (lambda power: power, 10, 11, 5, 0.05)),
        (clopper_pearson, (5, 4, 0.9)),
        (clopper_pearson, (1, 4, 1.0)),
    ],
)
def test_what_makes_no_sense_is_refused(function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        function(*arguments)


def gaussian(mu: float) -> Callable[[float], float]:
    """The inverse of 1 - f of a μ-GDP mechanism (Dong et al. 2022)."""
    return lambda power: float(ndtr(ndtri(power) - mu))


@pytest.mark.parametrize(("mu", "share"), [(0.5, 1.0), (0.5, 0.2), (2.0, 0.5)])
def test_f_dp_is_refuted_no_more_often_than_it_may_and_a_weaker_mechanism_is(mu: float, share: float) -> None:
    """Independent Gaussian canaries, guessed from both ends: simulated for what is true, and for four times the μ."""
    canaries, significance = 4000, 0.05
    side = int(share * canaries / 2)

    def refuted(true_mu: float, seed: int) -> bool:
        generator = np.random.default_rng(seed)
        included = generator.random(canaries) < 0.5
        scores = generator.standard_normal(canaries) + true_mu * included
        made, right = guesses(scores, included, side, side)
        return refutes_trade_off(gaussian(mu), canaries, made, right, significance)

    assert sum(refuted(mu, seed) for seed in range(40)) <= 8  # of two expected at most
    assert all(refuted(4 * mu, seed) for seed in range(5))


def test_f_dp_follows_the_recursion_written_out() -> None:
    """One guess about one canary: refuted where it is more probable than the curve allows, α > 1 - least(α)."""
    assert refutes_trade_off(gaussian(0.1), 1, 1, 1, 0.54)
    assert not refutes_trade_off(gaussian(0.1), 1, 1, 1, 0.50)
