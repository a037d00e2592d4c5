"""A number for each unit, such as the value of its first states: its private mean, with an interval.

A unit adds x and x², x being its number moved to [-1, 1] by public bounds. Two numbers for each unit make one query.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.evaluation.private.problem import Problem
from primorl.evaluation.statistics import NORMAL_QUANTILE
from primorl.privacy.mechanism.queries import GaussianQuery, Moments, register_query

FIRST_STATE_VALUE = "first_state_value"


@register_query(FIRST_STATE_VALUE)
@dataclass(frozen=True)
class FirstStateValue:
    """The mean over units of a number that is held within public bounds.

    Attributes:
        low: least number of a unit, public.
        high: greatest number of a unit.
    """

    low: float
    high: float

    @classmethod
    def of(cls, problem: Problem) -> "FirstStateValue":
        """The bounds of a return."""
        return cls(problem.return_low, problem.return_high)

    def query(self, noise_multiplier: float) -> GaussianQuery:
        """The query, at noise multiplier z."""
        return GaussianQuery.of(FIRST_STATE_VALUE, Moments(1, ()), noise_multiplier)

    def total(self, numbers: Tensor) -> Tensor:
        """Sum of some units' contributions, int64 ``[2]``, for their numbers ``[U]``; sensitive."""
        centred = (numbers - self._centre) / self._half
        return Moments(1, ()).total(centred[:, None], torch.zeros((len(numbers), 0), dtype=torch.int64))

    def mean(self, answer: Tensor, query: GaussianQuery, units: int, extra_variance: float = 0.0) -> "NormalMean":
        """The mean and its standard deviation, from the answer to the query.

        The variance adds up that of units drawn at random, (E x² - (E x)²) / K, the noise's, and ``extra_variance``.
        The first is made of noisy numbers too; it is held within 0 and 1 / K.
        """
        mean, square = (float(number) for number in answer)
        noise = (query.standard_deviation / units) ** 2
        spread = min(max(square - mean * mean + noise, 0.0), 1.0)
        value = min(max(self._centre + self._half * mean, self.low), self.high)
        return NormalMean(value, math.sqrt((spread / units + noise) * self._half**2 + extra_variance))

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
        """The 95% interval."""
        return self.value - NORMAL_QUANTILE * self.deviation, self.value + NORMAL_QUANTILE * self.deviation

    def allowing_for_bias(self, members: Tensor) -> "NormalMean":
        """The same mean with room for the estimator's bias, which no theory bounds: a rule of thumb.

        Two terms are added to the variance: the variance of the members' values, and the squared distance of the mean
        from their mean. If the data moved the model's value by so much, the remaining error may be as large.

        Args:
            members: the same mean by each member of the released model, ``[N]``.
        """
        moved = self.value - float(members.mean())
        return NormalMean(self.value, math.hypot(self.deviation, float(members.std()), moved))
