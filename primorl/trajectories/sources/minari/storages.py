"""Reads what Minari writes to disk, without Minari's own storage: HDF5, Arrow and Parquet, one episode at a time.

Nothing that a dataset says of itself is executed. Its spaces are read from JSON. The environment it describes is never
built, because its entry point may be any function of any module.
"""

import json
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces as gym
from minari.serialization import deserialize_space

from primorl.project.errors import PipelineError
from primorl.trajectories.sources.hdf5 import claims_too_much

Array = npt.NDArray[Any]
Keys = tuple[str | int, ...]

_MAIN_FILE = "main_data.hdf5"
_AGAIN = "run `dvc repro collect` again"
_FLAGS = ("rewards", "terminations", "truncations")
_KINDS = {"f": "floating point", "fiu": "real numbers", "b": "booleans", "iu": "whole numbers", "iub": "0 and 1"}
_KINDS_OF_FLAGS = {"rewards": "fiu", "terminations": "b", "truncations": "b"}


@dataclass(frozen=True)
class Leaf:
    """One array of a space: the keys that lead to it, and its own space."""

    keys: Keys
    space: gym.Space[Any]

    @property
    def kinds(self) -> str:
        """NumPy's kinds of numbers that fit."""
        if isinstance(self.space, gym.Box) and np.issubdtype(self.space.dtype, np.floating):
            return "f"
        return "iub" if isinstance(self.space, gym.MultiBinary) else "iu"

    def vectors(self, values: Array, where: str) -> Array:
        """Values [rows, …] of the space as Gymnasium flattens them, [rows, size].

        Raises:
            PipelineError: if type or shape are others, or the space does not have a category.
        """
        if values.dtype.kind not in self.kinds:
            raise PipelineError(f"{where}: found type {values.dtype}; allowed: {_KINDS[self.kinds]}")
        shape = tuple(self.space.shape or ())
        allowed = [shape, (math.prod(shape),), *([()] if math.prod(shape) == 1 else [])]
        if values.shape[1:] not in allowed:  # Arrow keeps every array flat; one number a step may have no axis
            raise PipelineError(
                f"{where}: found shape {values.shape[1:]} a step, declared is {shape}; "
                "correct `environment` in params.yaml, or the data"
            )
        if isinstance(self.space, gym.Discrete):
            return _one_hot(values.reshape(-1) - self.space.start, int(self.space.n), where)
        if isinstance(self.space, gym.MultiDiscrete):
            choices = values.reshape(len(values), -1) - self.space.start.ravel()
            sizes = self.space.nvec.ravel()
            return np.hstack([_one_hot(choices[:, i], int(size), where) for i, size in enumerate(sizes)])
        return values.reshape(len(values), -1)


def leaves(space: gym.Space[Any], keys: Keys = ()) -> list[Leaf]:
    """The arrays of a space in the order in which Gymnasium flattens them: a Dict's entries as the Dict has them."""
    if isinstance(space, gym.Dict):
        return [leaf for key, inner in space.spaces.items() for leaf in leaves(inner, (*keys, key))]
    if isinstance(space, gym.Tuple):
        return [leaf for i, inner in enumerate(space.spaces) for leaf in leaves(inner, (*keys, i))]
    return [Leaf(keys, space)]


def _one_hot(choices: Array, size: int, where: str) -> Array:
    if ((choices < 0) | (choices >= size)).any():
        raise PipelineError(f"{where}: found a category outside the declared space; allowed: {size} categories")
    return np.eye(size, dtype=np.float32)[choices]


@dataclass(frozen=True)
class Metadata:
    """What a dataset's ``metadata.json`` says that is needed here.

    Attributes:
        path: the file.
        form: hdf5, arrow or parquet.
        episodes: how many there are.
        observation: its observation space; None: older Minari stored none where it is the environment's.
        action: likewise.
    """

    path: Path
    form: str
    episodes: int
    observation: gym.Space[Any] | None
    action: gym.Space[Any] | None

    @property
    def data(self) -> Path:
        """The file of all episodes, or the folder of their folders."""
        return self.path.with_name(_MAIN_FILE) if self.form == "hdf5" else self.path.parent

    @classmethod
    def read(cls, path: Path) -> "Metadata":
        """Read ``path``.

        Raises:
            PipelineError: if it is not Minari's, has no episodes, or its spaces cannot be read.
        """
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            form, episodes = content["data_format"], int(content["total_episodes"])
            stored = [content.get(name) for name in ("observation_space", "action_space")]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PipelineError(f"{path}: not the metadata of a Minari dataset; {_AGAIN}") from None
        if form not in _STORAGES:
            raise PipelineError(f"{path}: data_format: found {form!r}; allowed are {', '.join(_STORAGES)}")
        if episodes < 1:
            raise PipelineError(f"{path}: found no episodes; allowed is at least one")
        try:
            observation, action = (None if space is None else _space(json.loads(space)) for space in stored)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, NotImplementedError, RecursionError):
            raise PipelineError(f"{path}: spaces that cannot be read; {_AGAIN}") from None
        return cls(path, form, episodes, observation, action)


