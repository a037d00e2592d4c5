"""Random bytes for what protects people: cohorts, local orders, noise.

Never logged, never saved, never seeded from a config: whoever knows the seed can subtract the noise.
"""

import math
import os
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

_DRAWS = 4
# Normals are made a tile of pairs at a time; the tile is what a seed's draws depend on. A block of tiles is what is in
# work at once: small enough for a core's own cache and for torch to stay on one thread, and it changes nothing else.
_TILE = 512
_BLOCK = 8
_ZEROS = bytes(1 << 16)
_UNUSED_BITS = np.uint64(11)
_CELL = 2.0**-53


class Entropy(Protocol):
    """A source of random bytes; ``seeded`` says that somebody could predict it, which voids a guarantee."""

    @property
    def seeded(self) -> bool:
        """Whether the bytes come from a seed."""

    def fill(self, buffer: memoryview) -> None:
        """Overwrite ``buffer`` (of bytes) with fresh ones."""


class SystemEntropy:
    """A ChaCha20 keystream under a key that the operating system draws anew for every call.

    Nothing is kept between calls, so there is no state to save, to fork or to replay on resume.
    """

    seeded = False

    def fill(self, buffer: memoryview) -> None:
        """Overwrite ``buffer`` with fresh bytes (at most 256 GiB, the cipher's counter)."""
        stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
        for start in range(0, len(buffer), len(_ZEROS)):
            part = buffer[start : start + len(_ZEROS)]
            stream.update_into(_ZEROS[: len(part)], part)


class SeededEntropy:
    """Reproducible bytes for tests. Everything made with it is void as a private release."""

    seeded = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def fill(self, buffer: memoryview) -> None:
        """Overwrite ``buffer`` with the next bytes of the seeded stream."""
        buffer[:] = self._generator.bytes(len(buffer))


def integers(entropy: Entropy, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """``count`` independent uniform 64-bit integers."""
    words = np.empty(count, np.uint64)
    entropy.fill(words.view(np.uint8).data)
    return words


def uniforms(entropy: Entropy, shape: tuple[int, ...]) -> Tensor:
    """Independent uniforms in (0, 1), float64, 53 random bits each; never exactly 0 or 1."""
    return _cells(integers(entropy, math.prod(shape))).mul_(_CELL).reshape(shape)


def normals(entropy: Entropy, count: int) -> Tensor:
    """``count`` independent standard normals, float64.

    Each is half the sum of four independent Box-Muller draws, √(-2 ln u) cos 2πv; the sines of the same four
    make a second one, of which it is independent. Every u and v has 53 bits of its own.

    Why four: the floating-point values that one draw can take are so few that an observer may tell what it was added to
    (Mironov 2012 for Laplace's, Jin et al. 2022 for Gaussian noise). A sum of several has too many pre-images to
    search (Holohan and Braghin 2021). No step rejects or branches on a value, so the time does not follow the noise.

    What this does not cover:

    - It makes the known attacks infeasible, which is not a proof: the sum, adding it to the private total, and rounding
      the release to float32 are floating-point arithmetic, so the release is Gaussian up to about 1e-16 of the noise,
      not exactly.
    - The tail: the smallest u is 2⁻⁵⁵, so no draw exceeds 8.73σ, while an ideal one's radius exceeds 8.57σ, up to where
      these u resolve it, with probability 2⁻⁵³. T releases of n coordinates take 2nT draws, so with probability at most
      nT·2⁻⁵² an ideal release had any such radius; ignoring them adds at most (1 + e^ε)·nT·2⁻⁵² to δ: 1.2e-9
      at n = 10⁴, T = 200 and ε = 0.5.
    - Memory: buffers are given back, not wiped.
    """
    tiles = -(-count // (2 * _TILE))
    drawn = torch.empty(tiles, 2, _TILE, dtype=torch.float64)
    words = np.empty((min(tiles, _BLOCK), 2, _DRAWS, _TILE), np.uint64)
    waves = torch.empty(len(words), _DRAWS, _TILE, dtype=torch.float64)
    for start in range(0, tiles, _BLOCK):
        block = drawn[start : start + _BLOCK]
        size = len(block)
        entropy.fill(words[:size].reshape(-1).view(np.uint8).data)
        radius, angle = _cells(words[:size]).unbind(1)
        radius.mul_(_CELL).log_().mul_(-2 / _DRAWS).sqrt_()  # over √4 too: the sum of four has variance 4
        angle.mul_(2 * math.pi * _CELL)
        torch.sum(torch.cos(angle, out=waves[:size]).mul_(radius), 1, out=block[:, 0])
        torch.sum(angle.sin_().mul_(radius), 1, out=block[:, 1])
    return drawn.view(-1)[:count]


def _cells(words: NDArray[np.uint64]) -> Tensor:
    """The upper 53 bits k of each word as k + ¼, float64, in the words' own memory: from ¼ to 2⁵³ - 1.

    A quarter, for the largest k plus a half would round to 2⁵³, and times 2⁻⁵³ be a one.
    """
    np.right_shift(words, _UNUSED_BITS, out=words)
    return torch.from_numpy(words.view(np.float64)).copy_(torch.from_numpy(words.view(np.int64))).add_(0.25)
