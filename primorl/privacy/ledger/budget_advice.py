"""What of a refused run would still fit: more noise, or fewer rounds."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

from dp_accounting import dp_event

from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import rounded_up

_SECONDS = 2.0  # of search each; what was found by then fits, it may only not be the best
_LARGEST_FACTOR = 4.0**7
_PRECISION = 1.01
_DIGITS = 3  # short enough to be typed

Fits = Callable[[dp_event.DpEvent], bool]


def multiplier_that_fits(event: dp_event.DpEvent, fits: Fits) -> float | None:
    """About the smallest noise multiplier with which the rounds of ``event`` would fit (three digits, rounded up).

    Queries before the rounds stay as they are.

    Args:
        event: the refused one.
        fits: whether the budget allows an event in its place.

    Returns:
        None where none was found, or ``event`` is not that of a training run.
    """
    run = Training.of(event)
    if run is None:
        return None

    def would_fit(multiplier: float) -> bool:
        return fits(replace(run, noise_multiplier=multiplier).event)

    deadline = time.monotonic() + _SECONDS
    low = start = float(run.noise_multiplier)
    high = rounded_up(4 * low, _DIGITS)
    while not would_fit(high):
        low, high = high, rounded_up(4 * high, _DIGITS)
        if high > start * _LARGEST_FACTOR or time.monotonic() > deadline:
            return None
    while high > low * _PRECISION and time.monotonic() < deadline:
        middle = rounded_up(math.sqrt(low * high), _DIGITS)
        if middle >= high:
            break
        low, high = (low, middle) if would_fit(middle) else (middle, high)
    return high


def rounds_that_fit(event: dp_event.DpEvent, fits: Fits) -> int | None:
    """About the largest number of rounds of ``event``'s own mechanism that would fit, after the same queries.

    Args:
        event: the refused one.
        fits: whether the budget allows an event in its place.

    Returns:
        None where not even one round fits, or ``event`` is not that of a training run.
    """
    run = Training.of(event)
    if run is None:
        return None

    def would_fit(rounds: int) -> bool:
        return fits(replace(run, rounds=rounds).event)

    deadline = time.monotonic() + _SECONDS
    if not would_fit(1):
        return None
    low, high = 1, run.rounds
    while high - low > 1 and time.monotonic() < deadline:
        middle = (low + high) // 2
        low, high = (middle, high) if would_fit(middle) else (low, middle)
    return low
