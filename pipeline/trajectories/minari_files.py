"""Minari datasets on disk: find, copy, write and read them in bulk."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from gymnasium.envs.registration import EnvSpec
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import MinariStorage
from minari.serialization import deserialize_space

from pipeline.errors import PipelineError
from pipeline.files import home
from pipeline.trajectories.environments import spaces_of
from pipeline.trajectories.recording import Episode
from pipeline.trajectories.schema import Spaces, trajectory_table

Array = npt.NDArray[Any]

_ROWS_PER_BATCH = 2**16
_EPISODES_PER_WRITE = 250
_MAIN_FILE = "main_data.hdf5"


class EpisodeWriter:
    """Writes episodes as they come into a new Minari dataset, in Minari's HDF5 format.

    Args:
        root: the folder of Minari datasets to write into.
        dataset_id: Minari's name for the dataset, with its version.
        env: the environment the episodes come from.
        algorithm: the behaviour policy's name.
    """

    def __init__(self, root: Path, dataset_id: str, env: gymnasium.Env[Any, Any], algorithm: str):
        data = root.resolve() / dataset_id / "data"  # Minari counts the sizes of relative paths wrongly
        data.mkdir(parents=True)
        self._storage = MinariStorage.new(
            data,
            env_spec=_storable(env.spec),
            observation_space=env.observation_space,
            action_space=env.action_space,
            data_format="hdf5",
        )
        self._storage.update_metadata(
            {"dataset_id": dataset_id, "minari_version": minari.__version__, "algorithm_name": algorithm}
        )
        self._waiting: list[Episode] = []

    def add(self, episode: Episode) -> None:
        """Append one episode."""
        self._waiting.append(episode)
        if len(self._waiting) == _EPISODES_PER_WRITE:
            self.flush()

    def flush(self) -> None:
        """Write what waits; call it after the last episode."""
        self._storage.update_episodes([_buffer(episode) for episode in self._waiting])
        self._waiting = []


def _buffer(episode: Episode) -> EpisodeBuffer:
    last = np.arange(len(episode.rewards)) == len(episode.rewards) - 1
    return EpisodeBuffer(
        observations=episode.observations,
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=last & episode.terminated,
        truncations=last & episode.truncated,
    )


def _storable(spec: EnvSpec | None) -> EnvSpec | None:
    """None for an environment built by a function (dm_control): Minari cannot write it down, and says so at length."""
    return None if spec is None or callable(spec.entry_point) else spec


def join_parts(parts: Sequence[Path], target: Path) -> None:
    """Write the episodes of several Minari datasets of the same spaces, in order, as the one at ``target``.

    Minari's own joining opens the file anew for every episode; this copies what is stored as it is.
    """
    data = target.resolve() / "data"
    data.mkdir(parents=True)
    for name in ("metadata.json", _MAIN_FILE):
        shutil.copyfile(parts[0] / "data" / name, data / name)
    whole = MinariStorage.read(data)
    episodes, steps = whole.total_episodes, whole.total_steps
    with h5py.File(data / _MAIN_FILE, "a", track_order=True) as file:
        for part in parts[1:]:
            storage = MinariStorage.read(part.resolve() / "data")
            with h5py.File(part / "data" / _MAIN_FILE, "r") as source:
                for index in range(storage.total_episodes):
                    source.copy(f"episode_{index}", file, f"episode_{episodes}")
                    file[f"episode_{episodes}"].attrs["id"] = episodes
                    episodes += 1
            steps += storage.total_steps
    whole.update_metadata({"total_episodes": episodes, "total_steps": steps, "dataset_size": whole.get_size()})


def copy_local(dataset_id: str, root: str | None, target: Path) -> None:
    """Copy the Minari dataset ``dataset_id`` from this machine into the folder ``target``.

    Args:
        dataset_id: Minari's name, such as ``mujoco/hopper/medium-v0``.
        root: the folder of Minari datasets (relative: to the project); None is Minari's own.
        target: an existing folder; the dataset lands under its id.

    Raises:
        PipelineError: no such dataset on this machine, or not a name that Minari allows.
    """
    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):  # TypeError: no version
        raise PipelineError(
            f"options.id: found {dataset_id!r}; allowed is a Minari id such as 'mujoco/hopper/medium-v0'"
        ) from None
    folder = _datasets_root() if root is None else home() / Path(root).expanduser()
    source = folder / dataset_id
    if not (source / "data" / "metadata.json").is_file():
        there = sorted(str(path.parent.parent.relative_to(folder)) for path in folder.glob("**/data/metadata.json"))
        raise PipelineError(
            f"options.id: no Minari dataset {dataset_id!r} in {folder}; there: {', '.join(there) or 'none'}; "
            f"`minari download {dataset_id}` fetches it, or set options.root"
        )
    shutil.copytree(source, target / dataset_id)


def _datasets_root() -> Path:
    return Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))


class MinariReader:
    """The one Minari dataset under ``root``, as batches of the dataset's schema.

    Each episode is one privacy unit; ``unit_id`` and ``trajectory_id`` are its index, padded with zeros so
    that the order of text is the order of numbers.

    Args:
        root: the folder with exactly one Minari dataset in it, at any depth.
        spaces: what the environment declares.
        horizon: the step limit that it declares.

    Raises:
        PipelineError: no dataset or several, not in HDF5, unreadable, or with spaces of other sizes.
    """

    def __init__(self, root: Path, spaces: Spaces, horizon: int | None = None):
        self.spaces = self._spaces = spaces
        self.horizon = horizon
        found = sorted(root.glob("**/data/metadata.json"))
        if len(found) != 1:
            raise PipelineError(f"{root}: found {len(found)} Minari datasets, allowed is one; run `dvc repro collect`")
        metadata = _metadata(found[0])
        self.path = found[0].with_name(_MAIN_FILE)
        if {"observation_space", "action_space"} <= metadata.keys():
            _check_spaces(found[0], metadata, spaces)
        self._episodes: int = metadata["total_episodes"]

    def tables(self) -> Iterator[pa.Table]:
        """Batches of whole episodes in order of their index.

        Raises:
            PipelineError: names the file, the episode and the array, what was found, what is allowed.
        """
        try:
            file = h5py.File(self.path, "r")
        except OSError:
            raise PipelineError(
                f"{self.path}: truncated, corrupt or missing HDF5; run `dvc repro collect` again"
            ) from None
        with file:
            if len(file) != self._episodes:
                raise PipelineError(
                    f"{self.path}: its number of episodes is not the one in metadata.json; "
                    "the dataset is incomplete; run `dvc repro collect` again"
                )
            batch = _Batch(self._spaces)
            for index in range(self._episodes):
                batch.add(index, self._episode(file, index))
                if batch.rows >= _ROWS_PER_BATCH:
                    yield batch.table()
            if batch.rows > 0:
                yield batch.table()

    def _episode(self, file: h5py.File, index: int) -> dict[str, Array]:
        where = f"{self.path}: episode {index}"
        try:
            group = h5py.h5g.open(file.id, f"episode_{index}".encode())
            arrays = {name: _read(group, name) for name in _ARRAYS}
        except (OSError, KeyError, ValueError, RuntimeError):
            raise PipelineError(
                f"{where}: an array is missing, nested or corrupt; allowed are {', '.join(_ARRAYS)}; "
                "run `dvc repro collect` again"
            ) from None
        for name, kinds in _ARRAYS.items():
            if arrays[name].dtype.kind not in kinds:
                raise PipelineError(f"{where}: {name}: found type {arrays[name].dtype}; allowed: {_KINDS[kinds]}")
        if arrays["rewards"].ndim == 2 and arrays["rewards"].shape[1] == 1:
            arrays["rewards"] = arrays["rewards"][:, 0]
        for name, size in (("observations", self._spaces.observation_size), ("actions", self._spaces.action_size)):
            if arrays[name].ndim != 2 or arrays[name].shape[1] != size:
                raise PipelineError(
                    f"{where}: {name}: found {'×'.join(map(str, arrays[name].shape[1:])) or 'no'} dimensions a step, "
                    f"the environment declares {size}; correct `environment` in params.yaml"
                )
        for name in ("rewards", "terminations", "truncations"):
            if arrays[name].ndim != 1:
                raise PipelineError(
                    f"{where}: {name}: found an array of {arrays[name].ndim} axes; allowed: one number a step"
                )
        steps = len(arrays["rewards"])
        if steps == 0:
            raise PipelineError(f"{where}: found no steps; allowed is at least one; drop the episode")
        for name in _ARRAYS:
            if len(arrays[name]) != steps + (name == "observations"):
                rule = "one more than rewards" if name == "observations" else "as many as rewards"
                raise PipelineError(f"{where}: {name}: wrong number of rows; allowed: {rule}; record the episode again")
        return arrays


_ARRAYS = {"observations": "f", "actions": "f", "rewards": "fiu", "terminations": "b", "truncations": "b"}
_KINDS = {"f": "floating point", "fiu": "real numbers", "b": "booleans"}


class _Batch:
    """Episodes that wait to become one table."""

    def __init__(self, spaces: Spaces):
        self._spaces = spaces
        self._ids: list[str] = []
        self._episodes: list[dict[str, Array]] = []
        self.rows = 0

    def add(self, index: int, episode: dict[str, Array]) -> None:
        # One width for all datasets: were it the dataset's own, one more episode could rename, and
        # so move between private and public, all others.
        self._ids.append(f"{index:09d}")
        self._episodes.append(episode)
        self.rows += len(episode["rewards"])

    def table(self) -> pa.Table:
        observations, actions, rewards, terminated, truncated = (
            [episode[name] for episode in self._episodes] for name in _ARRAYS
        )
        table = trajectory_table(
            self._spaces, self._ids, self._ids, observations, actions, rewards, terminated, truncated
        )
        self._ids, self._episodes, self.rows = [], [], 0
        return table


def _read(group: h5py.h5g.GroupID, name: str) -> Array:
    # The low-level calls: `group[name][()]` takes twice as long, and there are five arrays an episode.
    dataset = h5py.h5d.open(group, name.encode())
    values = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def _metadata(path: Path) -> dict[str, Any]:
    try:
        metadata: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        form = metadata["data_format"]
        int(metadata["total_episodes"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PipelineError(f"{path}: not the metadata of a Minari dataset; run `dvc repro collect` again") from None
    if form != "hdf5":
        raise PipelineError(f"{path}: data_format: found {form!r}, allowed is 'hdf5'; write the dataset again in HDF5")
    if metadata["total_episodes"] < 1:
        raise PipelineError(f"{path}: found no episodes; allowed is at least one")
    return metadata


def _check_spaces(path: Path, metadata: dict[str, Any], spaces: Spaces) -> None:
    """Compare the dataset's own spaces with the environment's.

    Older Minari stored none where they are the environment's: then every episode's arrays are checked all the same.
    Minari would build the environment that the dataset describes, whose entry point may be any function of any module.
    """
    try:
        stored = [deserialize_space(metadata[name]) for name in ("observation_space", "action_space")]
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise PipelineError(f"{path}: spaces that cannot be read; run `dvc repro collect` again") from None
    own = spaces_of(str(path), *stored)
    for what in ("observation", "action"):
        in_data, allowed = getattr(own, f"{what}_size"), getattr(spaces, f"{what}_size")
        if in_data != allowed:
            raise PipelineError(
                f"{path}: {what} space: found {in_data} dimensions, the environment declares {allowed}; "
                "correct `environment` in params.yaml"
            )
