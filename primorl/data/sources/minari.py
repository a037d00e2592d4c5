"""``source: minari`` and ``source: replay``: datasets in Minari's formats, one or several as a
mixture, read by Minari's own storage.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pyarrow as pa
from gymnasium.spaces import Box, Space, flatten
from gymnasium.vector.utils import batch_space, iterate
from minari.dataset.minari_storage import MinariStorage

from primorl.base import BadRows, PipelineError
from primorl.base.files import home
from primorl.base.processes import environment
from primorl.config.datasets import MINARI_ID, MinariDataset, ReplayDataset
from primorl.data.sources import Reader, episode_tables
from primorl.data.sources.d4rl import check_parts
from primorl.data.sources.spaces import (
    check_fit,
    inspect_environment,
    require_environment,
    spaces_of,
)
from primorl.data.storage.schema import Array, Transitions

_AGAIN = "repair it and run `dvc repro -f collect`"


@dataclass(frozen=True)
class Minari:
    """See `primorl.data.sources.Source`."""

    name: str
    dataset: MinariDataset

    def collect(self, target: Path) -> None:
        """Copy every part from this machine; fetch missing ones first, where the entry
        allows it.
        """
        options = self.dataset.options
        root = _own_folder()
        if options.root is not None:
            root = home() / Path(options.root).expanduser()
        for part in options.parts:
            shutil.copytree(_find(part, root, options.remote), target / part / "data")

    def open(self, raw: Path) -> Reader:
        """Read the parts as one; without an environment in the spaces that the datasets themselves
        declare.
        """
        folders = {f"{part}/": raw / part / "data" for part in self.dataset.options.parts}
        return MinariReader(raw, folders, self.dataset.environment)


class Replay:
    """``source: replay``: the whole training of behaviour policies in an environment, recorded as a
    Minari dataset. See `primorl.data.sources.Source`.

    Raises:
        PipelineError: if the dataset names no environment.
    """

    def __init__(self, name: str, dataset: ReplayDataset):
        self._dataset_id = re.sub(r"[^-\w]", "-", name) + "-v0"  # Minari's ids have no dots
        self._options = dataset.options
        self._environment = require_environment(name, dataset.environment)

    def collect(self, target: Path) -> None:
        """Train, and keep every episode."""
        from primorl.data.sources.recording import record_training  # slow imports

        record_training(self._environment, self._options, target, self._dataset_id)

    def open(self, raw: Path) -> Reader:
        """Read that dataset; every episode is a privacy unit."""
        folder = next(raw.glob("*/data"), raw)  # one dataset, whatever its name
        return MinariReader(folder, {"": folder}, self._environment)


def describe(dataset_id: str) -> dict[str, Any]:
    """Return what a dataset declares, as keys of an entry; fetch it first if it is not there.

    The environment is named where Gymnasium knows it, and never built.

    Raises:
        PipelineError: it cannot be had, or is broken.
    """
    if re.fullmatch(MINARI_ID, dataset_id) is None:
        raise PipelineError(
            f"--minari: found {dataset_id!r}; allowed is a name as mujoco/hopper/medium-v0"
        )
    stored = _find(dataset_id, _own_folder(), remote=True)
    open_storage(stored)
    about = MinariStorage.read_raw_metadata(stored)
    spec = json.loads(about.get("env_spec") or "{}")
    known = spec.get("id") if spec.get("id") in gymnasium.registry else None
    limit = None if known else spec.get("max_episode_steps") or "FILL IN"
    low, high = about.get("ref_min_score"), about.get("ref_max_score")
    score = None if None in (low, high) else {"low": low, "high": high, "scale": 100.0}
    options = {"root": None, "remote": True, "parts": [dataset_id]}
    return {"environment": known, "horizon": limit, "options": options, "score": score}


def _own_folder() -> Path:
    return Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))


def _find(dataset_id: str, root: Path, remote: bool) -> Path:
    """Return the ``data`` folder of a dataset; fetch it where it is not there and may be."""
    stored = root / dataset_id / "data"
    if (stored / "metadata.json").is_file():
        return stored
    if stored.exists():
        raise PipelineError(
            f"options.parts: {stored}: found no metadata.json, as Minari 0.5 has; write it again"
        )
    if not remote:
        raise PipelineError(
            f"options.parts: no Minari dataset {dataset_id!r} in {root}; set options.remote or root"
        )
    _fetch(dataset_id, root)
    return stored


def _fetch(dataset_id: str, root: Path) -> None:
    try:
        with environment({"MINARI_DATASETS_PATH": str(root.resolve())}):
            minari.download_dataset(dataset_id)
    except Exception as refused:  # the hub's client lets many kinds of errors through
        found = f"{dataset_id!r} could not be fetched ({type(refused).__name__})"
        remedy = "check name, network and `pip install 'primorl[minari-remote]'`"
        raise PipelineError(f"options.parts: {found}; {remedy}") from None


def open_storage(folder: Path) -> MinariStorage:
    """Open a dataset's ``data`` folder by Minari's storage class; no environment is built.

    Raises:
        PipelineError: if there is no dataset with episodes, its rows lie elsewhere, or it does not
            store its spaces.
    """
    for file in folder.glob("*.hdf5"):
        check_parts(file)
    try:
        stored = MinariStorage.read_raw_metadata(folder).keys()
        # Without spaces Minari would build the environment, whose entry point may be any function
        # of any module.
        complete = {"observation_space", "action_space"} <= stored
        storage = MinariStorage.read(folder) if complete else None
        episodes = 0 if storage is None else storage.total_episodes
    except Exception as broken:  # Minari checks nothing and lets every kind of error through
        raise PipelineError(
            f"{folder}: no readable Minari dataset ({type(broken).__name__}); {_AGAIN}"
        ) from None
    if storage is None or episodes < 1:
        raise BadRows(f"{folder}: found no spaces or no episodes; write it with Minari 0.5")
    return storage


class MinariReader:
    """Episodes of Minari datasets, each a privacy unit; see `primorl.data.sources.Reader`.

    Args:
        path: the file or folder that errors name.
        folders: ``data`` of each dataset, by what stands before its episodes' numbers in their ids.
        environment: whose spaces and limit are declared; None: the spaces of the first dataset.

    Raises:
        PipelineError: a dataset is broken, or its spaces are not those that are declared.
    """

    def __init__(self, path: Path, folders: Mapping[str, Path], environment: str | None):
        self.path = path
        self._parts = {prefix: open_storage(folder) for prefix, folder in folders.items()}
        own = [
            spaces_of(str(p.data_path), p.observation_space, p.action_space)
            for p in self._parts.values()
        ]
        first = next(iter(self._parts.values()))
        self.spaces, self.horizon, self._order = own[0], None, first.observation_space
        if environment is not None:
            self.spaces, self.horizon, self._order = inspect_environment(environment)
        for part, spaces in zip(self._parts.values(), own, strict=True):
            check_fit(str(part.data_path), spaces, self.spaces)

    def tables(self) -> Generator[pa.Table]:
        """See `Reader.tables`; errors name the dataset and the episode."""
        yield from episode_tables(self.spaces, self._episodes())

    def _episodes(self) -> Iterator[Transitions]:
        for prefix, part in sorted(self._parts.items()):
            read = steps = 0
            try:
                for raw in part.get_episodes(range(part.total_episodes)):
                    # Numbers have one width in all datasets: were it the dataset's own, one more
                    # episode could rename, and so move between private and public, all others.
                    episode = self._episode(part, f"{prefix}{read:09d}", raw)
                    yield episode
                    read, steps = read + 1, steps + len(episode.reward)
                # Minari cuts an episode that it reads in two batches, and then leaves out the last.
                if (read, steps) != (part.total_episodes, part.total_steps):
                    raise ValueError("other numbers than metadata.json has")
            except PipelineError:
                raise
            except Exception as broken:  # as in `open_storage`
                found = f"missing, corrupt or not of the declared spaces ({type(broken).__name__})"
                raise PipelineError(
                    f"{part.data_path}: episode {read}: {found}; {_AGAIN}, or correct `environment`"
                ) from None

    def _episode(self, part: MinariStorage, name: str, raw: dict[str, Any]) -> Transitions:
        """Make one episode of its arrays; raises any error where they are not as they should."""
        space = part.observation_space
        order = space if isinstance(space, Box) else self._order
        observations = flatten_observations(order, raw["observations"])
        rewards = np.asarray(raw["rewards"], float).reshape(-1)
        flags = [np.ravel(raw[key]).astype(bool) for key in ("terminations", "truncations")]
        actions, steps = np.asarray(raw["actions"]), len(rewards)
        lengths = [len(observations) - 1, len(actions), *map(len, flags)]
        if steps == 0 or lengths != [steps] * 4:
            raise BadRows(
                f"{part.data_path}: episode {int(name[-9:])}: found {steps} rewards; allowed is at "
                "least one, as many actions and flags, and one observation more; leave it out with "
                "Minari's filter_episodes"
            )
        seen, after = observations[:-1], observations[1:]  # no transition crosses an end
        return Transitions.of_episode(name, seen, actions, rewards, after, *flags)


def flatten_observations(space: Space[Any], values: Any) -> Array:
    """Flatten observations [rows, …] of a space as Gymnasium does, [rows, size].

    Raises:
        ValueError, KeyError, IndexError, TypeError: they are not of the space.
    """
    if isinstance(space, Box):
        array = np.asarray(values)
        return array.reshape(len(array), math.prod(space.shape))
    if len(set(_lengths(values))) != 1:  # `iterate` may stop at the shortest in silence
        raise ValueError("entries of several numbers of rows")
    rows = list(iterate(batch_space(space, 1), values))
    if not all(map(space.contains, rows)):
        raise ValueError
    return np.stack([np.asarray(flatten(space, row)) for row in rows])


def _lengths(values: Any) -> Iterator[int]:
    """Yield the number of rows of every array of nested dictionaries and tuples."""
    inner = values.values() if isinstance(values, dict) else values
    if isinstance(values, dict | tuple):
        for part in inner:
            yield from _lengths(part)
    else:
        yield len(values)
