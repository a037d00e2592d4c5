"""Noise is normal, independent, of the right scale, and never the same twice."""

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline.privacy.entropy import SeededEntropy, SystemEntropy, integers, normals, uniforms


def test_normals_are_standard_normal() -> None:
    """A Kolmogorov-Smirnov test accepts them, and rejects draws scaled by 2/3 and 3/2."""
    draws = normals(SystemEntropy(), 100_000).numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2, 0.9):
        assert stats.kstest(draws * wrong, "norm").pvalue < 1e-6


def test_normals_have_normal_tails() -> None:
    """Beyond 4σ lie about 63 in a million: a truncated generator would have none."""
    draws = normals(SystemEntropy(), 2_000_000).abs()
    assert 60 < int((draws > 4).sum()) < 210


def test_halves_of_a_box_muller_pair_are_independent() -> None:
    """Cosine and sine parts share a radius; neither they nor their squares may correlate."""
    draws = normals(SystemEntropy(), 200_000)
    first, second = draws[:100_000], draws[100_000:]
    for power in (1, 2):
        correlation = np.corrcoef(first.numpy() ** power, second.numpy() ** power)[0, 1]
        assert abs(correlation) < 5 / np.sqrt(100_000)


def test_uniforms_are_uniform_and_open() -> None:
    draws = uniforms(SystemEntropy(), (200_000,))
    assert draws.min() > 0
    assert draws.max() < 1
    assert stats.kstest(draws.numpy(), "uniform").pvalue > 1e-6


@pytest.mark.parametrize("draw", [lambda e: normals(e, 8), lambda e: uniforms(e, (8,))])
def test_system_entropy_never_repeats_and_seeded_entropy_does(draw) -> None:  # type: ignore[no-untyped-def]
    """Two sources differ and two draws of one source differ; a seed, for tests, makes equals."""
    source = SystemEntropy()
    assert not torch.equal(draw(source), draw(source))
    assert not torch.equal(draw(SystemEntropy()), draw(SystemEntropy()))
    assert torch.equal(draw(SeededEntropy(1)), draw(SeededEntropy(1)))
    assert SeededEntropy(1).seeded
    assert not SystemEntropy().seeded


def test_torch_and_numpy_seeds_do_not_reach_the_noise() -> None:
    """Whoever seeds the usual generators, as the config's seed does, learns nothing of the noise."""
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        drawn.append(normals(SystemEntropy(), 64))
    assert not torch.equal(*drawn)


def test_integers_use_all_bits() -> None:
    values = integers(SystemEntropy(), 4096)
    ones = np.array([[(int(v) >> bit) & 1 for bit in range(64)] for v in values[:1024]]).mean(0)
    assert np.all(np.abs(ones - 0.5) < 0.1)
