"""ε of Gaussian mixtures by FFT in NumPy, bracketed; nothing of the project, nothing of
dp_accounting.

For neighbours P, Q the privacy loss is log(p/q)(x) for x ~ P, monotone in x for the laws below.
Losses of single releases are put on a grid, all rounded up (what escapes counts as infinite) or all
rounded down (it is dropped); sums of losses are convolutions. So the true δ(ε) = E[max(0, 1 - e^(ε
- L))] lies between the two, and so does ε at δ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp, ndtr

Array = NDArray[np.float64]
_CELLS = 100_000  # of x, in each of which the loss lies between those of its ends
_DEVIATIONS = 7.5  # of each release, beyond which it escapes
_ERROR = 1e-10  # of δ, far above that of a transform in float64


def gaussian_delta(mean: float, epsilon: float | Array) -> Array:
    """δ(ε) of N(μ, 1) against N(0, 1) (Balle and Wang 2018)."""
    lower = ndtr(-mean / 2 - epsilon / mean)
    return np.asarray(ndtr(mean / 2 - epsilon / mean) - np.exp(epsilon) * lower)


@dataclass(frozen=True)
class Law:
    """Σ_i p_i N(s_i, z²): what a round releases along the line on which neighbouring datasets
    differ.
    """

    shifts: Array
    probabilities: Array
    z: float

    def log_density(self, x: Array) -> Array:
        with np.errstate(divide="ignore"):
            logs = np.log(self.probabilities) - ((x[:, None] - self.shifts) / self.z) ** 2 / 2
        return np.asarray(logsumexp(logs, axis=1))

    def cdf(self, x: Array) -> Array:
        return np.asarray(ndtr((x[:, None] - self.shifts) / self.z) @ self.probabilities)


Release = tuple[Law, Law, int]
"""The laws of two neighbours, and how often they are drawn from."""


def sampled(q: float, z: float, rounds: int = 1, *, other: float = 0.0) -> Release:
    """One unit with sampling probability q, against zeros; or against another unit, at
    ``other``.
    """
    shares = np.array([1 - q, q])
    return Law(np.array([0.0, 1.0]), shares, z), Law(np.array([0.0, other]), shares, z), rounds


def grouped(q: float, z: float, rounds: int, units: int) -> Release:
    """So many units of one person, against zeros."""
    counts = np.arange(units + 1)
    return (
        Law(counts.astype(float), stats.binom.pmf(counts, units, q), z),
        Law(np.zeros(1), np.ones(1), z),
        rounds,
    )


@dataclass(frozen=True)
class Losses:
    """What all releases together lose, rounded up or down."""

    grid: Array  # the losses
    density: Array  # how probable each is
    # bounds what is left out: losses beyond the grid and the error of the transform
    infinite: float

    def delta(self, epsilon: float) -> float:
        beyond = np.searchsorted(self.grid, epsilon)
        shares = -np.expm1(epsilon - self.grid[beyond:])
        return float((self.density[beyond:] * shares).sum()) + self.infinite

    def epsilon(self, delta: float) -> float:
        """By bisection: δ falls as ε grows."""
        low, high = 0.0, float(self.grid[-1])
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high


def composed(releases: Sequence[Release], *, step: float, points: int, up: bool) -> Losses:
    """Losses of all releases, each rounded ``up`` or down to one of ``points`` multiples of
    ``step`` around 0.
    """
    half = points // 2
    spectrum, escaped = np.ones(half + 1, dtype=np.complex128), 0.0
    for law, other, rounds in releases:
        shifts = np.concatenate([law.shifts, other.shifts])
        x = np.linspace(
            shifts.min() - _DEVIATIONS * law.z, shifts.max() + _DEVIATIONS * law.z, _CELLS + 1
        )
        losses = (law.log_density(x) - other.log_density(x)) / step
        ends = losses[:-1], losses[1:]
        rounded = np.ceil(np.maximum(*ends)) if up else np.floor(np.minimum(*ends))
        inside = np.abs(rounded) < half
        mass = np.diff(law.cdf(x))[inside]
        escaped += rounds * max(0.0, 1 - float(mass.sum()))
        spectrum *= (
            np.fft.rfft(np.bincount(rounded[inside].astype(int) % points, mass, points)) ** rounds
        )
    density = np.fft.fftshift(np.fft.irfft(spectrum, points))
    grid = (np.arange(points, dtype=np.float64) - half) * step
    return Losses(grid, density, escaped + _ERROR if up else -_ERROR)


def bracket(
    releases: Sequence[Release], delta: float, *, guess: float, width: float = 0.005
) -> tuple[float, float]:
    """Lower and upper bound on ε at ``delta``, the larger of both orders of the neighbours.

    ``guess``, roughly ε, and the share ``width`` that rounding may cost decide how fine the grid
    is.
    """
    step = width * guess / sum(rounds for _, _, rounds in releases)
    points = 1 << math.ceil(math.log2(2 * 12 * guess / step))
    orders = releases, [(other, law, rounds) for law, other, rounds in releases]
    low, high = (
        [composed(order, step=step, points=points, up=up) for order in orders]
        for up in (False, True)
    )
    return max(losses.epsilon(delta) for losses in low), max(
        losses.epsilon(delta) for losses in high
    )
