"""Units in memory for tests of the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Architecture


@dataclass
class Ragged:
    """Units in memory, as lists of tensors: the smallest thing that satisfies `CohortSource`."""

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]

    @property
    def units(self) -> int:
        return len(self.inputs)

    def lengths(self, units: Tensor) -> Tensor:
        return torch.tensor([len(self.inputs[u]) for u in units.tolist()], dtype=torch.int64)

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        chosen = list(zip(units.tolist(), steps, strict=True))
        return (
            torch.stack([self.inputs[u][s] for u, s in chosen]),
            torch.stack([self.targets[u][s] for u, s in chosen]),
        )

    def without(self, unit: int) -> "Ragged":
        keep = [i for i in range(self.units) if i != unit]
        return Ragged([self.inputs[i] for i in keep], [self.targets[i] for i in keep])


def make_units(shape: Architecture, lengths: Sequence[int], seed: int = 0) -> Ragged:
    """Units of a smooth random system, uneven in length."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(shape.inputs, shape.targets, generator=generator)
    inputs = [torch.randn(length, shape.inputs, generator=generator) for length in lengths]
    return Ragged(inputs, [torch.sin(x @ mixing) for x in inputs])
