"""What a policy is worth in the released model, where no environment can measure it. Model-based, not a measurement."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from torch import Tensor

NOTE = (
    "the policy's mean return in the released model, not measured in the world: wrong wherever the model is, "
    "and likely too high, for the policy was trained in this model"
)


@dataclass(frozen=True)
class ModelValue:
    """Mean over the ensemble's members of what each says, and the least and the most that one of them says."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, by_member: Tensor) -> Self:
        """From the members' values, ``[N]``."""
        return cls(float(by_member.mean()), float(by_member.min()), float(by_member.max()))

    @classmethod
    def over(cls, seeds: Sequence[Self]) -> Self:
        """The mean of several policies' values, and the least and the most that a member says of one of them."""
        return cls(fmean(own.mean for own in seeds), min(own.low for own in seeds), max(own.high for own in seeds))
