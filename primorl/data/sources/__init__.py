"""Sources of trajectories: found by ``source:`` of a dataset's file.

To add one, write its module, name its class in `_CLASSES`, and declare its options in
`primorl.config.datasets` (docs/datasets/adding-a-source.md).
"""

from collections.abc import Generator, Iterable
from importlib import import_module
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from primorl.config.datasets import AnyDataset
from primorl.data.storage.schema import Spaces, Transitions

_ROWS_PER_BATCH = 2**16
_CLASSES = {
    "replay": ("minari", "Replay"),
    "minari": ("minari", "Minari"),
    "d4rl": ("d4rl", "D4rl"),
    "tabular": ("tabular", "Tabular"),
    "meds": ("meds", "Meds"),
}


class Reader(Protocol):
    """Raw trajectories, ready to be read in the dataset's schema.

    Attributes:
        path: the file or folder that errors name.
        spaces: of observations and actions.
        horizon: steps of the longest possible episode, where the source declares it; a public fact.
    """

    path: Path
    spaces: Spaces
    horizon: int | None

    def tables(self) -> Generator[pa.Table]:
        """Batches of whole units in `arrow_schema`, ascending by (unit_id, trajectory_id, step).

        Raises:
            PipelineError: names the file, the row or key, the value found, the values allowed and
                the remedy.
        """


class Source(Protocol):
    """Origin of the trajectories of one dataset.

    It is made from the dataset's name and its entry.
    """

    def collect(self, target: Path) -> None:
        """Fill the empty folder ``target`` with raw files: made, fetched or copied.

        Raises:
            PipelineError: if they cannot be had; it names the remedy.
        """

    def open(self, raw: Path) -> Reader:
        """Open the files of ``collect`` in ``raw``.

        Raises:
            PipelineError: if files are missing or broken, or do not fit the dataset.
        """


def source_of(name: str, dataset: AnyDataset) -> Source:
    """Make the source of the dataset ``name``; import only its own module.

    Raises:
        PipelineError: if its options do not fit.
    """
    module, kind = _CLASSES[dataset.source]
    source: Source = getattr(import_module(f"{__name__}.{module}"), kind)(name, dataset)
    return source


def episode_tables(spaces: Spaces, episodes: Iterable[Transitions]) -> Generator[pa.Table]:
    """Batch ascending episodes, each a unit, into tables."""
    waiting: list[Transitions] = []
    rows = 0
    for episode in episodes:
        if rows >= _ROWS_PER_BATCH:
            yield Transitions.join(waiting).table(spaces)
            waiting, rows = [], 0
        waiting.append(episode)
        rows += len(episode.reward)
    if waiting:
        yield Transitions.join(waiting).table(spaces)
