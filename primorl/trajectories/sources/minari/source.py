"""``source: minari``: datasets in Minari's formats, one or several as a mixture."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium import Space
from gymnasium.wrappers import FlattenObservation
from minari.dataset.minari_dataset import parse_dataset_id

from primorl.config.datasets import EpisodeFilter, MinariDataset
from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.simulators.environments import make
from primorl.trajectories.sources.minari.reading import Array, Keep, MixtureReader, Part, stored_spaces, within
from primorl.trajectories.sources.minari.remote import fetch
from primorl.trajectories.sources.minari.storages import Metadata
from primorl.trajectories.sources.source import Reader
from primorl.trajectories.sources.spaces import declared
from primorl.trajectories.storage.schema import Spaces


def source(name: str, dataset: MinariDataset) -> "Minari":
    """The source of one dataset."""
    return Minari(name, dataset)


@dataclass(frozen=True)
class Minari:
    """See `primorl.trajectories.sources.source.Source`."""

    name: str
    dataset: MinariDataset

    def collect(self, target: Path) -> None:
        """Copy every part from this machine; fetch first what is not there, where the entry allows it."""
        options = self.dataset.options
        root = _datasets_root() if options.root is None else home() / Path(options.root).expanduser()
        for part in options.parts:
            _check_id(part.id)
            if not _is_there(root, part.id):
                if not options.remote:
                    raise PipelineError(_missing(part.id, root))
                fetch(part.id, root)
            shutil.copytree(root / part.id / "data", target / part.id / "data")

    def open(self, raw: Path) -> Reader:
        """Read the parts as one.

        Without an environment the spaces are those that the datasets themselves declare.
        """
        parts = []
        for part in self.dataset.options.parts:
            path = raw / part.id / "data" / "metadata.json"
            if not path.is_file():
                raise PipelineError(f"{path.parent}: no Minari dataset here; run `dvc repro collect`")
            parts.append(Part(Metadata.read(path), f"{part.id}/", None if part.filter is None else _keep(part.filter)))
        path = raw if len(parts) > 1 else parts[0].metadata.data
        if self.dataset.environment is None:
            return MixtureReader(path, parts, _common_spaces(parts), None, self.dataset.unit)
        spaces, horizon = declared(self.dataset.environment)
        entries = _entries(self.dataset.environment)
        return MixtureReader(path, parts, spaces, horizon, self.dataset.unit, entries)


def _common_spaces(parts: list[Part]) -> Spaces:
    spaces = stored_spaces(parts[0].metadata)
    for part in parts[1:]:
        if stored_spaces(part.metadata) != spaces:
            raise PipelineError(
                f"{part.metadata.path}: its spaces are not those of {parts[0].metadata.path}; allowed are parts of "
                "equal spaces, or an `environment` that declares them for all"
            )
    return spaces


def _keep(episode_filter: EpisodeFilter) -> Keep:
    def keep(index: int, rewards: Array) -> bool:
        total = float(rewards.sum()) if rewards.dtype.kind in "fiu" else float("nan")
        return (
            within(episode_filter.episodes, index)
            and within(episode_filter.lengths, len(rewards))
            and within(episode_filter.returns, total)
        )

    return keep


def _entries(environment: str) -> Space[Any]:
    """The observation space of ``environment`` before it is flattened."""
    env = make(environment)
    try:
        return env.env.observation_space if isinstance(env, FlattenObservation) else env.observation_space
    finally:
        env.close()


def _check_id(dataset_id: str) -> None:
    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):  # TypeError: no version
        raise PipelineError(
            f"options.parts: found {dataset_id!r}; allowed is a Minari id such as 'mujoco/hopper/medium-v0'"
        ) from None


def _datasets_root() -> Path:
    return Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))


def _is_there(root: Path, dataset_id: str) -> bool:
    return (root / dataset_id / "data" / "metadata.json").is_file()


def _missing(dataset_id: str, root: Path) -> str:
    there = sorted(str(path.parent.parent.relative_to(root)) for path in root.glob("[!.]*/**/data/metadata.json"))
    return (
        f"options.parts: no Minari dataset {dataset_id!r} in {root}; there: {', '.join(there) or 'none'}; "
        f"set options.remote to true to fetch it, run `minari download {dataset_id}`, or set options.root"
    )
