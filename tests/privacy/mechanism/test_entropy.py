"""Noise is a discrete Gaussian, independent and never the same twice; cohorts are Poisson, empty
ones too.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from primorl.privacy.mechanism import sampling
from primorl.privacy.mechanism.sampling import (
    PoissonSampler,
    SystemEntropy,
    discrete_gaussian,
)
from tests.mechanisms import SeededEntropy

LAGS = 8192
COUNT = 40 * LAGS
SCALE = 2.0**27  # of a release's noise, in multiples of the grid
DOUBT = 1e-6  # a sound generator falls below it once in a million tests


def doubts(draws: NDArray[np.float64]) -> set[str]:
    """Names of the tests by which ``draws`` are not independent standard normals."""
    size, chi2 = draws.size, stats.chi2(draws.size)
    total = float((draws**2).sum())
    beyond = [(int((np.abs(draws) > bound).sum()), 2 * stats.norm.sf(bound)) for bound in (3, 4)]
    pvalues = {
        "law": stats.kstest(draws, "norm").pvalue,
        "tail": min(stats.binomtest(count, size, share).pvalue for count, share in beyond),
        "variance": 2 * min(chi2.cdf(total), chi2.sf(total)),
        "fourth moment": 2 * stats.norm.sf(abs((draws**4).mean() - 3) / math.sqrt(96 / size)),
        "mean": 2 * stats.norm.sf(abs(draws.mean()) * math.sqrt(size)),
        "correlation": _correlation(draws),
        "correlation of squares": _correlation(draws**2),
    }
    return {name for name, pvalue in pvalues.items() if pvalue < DOUBT}


def _correlation(values: NDArray[np.float64]) -> float:
    """Of the most correlated of all lags up to two blocks, corrected for their number."""
    centred = (values - values.mean()) / values.std()
    spectrum = np.abs(np.fft.rfft(centred, 2 * values.size)) ** 2
    at_lag = np.fft.irfft(spectrum)[1 : 2 * LAGS + 2] / math.sqrt(values.size)
    return float(2 * stats.norm.sf(np.abs(at_lag).max()) * at_lag.size)


def normals() -> NDArray[np.float64]:
    return discrete_gaussian(SystemEntropy(), COUNT, SCALE).numpy() / SCALE


def test_noise_is_independent_and_normal() -> None:
    assert doubts(normals()) == set()


def test_a_wrong_law_is_told_apart() -> None:
    x = normals()
    for found, draws in (
        ({"law", "variance"}, x * 2 / 3),
        ({"law", "variance"}, x * 3 / 2),
        ({"variance"}, x * 0.97),
        ({"mean"}, x + 0.03),
        ({"tail"}, np.where(np.abs(x) > 4, 0.5, x)),
        ({"fourth moment"}, np.where(np.arange(x.size) == 5 * LAGS, 30.0, x)),
        ({"correlation"}, (x + np.roll(x, LAGS)) / math.sqrt(2)),  # one of two draws comes again
        (
            {"correlation of squares"},
            np.copysign(np.repeat(x[: COUNT // 2].reshape(-1, LAGS), 2, 0).ravel(), x),
        ),
    ):
        assert doubts(draws) >= found


def law_pvalue(draws: NDArray[np.float64], deviation: float) -> float:
    """Of whole numbers, by the weights exp(-k² / 2σ²) themselves."""
    numbers = np.arange(-40 * math.ceil(deviation), 40 * math.ceil(deviation) + 1)
    weights = np.exp(-(numbers**2) / (2 * deviation**2))
    seen = np.bincount((draws - numbers[0]).astype(int), minlength=len(numbers))
    expected = weights / weights.sum() * draws.size
    rare = expected < 10
    cut = [np.append(each[~rare], each[rare].sum()) for each in (seen, expected)]
    return float(stats.chisquare(*cut).pvalue)


@pytest.mark.parametrize(("scale", "deviation"), [(1.0, 7), (4.1, 8), (15.0, 17)])
def test_the_law_of_whole_numbers_is_exact(scale: float, deviation: int) -> None:
    """σ is small, so that every number is seen; the twins: the next σ, rounded normals, and two
    signs of 0.
    """
    drawn = discrete_gaussian(SystemEntropy(), 400_000, scale).numpy()
    assert np.array_equal(drawn, np.rint(drawn))
    assert law_pvalue(drawn, deviation) > DOUBT
    assert law_pvalue(drawn, 1.02 * deviation) < DOUBT
    rounded = np.where(np.arange(drawn.size) % 20, drawn, np.abs(drawn) - 1)
    assert law_pvalue(rounded, deviation) < DOUBT
    assert law_pvalue(np.append(drawn, np.zeros(drawn.size // 40)), deviation) < DOUBT


def test_a_decision_in_float64_is_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision is made again in 100 digits. The twin: a probability that is wrong by 1e-4."""
    monkeypatch.setattr(sampling, "_more", lambda entropy: 1 << 200)
    fast = sampling._propose(SeededEntropy(5), 20_000, 1 << 20)
    monkeypatch.setattr(sampling, "_DOUBT", sampling._CELLS)
    assert np.array_equal(fast, sampling._propose(SeededEntropy(5), 20_000, 1 << 20))
    decided = sampling._decide
    monkeypatch.setattr(
        sampling, "_decide", lambda e, b, place, c, d: decided(e, b, place, int(c * 1.0001), d)
    )
    assert not np.array_equal(fast, sampling._propose(SeededEntropy(5), 20_000, 1 << 20))


def test_system_entropy_fills_the_whole_buffer() -> None:
    """Every byte is written, in pieces too: of two fills, no 16 neighbouring bytes agree."""
    for size in (16, 65_535, 65_536, 65_537, 200_001):
        first, second = np.zeros((2, size), np.uint8)
        SystemEntropy().fill(memoryview(first))
        SystemEntropy().fill(memoryview(second))
        assert not np.lib.stride_tricks.sliding_window_view(first == second, 16).all(1).any()
    SystemEntropy().fill(memoryview(bytearray()))


def test_everybody_joins_where_that_is_certain() -> None:
    """Else whoever's coin is below q, as `tests/hostile/test_round.py` finds."""
    assert [len(PoissonSampler(q).sample(50, SystemEntropy())) for q in (1.0, 1e-12)] == [50, 0]
