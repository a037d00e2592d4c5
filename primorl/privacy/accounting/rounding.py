"""Numbers for people, rounded to the safe side, so that no line promises more than the accountant.

`at_most` is for spent ε and for bounds on attacks, `at_least` for the rest of a budget and for
the noise that a plan has. Noise that is needed for an ε, and that people type, is rounded up.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_LEAST, _MOST = -5, 12  # powers of ten between which a number is written out


def round_up(value: float, digits: int) -> float:
    """Round a positive, finite ``value`` up to so many significant digits."""
    return float(_round(value, digits, ROUND_CEILING))


def at_most(value: float | None, digits: int = 3) -> str:
    """Format ``value`` in so many significant digits, rounded up, with commas; 0 as it is, and ∞
    without a bound.
    """
    if value is None or not 0 <= value < math.inf:
        return "∞"
    return _format(_round(value, digits, ROUND_CEILING), digits) if value else "0"


def at_least(value: float, digits: int = 3) -> str:
    """Format ``value`` in so many significant digits, rounded down, with commas; 0 for negative
    numbers and NaN.
    """
    if value == math.inf:
        return "∞"
    return _format(_round(value, digits, ROUND_FLOOR), digits) if value > 0 else "0"


def rest_of(limit: float, spent: float) -> str:
    """Say what is left of ``limit`` after ``spent``, rounded down, or by how much more it was."""
    if not math.isfinite(spent):
        return "0 is left"
    # In decimals: a float's difference could round to more than there is.
    left = Decimal(repr(float(limit))) - Decimal(repr(float(spent)))
    if left < 0:
        return f"it is exceeded by {at_most(-float(left))}"
    rounded = left.normalize(Context(prec=3, rounding=ROUND_FLOOR))
    return f"{_format(rounded, 3) if left > 0 else '0'} is left"


def percent_at_most(share: float) -> str:
    """Format a share, from 0 to 1, in percent of three digits, rounded up and never above 100%."""
    if share <= 0 or math.isnan(share):
        return "0%"
    # In decimals: a product by 100 in floats could fall below the share.
    percent = min(Decimal(100), 100 * _round(share, 3, ROUND_CEILING))
    return f"{percent.normalize():f}%"


def _format(value: Decimal, digits: int) -> str:
    return f"{value:,f}" if _LEAST < value.adjusted() < _MOST else f"{float(value):.{digits}g}"


def _round(value: float, digits: int, rounding: str) -> Decimal:
    # From its shortest decimal form, so that a number of few digits is not moved by its own
    # rounding error.
    return Decimal(repr(float(value))).normalize(Context(prec=digits, rounding=rounding))
