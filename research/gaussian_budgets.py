"""DPPG's Figure 3: ε of one update for each noise multiplier z, by the paper's two formulas and
exactly.

python -m research.gaussian_budgets

Writes a table of ε that the papers state beside the exact one, and draws
benchmarks/figures/dppg_figure3.png.
"""

import math
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import RESULTS_PAGE, put
from primorl.privacy.accounting.epsilon import gaussian_epsilon, gaussian_mean
from primorl.privacy.accounting.rounding import at_most
from research.rows import FIGURES

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


def draw(path: Path) -> None:
    """Draw ε against z, on logarithmic axes."""
    figure = Figure(figsize=(6.5, 4.5), dpi=120, layout="constrained")
    axes, multipliers = figure.subplots(), np.geomspace(0.05, 8, 80).tolist()
    for delta, color in zip(DELTAS, ("C0", "C1"), strict=True):
        for formula, style in ((exact, "-"), (zhao, "--"), (closed_form, ":")):
            label = f"{formula.__name__.replace('_', ' ')}, δ = {delta:g}"
            axes.plot(
                multipliers,
                [formula(z, delta) for z in multipliers],
                style,
                color=color,
                label=label,
            )
    axes.plot(list(STATED), list(STATED.values()), "kx", label="stated in the paper")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="noise multiplier z", ylabel="ε of one update")
    axes.legend(frameon=False)
    figure.savefig(path)


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
    """Write the table of benchmarks/results.md and draw the figure."""
    put(RESULTS_PAGE, "gaussian budgets", table())
    draw(FIGURES / "dppg_figure3.png")


if __name__ == "__main__":
    main()
