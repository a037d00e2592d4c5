"""Private means of bounded numbers over all units, with 95% intervals.

There are two kinds. `one_release` is the only round of an estimator: each number contributes a `pair`, and `Released`
makes an interval of its noisy mean. `FirstStateValue` is a query after the rounds, of one number for each unit.
"""

import math
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from primorl.evaluation.private.estimator import noise_multiplier, plan_for
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.statistics import NORMAL_QUANTILE
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery, Moments, register_query

FIRST_STATE_VALUE = "first_state_value"
"""Name of the query that `FirstStateValue` is."""

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
        """Estimate the mean of x over the units that have it; the interval holds sampling and privacy noise.

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
    """Compute how many standard deviations a 95% interval reaches to each side."""
    return float(stdtrit(max(units - 1, 1), 0.975))


def pair(x: Tensor) -> Tensor:
    """Stack (x, 1 - x²) for x in [-1, 1]: its L2 norm is at most 1, so the second moment costs nothing more."""
    return torch.stack((x, 1 - x.square()), -1)


def one_release(problem: Problem, gaussian_mean: float) -> Plan:
    """Plan one release over all units, of contributions that have norm 1 at most."""
    return plan_for(problem, _NORM, noise_multiplier(gaussian_mean))


@register_query(FIRST_STATE_VALUE)
@dataclass(frozen=True)
class FirstStateValue:
    """The mean over units of one number that is held within public bounds, such as the value of first states.

    A unit adds x and x², x being its number moved to [-1, 1] by the bounds. Both numbers make one query.

    Attributes:
        low: least number of a unit, public.
        high: greatest number of a unit.
    """

    low: float
    high: float

    @classmethod
    def of(cls, problem: Problem) -> "FirstStateValue":
        """Take the bounds of a return."""
        return cls(problem.return_low, problem.return_high)

    def query(self, noise_multiplier: float) -> GaussianQuery:
        """Plan the query at noise multiplier z."""
        return GaussianQuery.of(FIRST_STATE_VALUE, Moments(1, ()), noise_multiplier)

    def total(self, numbers: Tensor) -> Tensor:
        """Sum some units' contributions, int64 ``[2]``, for their numbers ``[U]``; sensitive."""
        centred = (numbers - self._centre) / self._half
        return Moments(1, ()).total(centred[:, None], torch.zeros((len(numbers), 0), dtype=torch.int64))

    def mean(self, answer: Tensor, query: GaussianQuery, units: int) -> "NormalMean":
        """Compute the mean and its standard deviation from the answer to the query.

        The variance adds up that of units drawn at random, (E x² - (E x)²) / K, and the noise's. The first is made of
        noisy numbers too; it is held within 0 and 1 / K.
        """
        mean, square = (float(number) for number in answer)
        noise = (query.standard_deviation / units) ** 2
        spread = min(max(square - mean * mean + noise, 0.0), 1.0)
        value = min(max(self._centre + self._half * mean, self.low), self.high)
        return NormalMean(value, math.sqrt((spread / units + noise) * self._half**2))

    @property
    def _centre(self) -> float:
        return (self.low + self.high) / 2

    @property
    def _half(self) -> float:
        return (self.high - self.low) / 2 or 1.0


@dataclass(frozen=True)
class NormalMean:
    """A noisy mean with a normal 95% interval.

    Attributes:
        value: the mean.
        deviation: its standard deviation.
    """

    value: float
    deviation: float

    @property
    def ci95(self) -> tuple[float, float]:
        """Compute the 95% interval."""
        return self.value - NORMAL_QUANTILE * self.deviation, self.value + NORMAL_QUANTILE * self.deviation

    def allowing_for_bias(self, members: Tensor) -> "NormalMean":
        """Widen the interval for the estimator's bias, which no theory bounds: a rule of thumb.

        Two terms are added to the variance: the variance of the members' values, and the squared distance of the mean
        from their mean. If the data moved the model's value by so much, the remaining error may be as large.

        Args:
            members: the same mean by each member of the released model, ``[N]``.
        """
        moved = self.value - float(members.mean())
        return NormalMean(self.value, math.hypot(self.deviation, float(members.std()), moved))
