"""Trained policies on tensors, as evaluation uses them, and how they are saved."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import one_hot

from primorl.base.files import file_sha256
from primorl.policy.config import Folder, PolicyConfig
from primorl.policy.loaded import EPOCHS, FINAL, SCALES, layer_names, read_policy

_NEVER = -1e4  # the output for a discrete action that is never taken
Layers = tuple[Tensor, ...]
"""Weights ``[.., out, in]`` and biases ``[.., 1, out]`` in turn, first layer first.

[out, in] is the order in which products with a narrow output layer are fast, forward and backward.
"""


def mlp(layers: Layers, inputs: Tensor) -> Tensor:
    """Run a ReLU network: ``[B, in]`` to ``[B, out]``, or P of them side by side, ``[P, B, in]`` to
    ``[P, B, out]``.
    """
    product = torch.addmm if inputs.dim() == 2 else torch.baddbmm
    hidden = inputs
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        hidden = product(bias, hidden, weight.mT).relu_()
    return product(layers[-1], hidden, layers[-2].mT)


def in_bounds(unit: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map actions ``[.., A]`` from [-1, 1] to the environment's units, between ``low`` and
    ``high``, ``[A]``.
    """
    # Rounding can step over a bound.
    return (low + (unit + 1) * 0.5 * (high - low)).clamp(low, high)


def side_by_side(parts: Sequence[Layers]) -> Layers:
    """Return the networks of one shape, those of every part one after the other."""
    return tuple(torch.cat(same) for same in zip(*parts, strict=True))


def initial_layers(sizes: Sequence[int], networks: int, generator: torch.Generator) -> Layers:
    """Return the layers ``[networks, out, in]`` and ``[networks, 1, out]``, U(-1/√in, 1/√in), as
    ``torch.nn.Linear`` begins.

    Drawn on the CPU, so that a seed means the same weights on every device.
    """
    layers: list[Tensor] = []
    for inputs, outputs in itertools.pairwise(sizes):
        counts = [networks * outputs * inputs, networks * outputs]
        drawn = torch.rand(sum(counts), generator=generator)
        weight, bias = torch.split((2 * drawn - 1) / math.sqrt(inputs), counts)
        layers += [weight.view(networks, outputs, inputs), bias.view(networks, 1, outputs)]
    return tuple(layers)


@dataclass(frozen=True)
class DeterministicPolicy:
    """P policies of one shape side by side: low + (high - low)·(tanh MLP(standardised observation)
    + 1)/2.

    With discrete actions: the one with the largest output, as a one-hot vector.

    Attributes:
        layers: weights ``[P, out, in]`` and biases ``[P, 1, out]`` in turn; ReLU between layers.
        observation_mean: ``[S]``, of the public normaliser.
        observation_scale: ``[S]``, of the public normaliser.
        action_low: ``[A]``.
        action_high: ``[A]``.
        discrete_actions: whether actions are 0 … A - 1; the bounds are then 0 and 1.
    """

    layers: Layers
    observation_mean: Tensor
    observation_scale: Tensor
    action_low: Tensor
    action_high: Tensor
    discrete_actions: bool = False

    @property
    def policies(self) -> int:
        """P."""
        return len(self.layers[0])

    @property
    def observation_size(self) -> int:
        """S."""
        return len(self.observation_mean)

    @property
    def action_size(self) -> int:
        """A."""
        return len(self.action_low)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return the actions in the environment's units, inside its bounds, or one-hot: ``[P, B,
        S]`` to ``[P, B, A]``.
        """
        output = mlp(self.layers, (observation - self.observation_mean) / self.observation_scale)
        if self.discrete_actions:
            return one_hot(output.argmax(-1), self.action_size).to(output.dtype)
        return in_bounds(output.tanh_(), self.action_low, self.action_high)

    @classmethod
    def stack(cls, parts: Sequence["DeterministicPolicy"]) -> "DeterministicPolicy":
        """Return the policies of ``parts``, which share their scales, side by side."""
        return replace(parts[0], layers=side_by_side([part.layers for part in parts]))

    def one(self, number: int) -> "DeterministicPolicy":
        """Return policy ``number`` alone."""
        return replace(self, layers=tuple(layer[number : number + 1] for layer in self.layers))

    def without(self, actions: Sequence[int]) -> "DeterministicPolicy":
        """Return policies that never take these discrete actions, whatever they observe."""
        if not actions:
            return self
        *hidden, weight, bias = self.layers
        weight, bias, places = weight.clone(), bias.clone(), list(actions)
        weight[:, places] = 0.0
        bias[..., places] = _NEVER
        return replace(self, layers=(*hidden, weight, bias))

    @classmethod
    def load(cls, folder: Path, name: str = FINAL, device: torch.device | None = None) -> Self:
        """Read the final policy (P = 1) that `save` wrote, or with ``EPOCHS`` those at the end of
        every epoch; raises the errors of `read_policy`.
        """
        saved = read_policy(folder, name)
        layers = tuple(torch.from_numpy(layer).to(device) for layer in saved.layers)
        scales = {name: torch.from_numpy(getattr(saved, name)).to(device) for name in SCALES}
        return cls(layers, **scales, discrete_actions=saved.discrete_actions)


def save(
    folder: Path,
    epochs: Sequence[DeterministicPolicy],
    *,
    policy: Folder = "models/policy",
    observation_range: tuple[Tensor, Tensor] | None = None,
    **facts: Any,
) -> None:
    """Write one policy for each epoch, and the last one again as the final policy.

    Makes ``policy.safetensors``, ``epochs.safetensors`` (normaliser and action bounds inside both)
    and ``config.json`` in ``folder``.

    Args:
        folder: an existing folder.
        epochs: the policies at the end of every epoch.
        policy: folder that these files are of.
        observation_range: the lowest and the highest public value of each dimension, ``[S]`` each;
            one that is infinite is not stated.
        facts: other fields of `PolicyConfig`: ``variant``, ``environment``, and those that have a
            default.
    """
    last = epochs[-1]
    save_file(_tensors(last), folder / FINAL)
    save_file(_tensors(DeterministicPolicy.stack(epochs)), folder / EPOCHS)
    low, high = None, None
    if observation_range is not None and torch.stack(observation_range).isfinite().all():
        low, high = (tuple(side.tolist()) for side in observation_range)
    PolicyConfig(
        policy=policy,
        observation_size=last.observation_size,
        action_size=last.action_size,
        hidden=tuple(weight.shape[1] for weight in last.layers[:-2:2]),
        discrete_actions=last.discrete_actions,
        observation_low=low,
        observation_high=high,
        epochs=len(epochs),
        policy_sha256=file_sha256(folder / FINAL),
        **facts,
    ).write(folder)


def seed_folders(folder: Path, seeds: Sequence[int]) -> list[Path]:
    """Return the folder of each seed's policy: ``folder`` itself for the first,
    ``folder/seeds/<seed>`` for the others.
    """
    return [
        folder if number == 0 else folder / "seeds" / str(seed) for number, seed in enumerate(seeds)
    ]


def _tensors(policy: DeterministicPolicy) -> dict[str, Tensor]:
    layers = dict(zip(layer_names(len(policy.layers) // 2), policy.layers, strict=True))
    scales = {name: getattr(policy, name) for name in SCALES}
    return {
        name: value.detach().float().cpu().contiguous() for name, value in (layers | scales).items()
    }
