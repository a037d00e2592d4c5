"""Which units join a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from primorl.privacy.mechanism.entropy import Entropy, integers

if TYPE_CHECKING:  # slow to import, and a plan that is only costed samples nobody
    from torch import Tensor


@dataclass(frozen=True)
class PoissonSampler:
    """Every unit tosses its own coin of probability q, independently of all others and of all rounds.

    Formal guarantee: zeroing out a unit changes no other unit's coin, which is what
    `PoissonSampledDpEvent` accounts. The realised cohort may be empty; its size is private.
    """

    sampling_probability: float

    def sample(self, units: int, entropy: Entropy) -> Tensor:
        """Indices of this round's cohort, int64 ``[U]``, ascending. Sensitive: never log it or its size."""
        import torch

        if self.sampling_probability >= 1:
            return torch.arange(units)
        # Rounded down to a multiple of 2⁻⁶⁴: never above the accounted probability.
        threshold = np.uint64(int(self.sampling_probability * 2.0**64))
        return torch.from_numpy(np.flatnonzero(integers(entropy, units) < threshold))
