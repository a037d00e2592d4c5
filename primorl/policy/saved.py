"""The files of a policy, and how they are read. Needs numpy, safetensors and pydantic; runs nothing from the files."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from primorl.policy.config import PolicyConfig
from primorl.project.elapsed import ElapsedTime
from primorl.project.errors import PipelineError

FINAL, EPOCHS, CONFIG = "policy.safetensors", "epochs.safetensors", "config.json"
SCALES = ("observation_mean", "observation_scale", "action_low", "action_high")

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SavedPolicy:
    """What the files of P policies of one shape hold.

    Attributes:
        layers: weights ``[P, out, in]`` and biases ``[P, 1, out]`` in turn.
        observation_mean: ``[S]``, of the public normaliser.
        observation_scale: ``[S]``, of the public normaliser; positive.
        action_low: ``[A]``.
        action_high: ``[A]``; above ``action_low``.
        discrete_actions: whether actions are 0 … A - 1.
        drawn: whether a discrete action is drawn, with probabilities softmax(output).
        observation_range: the lowest and the highest public value of each dimension, ``[S]`` each; None if the files
            do not say.
        simulated: whether the policy is for a simulator, and not for what a log tells of.
        observation_names: of each dimension; empty if the files do not say.
        action_names: of each dimension, or of each discrete action; empty if the files do not say.
        elapsed: the dimension that is the time since the row before; None: there is none.
    """

    layers: tuple[Array, ...]
    observation_mean: Array
    observation_scale: Array
    action_low: Array
    action_high: Array
    discrete_actions: bool
    drawn: bool
    observation_range: tuple[Array, Array] | None
    simulated: bool
    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    elapsed: ElapsedTime | None = None


def read_policy(folder: Path) -> SavedPolicy:
    """Read the final policy (P = 1) of a folder.

    Raises:
        PipelineError: a file is missing or broken, or the files contradict each other.
    """
    return _read(folder, FINAL, policies=1)


def read_epochs(folder: Path) -> SavedPolicy:
    """Read the policies at the end of every epoch (P = epochs); raises what `read_policy` raises."""
    return _read(folder, EPOCHS, policies=None)


def _read(folder: Path, name: str, policies: int | None) -> SavedPolicy:
    path = folder / name
    config = PolicyConfig.read(folder)
    try:
        tensors = load_file(path)
        shapes, discrete = _shapes(config, policies), config.discrete_actions
        _check(tensors, shapes)
        scales = {name: tensors[name] for name in SCALES}
        return SavedPolicy(
            layers=tuple(tensors[layer] for layer in shapes if layer not in SCALES),
            **scales,
            discrete_actions=discrete,
            drawn=discrete and config.drawn,
            observation_range=_range(config, len(scales["observation_mean"])),
            simulated=config.environment is not None,
            observation_names=_names(config.observation_names, len(scales["observation_mean"])),
            action_names=_names(config.action_names, len(scales["action_low"])),
            elapsed=_elapsed(config),
        )
    except FileNotFoundError:
        raise PipelineError(f"{path}: not there; run `dvc repro optimize_policy` to make it") from None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError) as broken:
        reason = broken if isinstance(broken, _MismatchError) else type(broken).__name__
        raise PipelineError(f"{path}: not a policy ({reason}); run `dvc repro optimize_policy` again") from None


def layer_names(layers: int) -> list[str]:
    """Names of the weights and biases of so many layers, as the files have them."""
    return [f"layers.{layer}.{part}" for layer in range(layers) for part in ("weight", "bias")]


def _shapes(config: PolicyConfig, policies: int | None) -> dict[str, tuple[int, ...]]:
    """The shape that ``config.json`` gives to every tensor, layers first and in order."""
    S, A = config.observation_size, config.action_size
    P = config.epochs if policies is None else policies
    sizes = (S, *config.hidden, A)
    layers = [
        shape for inputs, outputs in itertools.pairwise(sizes) for shape in ((P, outputs, inputs), (P, 1, outputs))
    ]
    shapes = dict(zip(layer_names(len(sizes) - 1), layers, strict=True))
    return shapes | {name: (S if name.startswith("observation") else A,) for name in SCALES}


def _check(tensors: Mapping[str, npt.NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        found = tensors[name]
        if found.shape != shape:
            raise _MismatchError(f"{name} has shape {found.shape}, {CONFIG} says {shape}")
        if found.dtype != np.float32 or not np.isfinite(found).all():
            raise _MismatchError(f"{name} is not made of finite float32 numbers")
    if len(tensors) != len(shapes):
        raise _MismatchError(f"{len(tensors)} tensors, {CONFIG} says {len(shapes)}")
    if (tensors["action_low"] >= tensors["action_high"]).any() or (tensors["observation_scale"] <= 0).any():
        raise _MismatchError("a scale that is not positive")


def _range(config: PolicyConfig, size: int) -> tuple[Array, Array] | None:
    if config.observation_low is None or config.observation_high is None:
        return None
    low, high = (np.asarray(side, dtype=np.float32) for side in (config.observation_low, config.observation_high))
    if low.shape != (size,) or high.shape != (size,) or not (low <= high).all():
        raise _MismatchError(f"observation_low and observation_high in {CONFIG} are not {size} ranges")
    return low, high


def _names(names: tuple[str, ...] | None, size: int) -> tuple[str, ...]:
    if names and len(names) != size:
        raise _MismatchError(f"{CONFIG} has {len(names)} names for {size} dimensions")
    return names or ()


def _elapsed(config: PolicyConfig) -> ElapsedTime | None:
    if config.elapsed is not None and config.elapsed.name not in (config.observation_names or ()):
        raise _MismatchError(f"elapsed in {CONFIG} is no dimension of the observation")
    return config.elapsed


class _MismatchError(ValueError):
    """Two files of one policy that contradict each other."""
