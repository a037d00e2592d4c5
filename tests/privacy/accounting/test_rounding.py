"""What is spent is printed rounded up, and what is left rounded down."""

from decimal import Decimal

import pytest

from primorl.privacy.accounting.rounding import at_least, at_most, left_of, percent_at_most


@pytest.mark.parametrize(
    "value", [0.50000001, 0.123456789, 1.00049, 19.9995001, 1234.5678, 3.00000049e-7]
)
def test_the_helpers_round_to_their_side(value: float) -> None:
    exact, budget = Decimal(repr(value)), 25.0000001
    assert Decimal(left_of(budget, value)) <= max(Decimal(0), Decimal(repr(budget)) - exact)
    for digits in (2, 3, 4, 6):
        up, down = (Decimal(shown(value, digits).replace(",", "")) for shown in (at_most, at_least))
        assert down <= exact <= up
        assert up - down <= exact * Decimal(10) ** (1 - digits)
    if value < 1:
        assert Decimal(percent_at_most(value).rstrip("%")) >= 100 * exact
    assert left_of(value, value) == left_of(value, float("inf")) == "0"
    assert (at_least(float("nan")), at_least(-1.0)) == ("0", "0")
    assert (at_most(None), at_most(float("nan"))) == ("∞", "∞")
