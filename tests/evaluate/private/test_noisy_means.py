"""Means from noisy releases: pairs cost what a mean costs, and intervals keep their word at any K
and noise.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from primorl.evaluate.private.behaviour import Behaviour
from primorl.evaluate.private.question import noise_of, noisy_mean, pair
from tests.evaluate.private.conftest import question


def covered(
    share: float, noise: float, units: int, seed: int, *, hide_noise: bool = False
) -> float:
    """How often the interval holds the mean of the units that have a number, over 2,000 draws of
    units and noise.
    """
    draw = torch.Generator().manual_seed(seed)
    x = (torch.rand(2000, units, generator=draw, dtype=torch.float64) ** 2) * 1.6 - 0.9
    truth = 1.6 / 3 - 0.9
    has = torch.rand(2000, units, generator=draw) < share
    means = (pair(x) * has[..., None]).mean(1) + noise * torch.randn(
        2000, 2, generator=draw, dtype=torch.float64
    )
    shares = has.double().mean(1) + (share < 1) * noise / 2 * torch.randn(
        2000, generator=draw, dtype=torch.float64
    )
    hits = 0
    for (mean, rest), own in zip(means.tolist(), shares.tolist(), strict=True):
        said = 0.0 if hide_noise else noise
        shared = (own, said / 2) if share < 1 else ()
        found = noisy_mean(units, mean, rest, said, *shared)
        assert -1 <= found.low <= found.value <= found.high <= 1
        hits += found.low <= truth <= found.high
    return hits / 2000


@given(st.floats(-1, 1))
def test_the_second_moment_is_free(x: float) -> None:
    assert float(pair(torch.tensor([x], dtype=torch.float64)).norm()) <= 1


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize(("noise", "units"), [(0.02, 300), (0.3, 8)])
def test_intervals_cover(share: float, noise: float, units: int) -> None:
    assert covered(share, noise, units, seed=1) >= 0.935
    assert covered(0.4, 1e-6, 300, seed=2) <= 0.965, "not too long"
    assert covered(1.0, 0.05, 300, seed=3, hide_noise=True) < 0.9, "the twin: without the noise"


def test_an_unknown_share_says_nothing_and_no_contribution_within_the_norm_is_changed() -> None:
    found = noisy_mean(1000, 0.01, 0.0, 0.05, 0.02, 0.05)
    assert (found.low, found.high, found.noise) == (-1, 1, math.inf)
    mechanism = Behaviour(levels=1).build_mechanism(question(10, 1, 1), 10.0, 2)
    vectors = torch.nn.functional.normalize(torch.randn(50, 7, dtype=torch.float64))
    assert torch.equal(mechanism.clip.finish(vectors.clone()), vectors)  # type: ignore[attr-defined]
    assert noise_of(mechanism) == pytest.approx(1 / (0.1 * 10), rel=1e-3)
