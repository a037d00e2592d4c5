"""Minari datasets with known content in all of Minari's formats, written by Minari itself."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from minari.data_collector import EpisodeBuffer

from primorl.config.datasets import MinariDataset
from tests.data.builders import dataset

FORMATS = ("hdf5", "arrow", "parquet")
# Every kind of space that flattens.
ARM = Tuple((Box(-1, 1, (1,), np.float64), MultiBinary(2)))
NUMBERS: dict[str, Space[Any]] = {
    "velocity": Box(-9, 9, (2,), np.float32),
    "grid": Box(0, 255, (2, 2), np.uint8),
}
MIXED = Dict(NUMBERS | {"colour": Discrete(3, start=1), "arm": ARM, "dials": MultiDiscrete([2, 3])})
CHOICES = Discrete(4)
SPACES: dict[str, Any] = {"observation_space": MIXED, "action_space": CHOICES}


def mixed_episode(steps: int, seed: int) -> EpisodeBuffer:
    """T = ``steps`` random transitions of `MIXED` and `CHOICES`."""
    rng = np.random.default_rng([steps, seed])
    rows = steps + 1
    last = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        seed=seed,
        observations={
            "velocity": rng.uniform(-9, 9, (rows, 2)).astype(np.float32),
            "grid": rng.integers(0, 256, (rows, 2, 2), dtype=np.uint8),
            "colour": rng.integers(1, 4, rows),
            "arm": (rng.uniform(-1, 1, (rows, 1)), rng.integers(0, 2, (rows, 2), dtype=np.int8)),
            "dials": rng.integers(0, (2, 3), (rows, 2)),
        },
        actions=rng.integers(0, 4, steps),
        rewards=rng.normal(size=steps),
        terminations=last & (seed % 2 == 0),
        truncations=last & (seed % 2 == 1),
    )


def flattened(episode: EpisodeBuffer) -> np.ndarray[Any, Any]:
    """The observations of a `mixed_episode` as Gymnasium itself flattens them, [T + 1, S]."""
    assert isinstance(episode.observations, dict)
    whole = episode.observations | {"arm": list(zip(*episode.observations["arm"], strict=True))}
    rows = [{key: whole[key][i] for key in MIXED.spaces} for i in range(len(episode.rewards) + 1)]
    flat = [np.asarray(gymnasium.spaces.flatten(MIXED, row)) for row in rows]
    return np.stack(flat).astype(np.float32)


def box_episode(steps: int, seed: int, size: int = 2) -> EpisodeBuffer:
    """A truncated episode with observations in R^size and one action in [-1, 1]."""
    rng = np.random.default_rng([steps, seed])
    return EpisodeBuffer(
        observations=rng.uniform(-1, 1, (steps + 1, size)).astype(np.float32),
        actions=rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
        rewards=rng.normal(size=steps),
        terminations=np.zeros(steps, dtype=bool),
        truncations=np.arange(steps) == steps - 1,
    )


def box_spaces(size: int = 2) -> dict[str, Any]:
    """The spaces of `box_episode`."""
    return {
        "observation_space": Box(-1, 1, (size,), np.float32),
        "action_space": Box(-1, 1, (1,), np.float32),
    }


def entry(
    *parts: str, root: Path | None = None, remote: bool = False, **changes: Any
) -> MinariDataset:
    """A dataset without an environment, of parts by their ids."""
    options = {"root": None if root is None else str(root), "remote": remote, "parts": parts}
    plain = {"environment": None, "bounds": {"observation": "public", "reward": "public"}} | changes
    return dataset(MinariDataset, "minari", options, **plain)
