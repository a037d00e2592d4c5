"""Trained policies as they are saved, loaded and used."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import one_hot

from primorl.policy.config import PolicyConfig, Variant
from primorl.project.errors import PipelineError

FINAL, EPOCHS, CONFIG = "policy.safetensors", "epochs.safetensors", "config.json"
_SCALES = ("observation_mean", "observation_scale", "action_low", "action_high")


Layers = tuple[Tensor, ...]
"""Weights ``[.., out, in]`` and biases ``[.., 1, out]`` in turn, first layer first.

[out, in] is the order in which products with a narrow output layer are fast, forward and backward.
"""


def mlp(layers: Layers, inputs: Tensor) -> Tensor:
    """ReLU network: ``[B, in]`` to ``[B, out]``, or P of them side by side, ``[P, B, in]`` to ``[P, B, out]``."""
    product = torch.addmm if inputs.dim() == 2 else torch.baddbmm
    hidden = inputs
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        hidden = product(bias, hidden, weight.mT).relu_()
    return product(layers[-1], hidden, layers[-2].mT)


def side_by_side(parts: Sequence[Layers]) -> Layers:
    """Networks of one shape, those of every part one after the other."""
    return tuple(torch.cat(same) for same in zip(*parts, strict=True))


@dataclass(frozen=True)
class DeterministicPolicy:
    """P policies of one shape side by side: low + (high - low)·(tanh MLP(standardised observation) + 1)/2.

    With discrete actions: the one whose output is largest, as a one-hot vector.

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
        """Actions in the environment's units, inside its bounds, or one-hot: ``[P, B, S]`` to ``[P, B, A]``."""
        output = mlp(self.layers, (observation - self.observation_mean) / self.observation_scale)
        if self.discrete_actions:
            return one_hot(output.argmax(-1), self.action_size).to(output.dtype)
        unit = output.tanh_()
        action = self.action_low + (unit + 1) * 0.5 * (self.action_high - self.action_low)
        return action.clamp(self.action_low, self.action_high)  # rounding can step over a bound

    @classmethod
    def stacked(cls, parts: Sequence["DeterministicPolicy"]) -> "DeterministicPolicy":
        """The policies of ``parts``, which share their scales, side by side."""
        return replace(parts[0], layers=side_by_side([part.layers for part in parts]))

    def one(self, number: int) -> "DeterministicPolicy":
        """Policy ``number`` alone."""
        return replace(self, layers=tuple(layer[number : number + 1] for layer in self.layers))

    @classmethod
    def load(cls, folder: Path) -> "DeterministicPolicy":
        """Read the final policy (P = 1) that `save` wrote. Executes nothing from the files.

        Raises:
            PipelineError: a file is missing, broken, or does not fit the other.
        """
        return cls._load(folder, FINAL, policies=1)

    @classmethod
    def load_epochs(cls, folder: Path) -> "DeterministicPolicy":
        """Read the policies at the end of every epoch (P = epochs) that `save` wrote; raises what `load` raises."""
        return cls._load(folder, EPOCHS, policies=None)

    @classmethod
    def _load(cls, folder: Path, name: str, policies: int | None) -> "DeterministicPolicy":
        path = folder / name
        config = PolicyConfig.read(folder)
        try:
            tensors = load_file(path)
            shapes, discrete = _shapes(config, policies), config.discrete_actions
            _check(tensors, shapes)
        except FileNotFoundError:
            raise PipelineError(f"{path}: not there; run `dvc repro optimize_policy` to make it") from None
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError) as broken:
            reason = broken if isinstance(broken, _MismatchError) else type(broken).__name__
            raise PipelineError(f"{path}: not a policy ({reason}); run `dvc repro optimize_policy` again") from None
        return cls(
            tuple(tensors[layer] for layer in shapes if layer not in _SCALES),
            tensors["observation_mean"],
            tensors["observation_scale"],
            tensors["action_low"],
            tensors["action_high"],
            discrete,
        )


def save(
    folder: Path,
    epochs: Sequence[DeterministicPolicy],
    *,
    variant: Variant,
    environment: str | None,
    seeds: Sequence[int] | None = None,
) -> None:
    """Write one policy for each epoch, and the last one again as the final policy.

    Makes ``policy.safetensors``, ``epochs.safetensors`` (normaliser and action bounds inside both) and ``config.json``
    in ``folder``.

    Args:
        folder: is there.
        epochs: the policies at the end of every epoch.
        variant: ``dynamics.variant`` of params.yaml.
        environment: id of the Gymnasium environment; None: no simulator.
        seeds: of the policies that were trained together, where params.yaml lists them.
    """
    last = epochs[-1]
    save_file(_tensors(last), folder / FINAL)
    save_file(_tensors(DeterministicPolicy.stacked(epochs)), folder / EPOCHS)
    PolicyConfig(
        variant=variant,
        policy="models/mopo" if variant == "mopo" else "models/policy",
        environment=environment,
        seeds=None if seeds is None else tuple(seeds),
        observation_size=last.observation_size,
        action_size=last.action_size,
        hidden=tuple(weight.shape[1] for weight in last.layers[:-2:2]),
        discrete_actions=last.discrete_actions,
        epochs=len(epochs),
    ).write(folder)


def seed_folders(folder: Path, seeds: Sequence[int]) -> list[Path]:
    """Where the policy of each seed lies: the first one's in ``folder`` itself, so that who wants one finds it."""
    return [folder if number == 0 else folder / "seeds" / str(seed) for number, seed in enumerate(seeds)]


def _tensors(policy: DeterministicPolicy) -> dict[str, Tensor]:
    layers = dict(zip(_layer_names(len(policy.layers) // 2), policy.layers, strict=True))
    scales = {name: getattr(policy, name) for name in _SCALES}
    return {name: value.detach().float().cpu().contiguous() for name, value in (layers | scales).items()}


def _layer_names(layers: int) -> list[str]:
    return [f"layers.{layer}.{part}" for layer in range(layers) for part in ("weight", "bias")]


def _shapes(config: PolicyConfig, policies: int | None) -> dict[str, tuple[int, ...]]:
    """What ``config.json`` says every tensor must look like, layers first and in order."""
    S, A = config.observation_size, config.action_size
    P = config.epochs if policies is None else policies
    sizes = (S, *config.hidden, A)
    layers = [
        shape for inputs, outputs in itertools.pairwise(sizes) for shape in ((P, outputs, inputs), (P, 1, outputs))
    ]
    shapes = dict(zip(_layer_names(len(sizes) - 1), layers, strict=True))
    return shapes | {name: (S if name.startswith("observation") else A,) for name in _SCALES}


def _check(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        found = tensors[name]
        if tuple(found.shape) != shape:
            raise _MismatchError(f"{name} has shape {tuple(found.shape)}, {CONFIG} says {shape}")
        if found.dtype != torch.float32 or not bool(found.isfinite().all()):
            raise _MismatchError(f"{name} is not made of finite float32 numbers")
    if len(tensors) != len(shapes):
        raise _MismatchError(f"{len(tensors)} tensors, {CONFIG} says {len(shapes)}")
    if bool((tensors["action_low"] >= tensors["action_high"]).any()) or bool((tensors["observation_scale"] <= 0).any()):
        raise _MismatchError("a scale that is not positive")


class _MismatchError(ValueError):
    """Two files of one policy that contradict each other."""
