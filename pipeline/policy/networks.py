"""A network's parameters as one vector, and the optimiser that moves it."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.policy.exported import Layers


class Parameters:
    """One vector of parameters and its layers, which are views of it.

    A few kernels then update all of a network at once, where small layers would each cost a launch.
    """

    def __init__(self, vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
        self.vector = vector
        parts = torch.split(vector, [math.prod(shape) for shape in shapes])
        self.layers: Layers = tuple(
            part.view(shape).detach().requires_grad_() for part, shape in zip(parts, shapes, strict=True)
        )

    @classmethod
    def initial(cls, sizes: Sequence[int], batch: tuple[int, ...], generator: torch.Generator) -> "Parameters":
        """MLPs of the given layer sizes, U(-1/√in, 1/√in) throughout, as ``torch.nn.Linear`` begins.

        ``batch`` leads every shape: () is one network, (2,) are twins. Drawn on the CPU whatever the
        device, so that a seed means the same weights everywhere.
        """
        shapes: list[tuple[int, ...]] = []
        draws = []
        for inputs, outputs in itertools.pairwise(sizes):
            shapes += [(*batch, outputs, inputs), (*batch, 1, outputs)]
            draw = torch.rand(math.prod(batch) * outputs * (inputs + 1), generator=generator)
            draws.append((2 * draw - 1) / math.sqrt(inputs))
        return cls(torch.cat(draws), shapes)

    def to(self, device: torch.device) -> "Parameters":
        """A copy on ``device``."""
        return Parameters(self.vector.to(device, copy=True), [tuple(layer.shape) for layer in self.layers])

    def gradient(self, loss: Tensor) -> Tensor:
        """∂loss/∂vector, a vector of the same length."""
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, self.layers)])


class Adam:
    """Adam (Kingma and Ba 2015) on one vector, with the usual β = (0.9, 0.999) and ε = 1e-8.

    Half the time of ``torch.optim.Adam(fused=True)``, whose bookkeeping outweighs a small network's arithmetic.
    """

    def __init__(self, vector: Tensor, learning_rate: float) -> None:
        self._vector = vector
        self._learning_rate = learning_rate
        self._first = torch.zeros_like(vector)
        self._second = torch.zeros_like(vector)
        self._steps = 0

    def step(self, gradient: Tensor) -> None:
        """Move the vector along ``gradient``, in place."""
        self._steps += 1
        self._first.lerp_(gradient, 1 - 0.9)
        self._second.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        correction = math.sqrt(1 - 0.999**self._steps)
        scale = self._second.sqrt().add_(1e-8 * correction)
        rate = self._learning_rate * correction / (1 - 0.9**self._steps)
        self._vector.addcdiv_(self._first, scale, value=-rate)
