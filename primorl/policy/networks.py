"""MLPs side by side with a backward pass written by hand, and the optimiser that moves them."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from primorl.policy.exported import Layers

_relu_backward = torch.ops.aten.threshold_backward.grad_input


def initial_layers(sizes: Sequence[int], networks: int, generator: torch.Generator) -> Layers:
    """Return the layers ``[networks, out, in]`` and ``[networks, 1, out]``, U(-1/√in, 1/√in), as
    ``torch.nn.Linear`` begins.

    Drawn on the CPU, so that a seed means the same weights on every device.
    """
    layers: list[Tensor] = []
    for inputs, outputs in itertools.pairwise(sizes):
        draw = torch.rand(networks * outputs * (inputs + 1), generator=generator)
        weight, bias = torch.split(
            (2 * draw - 1) / math.sqrt(inputs), [networks * outputs * inputs, networks * outputs]
        )
        layers += [weight.view(networks, outputs, inputs), bias.view(networks, 1, outputs)]
    return tuple(layers)


class Networks:
    """P ReLU MLPs of one shape: parameters and gradient as one vector each, layers as views of
    them.

    There is no graph: ``forward`` keeps the activations in buffers that are used again, and
    ``backward`` reads them. It makes only the products it is asked for. The first weight lies as
    [in, out] in memory, the others as [out, in]: products are several times as fast where the
    narrow side is the rows of the stored matrix.

    Args:
        layers: weights ``[P, out, in]`` and biases ``[P, 1, out]`` in turn; copied.
        device: where they shall live.
    """

    def __init__(self, layers: Layers, device: torch.device) -> None:
        stored = (layers[0].mT, *layers[1:])
        self.vector = torch.cat([layer.flatten() for layer in stored]).to(device)
        self.gradient = torch.zeros_like(self.vector)
        self._shapes = [layer.shape for layer in stored]
        self._parameters, self._gradients = self._views(self.vector), self._views(self.gradient)
        self.layers: Layers = (self._parameters[0].mT, *self._parameters[1:])
        # Views that every update needs: making them anew would take as long as a small network's
        # products.
        self._forward = [
            (bias, weight.mT)
            for weight, bias in zip(self.layers[::2], self.layers[1::2], strict=True)
        ]
        self._outputs: dict[int, list[Tensor]] = {}
        self._slopes: dict[int, list[Tensor]] = {}
        self._kept: list[Tensor] = []

    def copy(self) -> "Networks":
        """Return networks of their own with the same parameters."""
        return Networks(self.layers, self.vector.device)

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the networks, ``[P, B, in]`` to ``[P, B, out]``: a buffer, good until the next call
        with as many rows.
        """
        buffers = self._buffers(self._outputs, inputs.shape[1])
        hidden = inputs
        self._kept = [inputs, *buffers]
        for (bias, weight), buffer in zip(self._forward, buffers, strict=True):
            if hidden is not inputs:
                hidden.relu_()
            hidden = torch.baddbmm(bias, hidden, weight, out=buffer)
        return hidden

    def backward(self, slope: Tensor, begin: int = 0) -> None:
        """Put ∂loss/∂parameters into ``gradient``, given the slope of a loss on the last
        ``forward``'s output.

        The slope, ``[P, b, out]``, is of the rows from ``begin`` on; the other rows have none.
        """
        for layer in reversed(range(len(self.layers) // 2)):
            inputs = self._kept[layer][:, begin:] if begin else self._kept[layer]
            weight, bias = self._gradients[2 * layer : 2 * layer + 2]
            if layer == 0:
                torch.bmm(inputs.mT, slope, out=weight)
            else:
                torch.bmm(slope.mT, inputs, out=weight)
            torch.sum(slope, dim=1, keepdim=True, out=bias)
            if layer > 0:
                slope = self._slope_before(layer, slope, inputs)

    def input_slope(self, slope: Tensor, begin: int) -> Tensor:
        """Return ∂loss/∂inputs ``[P, B, in - begin]`` of the inputs from number ``begin`` on, from
        the output's ``slope``.
        """
        for layer in reversed(range(1, len(self.layers) // 2)):
            slope = self._slope_before(layer, slope, self._kept[layer])
        return torch.bmm(slope, self._parameters[0][:, begin:].mT)

    def _slope_before(self, layer: int, slope: Tensor, activation: Tensor) -> Tensor:
        """Return the slope with respect to the input of the ReLU before ``layer``."""
        buffer = self._buffers(self._slopes, slope.shape[1])[layer - 1]
        torch.bmm(slope, self._parameters[2 * layer], out=buffer)
        _relu_backward(buffer, activation, 0, grad_input=buffer)
        return buffer

    def _buffers(self, held: dict[int, list[Tensor]], rows: int) -> list[Tensor]:
        """Return buffers of all layers (slopes: of all but the last) for so many rows, kept in
        ``held``.
        """
        if rows not in held:
            biases = self.layers[1:-2:2] if held is self._slopes else self.layers[1::2]
            with torch.inference_mode(False):  # tensors that may be used outside of it as well
                held[rows] = [bias.new_empty(len(bias), rows, bias.shape[2]) for bias in biases]
        return held[rows]

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, [math.prod(shape) for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
