"""Numbers for people, rounded up: no line may promise more than the accountant."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_LEAST, _MOST = -5, 12  # powers of ten between which a number is written out


def rounded_up(value: float, digits: int) -> float:
    """The smallest number of so many significant digits that is at least ``value``, which is positive and finite."""
    return float(_up(value, digits))


def at_most(value: float, digits: int = 3) -> str:
    """``value`` in so many significant digits, rounded up, with commas; 0 and ∞ as they are."""
    if not 0 < value < math.inf:
        return "0" if value == 0 else "∞"
    up = _up(value, digits)
    return f"{up:,f}" if _LEAST < up.adjusted() < _MOST else f"{float(up):.{digits}g}"


def at_least(value: float, digits: int = 6) -> str:
    """``value`` in so many significant digits, rounded down; 0 and ∞ as they are."""
    if not 0 < value < math.inf:
        return "0" if value == 0 else "∞"
    return f"{Decimal(repr(float(value))).normalize(Context(prec=digits, rounding=ROUND_FLOOR)):f}"


def _up(value: float, digits: int) -> Decimal:
    # From its shortest decimal form: what has few digits already is not lifted by its own rounding error.
    return Decimal(repr(float(value))).normalize(Context(prec=digits, rounding=ROUND_CEILING))
