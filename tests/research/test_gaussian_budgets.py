"""The exact ε is the accountant's, and the paper's formulas are above it where they hold."""

import math

import numpy as np
import pytest

from benchmarks.machine import ROOT
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_most
from research.gaussian_budgets import both_sides, closed_form, exact, theorem_1, zhao


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


def test_the_page_on_the_papers_quotes_the_exact_figures() -> None:
    text = " ".join((ROOT / "docs" / "online.md").read_text(encoding="utf-8").split())
    dosing = " and ".join(at_most(exact(z, 1e-5), 3) for z in (0.1, 0.5))
    theorem = [at_most(theorem_1(epsilon, 1e-5), 3) for epsilon in (0.5, 3.0, 5.0)]
    assert f"the exact ε is {dosing}" in text
    assert f"ε {theorem[0]}, {theorem[1]} and {theorem[2]} where it says 0.5, 3 and 5" in text
    assert f"at ε 1 both together cost {at_most(both_sides(1.0, 1e-4), 3)}" in text
    draws = 1 / math.sqrt(10) + np.random.default_rng(0).normal(size=(200_000, 10))
    assert np.square(draws).sum(1).var() == pytest.approx(24, rel=0.03), "equation (13) says 81"
