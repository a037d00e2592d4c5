"""ε of Poisson-sampled Gaussian rounds by FFT in NumPy, bracketed; nothing of the project, nothing of dp_accounting.

For neighbours P, Q the privacy loss is log(p/q)(x) for x ~ P. Losses of single releases are put on a grid, all rounded
up (what escapes to the right counts as infinite) or all rounded down (it is dropped); sums of losses are convolutions.
So the true δ(ε) = E[max(0, 1 - e^(ε - L))] lies between the two, and so does ε at δ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]
_TAIL = 1e-13  # of each release, beyond the grid on either side
_ERROR = 1e-10  # of δ, far above that of a transform in float64


@dataclass(frozen=True)
class Release:
    """T rounds of N(B, z²) with B ~ Bernoulli(q), against N(0, z²)."""

    q: float
    z: float
    rounds: int = 1

    def thresholds(self, losses: Array) -> Array:
        """x at which log((1 - q) + q·exp((2x - 1)/(2z²))) is the loss; -inf where no x is."""
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = (np.exp(losses) - (1 - self.q)) / self.q
            x = self.z**2 * np.log(inner) + 0.5
        return np.where(inner > 0, x, -np.inf)

    def cdf(self, losses: Array, *, removed: bool) -> Array:
        """P[loss ≤ l]: of x ~ the mixture against N(0) where the unit is in, of N(0) against the mixture otherwise."""
        if removed:
            x = self.thresholds(losses)
            return np.asarray((1 - self.q) * ndtr(x / self.z) + self.q * ndtr((x - 1) / self.z))
        return np.asarray(1 - ndtr(self.thresholds(-losses) / self.z))

    def reach(self) -> float:
        """No loss is larger, but for a tail."""
        far = -self.z * float(ndtri(_TAIL)) + 1
        return math.log1p(self.q * math.expm1(min(700.0, (2 * far - 1) / (2 * self.z**2))))


@dataclass(frozen=True)
class Losses:
    """What all releases together lose, rounded up or down.

    Attributes:
        grid: the losses.
        density: how probable each is.
        infinite: a bound on what is left out: losses beyond the grid and the error of the transform.
    """

    grid: Array
    density: Array
    infinite: float

    def delta(self, epsilon: float) -> float:
        return float((self.density * -np.expm1(np.minimum(0.0, epsilon - self.grid))).sum()) + self.infinite

    def epsilon(self, delta: float) -> float:
        """By bisection: δ falls as ε grows."""
        low, high = 0.0, float(self.grid[-1])
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high


def composed(releases: Sequence[Release], *, step: float, points: int, up: bool, removed: bool) -> Losses:
    """Losses of all releases, each rounded ``up`` or down to one of ``points`` multiples of ``step`` around 0."""
    half = points // 2
    grid = (np.arange(points) - half) * step
    spectrum, escaped = np.ones(half + 1, dtype=np.complex128), 0.0
    for release in releases:
        edges = release.cdf(grid, removed=removed)
        mass = np.zeros(points)
        if up:  # a loss in (grid[i - 1], grid[i]] counts as grid[i]
            mass[0], mass[1:] = edges[0], np.diff(edges)
        else:  # as grid[i - 1]
            mass[:-1] = np.diff(edges)
        escaped += release.rounds * max(0.0, 1 - float(edges[-1]))
        spectrum *= np.fft.rfft(np.fft.ifftshift(np.maximum(mass, 0))) ** release.rounds
    density = np.fft.fftshift(np.fft.irfft(spectrum, points))
    return Losses(grid, density, escaped + _ERROR if up else -_ERROR)


def bracket(releases: Sequence[Release], delta: float, *, guess: float, width: float = 0.01) -> tuple[float, float]:
    """Lower and upper bound on ε at ``delta``, some ``width`` of ε apart.

    Args:
        releases: composed.
        delta: at which ε is read.
        guess: roughly ε; it decides how fine the grid is and not what is found.
        width: share of ε that rounding may cost.
    """
    count = sum(release.rounds for release in releases)
    reach = max(4 * guess, 1.5 * max(release.reach() for release in releases))
    step = width * guess / count
    points = 1 << math.ceil(math.log2(2 * reach / step))
    low, high = (
        max(composed(releases, step=step, points=points, up=up, removed=side).epsilon(delta) for side in (True, False))
        for up in (False, True)
    )
    return low, high
