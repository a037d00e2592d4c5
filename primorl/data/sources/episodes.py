"""Episodes of simulators as tables of the dataset's schema."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from primorl.data.storage.schema import Spaces, trajectory_table

Array = npt.NDArray[Any]
_ROWS_PER_BATCH = 2**16


@dataclass(frozen=True)
class Episode:
    """One episode of T steps.

    Attributes:
        unit: the id of its privacy unit.
        name: its own id.
        observations: [T + 1, S], the true last one included.
        actions: [T, A], or whole numbers [T].
        rewards: [T].
        terminated: [T].
        truncated: [T].
    """

    unit: str
    name: str
    observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array


def tables(spaces: Spaces, episodes: Iterable[Episode]) -> Generator[pa.Table]:
    """Batch ascending episodes into tables; a unit is never split."""
    waiting: list[Episode] = []
    rows = 0
    for episode in episodes:
        if rows >= _ROWS_PER_BATCH and episode.unit != waiting[-1].unit:
            yield _table(spaces, waiting)
            waiting, rows = [], 0
        waiting.append(episode)
        rows += len(episode.rewards)
    if waiting:
        yield _table(spaces, waiting)


def _table(spaces: Spaces, episodes: list[Episode]) -> pa.Table:
    actions = [each.actions for each in episodes]
    if spaces.discrete_actions:
        # Fit into int32; numbers outside stay outside and `RowCheck` refuses them.
        actions = [np.clip(each.reshape(-1), -1, spaces.action_size) for each in actions]
    return trajectory_table(
        spaces,
        [each.unit for each in episodes],
        [each.name for each in episodes],
        [each.observations for each in episodes],
        actions,
        [each.rewards for each in episodes],
        [each.terminated for each in episodes],
        [each.truncated for each in episodes],
    )
