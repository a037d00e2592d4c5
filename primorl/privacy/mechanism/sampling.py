"""Which units join a round."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from primorl.privacy.mechanism.entropy import Entropy, integers


@dataclass(frozen=True)
class PoissonSampler:
    """Every unit tosses its own coin of probability q, independently of all others and of all rounds.

    Formal guarantee: zeroing out a unit changes no other unit's coin, which is what
    `PoissonSampledDpEvent` accounts. The realised cohort may be empty; its size is private.
    """

    sampling_probability: float

    def sample(self, units: int, entropy: Entropy) -> Tensor:
        """Indices of this round's cohort, int64 ``[U]``, ascending. Sensitive: never log it or its size."""
        if self.sampling_probability >= 1:
            return torch.arange(units)
        # Rounded down to a multiple of 2⁻⁶⁴: never above the accounted probability.
        threshold = np.uint64(int(self.sampling_probability * 2.0**64))
        return torch.from_numpy(np.flatnonzero(integers(entropy, units) < threshold))