def _space(content: dict[str, Any]) -> gym.Space[Any]:
    """Minari would sort a Dict's entries; the file has them in the order of the space they came from."""
    if content["type"] == "Dict":
        return gym.Dict(OrderedDict((key, _space(inner)) for key, inner in content["subspaces"].items()))
    if content["type"] == "Tuple":
        return gym.Tuple([_space(inner) for inner in content["subspaces"]])
    space: gym.Space[Any] = deserialize_space(content)
    return space


class Episodes(ABC):
    """The open episodes of one dataset.

    Args:
        path: the file or folder that holds them.
        observation: the arrays of an observation, in order.
        action: the one array of an action.
    """

    def __init__(self, path: Path, observation: list[Leaf], action: Leaf):
        self.path = path
        self._observation = observation
        self._action = action

    @abstractmethod
    def count(self) -> int:
        """How many episodes there are."""

    @abstractmethod
    def rewards(self, index: int) -> Array:
        """The rewards of episode ``index``, whatever their shape."""

    @abstractmethod
    def unit(self, index: int, key: str) -> Any:
        """The values of an episode's attribute, or of an array of its ``infos``; None: there is no such thing."""

    @abstractmethod
    def _arrays(self, index: int, names: list[Keys]) -> list[Array]:
        """The arrays of an episode that these keys lead to."""

    def where(self, index: int) -> str:
        """The episode, for errors."""
        return f"{self.path}: episode {index}"

    def read(self, index: int) -> dict[str, Array]:
        """One episode of T steps: observations [T + 1, S], actions [T, A] or [T], and [T] of everything else.

        Raises:
            PipelineError: names the file, the episode and the array, what was found, what is allowed.
        """
        where = self.where(index)
        names = [("observations", *leaf.keys) for leaf in self._observation]
        arrays = self._arrays(index, [*names, ("actions",), *((name,) for name in _FLAGS)])
        parts = dict(zip(("actions", *_FLAGS), arrays[len(names) :], strict=True))
        rows = {"/".join(map(str, name)): len(array) for name, array in zip(names, arrays, strict=False)}
        episode: dict[str, Array] = {}
        for name in _FLAGS:
            found = parts[name]
            if found.dtype.kind not in _KINDS_OF_FLAGS[name]:
                allowed = _KINDS[_KINDS_OF_FLAGS[name]]
                raise PipelineError(f"{where}: {name}: found type {found.dtype}; allowed: {allowed}")
            if found.ndim == 2 and found.shape[1] == 1:
                found = found[:, 0]
            if found.ndim != 1:
                raise PipelineError(f"{where}: {name}: found an array of {found.ndim} axes; allowed: one number a step")
            episode[name] = found
        steps = len(episode["rewards"])
        if steps == 0:
            raise PipelineError(
                f"{where}: found no steps; allowed is at least one; drop the episode, or filter by lengths"
            )
        for name, length in (rows | {name: len(array) for name, array in parts.items()}).items():
            inner = name.startswith("observations")
            if length != steps + inner:
                rule = "one more than rewards" if inner else "as many as rewards"
                raise PipelineError(f"{where}: {name}: wrong number of rows; allowed: {rule}; record the episode again")
        flat = [
            leaf.vectors(array, f"{where}: {name}")
            for leaf, array, name in zip(self._observation, arrays, rows, strict=False)
        ]
        episode["observations"] = flat[0] if len(flat) == 1 else np.hstack(flat)
        episode["actions"] = self._chosen(parts["actions"], f"{where}: actions")
        return episode

    def _chosen(self, values: Array, where: str) -> Array:
        if not isinstance(self._action.space, gym.Discrete):
            return self._action.vectors(values, where)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise PipelineError(
                f"{where}: found type {values.dtype} and {values.ndim} axes; allowed: one whole number a step"
            )
        return np.clip(values, -1, int(self._action.space.n))  # outside stays outside, and fits int32 for RowCheck


class Hdf5Episodes(Episodes):
    """One group an episode in one file."""

    def __init__(self, path: Path, observation: list[Leaf], action: Leaf):
        super().__init__(path, observation, action)
        try:
            self._file = h5py.File(path, "r")
        except OSError:
            raise PipelineError(f"{path}: truncated, corrupt or missing HDF5; {_AGAIN}") from None

    def count(self) -> int:
        """How many episodes there are."""
        return len(self._file)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def rewards(self, index: int) -> Array:
        """The rewards of one episode."""
        return self._arrays(index, [("rewards",)])[0]

    def unit(self, index: int, key: str) -> Any:
        """An attribute of the group, or an array of its ``infos``."""
        try:
            group = self._file[f"episode_{index}"]
            if key in group.attrs:
                return group.attrs[key]
            if f"infos/{key}" not in group:
                return None
            if claims_too_much(group[f"infos/{key}"].id):
                raise ValueError
            return group[f"infos/{key}"][()]
        except (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError):
            raise PipelineError(f"{self.where(index)}: unit: {key!r} is corrupt, or no array; {_AGAIN}") from None

    def _arrays(self, index: int, names: list[Keys]) -> list[Array]:
        try:
            group = h5py.h5g.open(self._file.id, f"episode_{index}".encode())
            return [_read(group, name) for name in names]
        except (OSError, KeyError, ValueError, RuntimeError, MemoryError):
            raise PipelineError(
                f"{self.where(index)}: an array is missing, nested or corrupt, or claims more than the file holds; "
                f"needed are {', '.join('/'.join(map(str, name)) for name in names)}; {_AGAIN}"
            ) from None


