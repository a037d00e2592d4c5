"""What every kind of origin of trajectories looks like to the stages ``collect`` and ``ingest``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class ConsentReader(Reader, Protocol):
    """A reader that can also say what a column has for every unit.

    Attributes:
        consent: tables of ``unit_id`` and ``consent``, one row a unit; complete after the last of `tables`.
    """

    consent: list[pa.Table]

    def keep_consent(self, column: str) -> None:
        """Call before `tables`: fill ``consent`` from ``column``.

        Raises:
            PipelineError: if there is no such column.
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
