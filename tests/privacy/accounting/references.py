"""ε and δ without the project's accountant: closed forms, and convolutions of privacy losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats


def gaussian_delta(mean: float, epsilon: Any) -> Any:
    """δ(ε) of N(μ, 1) against N(0, 1) (Balle and Wang 2018)."""
    normal = stats.norm
    return normal.cdf(mean / 2 - epsilon / mean) - np.exp(epsilon) * normal.cdf(-mean / 2 - epsilon / mean)


@dataclass(frozen=True)
class Mixture:
    """Σ_i p_i N(s_i, z²): what a round releases along the line on which neighbouring datasets differ."""

    parts: tuple[tuple[float, float], ...]
    z: float

    def density(self, x: Any) -> Any:
        return sum(p * stats.norm.pdf(x, shift, self.z) for shift, p in self.parts)


def round_of(q: float, z: float, shift: float = 1.0) -> Mixture:
    return Mixture(((0.0, 1 - q), (shift, q)), z)


def group_round(q: float, z: float, k: int) -> Mixture:
    """Of k units of one person."""
    return Mixture(tuple((float(i), float(stats.binom.pmf(i, k, q))) for i in range(k + 1)), z)


def epsilon_by_convolution(
    releases: Sequence[tuple[Mixture, Mixture, int]], delta: float, h: float, points: int = 200_001
) -> float:
    """ε, the larger of both orders, of pairs of laws and how often each is released.

    It comes from the law of their summed losses, each rounded to the nearest multiple of h.
    """
    size = 1 << 18

    def spectrum(p: Mixture, other: Mixture) -> Any:
        reach = 12 * p.z + 1
        farthest = max(shift for shift, _ in (*p.parts, *other.parts))
        x = np.linspace(-reach, reach + max(0.0, farthest), points)
        one, two = p.density(x), other.density(x)
        losses = np.rint((np.log(one) - np.log(two)) / h).astype(int)
        return np.fft.rfft(np.bincount(losses % size, one * (x[1] - x[0]), size))

    def epsilon(ordered: Sequence[tuple[Mixture, Mixture, int]]) -> float:
        product = np.ones(size // 2 + 1, complex)
        for p, other, count in ordered:
            product *= spectrum(p, other) ** count
        summed = np.fft.irfft(product, size)
        loss = h * ((np.arange(size) + size // 2) % size - size // 2)
        low, high = 0.0, float(loss.max())
        for _ in range(40):
            middle = (low + high) / 2
            spent = float((summed * np.maximum(-np.expm1(middle - loss), 0)).sum())
            low, high = (middle, high) if spent > delta else (low, middle)
        return high

    return max(epsilon(releases), epsilon([(other, p, count) for p, other, count in releases]))
