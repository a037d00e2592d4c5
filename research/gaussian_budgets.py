"""ε that the papers state beside the exact one: of DPPG's update by its two formulas (Figure 3), of
DP-PG's Theorem 1 and of DPTD.

python -m research.gaussian_budgets
"""

import math
from itertools import product

from benchmarks.machine import RESULTS_PAGE, put
from primorl.privacy.accounting.epsilon import gaussian_epsilon, gaussian_mean
from primorl.privacy.accounting.rounding import at_most

DELTAS = 1e-5, 1e-3
STATED = {0.1: 38, 0.5: 8}
"""ε that the paper states for the z of its dosing task."""


def closed_form(z: float, delta: float) -> float:
    """Compute √(2 ln(1.25/δ)) / z; it holds for ε < 1 only (Dwork and Roth 2014, Theorem A.1)."""
    return math.sqrt(2 * math.log(1.25 / delta)) / z


def zhao(z: float, delta: float) -> float:
    """Compute ε of Zhao et al.

    2019 (arXiv 1911.12060, Theorem 5), which the paper takes where ε ≥ 1.
    """
    constant = math.sqrt(math.log(2 / (math.sqrt(16 * delta + 1) - 1)))
    return (1 + 2 * math.sqrt(2) * constant * z) / (2 * z * z)


def exact(z: float, delta: float) -> float:
    """Compute the ε of a Gaussian release of noise multiplier z (Balle and Wang 2018)."""
    return gaussian_epsilon(1 / z, delta)


def theorem_1(epsilon: float, delta: float) -> float:
    """Compute the ε of replace-one neighbours under the noise of DP-PG's Theorem 1 for ``epsilon``:
    σ² = 16 ln(1.25/δ) (RG/mε)², where the mean of m users' gradients moves by up to 4RG/m.
    """
    return exact(math.sqrt(math.log(1.25 / delta)) / epsilon, delta)


def both_sides(epsilon: float, delta: float) -> float:
    """Compute ε of two Gaussian releases of ``epsilon`` each: DPTD's gradients of θ and ω."""
    return exact(1 / (math.sqrt(2) * gaussian_mean(epsilon, delta)), delta)


def table() -> str:
    """Write what the papers state beside the exact ε, rounded up."""
    lines = ["| what | δ | closed form | Zhao et al. | stated | exact ε |", "|---" * 6 + "|"]
    for z, delta in ((0.01, 1e-5), *product((0.1, 0.5), DELTAS), (1.0, 1e-5), (3.0, 1e-5)):
        formulas = f"{closed_form(z, delta):.3g} | {zhao(z, delta):.3g} | {STATED.get(z, '–')}"
        lines.append(f"| DPPG, z {z:g} | {delta:g} | {formulas} | {at_most(exact(z, delta), 3)} |")
    for what, true, epsilons, delta in (
        ("DP-PG, Theorem 1", theorem_1, (0.5, 3.0, 5.0), 1e-5),
        ("DPTD, both sides", both_sides, (1.0, 10.0), 1e-4),
    ):
        for epsilon in epsilons:
            found = at_most(true(epsilon, delta), 3)
            lines.append(f"| {what} | {delta:g} | – | – | {epsilon:g} | {found} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table of benchmarks/results.md."""
    put(RESULTS_PAGE, "gaussian budgets", table())


if __name__ == "__main__":
    main()
