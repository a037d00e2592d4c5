"""What noise that is correlated over rounds would gain: ``python -m benchmarks.privacy.correlated_noise``.

The error of the running sum of 150 releases, with banded noise and with this project's independent noise, at equal ε
and equal expected cohorts. With b bands the units are divided into b groups that take turns, so a unit has a chance of
bq in every b-th round; it is accounted as so many Poisson-sampled Gaussian releases (Choquette-Choo et al. 2023,
"(Amplified) banded matrix factorization"). The strategy is the best lower triangular Toeplitz matrix with b bands and
columns of norm 1, found numerically. A ratio below 1: banded noise has the smaller error.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.machine import row, write
from primorl.privacy.accounting.solving import solve_noise_multiplier

DELTA, ROUNDS = 1e-5, 150
COMMAND = "python -m benchmarks.privacy.correlated_noise"


def main() -> None:
    """Compute, print and keep the table."""
    rows = []
    errors = {bands: best_error(bands) for bands in (2, 4, 8)}
    for probability in (0.1, 0.01):
        for epsilon in (0.5, 2.0, 8.0):
            alone = error(np.ones(1)) * solve_noise_multiplier(epsilon, DELTA, probability, ROUNDS)
            for bands, least in errors.items():
                turns = math.ceil(ROUNDS / bands)
                total = least * solve_noise_multiplier(epsilon, DELTA, bands * probability, turns)
                what = f"q {probability}, ε {epsilon}: {bands} bands"
                rows.append(row(COMMAND, what, alone, total, "banded noise", total / alone, "C"))
    write("correlated_noise", rows)


def best_error(bands: int) -> float:
    """The least root mean squared error of the running sums, for noise of standard deviation 1 before the strategy."""
    # Where the search begins: the square root of the matrix of running sums, cut off after so many bands.
    start = np.cumprod([1.0, *(1 - 0.5 / k for k in range(1, bands))]).astype(np.float64)
    found = minimize(lambda rest: error(np.array([1.0, *rest])), start[1:], method="L-BFGS-B")
    return min(error(start), float(found.fun))


def error(column: NDArray[np.float64]) -> float:
    """Root mean squared error of the running sums with the Toeplitz strategy that ``column`` begins."""
    column = column / np.linalg.norm(column)
    inverse = np.zeros(ROUNDS)
    inverse[0] = 1 / column[0]
    for k in range(1, ROUNDS):
        reach = min(k, len(column) - 1)
        inverse[k] = -(column[1 : reach + 1] @ inverse[k - reach : k][::-1]) / column[0]
    sums = np.cumsum(inverse)  # of A C⁻¹, itself Toeplitz: its first column
    return float(np.sqrt(np.mean(np.cumsum(sums**2))))


if __name__ == "__main__":
    main()
