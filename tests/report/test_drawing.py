"""Axes have few ticks at plain numbers, and names have lines that a telephone has room for."""

import math

import pytest

from primorl.report.drawing import log_axis, whole_axis, wrapped


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.2, 1.0], [0.2, 0.5, 1.0]),
        ([0.009, 1.0], [0.01, 0.1, 1.0]),
        ([1e-4, 1.0], [1e-4, 1e-3, 1e-2, 1e-1, 1.0]),
        ([0.5, 0.5], [0.5]),
        ([0.0, math.inf, math.nan], [1.0]),
    ],
)
def test_logarithmic_ticks(values: list[float], ticks: list[float]) -> None:
    axis = log_axis(values)
    assert axis["tickvals"] == pytest.approx(ticks)
    low, high = axis["range"]
    for value in values:
        if math.isfinite(value) and value > 0:
            assert low < math.log10(value) < high


@pytest.mark.parametrize(("most", "step"), [(1, 1), (8, 1), (9, 2), (24, 5), (80, 10), (81, 20), (1000, 200)])
def test_ticks_at_whole_numbers(most: int, step: int) -> None:
    axis = whole_axis(most)
    assert axis["dtick"] == step
    assert axis["tickformat"] == "d"


def test_long_names_are_broken_at_their_separators() -> None:
    """Twin: a short name stays as it is, and nothing is lost."""
    assert wrapped("mean_arterial_pressure_mmHg") == "mean_arterial_<br>pressure_mmHg"
    assert wrapped("glucose") == "glucose"
    assert wrapped("access=fistula") == "access=fistula"
    assert wrapped("a" * 30) == "a" * 30
