"""Episodes of simulators as tables of the dataset's schema."""

from collections.abc import Generator, Iterable

import pyarrow as pa

from primorl.data.storage.schema import Episode, Spaces, trajectory_table

_ROWS_PER_BATCH = 2**16


def tables(spaces: Spaces, episodes: Iterable[Episode]) -> Generator[pa.Table]:
    """Batch ascending episodes into tables; a unit is never split."""
    waiting: list[Episode] = []
    rows = 0
    for episode in episodes:
        if rows >= _ROWS_PER_BATCH and episode.unit != waiting[-1].unit:
            yield trajectory_table(spaces, waiting)
            waiting, rows = [], 0
        waiting.append(episode)
        rows += len(episode.rewards)
    if waiting:
        yield trajectory_table(spaces, waiting)
