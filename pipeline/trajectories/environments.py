"""What an environment declares in public: the bounds of its spaces and its step limit."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space

from pipeline.errors import PipelineError
from pipeline.trajectories.schema import Spaces


def make(environment: str) -> gymnasium.Env[Any, Any]:
    """Build the environment.

    Raises:
        PipelineError: no such id is registered, or what it needs is not installed.
    """
    try:
        return gymnasium.make(environment)
    except (gymnasium.error.Error, ImportError) as unknown:
        reason = " ".join(str(unknown).split())
        raise PipelineError(
            f"environment {environment!r}: Gymnasium cannot build it ({reason}); allowed is a registered id, "
            "or module:id to import the module that registers it"
        ) from None


def declared(environment: str) -> tuple[Spaces, int | None]:
    """The spaces' bounds and the step limit (None: no limit) that ``environment`` declares.

    Raises:
        PipelineError: the environment cannot be built, or a space is not supported.
    """
    env = make(environment)
    try:
        spaces = box_spaces(f"environment {environment!r}", env.observation_space, env.action_space)
        return spaces, None if env.spec is None else env.spec.max_episode_steps
    finally:
        env.close()


def box_spaces(origin: str, observation: Space[Any], action: Space[Any]) -> Spaces:
    """The bounds of two one-dimensional floating-point boxes.

    Raises:
        PipelineError: a space is of another kind.
    """
    low, high = _bounds(origin, "observation", observation)
    action_low, action_high = _bounds(origin, "action", action)
    return Spaces(low, high, action_low, action_high)


def _bounds(origin: str, what: str, space: Space[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not isinstance(space, Box):
        raise PipelineError(
            f"{origin}: {what} space: found {type(space).__name__}, which is not supported yet; allowed is a "
            "one-dimensional floating-point Box (gymnasium.wrappers.FlattenObservation turns a Dict into one)"
        )
    if len(space.shape) != 1 or not np.issubdtype(space.dtype, np.floating):
        raise PipelineError(
            f"{origin}: {what} space: found a Box of shape {space.shape} and type {space.dtype}; "
            "allowed is one dimension of floating-point numbers"
        )
    return tuple(space.low.astype(float).tolist()), tuple(space.high.astype(float).tolist())
