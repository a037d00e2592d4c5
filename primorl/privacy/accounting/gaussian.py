"""ε of one Gaussian release, in closed form.

Imports nothing that is slow.
"""

import math

from scipy.special import log_ndtr, ndtr

_PRECISION = 1e-7


def gaussian_epsilon(mean: float, delta: float) -> float:
    """Compute ε of N(μ, 1) against N(0, 1) at ``delta`` (Balle and Wang 2018, Theorem 8), rounded
    up.
    """

    def exceeds(epsilon: float) -> bool:
        lower = math.exp(epsilon + float(log_ndtr(-mean / 2 - epsilon / mean)))
        return float(ndtr(mean / 2 - epsilon / mean)) - lower > delta

    low, high = 0.0, 1.0
    if not exceeds(low):
        return 0.0
    while exceeds(high):
        low, high = high, 2 * high
    while high > low * (1 + _PRECISION):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def gaussian_mean(epsilon: float, delta: float) -> float:
    """Find the mean of the Gaussian release that costs ε at δ."""
    low, high = 1e-9, 60.0
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, delta) <= epsilon else (low, middle)
    return low
