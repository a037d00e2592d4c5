"""Sources of randomness for cohorts, local orders and noise, and the Poisson sampler of cohorts.

Seeds are never logged, saved or taken from a config: a seed is enough to subtract the noise.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

if TYPE_CHECKING:
    from torch import Tensor


_ZEROS = bytes(1 << 16)
_UNUSED_BITS = np.uint64(11)


class Entropy(Protocol):
    """Source of random bytes; a ``seeded`` one can be predicted, which voids a guarantee."""

    @property
    def seeded(self) -> bool:
        """Whether the bytes come from a seed."""

    def fill(self, buffer: memoryview) -> None:
        """Overwrite ``buffer`` (of bytes) with fresh ones."""


class SystemEntropy:
    """ChaCha20 keystream under a key that the operating system draws anew for every call.

    Nothing is kept between calls, so there is no state to save, to fork or to replay on resume.
    """

    seeded = False

    def fill(self, buffer: memoryview) -> None:
        """Overwrite ``buffer`` with fresh bytes (at most 256 GiB, the cipher's counter)."""
        stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
        for start in range(0, len(buffer), len(_ZEROS)):
            part = buffer[start : start + len(_ZEROS)]
            stream.update_into(_ZEROS[: len(part)], part)


def integers(entropy: Entropy, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Draw ``count`` independent uniform 64-bit integers."""
    words = np.empty(count, np.uint64)
    entropy.fill(words.view(np.uint8).data)
    return words


def uniforms(entropy: Entropy, shape: tuple[int, ...]) -> Tensor:
    """Draw independent uniforms in (0, 1), float64, 53 random bits each; never exactly 0 or 1.

    The upper 53 bits k of a word become (k + ¼) 2⁻⁵³: the largest k plus a half would round to 2⁵³,
    and give a one.
    """
    import torch

    words = integers(entropy, math.prod(shape))
    np.right_shift(words, _UNUSED_BITS, out=words)
    whole = torch.from_numpy(words.view(np.int64))
    return (
        torch.from_numpy(words.view(np.float64))
        .copy_(whole)
        .add_(0.25)
        .mul_(2.0**-53)
        .reshape(shape)
    )


@dataclass(frozen=True)
class PoissonSampler:
    """Poisson sampler: every unit joins with probability q, independently of all others and of all
    rounds.

    Formal guarantee: zeroing out a unit changes no other unit's coin, as `PoissonSampledDpEvent`
    accounts it. The realised cohort may be empty; its size is private.
    """

    sampling_probability: float

    def sample(self, units: int, entropy: Entropy) -> Tensor:
        """Draw the indices of this round's cohort, int64 ``[U]``, ascending.

        Sensitive: never log it or its size.
        """
        import torch

        if self.sampling_probability >= 1:
            return torch.arange(units)
        # Rounded down to a multiple of 2⁻⁶⁴: never above the accounted probability.
        threshold = np.uint64(int(self.sampling_probability * 2.0**64))
        return torch.from_numpy(np.flatnonzero(integers(entropy, units) < threshold))
