"""A Gaussian dynamics ensemble: weights as plain tensors, its prediction, its loss, its file."""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu, softplus

from pipeline.errors import PipelineError

_MOST_QUANTILE_ROWS = 1 << 18  # torch.quantile takes 16 million numbers at most

# What a damaged or hostile file makes the reader raise; OverflowError: 1e999 for a size; RecursionError: deep nesting.
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, SafetensorError)

Weights = tuple[Tensor, ...]
"""Alternating ``[N, in, out]`` matrices and ``[N, 1, out]`` biases, first layer first."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of the ensemble and the fixed bounds of its log-variance.

    Each of ``members`` is an MLP from (observation, action) to the mean and log-variance of the
    standardised (next_observation - observation, reward), with Swish activations (PriMORL, section 4.1,
    after MOPO). The log-variance bounds are constants: MOPO learns them, but there they would be shared
    by members and lie outside the clipped update.
    """

    observation_size: int
    action_size: int
    members: int
    hidden: tuple[int, ...]
    log_variance_low: float
    log_variance_high: float

    @property
    def inputs(self) -> int:
        """S + A."""
        return self.observation_size + self.action_size

    @property
    def targets(self) -> int:
        """S + 1."""
        return self.observation_size + 1

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every layer; the last one gives means and raw log-variances side by side."""
        sizes = (self.inputs, *self.hidden, 2 * self.targets)
        return tuple(itertools.pairwise(sizes))

    @property
    def parameters(self) -> int:
        """Weights of the whole ensemble: the dimension of one noise draw."""
        return self.members * sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    def initial_weights(self, seed: int) -> Weights:
        """Draw weights uniformly within ±1/√in, each member its own, from a public seed."""
        generator = torch.Generator().manual_seed(seed)
        weights: list[Tensor] = []
        for inputs, outputs in self.layers:
            bound = 1 / math.sqrt(inputs)
            for shape in ((self.members, inputs, outputs), (self.members, 1, outputs)):
                weights.append((torch.rand(shape, generator=generator) * 2 - 1) * bound)
        return tuple(weights)


def forward(weights: Weights, inputs: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Mean and log-variance of the standardised targets.

    Args:
        weights: ``[N, in, out]`` and ``[N, 1, out]`` tensors.
        inputs: standardised, ``[N, B, S + A]``.
        low: lower bound of the log-variance.
        high: upper bound of the log-variance.

    Returns:
        Two ``[N, B, S + 1]`` tensors.
    """
    hidden = inputs
    last = len(weights) - 2
    for layer in range(0, len(weights), 2):
        hidden = torch.baddbmm(weights[layer + 1], hidden, weights[layer])
        if layer != last:
            hidden = silu(hidden)
    mean, raw = hidden.chunk(2, dim=-1)
    return mean, soft_bounded(raw, low, high)


def soft_bounded(raw: Tensor, low: float, high: float) -> Tensor:
    """Squeeze ``raw`` smoothly into (low, high) by two softplus functions, as in PETS and MOPO."""
    below_high = high - softplus(high - raw)
    return low + softplus(below_high - low)


def negative_log_likelihood(mean: Tensor, log_variance: Tensor, targets: Tensor) -> Tensor:
    """Gaussian negative log-likelihood, summed over the last axis, without its constant."""
    return 0.5 * ((mean - targets).square() * torch.exp(-log_variance) + log_variance).sum(-1)


