"""Random bytes for what protects people: cohorts, local orders, noise.

Never logged, never saved, never seeded from a config: whoever knows the seed can subtract the noise.
"""

import math
import os
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

_DRAWS = 4


class Entropy(Protocol):
    """A source of random bytes; ``seeded`` says that somebody could predict it, which voids a guarantee."""

    @property
    def seeded(self) -> bool:
        """Whether the bytes come from a seed."""

    def take(self, count: int) -> memoryview:
        """Return ``count`` fresh bytes."""


class SystemEntropy:
    """A ChaCha20 keystream under a key that the operating system draws anew for every call.

    Nothing is kept between calls, so there is no state to save, to fork or to replay on resume.
    """

    seeded = False

    def take(self, count: int) -> memoryview:
        """Return ``count`` fresh bytes (at most 256 GiB, the cipher's counter)."""
        stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
        zeros = bytes(count)
        buffer = bytearray(count)
        stream.update_into(zeros, buffer)
        return memoryview(buffer)


class SeededEntropy:
    """Reproducible bytes for tests. Everything made with it is void as a private release."""

    seeded = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def take(self, count: int) -> memoryview:
        """Return the next ``count`` bytes of the seeded stream."""
        return memoryview(bytearray(self._generator.bytes(count)))


def integers(entropy: Entropy, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """``count`` independent uniform 64-bit integers."""
    return np.frombuffer(entropy.take(8 * count), dtype=np.uint64)


def uniforms(entropy: Entropy, shape: tuple[int, ...]) -> Tensor:
    """Independent uniforms in (0, 1), float64, 53 random bits each; never exactly 0 or 1."""
    count = int(np.prod(shape, dtype=np.int64))
    bits = torch.frombuffer(entropy.take(8 * count), dtype=torch.int64) if count else torch.empty(0, dtype=torch.int64)
    # An arithmetic shift and a mask: torch has no unsigned shift.
    mantissa = bits.bitwise_right_shift(11).bitwise_and((1 << 53) - 1)
    return (mantissa.double().add_(0.5) * 2.0**-53).clamp_(max=1 - 2.0**-53).reshape(shape)


def normals(entropy: Entropy, count: int) -> Tensor:
    """``count`` independent standard normals, float64.

    Each is the scaled sum of four Box-Muller draws. A single draw leaves a pattern in its low bits from
    which an attacker may tell what it was added to (Mironov 2012); with several draws summed, each value
    has too many pre-images to search (Holohan and Braghin 2021). What this does not cover: the sum and
    the final rounding are floating point, so the release is Gaussian up to about 1e-16, not exactly.
    """
    pairs = (count + 1) // 2
    uniform = uniforms(entropy, (2, _DRAWS, pairs))
    radius = uniform[0].log_().mul_(-2).sqrt_()
    angle = uniform[1].mul_(2 * torch.pi)
    drawn = torch.cat(((radius * angle.cos()).sum(0), (radius * angle.sin()).sum(0)))
    return drawn[:count].div_(math.sqrt(_DRAWS))
