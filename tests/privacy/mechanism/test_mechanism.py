"""The mechanism's parts agree, and what leaves a round is the clipped sum plus enough noise over
a constant; noise is a discrete Gaussian, independent and never the same twice.
"""

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from primorl.privacy.accounting.epsilon import Training, event_from_json
from primorl.privacy.mechanism import sampling
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import ONE, GaussianQuery, Mechanism
from primorl.privacy.mechanism.sampling import SystemEntropy, discrete_gaussian, poisson_sample
from primorl.privacy.statement import Statement
from tests.mechanisms import SeededEntropy, is_noise_of
from tests.pipeline.conftest import without_groups

__all__ = ["without_groups"]

QUERIES = (GaussianQuery("normaliser", 3.0, 20.0), GaussianQuery("starts", 2.0, 30.0))
WITHOUT_NOISE = GaussianQuery("starts", 2.0, 0.0)


def mechanism(**changes: Any) -> Mechanism:
    clip = EnsembleClip(changes.pop("clipping_norm", 0.5), "flat", 3, 3)
    settings: dict[str, Any] = {"units": 1000, "unit": "trajectory", "rounds": 20, "delta": 1e-5}
    settings |= {"sampling_probability": 0.1, "clip": clip, "noise_multiplier": 2.0}
    return Mechanism(**(settings | changes))


def stated(p: Mechanism) -> Statement:
    return p.statement(dataset_fingerprint="abc", public_assumptions=["K"])


def released_noise(p: Mechanism, rounds: int, size: tuple[int, ...]) -> np.ndarray:
    zero = torch.zeros(2, *size, dtype=torch.float64)
    return np.stack([p.release(zero).numpy() for _ in range(rounds)])


def test_noise_is_independent_over_coordinates_members_and_rounds() -> None:
    noise = released_noise(
        mechanism(), rounds=40, size=(3, 50, 10)
    )  # [round, tensor, member, 50, 10]

    def correlated(a: np.ndarray, b: np.ndarray) -> bool:
        return abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) > 6 / math.sqrt(a.size)

    assert not correlated(noise[1:], noise[:-1]), "rounds"
    assert not correlated(noise[:, :, 1:], noise[:, :, :-1]), "members"
    assert not correlated(noise[..., 1:], noise[..., :-1]), "coordinates"
    assert not correlated(noise[:, 0], noise[:, 1]), "tensors"
    noise[:, :, 1] = noise[:, :, 0]  # the twin: one draw given to two members
    assert correlated(noise[:, :, 1:], noise[:, :, :-1])


def test_an_empty_cohort_releases_noise() -> None:
    assert np.all(released_noise(mechanism(), rounds=1, size=(3, 20, 10)) != 0)


def test_the_usual_seeds_reach_neither_cohorts_nor_noise() -> None:
    """Equal seeds of every library that has a global generator; the twin, a seeded mechanism,
    repeats itself.
    """

    def drawn(p: Mechanism) -> tuple[list[int], list[float]]:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return p.cohort().tolist(), released_noise(p, 1, (5,)).ravel().tolist()

    assert all(
        one != other for one, other in zip(drawn(mechanism()), drawn(mechanism()), strict=True)
    )
    assert drawn(mechanism(entropy=SeededEntropy(3))) == drawn(mechanism(entropy=SeededEntropy(3)))
    assert "ntropy" not in repr(mechanism(entropy=SystemEntropy()))


def test_noise_and_sum_are_whole_multiples_of_the_grid_and_added_exactly() -> None:
    p, total = mechanism(entropy=SeededEntropy(3)), torch.rand(4000, dtype=torch.float64) * 1e3
    whole = (total / p.grid).round()
    scale = p.noise_multiplier * (p.clip.sensitivity / p.grid + math.sqrt(4000))
    draw = discrete_gaussian(SeededEntropy(3), 4000, scale)
    released = p.release(total)
    assert torch.equal(released, ((whole + draw) * p.grid / p.expected_cohort).float())
    for rounded in (whole.float() + draw.float(), whole + draw.half()):  # the twins
        assert not torch.equal(released, (rounded.double() * p.grid / p.expected_cohort).float())


def test_contradictory_plans_are_refused_and_a_broken_guarantee_is_called_void() -> None:
    refused: list[tuple[dict[str, object], str]] = [
        ({"clipping_norm": math.inf}, "finite clipping norm"),
        ({"units": 0}, "at least one private unit"),
        ({"denominator": 0.0}, "denominator must be positive"),
        ({"queries": (QUERIES[0], QUERIES[0])}, "same name"),
        ({"queries": (WITHOUT_NOISE,)}, "covers no query"),
    ]
    for changes, says in refused:
        with pytest.raises(ValueError, match=says):
            mechanism(**changes)
    void: list[tuple[dict[str, object], str]] = [
        ({"noise_multiplier": 0.0, "queries": (WITHOUT_NOISE,)}, "no noise is added"),
        ({"noise_multiplier": 0.0, "clipping_norm": math.inf}, "updates are not clipped"),
        ({"entropy": SeededEntropy(0)}, "noise is seeded"),
    ]
    for changes, reason in void:
        statement = stated(mechanism(**changes))
        json.dumps(statement.to_json(), allow_nan=False)
        assert reason in statement.void
        assert statement.private is (reason == "noise is seeded")


def test_queries_are_part_of_what_is_stated() -> None:
    p, without = mechanism(queries=QUERIES), mechanism()
    said, bare = stated(p), stated(without)
    content = said.to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert (said.private, said.void, said.neighboring_relation) == (True, (), "zero_out_one")
    run = Training(0.1, 2.0, 20, (20.0, 30.0))
    assert event_from_json(said.event) == run.event
    assert said.epsilon == run.compute_spent(1e-5).epsilon_pld
    assert [(query.what, query.noise_multiplier) for query in said.queries] == [
        ("normaliser", 20.0),
        ("starts", 30.0),
    ]
    assert bare.queries == ()
    assert bare.epsilon is not None
    assert 1.005 * bare.epsilon < said.epsilon < (said.epsilon_rdp or 0)
    fewer = [replace(without, rounds=rounds).compute_spent() for rounds in (1, 5, 20)]
    curve = [found.epsilon_pld for found in fewer if found]
    assert len(curve) == 3
    assert curve == sorted(curve)
    assert curve[-1] == bare.epsilon, (
        "the reservation's from the start: fewer rounds do not lower it"
    )
    first = replace(p, rounds=1).compute_spent()
    assert first is not None
    assert first.epsilon_pld > curve[0]


def test_an_answer_is_a_noisy_mean_over_the_declared_units() -> None:
    """K is the denominator; the noise of the mean is z · sensitivity / K, and not two thirds or
    three halves of it.
    """
    answers = mechanism(queries=QUERIES).answer(QUERIES[0], torch.full((3000,), 500 * ONE))
    for factor in (1.0, 2 / 3, 3 / 2):
        assert is_noise_of(answers - 0.5, factor * 20.0 * 3.0 / 1000) is (factor == 1)


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
        filled = bytearray(size), bytearray(size)
        for each in filled:
            SystemEntropy().fill(memoryview(each))
        first, second = (np.frombuffer(each, np.uint8) for each in filled)
        assert not np.lib.stride_tricks.sliding_window_view(first == second, 16).all(1).any()
    SystemEntropy().fill(memoryview(bytearray()))


def test_everybody_joins_where_that_is_certain() -> None:
    """Else whoever's coin is below q, as `tests/hostile/test_round.py` finds."""
    assert [len(poisson_sample(SystemEntropy(), 50, q)) for q in (1.0, 1e-12)] == [50, 0]
