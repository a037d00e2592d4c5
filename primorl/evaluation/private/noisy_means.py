"""Means of bounded numbers over all private units, from one noisy release, with 95% intervals."""

import math
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from primorl.evaluation.private.estimator import noise_multiplier
from primorl.evaluation.private.problem import Problem
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler

_NORM = 1 + 2.0**-13
"""C. Contributions have norm 1 at most, which the clip then leaves exactly as they are."""


@dataclass(frozen=True)
class NoisyMean:
    """A mean of numbers in [-1, 1] and its 95% interval.

    Attributes:
        value: the mean.
        low: lower end of the interval.
        high: upper end.
        noise: standard deviation of the noise that this mean has alone.
        shared: of what it may share with other means of the same release: sampling, and the noise of the share.
    """

    value: float
    low: float
    high: float
    noise: float
    shared: float


@dataclass(frozen=True)
class Released:
    """The release of numbers x in [-1, 1], each as a `pair`, over the units that have such a number.

    Attributes:
        mean: of x, zero where a unit has none.
        rest: of 1 - x², zero where a unit has none.
        noise: standard deviation of the noise in both.
        share: of the units that have the number.
        share_noise: standard deviation of the noise in ``share``; 0 where it is known.
    """

    mean: float
    rest: float
    noise: float
    share: float = 1.0
    share_noise: float = 0.0

    def interval(self, units: int) -> NoisyMean:
        """The mean of x over the units that have it, with sampling and privacy noise in the interval.

        Fieller's interval of a ratio: all r at which mean - r·share is within t standard deviations of 0. Its variance
        is noise² + r² share_noise² + E[has (x - r)²] / K. The last term is estimated from the release itself, to which
        one standard deviation of the estimate's own noise is added: noise can make it tiny or negative, and then the
        interval would be too short (it would hold as few as 89% of narrow means at μ = 3, where this one holds 97%).
        The addition is at most √5 μ of noise², μ being the Gaussian mean of the release, so little at small ε.
        Where the share cannot be told from 0, the interval is all of [-1, 1].

        Args:
            units: K.
        """
        share = min(self.share, 1.0)
        ratio = min(max(self.mean / max(share, self.share_noise, 1e-12), -1.0), 1.0)
        square = share - self.rest  # E[has x²]
        own = square - 2 * ratio * self.mean + ratio**2 * share
        doubt = math.hypot(self.noise * math.hypot(1, 2 * ratio), self.share_noise * (1 + ratio**2))
        variance = min(max(own + doubt, 0.0), (1 + abs(ratio)) ** 2)
        square += variance - own
        factor = t_quantile(units) ** 2
        a = share**2 - factor * (self.share_noise**2 + share / units)
        b = (share - factor / units) * self.mean
        c = self.mean**2 - factor * (self.noise**2 + square / units)
        if a <= 0:
            return NoisyMean(ratio, -1.0, 1.0, math.inf, math.inf)
        root = math.sqrt(max(b**2 - a * c, 0.0))
        low, high = (min(max(end / a, -1.0), 1.0) for end in (b - root, b + root))
        shared = math.sqrt((ratio * self.share_noise) ** 2 + variance / units)
        return NoisyMean(min(max(ratio, low), high), low, high, self.noise / share, shared / share)


def t_quantile(units: int) -> float:
    """How many standard deviations a 95% interval reaches to each side."""
    return float(stdtrit(max(units - 1, 1), 0.975))


def pair(x: Tensor) -> Tensor:
    """(x, 1 - x²) for x in [-1, 1]: the L2 norm is at most 1, so the second moment costs nothing beside the mean."""
    return torch.stack((x, 1 - x.square()), -1)


def one_release(problem: Problem, gaussian_mean: float) -> Plan:
    """One release over all units, of contributions that have norm 1 at most."""
    return Plan(
        units=problem.units,
        unit=problem.unit,
        sampler=PoissonSampler(1.0),
        clip=L2Clip(_NORM),
        noise_multiplier=noise_multiplier(gaussian_mean),
        rounds=1,
        delta=problem.delta,
    )
