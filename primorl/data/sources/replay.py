"""``source: replay``: the whole training of behaviour policies in an environment, recorded as a
Minari dataset.
"""

import re
from pathlib import Path

from primorl.config.datasets import ReplayDataset
from primorl.data.sources import Reader
from primorl.data.sources.minari import MinariReader, Part, open_storage
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
        """Train, and keep every episode."""
        from primorl.data.sources.recording import record_training  # slow imports

        record_training(self._environment, self._options, target, self._dataset_id)

    def open(self, raw: Path) -> Reader:
        """Read that dataset; every episode is a privacy unit."""
        folder = next(raw.glob("*/data"), raw)  # one dataset, whatever its name
        part = Part(open_storage(folder))
        spaces, horizon = declared(self._environment)
        order = part.storage.observation_space
        return MinariReader(folder, [part], spaces, horizon, order)
