"""Sources of randomness for cohorts, local orders and noise, Poisson samples, and
discrete Gaussian noise: the only place where noise is drawn (`Mechanism.release` and
`GaussianQuery.release` add it).

Seeds are never logged, saved or taken from a config: a seed is enough to subtract the noise.
"""

from __future__ import annotations

import itertools
import math
import os
from decimal import Decimal, localcontext
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

if TYPE_CHECKING:
    from torch import Tensor


_ZEROS = bytes(1 << 16)
_UNUSED_BITS = np.uint64(11)
_SMOOTHING = 6
_BLOCK = 1 << 14  # proposals at a time
_CELLS = 1 << 53
_DOUBT = 1 << 9  # cells by which `np.exp` may be wrong: 2⁻⁴⁴, some hundred times its error
_LARGEST = 1 << 47
_DIGITS, _MORE_BITS = 100, 256  # of exact decisions


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


def poisson_sample(entropy: Entropy, units: int, sampling_probability: float) -> Tensor:
    """Draw the indices of this round's cohort, int64 ``[U]``, ascending: every unit joins with
    probability q, independently of all others and of all rounds.

    Formal guarantee: zeroing out a unit changes no other unit's coin, as `PoissonSampledDpEvent`
    accounts it. The realised cohort may be empty. Sensitive: never log it or its size.
    """
    import torch

    if sampling_probability >= 1:
        return torch.arange(units)
    # Rounded down to a multiple of 2⁻⁶⁴: never above the accounted probability.
    threshold = np.uint64(int(sampling_probability * 2.0**64))
    return torch.from_numpy(np.flatnonzero(integers(entropy, units) < threshold))


# ---- noise


def discrete_gaussian(entropy: Entropy, count: int, scale: float) -> Tensor:
    """Draw ``count`` independent whole numbers k with probability proportional to exp(-k² / 2σ²),
    float64.

    σ is a whole number above √(``scale``² + 36). No decision depends on the rounding of float64, so
    the law is exact up to the digits of `_decide` (a probability of 1e-90 a draw) and its end at
    24σ (1e-126). Attacks that read the rounding of floating-point noise (Mironov 2012; Jin et al.
    2022) find nothing.

    Formal guarantee: adding these to a vector of whole numbers is at least as private as adding
    N(0, ``scale``²) to each of its numbers. Take a continuous X ~ N(0, σ² - 36) and, given X, a
    whole number Y with probability proportional to exp(-(Y - X)² / 72). The normaliser, Σ_k exp(-(k
    - X)² / 72), is 6√(2π) for every X up to a factor of 1 ± 1e-307 (Poisson summation), so Y has
      the law above up to such a factor. For a whole number a, a + Y is made
    from a + X in the same way, without knowing a. So this mechanism is post-processing of a
    Gaussian one with at least as much noise, and what holds of that one holds of it, also sampled
    and composed. (Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential
    privacy", prove zero-concentrated privacy directly.)

    The sampler is that of Karney 2016, "Sampling exactly from the normal distribution", on whole
    numbers. It draws a block b = 0, 1, 2, … with probability proportional to exp(-b²/2), a place j
    = 0 … σ - 1 in it and a sign, and accepts ± (b σ + j) with probability exp(-x (2 b + x) / 2), x
    = j / σ. Uniform numbers of 53 bits are compared with probabilities in float64; where they are
    too close to tell, both are computed further (`_decide`). How many proposals are refused says
    nothing of those that are accepted, so the time does not follow the noise.
    """
    if not 0 < scale < _LARGEST:
        raise ValueError(
            f"scale: found {scale}, allowed is above 0 and below {_LARGEST} (exact numbers)"
        )
    deviation = math.isqrt(math.ceil(scale) ** 2 + _SMOOTHING**2) + 1
    drawn, filled = np.empty(count), 0
    while filled < count:
        accepted = _propose(entropy, min(_BLOCK, 64 + 3 * (count - filled) // 2), deviation)[
            : count - filled
        ]
        drawn[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    import torch

    return torch.from_numpy(drawn)


def _propose(entropy: Entropy, size: int, deviation: int) -> npt.NDArray[np.int64]:
    """Make ``size`` proposals and return those that are accepted."""
    words = integers(entropy, 3 * size).reshape(3, size)
    of_block, of_chance = ((words[part] >> _UNUSED_BITS).astype(np.int64) for part in (0, 2))
    block = np.searchsorted(_bounds(), of_block, side="left")
    place = (words[1] % np.uint64(deviation)).astype(np.int64)
    x = place / deviation
    chance = np.exp(-x * (2 * block + x) / 2) * _CELLS
    accepted = of_chance < chance
    close = (np.abs(of_chance - chance) <= _DOUBT) | (_bounds()[block] == of_block)
    for i in np.flatnonzero(close):
        block[i], accepted[i] = _decide(entropy, of_block[i], place[i], of_chance[i], deviation)
    # else some places come more often
    accepted &= words[1] <= np.uint64((1 << 64) // deviation * deviation - 1)
    value = block * deviation + place
    negative = (words[0] & np.uint64(1)).astype(bool)
    accepted &= (value > 0) | ~negative  # 0 has one sign
    signed: npt.NDArray[np.int64] = np.where(negative, -value, value)[accepted]
    return signed


def _decide(
    entropy: Entropy, of_block: int, place: int, of_chance: int, deviation: int
) -> tuple[int, bool]:
    """Decide on a proposal with 256 further bits of both uniform numbers: its block, and whether it
    is accepted.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        cells = (Decimal(int(cell)) for cell in (of_block, of_chance))
        first, second = ((c + Decimal(_more(entropy)) / (1 << _MORE_BITS)) / _CELLS for c in cells)
        block = sum(first >= bound for bound in _exact_bounds())
        x = Decimal(int(place)) / deviation
        return block, second < (-x * (2 * block + x) / 2).exp()


def _more(entropy: Entropy) -> int:
    return int.from_bytes(integers(entropy, _MORE_BITS // 64).tobytes(), "little")


@cache
def _exact_bounds() -> list[Decimal]:
    """Compute the bounds of a uniform number between the blocks: shares of Σ exp(-b²/2) up to b = n
    in the whole.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        weights = [
            (-Decimal(block * block) / 2).exp() for block in range(24)
        ]  # exp(-24²/2) is 1e-125
        sums = list(itertools.accumulate(weights))
        return [each / sums[-1] for each in sums[:-1]]


@cache
def _bounds() -> npt.NDArray[np.int64]:
    """Return the cells of 2⁻⁵³ of the bounds, ascending.

    Several lie in the last cell: `_decide` tells them apart.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        return np.array([int(bound * _CELLS) for bound in _exact_bounds()])
