"""What docs/comparison.md says of noise that is correlated over rounds."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.machine import RESULTS
from benchmarks.privacy.correlated_noise import ROUNDS, best_error, error

PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"


def test_the_page_shows_what_the_results_hold() -> None:
    """The best number of bands at each q and ε; `python -m benchmarks.privacy.correlated_noise` computes it anew."""
    best: dict[str, float] = {}
    for row in json.loads((RESULTS / "correlated_noise.json").read_text(encoding="utf-8")):
        setting = row["what"].partition(":")[0]
        best[setting] = min(best.get(setting, np.inf), row["ratio"])
    less = {setting: round(100 * (1 - ratio)) for setting, ratio in best.items()}
    a, b, c = (less[f"q 0.1, ε {epsilon}"] for epsilon in (0.5, 2.0, 8.0))
    assert (a < 0, b) == (True, 0)
    page = PAGE.read_text(encoding="utf-8")
    assert f"{-a}% *more* error at ε 0.5, the same at ε 2, and {c}% less at ε 8" in page
    assert (
        "At q = 0.01 it has {}%, {}% and {}% less".format(
            *(less[f"q 0.01, ε {epsilon}"] for epsilon in (0.5, 2.0, 8.0))
        )
        in page
    )


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_the_error_is_that_of_the_matrices(bands: int) -> None:
    """‖A C⁻¹‖ over √T, with C written out: lower triangular, Toeplitz, columns of norm 1 at most."""
    column = np.linspace(1.0, 0.3, bands)
    unit = column / np.linalg.norm(column)
    strategy = sum(np.diag(np.full(ROUNDS - k, unit[k]), -k) for k in range(bands))
    running = np.tril(np.ones((ROUNDS, ROUNDS))) @ np.linalg.inv(strategy)
    assert error(column) == pytest.approx(np.linalg.norm(running) / np.sqrt(ROUNDS), rel=1e-9)


def test_the_search_finds_no_worse_than_where_it_begins() -> None:
    assert best_error(2) < error(np.array([1.0, 0.5]))
    assert best_error(4) < best_error(2)
