"""Adam, for many vectors at once, with moments that may be begun from what was released."""

from dataclasses import dataclass

import torch
from torch import Tensor

_FIRST_DECAY, _SECOND_DECAY, _LEAST = 0.9, 0.999, 1e-8


@dataclass
class Adam:
    """Moments of gradients (Kingma and Ba 2015, Algorithm 1).

    Attributes:
        first: ``[.., n]``.
        second: ``[.., n]``.
        steps: gradients so far; None where the moments need no correction for having begun at zero.
    """

    first: Tensor
    second: Tensor
    steps: int | None

    @classmethod
    def fresh(cls, like: Tensor) -> "Adam":
        """Moments of zero, corrected."""
        return cls(torch.zeros_like(like), torch.zeros_like(like), 0)

    def direction(self, gradient: Tensor) -> Tensor:
        """What a step of length 1 adds, uphill; ``gradient`` joins the moments."""
        self.first = _FIRST_DECAY * self.first + (1 - _FIRST_DECAY) * gradient
        self.second = _SECOND_DECAY * self.second + (1 - _SECOND_DECAY) * gradient.square()
        if self.steps is None:
            return self.first / (self.second.sqrt() + _LEAST)
        self.steps += 1
        first = self.first / (1 - _FIRST_DECAY**self.steps)
        second = self.second / (1 - _SECOND_DECAY**self.steps)
        return first / (second.sqrt() + _LEAST)