def _read(group: h5py.h5g.GroupID, keys: Keys) -> Array:
    # The low-level calls: `group[name][()]` takes twice as long, and there are five arrays an episode.
    name = "/".join(f"_index_{key}" if isinstance(key, int) else key for key in keys)
    dataset = h5py.h5d.open(group, name.encode())
    if claims_too_much(dataset):
        raise ValueError
    values = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


class ArrowEpisodes(Episodes):
    """One folder an episode, with one file in Arrow's IPC format or in Parquet, and the attributes as JSON.

    Every column has the length of the observations; the last row of the others is padding.
    """

    def count(self) -> int:
        """How many episodes there are."""
        return sum(entry.name.isdecimal() for entry in self.path.iterdir())

    def close(self) -> None:
        """No file stays open."""

    def rewards(self, index: int) -> Array:
        """The rewards of one episode."""
        return self._arrays(index, [("rewards",)])[0]

    def unit(self, index: int, key: str) -> Any:
        """An entry of the episode's ``metadata.json``, or an array of its ``infos``."""
        keys = tuple(key.split("/"))
        try:
            found = json.loads((self.path / str(index) / "metadata.json").read_text(encoding="utf-8"))
            for part in keys:
                found = found.get(part) if isinstance(found, dict) else None
            if found is not None:
                return found
            return _plain(_field(self._table(index, "infos"), ("infos", *keys)))
        except KeyError:
            return None
        except (OSError, ValueError, pa.ArrowException, RecursionError):
            raise PipelineError(f"{self.where(index)}: unit: {key!r} is corrupt, or no array; {_AGAIN}") from None

    def _arrays(self, index: int, names: list[Keys]) -> list[Array]:
        try:
            table = self._table(index, *dict.fromkeys(str(name[0]) for name in names))
            arrays = [_plain(_field(table, name)) for name in names]
        except (OSError, KeyError, ValueError, pa.ArrowException):
            raise PipelineError(
                f"{self.where(index)}: a file or array is missing, nested or corrupt; "
                f"needed are {', '.join('/'.join(map(str, name)) for name in names)}; {_AGAIN}"
            ) from None
        return [array if name[0] == "observations" else array[:-1] for name, array in zip(names, arrays, strict=True)]

    def _table(self, index: int, *columns: str) -> pa.Table:
        files = sorted((self.path / str(index)).glob("part-*"))
        if len(files) != 1:
            raise FileNotFoundError
        if files[0].suffix == ".parquet":
            return pq.ParquetFile(files[0], page_checksum_verification=True).read(columns=list(columns))
        with pa.memory_map(str(files[0])) as file:
            return pa.ipc.open_file(file).read_all().select(columns)


def _field(table: pa.Table, keys: Keys) -> pa.Array:
    array = table[str(keys[0])].combine_chunks()
    for key in keys[1:]:
        if array.null_count > 0:
            raise ValueError
        array = array.field(str(key))
    return array


def _plain(array: pa.Array) -> Array:
    if array.null_count > 0:
        raise ValueError
    if pa.types.is_fixed_size_list(array.type):
        rows, size = len(array), array.type.list_size
        array = array.flatten()
        if array.null_count > 0:
            raise ValueError
        flat: Array = array.to_numpy(zero_copy_only=False).reshape(rows, size)
        return flat
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


_STORAGES: dict[str, type[Hdf5Episodes] | type[ArrowEpisodes]] = {
    "hdf5": Hdf5Episodes,
    "arrow": ArrowEpisodes,
    "parquet": ArrowEpisodes,
}


@contextmanager
def episodes(metadata: Metadata, observation: list[Leaf], action: Leaf) -> Iterator[Episodes]:
    """The episodes of the dataset that ``metadata`` describes, open for the block.

    Raises:
        PipelineError: if the file cannot be opened, or does not hold as many episodes as the metadata say.
    """
    storage = _STORAGES[metadata.form](metadata.data, observation, action)
    try:
        if storage.count() != metadata.episodes:
            raise PipelineError(
                f"{storage.path}: its number of episodes is not the one in metadata.json; "
                f"the dataset is incomplete; {_AGAIN}"
            )
        yield storage
    finally:
        storage.close()
