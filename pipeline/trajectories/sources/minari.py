"""``source: minari``: a dataset in Minari's format."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.params import MinariDataset
from pipeline.trajectories.environments import declared
from pipeline.trajectories.minari_files import MinariReader, copy_local
from pipeline.trajectories.source import Reader


def source(name: str, dataset: MinariDataset) -> "Minari":
    """The source of one entry of ``datasets``."""
    return Minari(name, dataset)


@dataclass(frozen=True)
class Minari:
    """See `pipeline.trajectories.source.Source`."""

    name: str
    dataset: MinariDataset

    def collect(self, target: Path) -> None:
        """Copy the dataset from this machine."""
        copy_local(self.dataset.options.id, self.dataset.options.root, target)

    def open(self, raw: Path) -> Reader:
        """Read it."""
        if self.dataset.environment is None:
            raise PipelineError(f"params.yaml: datasets.{self.name}.environment: found null; allowed is a Gymnasium id")
        return MinariReader(raw, *declared(self.dataset.environment))
