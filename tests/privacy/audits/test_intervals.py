"""The intervals cover what they say they cover, exactly, and no more than they must."""

import numpy as np
import pytest
from scipy import stats

from primorl.privacy.audits.intervals import clopper_pearson, clopper_pearson_bounds


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


@pytest.mark.parametrize(("successes", "trials", "confidence"), [(5, 4, 0.9), (-1, 4, 0.9), (1, 4, 1.0), (1, 4, 0.0)])
def test_impossible_counts_are_refused(successes: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="allowed"):
        clopper_pearson(successes, trials, confidence)


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (7, 7), (3, 10), (1, 1000), (700, 1000)])
def test_the_vectorised_bounds_are_scipys(successes: int, trials: int) -> None:
    exact = stats.binomtest(successes, trials).proportion_ci(confidence_level=0.9, method="exact")
    assert clopper_pearson(successes, trials, 0.9) == pytest.approx((exact.low, exact.high), rel=1e-9, abs=1e-12)
