"""What of a refused run would still fit: more noise, or fewer rounds."""

import math
import time
from collections.abc import Callable

from dp_accounting import dp_event

from pipeline.privacy.accounting import training_event

_SECONDS = 2.0  # of search each; what was found by then fits, it may only not be the best
_LARGEST_FACTOR = 4.0**7
_PRECISION = 1.01

Fits = Callable[[dp_event.DpEvent], bool]


def multiplier_that_fits(event: dp_event.DpEvent, fits: Fits) -> float | None:
    """About the smallest noise multiplier with which the rounds of ``event`` would fit (three digits, rounded up).

    Args:
        event: the refused one.
        fits: whether the budget allows an event in its place.

    Returns:
        None where none was found, or ``event`` is not rounds of a Poisson-sampled Gaussian.
    """
    if not _is_training(event):
        return None
    deadline = time.monotonic() + _SECONDS
    sampling, rounds = event.event.sampling_probability, event.count
    low = start = float(event.event.event.noise_multiplier)
    high = _rounded_up(4 * low)
    while not fits(training_event(sampling, high, rounds)):
        low, high = high, _rounded_up(4 * high)
        if high > start * _LARGEST_FACTOR or time.monotonic() > deadline:
            return None
    while high > low * _PRECISION and time.monotonic() < deadline:
        middle = _rounded_up(math.sqrt(low * high))
        if middle >= high:
            break
        low, high = (low, middle) if fits(training_event(sampling, middle, rounds)) else (middle, high)
    return high


def rounds_that_fit(event: dp_event.DpEvent, fits: Fits) -> int | None:
    """About the largest number of rounds of ``event``'s own mechanism that would fit.

    Args:
        event: the refused one.
        fits: whether the budget allows an event in its place.

    Returns:
        None where not even one round fits, or ``event`` is not rounds of a Poisson-sampled Gaussian.
    """
    if not _is_training(event):
        return None
    deadline = time.monotonic() + _SECONDS
    sampling, multiplier = event.event.sampling_probability, event.event.event.noise_multiplier
    if not fits(training_event(sampling, multiplier, 1)):
        return None
    low, high = 1, event.count
    while high - low > 1 and time.monotonic() < deadline:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(training_event(sampling, multiplier, middle)) else (low, middle)
    return low


def _is_training(event: dp_event.DpEvent) -> bool:
    return (
        isinstance(event, dp_event.SelfComposedDpEvent)
        and isinstance(event.event, dp_event.PoissonSampledDpEvent)
        and isinstance(event.event.event, dp_event.GaussianDpEvent)
    )


def _rounded_up(multiplier: float) -> float:
    digits = 2 - math.floor(math.log10(multiplier))
    scaled = multiplier * 10.0**digits
    # A value that has three digits already must not be lifted by its own rounding error.
    whole = round(scaled) if math.isclose(scaled, round(scaled), rel_tol=1e-9) else math.ceil(scaled)
    return round(whole / 10.0**digits, max(digits, 0))
