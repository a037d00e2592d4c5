"""A Minari dataset's description: its format, its spaces, and the arrays that hold them."""

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces as gym
from minari.serialization import deserialize_space

from primorl.project.errors import PipelineError
from primorl.trajectories.sources.spaces import spaces_of
from primorl.trajectories.storage.schema import Spaces

Array = npt.NDArray[Any]
Keys = tuple[str | int, ...]

AGAIN = "run `dvc repro collect` again"
KINDS = {"f": "floating point", "fiu": "real numbers", "b": "booleans", "iu": "whole numbers", "iub": "0 and 1"}
"""NumPy's kinds of numbers, in words."""
_FORMS = ("hdf5", "arrow", "parquet")


@dataclass(frozen=True)
class Leaf:
    """One array of a space: the keys that lead to it, and its own space."""

    keys: Keys
    space: gym.Space[Any]

    def vectors(self, values: Array, where: str) -> Array:
        """Flatten values [rows, …] of the space as Gymnasium does, [rows, size].

        Raises:
            PipelineError: if type or shape are others, or the space does not have a category.
        """
        kinds = "iub" if isinstance(self.space, gym.MultiBinary) else "iu"
        if isinstance(self.space, gym.Box) and np.issubdtype(self.space.dtype, np.floating):
            kinds = "f"
        if values.dtype.kind not in kinds:
            raise PipelineError(f"{where}: found type {values.dtype}; allowed: {KINDS[kinds]}")
        shape = tuple(self.space.shape or ())
        allowed = [shape, (math.prod(shape),), *([()] if math.prod(shape) == 1 else [])]
        if values.shape[1:] not in allowed:  # one number a step may have no axis
            raise PipelineError(
                f"{where}: found shape {values.shape[1:]} a step, declared is {shape}; "
                "correct `environment` in params.yaml, or the data"
            )
        if isinstance(self.space, gym.Discrete):
            return _one_hot(values.reshape(-1) - self.space.start, int(self.space.n), where)
        if isinstance(self.space, gym.MultiDiscrete):
            choices = values.reshape(len(values), -1) - self.space.start.ravel()
            sizes = self.space.nvec.ravel()
            return np.hstack([_one_hot(choices[:, i], int(size), where) for i, size in enumerate(sizes)])
        return values.reshape(len(values), -1)

    def chosen(self, values: Array, where: str) -> Array:
        """Give actions [T, A], or whole numbers [T] where they are discrete.

        Raises:
            PipelineError: see `vectors`.
        """
        if not isinstance(self.space, gym.Discrete):
            return self.vectors(values, where)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise PipelineError(
                f"{where}: found type {values.dtype} and {values.ndim} axes; allowed: one whole number a step"
            )
        return np.clip(values, -1, int(self.space.n))  # outside stays outside, and fits int32 for RowCheck


def leaves(space: gym.Space[Any], keys: Keys = ()) -> list[Leaf]:
    """List the arrays of a space as Gymnasium flattens them: a Dict's entries in the order that the Dict has them."""
    if isinstance(space, gym.Dict):
        return [leaf for key, inner in space.spaces.items() for leaf in leaves(inner, (*keys, key))]
    if isinstance(space, gym.Tuple):
        return [leaf for i, inner in enumerate(space.spaces) for leaf in leaves(inner, (*keys, i))]
    return [Leaf(keys, space)]


def _one_hot(choices: Array, size: int, where: str) -> Array:
    if ((choices < 0) | (choices >= size)).any():
        raise PipelineError(f"{where}: found a category outside the declared space; allowed: {size} categories")
    return np.eye(size, dtype=np.float32)[choices]


