"""Memory in which one batch after another is computed."""

import math

import torch
from torch import Tensor

_CPU = torch.device("cpu")
_GAP = 16  # numbers behind each pair: a cache line, so that an alignment stays what it is


class Workspace:
    """Memory that one chunk after another is trained in: a system hands out fresh pages slowly, for
    a tenth of a round.

    Sensitive: it holds the last chunk's updates until the next one overwrites them.
    """

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device = device
        self._held: dict[tuple[str, int], Tensor] = {}

    def take(
        self, name: str, layer: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """A tensor of ``shape`` with arbitrary content."""
        size, key = math.prod(shape), (name, layer)
        if key not in self._held or self._held[key].numel() < size:
            self._held[key] = torch.empty(size, device=self._device, dtype=dtype)
        return self._held[key][:size].view(shape)

    def apart(self, name: str, layer: int, pairs: int, rows: int, columns: int) -> Tensor:
        """``[pairs, rows, columns]`` with a gap behind every pair, so that no element-wise
        operation runs across pairs.

        Such an operation takes as many numbers at once as the processor's registers hold, and those
        that are left at the end of a row of numbers by other instructions, with other last bits.
        Where it may run across pairs, the end falls into one pair or another, depending on how many
        there are. Behind a gap, every pair has its own end.
        """
        size = rows * columns
        stride = size + _GAP
        return self.take(name, layer, (pairs * stride,)).as_strided(
            (pairs, rows, columns), (stride, columns, 1)
        )
