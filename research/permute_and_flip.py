"""Permute-and-flip: a private choice of the candidate with about the largest sum of scores, under
pure ε-DP.
"""

from fractions import Fraction

import torch
from torch import Tensor

from primorl.privacy.mechanism.sampling import Entropy

ONE = 1 << 36
"""The integer that represents a score of 1."""


def sum_scores(scores: Tensor) -> Tensor:
    """Sum ``[U, k]`` scores over the units, each held within [0, 1] and truncated to multiples of 1
    / ONE. Sensitive.

    Returns int64 ``[k]``. Zeroing out a unit moves every sum down by between 0 and 1: the sums are
    monotone with sensitivity 1. NaN counts as 0.
    """
    held = scores.to(torch.float64).nan_to_num(nan=0.0).clamp(0, 1)
    whole: Tensor = (held * ONE).trunc().to(torch.int64)
    return whole.sum(0)


def choose(total: Tensor, epsilon: float, entropy: Entropy) -> int:
    """Choose a candidate by its sum of scores, int64 ``[k]`` as `sum_scores` makes them,
    ε-privately.

    McKenna and Sheldon 2020, "Permute-and-flip: a new mechanism for differentially private
    selection", without their factor 2, as the sums are monotone: candidate j is admitted with
    probability exp(-ε (T_max - T_j)), independently of the others, and one of the admitted is drawn
    uniformly. All coins are exact.
    """
    sums = total.tolist()
    best, rate = max(sums), Fraction(epsilon) / ONE
    admitted = [j for j, own in enumerate(sums) if flip(entropy, rate * (best - own))]
    return admitted[below(entropy, len(admitted))]


def below(entropy: Entropy, limit: int) -> int:
    """Draw a uniform whole number from 0 to ``limit`` - 1, exactly, by rejection of random bits."""
    bits = (limit - 1).bit_length()
    buffer = bytearray(-(-bits // 8))
    while True:
        entropy.fill(memoryview(buffer))
        drawn = int.from_bytes(buffer) & ((1 << bits) - 1)
        if drawn < limit:
            return drawn


def flip(entropy: Entropy, exponent: Fraction) -> bool:
    """Draw True with probability exp(-``exponent``), exactly, for an exponent of at least 0.

    Canonne, Kamath and Steinke 2020, Algorithm 1: in a row of coins of probability γ/1, γ/2, γ/3,
    …, γ ≤ 1, the number of those that fall before the first that does not is even with probability
    exp(-γ).
    """
    while exponent > 1:
        if not flip(entropy, Fraction(1)):
            return False
        exponent -= 1
    fallen = 0
    while below(entropy, exponent.denominator * (fallen + 1)) < exponent.numerator:
        fallen += 1
    return fallen % 2 == 0