@dataclass(frozen=True)
class Metadata:
    """The part of a dataset's ``metadata.json`` that is needed here.

    Attributes:
        path: the file.
        form: hdf5, arrow or parquet.
        episodes: how many there are.
        observation: its observation space; None: older Minari stored none where it is the environment's.
        action: likewise.
    """

    path: Path
    form: str
    episodes: int
    observation: gym.Space[Any] | None
    action: gym.Space[Any] | None

    @property
    def data(self) -> Path:
        """The file of all episodes, or the folder of their folders."""
        return self.path.with_name("main_data.hdf5") if self.form == "hdf5" else self.path.parent

    @classmethod
    def read(cls, path: Path) -> "Metadata":
        """Read ``path``.

        Raises:
            PipelineError: if it is not Minari's, has no episodes, or its spaces cannot be read.
        """
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            form, episodes = content["data_format"], int(content["total_episodes"])
            stored = [content.get(name) for name in ("observation_space", "action_space")]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PipelineError(f"{path}: not the metadata of a Minari dataset; {AGAIN}") from None
        if form not in _FORMS:
            raise PipelineError(f"{path}: data_format: found {form!r}; allowed are {', '.join(_FORMS)}")
        if episodes < 1:
            raise PipelineError(f"{path}: found no episodes; allowed is at least one")
        try:
            observation, action = (None if space is None else _space(json.loads(space)) for space in stored)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, NotImplementedError, RecursionError):
            raise PipelineError(f"{path}: spaces that cannot be read; {AGAIN}") from None
        return cls(path, form, episodes, observation, action)


def _space(content: dict[str, Any]) -> gym.Space[Any]:
    """Read a space. Minari would sort a Dict's entries; the file has them in the order of the original space."""
    if content["type"] == "Dict":
        return gym.Dict(OrderedDict((key, _space(inner)) for key, inner in content["subspaces"].items()))
    if content["type"] == "Tuple":
        return gym.Tuple([_space(inner) for inner in content["subspaces"]])
    space: gym.Space[Any] = deserialize_space(content)
    return space


def stored_spaces(metadata: Metadata) -> Spaces:
    """Give the spaces that a dataset itself declares.

    Raises:
        PipelineError: if it stores none, or some that are not supported.
    """
    if metadata.observation is None or metadata.action is None:
        raise PipelineError(
            f"{metadata.path}: stores no spaces; name the environment that declares them (`environment` in params.yaml)"
        )
    for leaf in leaves(metadata.observation):
        if not isinstance(leaf.space, gym.Box | gym.Discrete | gym.MultiBinary | gym.MultiDiscrete):
            raise PipelineError(
                f"{metadata.path}: observation space: found {type(leaf.space).__name__}; allowed are Box, Discrete, "
                "MultiBinary and MultiDiscrete, and Dict and Tuple of them"
            )
    return spaces_of(str(metadata.path), metadata.observation, metadata.action)


def arrays_of(metadata: Metadata, spaces: Spaces, order: gym.Space[Any] | None) -> tuple[list[Leaf], Leaf]:
    """Find the arrays of an observation, in order, and the one of an action; compare the spaces with ``spaces``.

    Older Minari stored none where they are the environment's: then the arrays alone have to fit.
    """
    if metadata.observation is None or metadata.action is None:
        box = gym.Box(-np.inf, np.inf, (spaces.observation_size,), np.float32)
        action: gym.Space[Any] = gym.Box(-np.inf, np.inf, (spaces.action_size,), np.float32)
        if spaces.discrete_actions:
            action = gym.Discrete(spaces.action_size)
        return leaves(box), Leaf((), action)
    own = stored_spaces(metadata)
    for what in ("observation", "action"):
        found, allowed = getattr(own, f"{what}_size"), getattr(spaces, f"{what}_size")
        if found != allowed:
            raise PipelineError(
                f"{metadata.path}: {what} space: found {found} dimensions, declared are {allowed}; "
                "correct `environment` in params.yaml, or the parts of the mixture"
            )
    if own.discrete_actions != spaces.discrete_actions:
        kinds = {True: "discrete actions", False: "a box"}
        raise PipelineError(
            f"{metadata.path}: action space: found {kinds[own.discrete_actions]}, declared are "
            f"{kinds[spaces.discrete_actions]}; correct `environment` in params.yaml, or the parts of the mixture"
        )
    return _ordered(leaves(metadata.observation), order, metadata.path), Leaf((), metadata.action)


def _ordered(stored: list[Leaf], order: gym.Space[Any] | None, path: Path) -> list[Leaf]:
    """Give the stored arrays in the environment's order, in which a policy meets its observations."""
    if order is None or len(stored) == 1:
        return stored
    declared = [leaf.keys for leaf in leaves(order)]
    if declared == [()]:
        return stored
    by_keys = {leaf.keys: leaf for leaf in stored}
    if set(declared) != set(by_keys):
        raise PipelineError(
            f"{path}: observation space: its entries are not the environment's; correct `environment` in params.yaml"
        )
    return [by_keys[keys] for keys in declared]
