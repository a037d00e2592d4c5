"""What a sample of returns says about their mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

NORMAL_QUANTILE = 1.959963984540054
"""Half of the width of a normal 95% interval, in standard deviations."""


@dataclass(frozen=True)
class MeanInterval:
    """A sample mean and its two-sided 95% Student-t confidence interval.

    Attributes:
        mean: of the sample.
        low: lower end.
        high: upper end.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, sample: npt.NDArray[np.float64]) -> Self:
        """Mean ± t(0.975, n - 1)·s/√n of n independent values.

        Raises:
            ValueError: fewer than two values, which have no spread.
        """
        count = len(sample)
        if count < 2:
            raise ValueError(f"an interval needs at least 2 values, found {count}")
        mean = float(sample.mean())
        half = float(stdtrit(count - 1, 0.975) * sample.std(ddof=1) / np.sqrt(count))
        return cls(mean, mean - half, mean + half)

    @classmethod
    def over(cls, seeds: Sequence[Self]) -> Self:
        """The mean of several policies' means, and the interval of their spread; of one policy, its own."""
        return seeds[0] if len(seeds) == 1 else cls.of(np.array([own.mean for own in seeds]))
