"""Interfaces of all sources of trajectories to the stages ``collect`` and ``ingest``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from primorl.trajectories.storage.schema import Spaces


class Reader(Protocol):
    """Raw trajectories, ready to be read in the dataset's schema.

    Attributes:
        path: the file or folder that errors name.
        spaces: of observations and actions.
        horizon: steps of the longest possible episode, where the source declares it; a public fact.
        behaviour_probabilities: whether `tables` name the probability of every action; a public fact.
    """

    path: Path
    spaces: Spaces
    horizon: int | None
    behaviour_probabilities: bool

    def tables(self) -> Iterator[pa.Table]:
        """Batches of whole units in `arrow_schema`, ascending by (unit_id, trajectory_id, step).

        Raises:
            PipelineError: names the file and the row or key, what was found, what is allowed, what to do.
        """


class Source(Protocol):
    """Where the trajectories of one dataset come from."""

    def collect(self, target: Path) -> None:
        """Fill the empty folder ``target`` with raw files: made, fetched or copied.

        Raises:
            PipelineError: if they cannot be had; it says what to do.
        """

    def open(self, raw: Path) -> Reader:
        """Open what ``collect`` left in ``raw``.

        Raises:
            PipelineError: if files are missing or broken, or do not fit the dataset.
        """
