"""Gymnasium environments as every room sees them: observations are one flat vector."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FlattenObservation

from pipeline.errors import PipelineError


def make(environment: str) -> gymnasium.Env[Any, Any]:
    """Build the environment; observations that are no flat vector of numbers are flattened.

    A Dict's entries come in the order of its space (Gymnasium sorts the keys), a Discrete one becomes one-hot.

    Raises:
        PipelineError: no such id is registered, or what it needs is not installed.
    """
    try:
        env = gymnasium.make(environment)
    except (gymnasium.error.Error, ImportError) as unknown:
        reason = " ".join(str(unknown).split())
        raise PipelineError(
            f"environment {environment!r}: Gymnasium cannot build it ({reason}); allowed is a registered id, "
            "or module:id to import the module that registers it"
        ) from None
    space = env.observation_space
    flat = isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)
    return env if flat else FlattenObservation(env)
