"""Estimates of a policy's value: a measured mean with its interval, or a value in the released
model with its range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

NOTE = (
    "the policy's mean return in the released model, not measured in the world: wrong wherever "
    "the model is, and likely too high, for the policy was trained in this model"
)
"""Reliability of a `ModelValue`, in words."""


@dataclass(frozen=True)
class Estimate:
    """The value of a policy.

    Attributes:
        names: of the three numbers, in files and metrics.
        mean: the value.
        low: lower end.
        high: upper end.
    """

    names: ClassVar[tuple[str, str, str]]

    mean: float
    low: float
    high: float

    @property
    def named(self) -> dict[str, float]:
        """Return the three numbers by name."""
        return dict(zip(self.names, (self.mean, self.low, self.high), strict=True))


@dataclass(frozen=True)
class MeanInterval(Estimate):
    """A sample mean and its two-sided 95% Student-t confidence interval."""

    names = ("return_mean", "return_low", "return_high")

    @classmethod
    def of(cls, sample: npt.NDArray[np.float64]) -> Self:
        """Compute mean ± t(0.975, n - 1)·s/√n of n independent values.

        Raises:
            ValueError: fewer than two values, which have no spread.
        """
        count = len(sample)
        if count < 2:
            raise ValueError(f"an interval needs at least 2 values, found {count}")
        from scipy.special import stdtrit  # readers of a summary do without it

        mean = float(sample.mean())
        half = float(stdtrit(count - 1, 0.975) * sample.std(ddof=1) / np.sqrt(count))
        return cls(mean, mean - half, mean + half)

    @classmethod
    def over(cls, seeds: Sequence[Self]) -> Self:
        """Average several policies' means, with the interval of their spread; keep a single
        policy's interval.
        """
        return seeds[0] if len(seeds) == 1 else cls.of(np.array([own.mean for own in seeds]))


@dataclass(frozen=True)
class ModelValue(Estimate):
    """Value in the released model: the mean over the ensemble's members, and the least and greatest
    of theirs.
    """

    names = ("model_value", "model_low", "model_high")

    @classmethod
    def of(cls, by_member: "Tensor") -> Self:
        """Summarise the members' values, ``[N]``."""
        return cls(float(by_member.mean()), float(by_member.min()), float(by_member.max()))

    @classmethod
    def over(cls, seeds: Sequence[Self]) -> Self:
        """Average several policies' values; the range is that of all members and policies."""
        return cls(
            fmean(own.mean for own in seeds),
            min(own.low for own in seeds),
            max(own.high for own in seeds),
        )
