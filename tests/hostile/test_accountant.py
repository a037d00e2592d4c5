"""The ε that the project states lies within an independent accountant's bracket; a faulty account
does not.
"""

from functools import cache
from typing import Any

from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import GaussianQuery, Mechanism
from tests.hostile.fft_accountant import bracket, sampled

DELTA = 1e-5
DEFAULT = (0.1, 8.76, 150)  # q, z, T; the noise multipliers of queries may follow
SETTINGS: list[Any] = [
    DEFAULT,
    (0.1, 12.35, 150, 14.0, 14.0),
    (1.0, 4.0, 4),
    (1.0, 1.0, 1),
    (0.01, 0.6, 1),
]
SETTINGS += [(0.1, 20.0, 30), (0.02, 1.0, 100), (0.5, 0.8, 3), (0.3, 3.0, 20, 1.5)]


def stated(q: float, z: float, rounds: int, *queries: float) -> float:
    asked = tuple(
        GaussianQuery(f"query_{i}", 1.0, multiplier) for i, multiplier in enumerate(queries)
    )
    spent = Mechanism(1000, "unit", q, L2Clip(1.0), z, rounds, DELTA, asked).spent()
    assert spent is not None
    return spent.epsilon_pld


@cache
def bounds(q: float, z: float, rounds: int, *queries: float) -> tuple[float, float]:
    """Lower and upper bound on ε; the upper one by a per cent higher: the accountant's documented
    slack.
    """
    releases = [sampled(q, z, rounds), *(sampled(1.0, multiplier) for multiplier in queries)]
    low, high = bracket(releases, DELTA, guess=stated(q, z, rounds, *queries))
    assert high < 1.012 * low
    return low, 1.01 * high


def test_the_stated_epsilon_lies_within_the_bracket() -> None:
    for setting in SETTINGS:
        assert bounds(*setting)[0] <= stated(*setting) <= bounds(*setting)[1], setting


def test_a_faulty_account_lies_outside() -> None:
    """Noise overstated by 2%, sampling understated, rounds forgotten; and a query that is not
    counted.
    """
    low, high = bounds(*DEFAULT)
    faulty = [
        stated(*setting)
        for setting in ((0.1, 8.76 * 1.02, 150), (0.097, 8.76, 150), (0.1, 8.76, 145))
    ]
    for epsilon in (*faulty, stated(*DEFAULT) * 0.98, stated(*DEFAULT) * 1.02):
        assert not low <= epsilon <= high
    assert stated(0.1, 12.35, 150, 14.0) < bounds(0.1, 12.35, 150, 14.0, 14.0)[0]
