"""``source: replay``: a behaviour policy's whole training in an environment, recorded."""

import re
from dataclasses import dataclass
from pathlib import Path

from primorl.config.datasets import ReplayDataset
from primorl.trajectories.sources.minari.reading import MinariReader
from primorl.trajectories.sources.replay.collection import record_training
from primorl.trajectories.sources.source import Reader
from primorl.trajectories.sources.spaces import declared, needed


def source(name: str, dataset: ReplayDataset) -> "Replay":
    """The source of one dataset.

    Raises:
        PipelineError: if the dataset names no environment.
    """
    return Replay(name, dataset, needed(name, dataset.environment))


@dataclass(frozen=True)
class Replay:
    """See `primorl.trajectories.sources.source.Source`."""

    name: str
    dataset: ReplayDataset
    environment: str

    def collect(self, target: Path) -> None:
        """Train, and keep every episode as a Minari dataset."""
        minari_name = re.sub(r"[^-\w]", "-", self.name)  # Minari's ids have no dots
        record_training(self.environment, self.dataset.options, target, f"{minari_name}-v0")

    def open(self, raw: Path) -> Reader:
        """Read that dataset."""
        return MinariReader(raw, *declared(self.environment))
