"""The ε that the project states lies within an independent accountant's bracket; a faulty account does not."""

from functools import cache

import pytest

from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.hostile.fft_accountant import bracket, sampled

DELTA = 1e-5
# q, z, T, and the noise multipliers of queries.
SETTINGS: list[tuple[float, float, int, tuple[float, ...]]] = [
    (0.1, 8.76, 150, ()),  # the default run
    (0.1, 12.35, 150, (14.0, 14.0)),
    (1.0, 4.0, 4, ()),
    (1.0, 1.0, 1, ()),
    (0.01, 0.6, 1, ()),
    (0.1, 60.0, 300, ()),
    (0.02, 1.0, 100, ()),
    (0.5, 0.8, 3, ()),
    (0.3, 3.0, 20, (1.5,)),
]


def stated(q: float, z: float, rounds: int, queries: tuple[float, ...]) -> float:
    asked = tuple(GaussianQuery(f"query_{i}", 1.0, multiplier) for i, multiplier in enumerate(queries))
    spent = Plan(1000, "unit", PoissonSampler(q), L2Clip(1.0), z, rounds, DELTA, asked).spent()
    assert spent is not None
    return spent.epsilon_pld


@cache
def bounds(q: float, z: float, rounds: int, queries: tuple[float, ...]) -> tuple[float, float]:
    """Lower and upper bound on ε; the upper one by a per cent higher: the accountant's documented slack."""
    releases = [sampled(q, z, rounds), *(sampled(1.0, multiplier) for multiplier in queries)]
    low, high = bracket(releases, DELTA, guess=stated(q, z, rounds, queries))
    assert high < 1.012 * low
    return low, 1.01 * high


@pytest.mark.parametrize(("q", "z", "rounds", "queries"), SETTINGS)
def test_the_stated_epsilon_lies_within_the_bracket(
    q: float, z: float, rounds: int, queries: tuple[float, ...]
) -> None:
    low, high = bounds(q, z, rounds, queries)
    assert low <= stated(q, z, rounds, queries) <= high


def test_a_faulty_account_lies_outside() -> None:
    low, high = bounds(0.1, 8.76, 150, ())
    for faulty in (
        stated(0.1, 8.76 * 1.02, 150, ()),  # noise overstated by 2%
        stated(0.097, 8.76, 150, ()),  # sampling understated
        stated(0.1, 8.76, 145, ()),  # rounds forgotten
        stated(0.1, 8.76, 150, ()) * 0.98,
        stated(0.1, 8.76, 150, ()) * 1.02,
    ):
        assert not low <= faulty <= high
    assert stated(0.1, 12.35, 150, (14.0,)) < bounds(0.1, 12.35, 150, (14.0, 14.0))[0]  # a query that is not counted
