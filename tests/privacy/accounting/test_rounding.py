"""No printed number is below the one it stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primorl.privacy.accounting.rounding import at_most, rounded_up


@given(value=st.floats(1e-9, 1e15), digits=st.integers(2, 5))
def test_it_is_never_below_and_hardly_above(value: float, digits: int) -> None:
    for shown in (rounded_up(value, digits), float(at_most(value, digits).replace(",", ""))):
        assert value <= shown <= value * (1 + 10.0 ** (1 - digits))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.385, "0.385"), (0.3850001, "0.386"), (0.0, "0"), (float("inf"), "∞"), (1234.5, "1,240"), (3e-9, "3e-09")],
)
def test_what_is_short_already_stays(value: float, text: str) -> None:
    assert at_most(value) == text
