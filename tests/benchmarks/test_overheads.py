"""What a round costs beside its sum is told with and without the times that another program held it up."""

import pytest

from benchmarks.speed.fixed_round import FixedRound
from benchmarks.speed.overheads import PARTS, shares

SIZE = FixedRound(members=2, width=8, transitions=40, cohort=10)


def ratios(of_rounds: list[dict[str, float]], *, totals: bool) -> dict[str, object]:
    return {str(row["what"]).partition(",")[0]: row["ratio"] for row in shares(SIZE, of_rounds, totals=totals)}


def test_a_held_up_write_counts_in_the_totals_alone() -> None:
    usual = dict.fromkeys(PARTS, 0.01) | {"round": 1.0}
    held_up = usual | {"checkpoint": 9.01, "round": 10.0}
    of_rounds = [usual, usual, held_up, usual, usual]
    medians, totals = ratios(of_rounds, totals=False), ratios(of_rounds, totals=True)
    assert medians == pytest.approx(dict.fromkeys(PARTS, 0.01) | {"all of them": 0.04})
    assert totals["checkpoint"] == pytest.approx(9.05 / 14)
    assert totals["all of them"] == pytest.approx((9.05 + 0.15) / 14)


def test_what_comes_now_and_then_is_in_the_totals() -> None:
    """The twin: medians alone would say that accounting is free."""
    usual = dict.fromkeys(PARTS, 0.01) | {"accounting": 0.0, "round": 1.0}
    of_rounds = [usual, usual, usual | {"accounting": 0.5, "round": 1.5}]
    assert ratios(of_rounds, totals=False)["accounting"] == 0.0
    assert ratios(of_rounds, totals=True)["accounting"] == pytest.approx(0.5 / 3.5)
