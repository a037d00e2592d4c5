"""Small value networks of several members, and their gradients of every unit in closed form."""

import itertools
import math

import torch
from torch import Tensor

Layers = tuple[Tensor, ...]
"""Weights ``[N, in, out]`` and biases ``[N, 1, out]`` in turn, float64."""


def sizes(inputs: int, hidden: tuple[int, ...]) -> list[tuple[int, int]]:
    """(in, out) of every layer; the last has one output."""
    every = (inputs, *hidden, 1)
    return list(itertools.pairwise(every))


def parameters(inputs: int, hidden: tuple[int, ...]) -> int:
    """Weights of one member."""
    return sum((first + 1) * last for first, last in sizes(inputs, hidden))


def initial(inputs: int, hidden: tuple[int, ...], members: int, seed: int) -> Tensor:
    """Flat weights ``[N · parameters]``, each member its own; the last layer is 0, so every output is 0."""
    generator = torch.Generator().manual_seed(seed)
    parts: list[Tensor] = []
    for first, last in sizes(inputs, hidden):
        bound = 0.0 if last == 1 else 1 / math.sqrt(first)
        for rows in (first, 1):
            drawn = torch.rand((members, rows, last), generator=generator, dtype=torch.float64)
            parts.append((2 * drawn - 1) * bound)
    return torch.cat([part.flatten() for part in parts])


def layers(flat: Tensor, inputs: int, hidden: tuple[int, ...], members: int) -> Layers:
    """The layers that a flat vector ``[N · parameters]`` holds."""
    shapes = [(members, rows, last) for first, last in sizes(inputs, hidden) for rows in (first, 1)]
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))


def forward(weights: Layers, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Networks with tanh: ``[B, in]`` to outputs ``[N, B]``, and the inputs of every layer, ``[N, B, in]``."""
    hidden, kept = inputs.expand(len(weights[0]), -1, -1), []
    for number in range(0, len(weights), 2):
        kept.append(hidden)
        hidden = torch.baddbmm(weights[number + 1], hidden, weights[number])
        if number + 2 < len(weights):
            hidden = hidden.tanh()
    return hidden.squeeze(-1), kept


def unit_gradients(weights: Layers, kept: list[Tensor], slope: Tensor, units: int) -> Tensor:
    """Gradients of Σ_rows slope · output for every unit, all members side by side.

    Args:
        weights: of the networks.
        kept: of `forward`, whose rows are those of the units in turn, ``[N, U M, in]``.
        slope: derivative of the unit's loss by the output of each row, ``[N, U M]``.
        units: U.

    Returns:
        ``[U, N · parameters]``, in the order of `layers`.
    """
    back, parts = slope[..., None], []
    members = len(weights[0])
    for number in range(len(weights) - 2, -1, -2):
        inputs = kept[number // 2]
        rows = back.view(members, units, -1, back.shape[-1])
        parts.append(rows.sum(2).transpose(0, 1).flatten(1))
        products = inputs.reshape(members, units, -1, inputs.shape[-1]).transpose(-1, -2) @ rows
        parts.append(products.transpose(0, 1).flatten(1))
        if number:
            back = (back @ weights[number].transpose(-1, -2)) * (1 - inputs.square())
    return torch.cat(parts[::-1], 1)
