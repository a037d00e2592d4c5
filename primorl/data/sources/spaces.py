"""Spaces that environments and datasets declare."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    Tuple,
    flatdim,
    flatten_space,
)
from gymnasium.wrappers import FlattenObservation

from primorl.base import PipelineError
from primorl.data.storage.schema import Spaces
from primorl.simulators.environments import make

_MOST_NUMBERS = 4096  # of an observation; more are an image


def require_environment(name: str, environment: str | None) -> str:
    """Return the environment of the entry ``name``, for a source that needs one.

    Raises:
        PipelineError: if the dataset names none.
    """
    if environment is None:
        raise PipelineError(f"datasets/{name}.yaml: environment: found null; name a Gymnasium id")
    return environment


def inspect_environment(environment: str) -> tuple[Spaces, int | None, Space[Any]]:
    """Give the spaces and the step limit (None: no limit) that ``environment`` declares, and its
    observation space before `make` flattened it.

    Raises:
        PipelineError: if the environment cannot be built, or a space is not supported.
    """
    origin = f"environment {environment!r}"
    with make(environment) as env:
        inner = (env.env if isinstance(env, FlattenObservation) else env).observation_space
        limit = None if env.spec is None else env.spec.max_episode_steps
        spaces = spaces_of(origin, env.observation_space, env.action_space)
    return replace(spaces, observation_names=_name_dimensions(inner)[0]), limit, inner


def spaces_of(origin: str, observation: Space[Any], action: Space[Any]) -> Spaces:
    """Give the bounds of an observation space, flattened, and of an action space.

    Raises:
        PipelineError: observations that do not flatten to numbers; actions that are neither
            discrete nor a one-dimensional floating-point box with finite bounds.
    """
    flat: Space[Any]
    try:
        flat = flatten_space(observation)
    except (NotImplementedError, ValueError, KeyError):
        flat = observation
    if not isinstance(flat, Box):
        found = f"{type(observation).__name__}; allowed is one that flattens to numbers"
        raise PipelineError(f"{origin}: observation space: found {found}")
    if flat.shape[0] > _MOST_NUMBERS:
        found = f"{flat.shape[0]} numbers; allowed are up to {_MOST_NUMBERS}"
        raise PipelineError(f"{origin}: observation space: found {found}")
    low, high = tuple(flat.low.astype(float).tolist()), tuple(flat.high.astype(float).tolist())
    names, one_hot = _name_dimensions(observation)
    if isinstance(action, Discrete):
        if action.start != 0:
            raise PipelineError(f"{origin}: action space: found actions from {action.start}, not 0")
        spaces = Spaces.with_discrete_actions(low, high, int(action.n))
    else:
        floating = isinstance(action, Box) and np.issubdtype(action.dtype, np.floating)
        if not isinstance(action, Box) or not floating or len(action.shape) != 1:
            allowed = "Discrete, or a one-dimensional Box of floats"
            raise PipelineError(f"{origin}: action space: found {action}; allowed: {allowed}")
        if not (np.isfinite(action.low) & np.isfinite(action.high)).all():
            remedy = "declare them, or name an `environment` that has them"
            raise PipelineError(
                f"{origin}: action space: found a Box without finite bounds; {remedy}"
            )
        if not (action.low < action.high).all():
            found = "found a Box whose low is not below its high in every dimension"
            raise PipelineError(f"{origin}: action space: {found}")
        ends = [tuple(end.astype(float).tolist()) for end in (action.low, action.high)]
        spaces = Spaces(low, high, ends[0], ends[1])
    return replace(spaces, one_hot=one_hot, observation_names=names)


def check_fit(where: str, own: Spaces, other: Spaces) -> None:
    """Compare the sizes and the kind of two spaces, of which the ``other`` is declared.

    Raises:
        PipelineError: they differ.
    """
    for what in ("observation_size", "discrete_actions", "action_size"):
        found, allowed = getattr(own, what), getattr(other, what)
        if found != allowed:
            raise PipelineError(f"{where}: {what}: found {found}, declared is {allowed}")


def _name_dimensions(space: Space[Any]) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Name each dimension of a space of observations as Gymnasium flattens it; a category is
    ``name=2``. Entries of a Dict are called by their keys, those of a Tuple by their numbers.

    Returns:
        The names; and the parts that are one category each: (first dimension, number of
            categories).
    """
    names: list[str] = []
    one_hot: list[tuple[int, int]] = []
    for own, is_choice in _parts(space):
        if is_choice:
            one_hot.append((len(names), len(own)))
        names += own
    return tuple(names), tuple(one_hot)


def _parts(space: Space[Any], name: str = "observation") -> Iterator[tuple[list[str], bool]]:
    """Yield the parts of a space as Gymnasium flattens it: names of their dimensions, and whether
    these are the categories of one choice.
    """
    if isinstance(space, Dict | Tuple):
        entries = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for key, entry in entries:
            yield from _parts(entry, str(key) if name == "observation" else f"{name}/{key}")
    elif isinstance(space, Discrete):
        yield [f"{name}={space.start + i}" for i in range(int(space.n))], True
    elif isinstance(space, MultiDiscrete):
        for number, size in enumerate(space.nvec.ravel().tolist()):
            yield [f"{name}_{number}={i}" for i in range(size)], True
    else:
        size = flatdim(space)
        one = size == 1 and name != "observation"
        yield [name] if one else [f"{name}_{i}" for i in range(size)], False
