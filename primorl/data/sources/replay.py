"""``source: replay``: a behaviour policy's whole training in an environment, recorded."""

import re
from pathlib import Path

from primorl.config.datasets import ReplayDataset
from primorl.data.sources import Reader
from primorl.data.sources.minari.reading import read_recorded
from primorl.data.sources.spaces import declared, needed


class Replay:
    """See `primorl.data.sources.Source`.

    Raises:
        PipelineError: if the dataset names no environment.
    """

    def __init__(self, name: str, dataset: ReplayDataset):
        self._dataset_id = re.sub(r"[^-\w]", "-", name) + "-v0"  # Minari's ids have no dots
        self._options = dataset.options
        self._environment = needed(name, dataset.environment)

    def collect(self, target: Path) -> None:
        """Train, and keep every episode as a Minari dataset."""
        from primorl.data.sources.recording import (
            record_training,
        )  # `open` does without its slow imports

        record_training(self._environment, self._options, target, self._dataset_id)

    def open(self, raw: Path) -> Reader:
        """Read that dataset."""
        return read_recorded(raw, *declared(self._environment))
