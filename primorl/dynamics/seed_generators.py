"""Random numbers for several seeds side by side."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor


class SeedGenerators:
    """One generator for each of G seeds, all on one device; of n rows, the first n/G are the first seed's, and so on.

    So a seed's numbers do not depend on which others are there.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = tuple(generators)
        self.device = generators[0].device

    @classmethod
    def of(cls, seeds: Sequence[int], device: torch.device) -> "SeedGenerators":
        """A generator on ``device`` for each seed."""
        return cls([torch.Generator(device).manual_seed(seed) for seed in seeds])

    def randn(self, rows: int, *shape: int) -> Tensor:
        """Standard normal, ``[rows, ...]``."""
        return self._drawn(torch.randn, rows, shape)

    def rand(self, rows: int, *shape: int) -> Tensor:
        """Uniform in [0, 1), ``[rows, ...]``."""
        return self._drawn(torch.rand, rows, shape)

    def randint(self, high: int, rows: int, *shape: int) -> Tensor:
        """Uniform in 0 … high - 1, int64 ``[rows, ...]``."""
        return self._drawn(partial(torch.randint, high), rows, shape)

    def exponential(self, rows: int, *shape: int) -> Tensor:
        """Exponential with rate 1, ``[rows, ...]``."""
        return self._drawn(_exponential, rows, shape)

    def _drawn(self, draw: Callable[..., Tensor], rows: int, shape: tuple[int, ...]) -> Tensor:
        size = (rows // len(self.generators), *shape)
        parts = [draw(size, generator=generator, device=self.device) for generator in self.generators]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _exponential(size: tuple[int, ...], *, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.empty(size, device=device).exponential_(generator=generator)
