"""Gymnasium environments as every room sees them: observations are one flat vector."""

import os
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FlattenObservation
from torch import Tensor

from primorl.project.errors import PipelineError

_SIDE_BY_SIDE = 32


def make(environment: str, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Build the environment; observations that are no flat vector of numbers are flattened.

    A Dict's entries come in the order of its space (Gymnasium sorts the keys), a Discrete one becomes one-hot.

    Args:
        environment: a registered Gymnasium id.
        render_mode: how its ``render`` draws, ``rgb_array`` for pictures; None: it does not.

    Raises:
        PipelineError: no such id is registered, or what it needs is not installed.
    """
    try:
        if environment.startswith("dm_control/"):
            _register_dm_control()
        # Given only where it is asked for: many constructors take none.
        drawn: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        env = gymnasium.make(environment, **drawn)
    except (gymnasium.error.Error, ImportError) as unknown:
        reason = " ".join(str(unknown).split())
        if isinstance(unknown, gymnasium.error.DependencyNotInstalled) and "mujoco" in reason.lower():
            reason += "; here: `pip install primorl[mujoco]`"
        raise PipelineError(
            f"environment {environment!r}: Gymnasium cannot build it ({reason}); allowed is a registered id, "
            "or module:id to import the module that registers it"
        ) from None
    space = env.observation_space
    flat = isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)
    return env if flat else FlattenObservation(env)


def reset_states(environment: str, count: int, seed: int) -> Tensor:
    """First observations of ``count`` episodes (rounded up to full vectors), float32 ``[n, S]``.

    Raises:
        PipelineError: if the environment cannot be built.
    """
    envs = SyncVectorEnv([lambda: make(environment)] * _SIDE_BY_SIDE)
    try:
        rounds = -(-count // _SIDE_BY_SIDE)
        observations = [envs.reset(seed=seed if number == 0 else None)[0] for number in range(rounds)]
    finally:
        envs.close()
    return torch.from_numpy(np.concatenate(observations).astype(np.float32))


def _register_dm_control() -> None:
    """Shimmy brings DeepMind's control suite into Gymnasium's registry; nothing is rendered here."""
    os.environ.setdefault("MUJOCO_GL", "disable")
    if find_spec("dm_control") is None or find_spec("shimmy") is None:
        raise ImportError("dm_control is not installed; `pip install primorl[dm-control]`")
    import primorl.simulators.gym_notice  # noqa: F401, I001  before Shimmy, which imports Gym
    import shimmy  # noqa: F401
