"""Gaussian noise: the only place where noise is drawn (`Plan.release` and `GaussianQuery.release` add it)."""

import math

import numpy as np
import torch
from torch import Tensor

from primorl.privacy.mechanism.sampling import CELL, Entropy, cells

_DRAWS = 4
# Normals are made a tile of pairs at a time; the tile is what a seed's draws depend on. A block of tiles is what is in
# work at once: small enough for a core's own cache and for torch to stay on one thread, and it changes nothing else.
_TILE = 512
_BLOCK = 8


def normals(entropy: Entropy, count: int) -> Tensor:
    """Draw ``count`` independent standard normals, float64.

    Each is half the sum of four independent Box-Muller draws, √(-2 ln u) cos 2πv; the sines of the same four
    make a second one, of which it is independent. Every u and v has 53 bits of its own.

    Why four: one draw can take so few floating-point values that an observer may infer the value it was added to
    (Mironov 2012 for Laplace's, Jin et al. 2022 for Gaussian noise). A sum of several has too many pre-images to
    search (Holohan and Braghin 2021). No step rejects or branches on a value, so the time does not follow the noise.

    Limits:

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
        radius, angle = cells(words[:size]).unbind(1)
        radius.mul_(CELL).log_().mul_(-2 / _DRAWS).sqrt_()  # over √4 too: the sum of four has variance 4
        angle.mul_(2 * math.pi * CELL)
        torch.sum(torch.cos(angle, out=waves[:size]).mul_(radius), 1, out=block[:, 0])
        torch.sum(angle.sin_().mul_(radius), 1, out=block[:, 1])
    return drawn.view(-1)[:count]
