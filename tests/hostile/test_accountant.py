"""The ε that the project states lies within an independent accountant's bracket; a faulty account does not."""

import pytest

from primorl.privacy.accounting import figures
from primorl.privacy.accounting.figures import Figures
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.hostile.fft_accountant import Release, bracket

DELTA, WIDTH = 1e-5, 0.01
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


@pytest.fixture(autouse=True)
def only_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement without its figures beside ε: they take most of its time, and are not asked for here."""
    monkeypatch.setattr(figures, "figures", lambda event, delta: Figures(None, (), (), ()))


def stated(q: float, z: float, rounds: int, queries: tuple[float, ...]) -> float:
    asked = tuple(GaussianQuery(f"query_{i}", 1.0, multiplier) for i, multiplier in enumerate(queries))
    plan = Plan(1000, "unit", PoissonSampler(q), L2Clip(1.0), z, rounds, DELTA, asked)
    epsilon = plan.statement(dataset_fingerprint="f", public_assumptions=()).epsilon
    assert epsilon is not None
    return epsilon


def within(q: float, z: float, rounds: int, queries: tuple[float, ...], epsilon: float) -> bool:
    """Never below the bracket, and at most a per cent above it: the accountant's documented slack."""
    releases = [Release(q, z, rounds), *(Release(1.0, multiplier) for multiplier in queries)]
    low, high = bracket(releases, DELTA, guess=epsilon, width=WIDTH)
    assert high - low < 2.5 * WIDTH * epsilon
    return low <= epsilon <= high * 1.01


@pytest.mark.parametrize(("q", "z", "rounds", "queries"), SETTINGS)
def test_the_stated_epsilon_lies_within_the_bracket(
    q: float, z: float, rounds: int, queries: tuple[float, ...]
) -> None:
    assert within(q, z, rounds, queries, stated(q, z, rounds, queries))


@pytest.mark.parametrize(
    "account",
    [
        lambda: stated(0.1, 8.76 * 1.05, 150, ()),  # noise overstated by 5%
        lambda: stated(0.095, 8.76, 150, ()),  # sampling understated
        lambda: stated(0.1, 8.76, 140, ()),  # rounds forgotten
        lambda: stated(0.1, 8.76, 150, ()) * 0.98,
        lambda: stated(0.1, 8.76, 150, ()) * 1.05,
    ],
)
def test_a_faulty_account_lies_outside(account) -> None:  # type: ignore[no-untyped-def]
    assert not within(0.1, 8.76, 150, (), account())


def test_a_query_that_is_not_counted_shows() -> None:
    assert not within(0.1, 12.35, 150, (14.0, 14.0), stated(0.1, 12.35, 150, (14.0,)))