@dataclass(frozen=True)
class Normaliser:
    """Affine maps to standardised inputs and targets; made from public data only.

    Inputs are centred on their mean and divided by their standard deviation. Targets are centred on their median and
    divided by a robust spread, the 90% quantile of |y - median| over 1.645 (the normal's): a few rare
    jumps may hold most of a target's variance, and scaled by that the usual motion would vanish.
    """

    input_mean: Tensor
    input_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor

    @classmethod
    def from_public(cls, inputs: Tensor, targets: Tensor) -> "Normaliser":
        """Fit to public transitions: inputs ``[R, S + A]``, targets ``[R, S + 1]``."""
        targets = targets[:: -(-len(targets) // _MOST_QUANTILE_ROWS)]
        centre = targets.median(dim=0).values
        spread = (targets - centre).abs().quantile(0.9, dim=0) / 1.645
        # Sparse targets (a reward that is nearly always the same) have no such spread.
        spread = torch.where(spread > 0, spread, targets.std(dim=0))
        return cls(inputs.mean(0), _positive(inputs.std(0)), centre, _positive(spread))

    def inputs(self, raw: Tensor) -> Tensor:
        """Standardise ``[..., S + A]``."""
        return (raw - self.input_mean) / self.input_scale

    def targets(self, raw: Tensor) -> Tensor:
        """Standardise the first S + 1 columns of ``[..., >= S + 1]``."""
        return (raw[..., : len(self.target_mean)] - self.target_mean) / self.target_scale

    def to(self, device: torch.device) -> "Normaliser":
        """The same maps on ``device``."""
        return Normaliser(
            self.input_mean.to(device),
            self.input_scale.to(device),
            self.target_mean.to(device),
            self.target_scale.to(device),
        )


def _positive(scale: Tensor) -> Tensor:
    return torch.where(scale > 1e-6, scale, torch.ones_like(scale))


@dataclass(frozen=True)
class Bounds:
    """What model states, actions and rewards may be: declared or public facts.

    ``observation_*`` are ``[S]``, ``action_*`` are ``[A]``; infinite where nothing is known.
    """

    observation_low: Tensor
    observation_high: Tensor
    action_low: Tensor
    action_high: Tensor
    reward_low: float
    reward_high: float


@dataclass(frozen=True)
class GaussianEnsemble:
    """A trained ensemble with all that is needed to use it."""

    architecture: Architecture
    weights: Weights
    normaliser: Normaliser
    bounds: Bounds

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Predict (next_observation - observation, reward) with every member, in the data's units.

        Args:
            observation: ``[B, S]``.
            action: ``[B, A]``.

        Returns:
            Mean and standard deviation, ``[N, B, S + 1]`` each.
        """
        shape = self.architecture
        inputs = self.normaliser.inputs(torch.cat((observation, action), dim=-1))
        mean, log_variance = forward(
            self.weights, inputs.expand(shape.members, -1, -1), shape.log_variance_low, shape.log_variance_high
        )
        scale = self.normaliser.target_scale
        return mean * scale + self.normaliser.target_mean, torch.exp(0.5 * log_variance) * scale

    def save(self, folder: Path, **about: Any) -> None:
        """Write ``model.safetensors`` and ``config.json`` (with ``about`` added) into ``folder``."""
        tensors = {f"layers.{i // 2}.{('weight', 'bias')[i % 2]}": w for i, w in enumerate(self.weights)}
        for part in (self.normaliser, self.bounds):
            tensors |= {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}
        save_file({k: v.detach().float().cpu().contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
        shape = self.architecture
        config = {
            "format": 1,
            **vars(shape),
            "hidden": list(shape.hidden),
            "reward_low": self.bounds.reward_low,
            "reward_high": self.bounds.reward_high,
            **about,
        }
        text = json.dumps(config, indent=2, allow_nan=False) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> "GaussianEnsemble":
        """Read what ``save`` wrote. Executes nothing from the files.

        Raises:
            PipelineError: a file is missing, broken, or does not fit the other.
        """
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            tensors = load_file(folder / "model.safetensors", device=str(device))
            return cls._assemble(config, tensors)
        except FileNotFoundError as missing:
            raise PipelineError(
                f"{missing.filename or folder}: not there; `dvc checkout` brings the last one back, "
                "while training anew spends ε again"
            ) from None
        except _BROKEN as broken:
            reason = broken if isinstance(broken, _MismatchError) else type(broken).__name__
            raise PipelineError(
                f"{folder}: not a dynamics model ({reason}); `dvc checkout` brings the last one back"
            ) from None

    @classmethod
    def _assemble(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "GaussianEnsemble":
        shape = Architecture(
            observation_size=int(config["observation_size"]),
            action_size=int(config["action_size"]),
            members=int(config["members"]),
            hidden=tuple(int(size) for size in config["hidden"]),
            log_variance_low=float(config["log_variance_low"]),
            log_variance_high=float(config["log_variance_high"]),
        )
        sizes: dict[str, tuple[int, ...]] = {}
        for i, (inputs, outputs) in enumerate(shape.layers):
            sizes[f"layers.{i}.weight"] = (shape.members, inputs, outputs)
            sizes[f"layers.{i}.bias"] = (shape.members, 1, outputs)
        weight_names = list(sizes)
        sizes |= {f"input_{part}": (shape.inputs,) for part in ("mean", "scale")}
        sizes |= {f"target_{part}": (shape.targets,) for part in ("mean", "scale")}
        sizes |= {f"observation_{side}": (shape.observation_size,) for side in ("low", "high")}
        sizes |= {f"action_{side}": (shape.action_size,) for side in ("low", "high")}
        for name, size in sizes.items():
            if tuple(tensors[name].shape) != size:
                raise _MismatchError(f"{name} has shape {tuple(tensors[name].shape)}, config.json says {size}")
            if tensors[name].dtype != torch.float32:
                raise _MismatchError(f"{name} is not made of float32 numbers")
        if len(tensors) != len(sizes):
            raise _MismatchError(f"{len(tensors)} tensors, config.json says {len(sizes)}")
        normaliser = Normaliser(*(tensors[name] for name in Normaliser.__dataclass_fields__))
        bounds = Bounds(
            tensors["observation_low"],
            tensors["observation_high"],
            tensors["action_low"],
            tensors["action_high"],
            float(config["reward_low"]),
            float(config["reward_high"]),
        )
        return cls(shape, tuple(tensors[name] for name in weight_names), normaliser, bounds)


class _MismatchError(ValueError):
    """Two files of one model that contradict each other."""
