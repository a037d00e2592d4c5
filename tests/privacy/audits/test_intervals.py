"""The intervals cover what they say they cover, exactly, and no more than they must."""

import numpy as np
import pytest
from scipy import stats

from primorl.privacy.audits.intervals import clopper_pearson, clopper_pearson_bounds


@pytest.mark.parametrize(("successes", "trials"), [(3, 10), (1, 1000), (999, 1000), (500, 1000)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 1 - 1e-8])
def test_each_end_is_where_its_tail_is_half_of_what_may_fail(successes: int, trials: int, confidence: float) -> None:
    """The definition: at the lower end so many successes or more, at the upper so many or fewer, have that tail."""
    low, high = clopper_pearson(successes, trials, confidence)
    tail = (1 - confidence) / 2
    assert stats.binom.sf(successes - 1, trials, low) == pytest.approx(tail, rel=1e-6)
    assert stats.binom.cdf(successes, trials, high) == pytest.approx(tail, rel=1e-6)
    assert low < successes / trials < high


def test_nothing_and_everything() -> None:
    """No success in n: the upper end is 1 - tail^(1/n), the rule of three; the ends 0 and 1 are sure."""
    low, high = clopper_pearson(0, 100, 0.95)
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025**0.01)
    assert clopper_pearson(100, 100, 0.95) == pytest.approx((1 - high, 1.0))
    assert clopper_pearson(0, 0, 0.95) == (0.0, 1.0)


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.9])
def test_coverage_is_exact_and_the_normal_approximation_is_told_apart(probability: float) -> None:
    """Summed over all outcomes, no end fails more often than it may. The twin: Wald's interval does."""
    trials, confidence = 50, 0.95
    counts = np.arange(trials + 1)
    weights = stats.binom.pmf(counts, trials, probability)
    low, high = clopper_pearson_bounds(counts, trials, confidence)
    assert weights[low > probability].sum() <= 0.025
    assert weights[high < probability].sum() <= 0.025
    share = counts / trials
    half = 1.96 * np.sqrt(share * (1 - share) / trials)
    assert weights[np.abs(share - probability) > half].sum() > 0.05


def test_many_at_once_are_the_ones_one_by_one() -> None:
    low, high = clopper_pearson_bounds([0, 7, 20], [20, 30, 20], 0.9)
    for i, (k, n) in enumerate([(0, 20), (7, 30), (20, 20)]):
        assert (low[i], high[i]) == clopper_pearson(k, n, 0.9)


@pytest.mark.parametrize(("successes", "trials", "confidence"), [(5, 4, 0.9), (-1, 4, 0.9), (1, 4, 1.0), (1, 4, 0.0)])
def test_impossible_counts_are_refused(successes: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="allowed"):
        clopper_pearson(successes, trials, confidence)


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (7, 7), (3, 10), (1, 1000), (700, 1000)])
def test_the_vectorised_bounds_are_scipys(successes: int, trials: int) -> None:
    exact = stats.binomtest(successes, trials).proportion_ci(confidence_level=0.9, method="exact")
    assert clopper_pearson(successes, trials, 0.9) == pytest.approx((exact.low, exact.high), rel=1e-9, abs=1e-12)
