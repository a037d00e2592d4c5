"""Exact confidence bounds on probabilities from counts (Clopper and Pearson 1934).

The numbers are those of ``scipy.stats.binomtest(k, n).proportion_ci(method="exact")``, which takes one count at a time.
The audit needs bounds for thousands of thresholds, so the quantiles are computed here, vectorised (`betaincinv`); the
tests compare the two.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Two-sided interval for a probability; each end alone fails with probability at most (1 - confidence)/2.

    Args:
        successes: among the trials.
        trials: independent, all of one probability.
        confidence: in (0, 1), of both ends together.

    Returns:
        Lower and upper bound; (0, 1) without trials.

    Raises:
        ValueError: counts or confidence out of range.
    """
    low, high = clopper_pearson_bounds(successes, trials, confidence)
    return float(low), float(high)


def clopper_pearson_bounds(
    successes: ArrayLike, trials: ArrayLike, confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`clopper_pearson` of many counts at once; the arguments broadcast.

    P[Binomial(n, p) ≥ k] is the distribution function of Beta(k, n - k + 1) at p, so the bounds are its quantiles.
    """
    k, n = np.broadcast_arrays(np.asarray(successes), np.asarray(trials))
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: found {confidence}, allowed is a number between 0 and 1")
    if np.any((k < 0) | (k > n)):
        raise ValueError("successes: allowed are counts between 0 and the number of trials")
    tail = (1 - confidence) / 2
    # The arguments of a beta function must be positive: where a count is at an end, so is the bound.
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), n - k + 1, tail))
    # One minus the lower bound of the failures: a quantile near 1 - 1e-9 would lose its digits.
    high = np.where(k == n, 1.0, 1 - betaincinv(np.maximum(n - k, 1), k + 1, tail))
    return low, high
