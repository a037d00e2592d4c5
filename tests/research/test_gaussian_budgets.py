"""The exact ε is the accountant's, and the paper's formulas are above it where they hold."""

import pytest

from primorl.privacy.accounting.epsilon import Training
from research.gaussian_budgets import closed_form, exact, zhao


@pytest.mark.parametrize("z", [0.1, 0.5, 1.0, 3.73, 8.0])
def test_formulas_are_of_the_gaussian_mechanism(z: float) -> None:
    found = exact(z, 1e-5)
    assert found == pytest.approx(Training(1.0, z, 1).spent(1e-5).epsilon_pld, rel=2e-3)
    assert zhao(z, 1e-5) > found
    assert (closed_form(z, 1e-5) > found) == (z >= 1), "the closed form is too small for small z"
    assert exact(z, 1.0) == 0


def test_the_paper_contradicts_its_formula() -> None:
    assert (zhao(0.1, 1e-5), zhao(0.5, 1e-5)) == pytest.approx((95, 11), rel=0.01)
    assert (closed_form(0.1, 1e-3), closed_form(0.5, 1e-3)) == pytest.approx((38, 8), rel=0.06)
