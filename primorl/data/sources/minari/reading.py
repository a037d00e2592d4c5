"""Minari datasets as batches of the dataset's schema: one, or several as a mixture.

All of Minari's formats are read here: its own classes build the environment that a dataset describes, whose entry point
may be any function of any module, and cannot read back some ``infos`` that they wrote in Arrow's formats.
"""

import json
import math
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from gymnasium import spaces as gym
from minari.serialization import deserialize_space

from primorl.base.errors import PipelineError
from primorl.config.datasets import EpisodeFilter
from primorl.data.sources.spaces import (
    ONE_NUMBER,
    Array,
    check_array,
    claims_too_much,
    spaces_of,
    whole_numbers,
)
from primorl.data.storage.schema import Spaces, id_text, trajectory_table

Keys = tuple[str | int, ...]

TRAJECTORY = "trajectory"
_ROWS_PER_BATCH = 2**16
_AGAIN = "run `dvc repro collect` again"
_FORMS = ("hdf5", "arrow", "parquet")
_FLAG_KINDS = {"rewards": "fiu", "terminations": "b", "truncations": "b"}
# What h5py and Arrow raise about damaged files; Arrow's errors are ValueError, KeyError and TypeError too.
_DAMAGE = (
    OSError,
    KeyError,
    ValueError,
    RuntimeError,
    TypeError,
    AttributeError,
    MemoryError,
    pa.ArrowException,
)


@dataclass(frozen=True)
class Leaf:
    """One array of a space: the keys that lead to it, and its own space.

    Both methods raise a `PipelineError` if type or shape are others, or the space does not have a category.
    """

    keys: Keys
    space: gym.Space[Any]

    def vectors(self, values: Array, where: str) -> Array:
        """Flatten values [rows, …] of the space as Gymnasium does, [rows, size]."""
        kinds = "iub" if isinstance(self.space, gym.MultiBinary) else "iu"
        if isinstance(self.space, gym.Box) and np.issubdtype(self.space.dtype, np.floating):
            kinds = "f"
        shape = tuple(self.space.shape or ())
        size = math.prod(shape)
        check_array(where, values, kinds, [shape, (size,), *([()] if size == 1 else [])])
        flat = values.reshape(len(values), -1)
        if isinstance(self.space, gym.Discrete):
            return _one_hot(flat[:, 0] - self.space.start, int(self.space.n), where)
        if isinstance(self.space, gym.MultiDiscrete):
            choices, sizes = flat - self.space.start.ravel(), self.space.nvec.ravel()
            return np.hstack(
                [_one_hot(choices[:, i], int(size), where) for i, size in enumerate(sizes)]
            )
        return flat

    def chosen(self, values: Array, where: str) -> Array:
        """Give actions [T, A], or whole numbers [T] where they are discrete."""
        if not isinstance(self.space, gym.Discrete):
            return self.vectors(values, where)
        check_array(where, values, "iu", ONE_NUMBER)
        return whole_numbers(values, int(self.space.n))


def _leaves(space: gym.Space[Any], keys: Keys = ()) -> list[Leaf]:
    """List the arrays of a space as Gymnasium flattens them: a Dict's entries in the order that the Dict has them."""
    if isinstance(space, gym.Dict):
        return [
            leaf for key, inner in space.spaces.items() for leaf in _leaves(inner, (*keys, key))
        ]
    if isinstance(space, gym.Tuple):
        return [leaf for i, inner in enumerate(space.spaces) for leaf in _leaves(inner, (*keys, i))]
    return [Leaf(keys, space)]


def _one_hot(choices: Array, size: int, where: str) -> Array:
    if ((choices < 0) | (choices >= size)).any():
        raise PipelineError(
            f"{where}: found a category outside the declared space; allowed: {size} categories"
        )
    return np.eye(size, dtype=np.float32)[choices]


@dataclass(frozen=True)
class Metadata:
    """The part of a dataset's ``metadata.json`` that is needed here.

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
        return self.path.with_name("main_data.hdf5") if self.form == "hdf5" else self.path.parent

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
        if form not in _FORMS:
            raise PipelineError(
                f"{path}: data_format: found {form!r}; allowed are {', '.join(_FORMS)}"
            )
        if episodes < 1:
            raise PipelineError(f"{path}: found no episodes; allowed is at least one")
        try:
            observation, action = (
                None if space is None else _space(json.loads(space)) for space in stored
            )
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            AssertionError,
            NotImplementedError,
            RecursionError,
        ):
            raise PipelineError(f"{path}: spaces that cannot be read; {_AGAIN}") from None
        return cls(path, form, episodes, observation, action)

    def spaces(self) -> Spaces:
        """Give the spaces that the dataset itself declares.

        Raises:
            PipelineError: if it stores none, or some that are not supported.
        """
        if self.observation is None or self.action is None:
            raise PipelineError(
                f"{self.path}: stores no spaces; name the environment that declares them"
            )
        for leaf in _leaves(self.observation):
            if not isinstance(
                leaf.space, gym.Box | gym.Discrete | gym.MultiBinary | gym.MultiDiscrete
            ):
                raise PipelineError(
                    f"{self.path}: observation space: found {type(leaf.space).__name__}; allowed are Box, Discrete, "
                    "MultiBinary and MultiDiscrete, and Dict and Tuple of them"
                )
        return spaces_of(str(self.path), self.observation, self.action)

    def arrays(self, spaces: Spaces, order: gym.Space[Any] | None) -> tuple[list[Leaf], Leaf]:
        """Find the arrays of an observation, in order, and the one of an action; compare the spaces with ``spaces``.

        Older Minari stored none where they are the environment's: then the arrays alone have to fit.
        """
        if self.observation is None or self.action is None:
            action: gym.Space[Any] = gym.Box(-np.inf, np.inf, (spaces.action_size,), np.float32)
            if spaces.discrete_actions:
                action = gym.Discrete(spaces.action_size)
            box = gym.Box(-np.inf, np.inf, (spaces.observation_size,), np.float32)
            return [Leaf((), box)], Leaf((), action)
        own = self.spaces()
        kinds = {True: "discrete actions", False: "a box"}
        for what, found, allowed in (
            (
                "observation",
                f"{own.observation_size} dimensions",
                f"{spaces.observation_size} dimensions",
            ),
            ("action", f"{own.action_size} dimensions", f"{spaces.action_size} dimensions"),
            ("action", kinds[own.discrete_actions], kinds[spaces.discrete_actions]),
        ):
            if found != allowed:
                raise PipelineError(
                    f"{self.path}: {what} space: found {found}, declared are {allowed}; correct `environment` in "
                    "params.yaml, or the parts of the mixture"
                )
        stored, path = _leaves(self.observation), self.path
        declared = (
            [()] if order is None or len(stored) == 1 else [leaf.keys for leaf in _leaves(order)]
        )
        if declared != [()]:  # in the environment's order, in which a policy meets its observations
            by_keys = {leaf.keys: leaf for leaf in stored}
            if set(declared) != set(by_keys):
                raise PipelineError(
                    f"{path}: observation space: its entries are not those of `environment`"
                )
            stored = [by_keys[keys] for keys in declared]
        return stored, Leaf((), self.action)


def _space(content: dict[str, Any]) -> gym.Space[Any]:
    """Read a space. Minari would sort a Dict's entries; the file has them in the order of the original space."""
    if content["type"] == "Dict":
        return gym.Dict(
            OrderedDict((key, _space(inner)) for key, inner in content["subspaces"].items())
        )
    if content["type"] == "Tuple":
        return gym.Tuple([_space(inner) for inner in content["subspaces"]])
    space: gym.Space[Any] = deserialize_space(content)
    return space


@dataclass(frozen=True)
class Part:
    """One dataset of a mixture.

    Attributes:
        metadata: of the dataset.
        prefix: stands before the episodes' numbers in their ids.
        filter: the ranges of the episodes that belong to the mixture; None: every one.
    """

    metadata: Metadata
    prefix: str
    filter: EpisodeFilter | None

    def name(self, index: int) -> str:
        """The id of episode ``index``."""
        # One width for all datasets: were it the dataset's own, one more episode could rename, and
        # so move between private and public, all others.
        return f"{self.prefix}{index:09d}"


class MixtureReader:
    """Episodes of Minari datasets; see `primorl.data.sources.Reader`.

    Their ``trajectory_id`` is the part's prefix and the episode's number, padded with zeros so that the order of
    text is the order of numbers.

    Args:
        path: the file or folder that errors name.
        parts: the datasets.
        spaces: of the mixture.
        horizon: the step limit that is declared.
        unit: ``trajectory``, or the episodes' attribute or array of ``infos`` that names their person.
        order: the environment's observation space before it is flattened: the order of a Dict's entries.

    Raises:
        PipelineError: if a part's spaces are not the mixture's.
    """

    behaviour_probabilities = False

    def __init__(
        self,
        path: Path,
        parts: Sequence[Part],
        spaces: Spaces,
        horizon: int | None,
        unit: str = TRAJECTORY,
        order: gym.Space[Any] | None = None,
    ):
        self.path, self.spaces, self.horizon = path, spaces, horizon
        self._unit, self._parts = unit, sorted(parts, key=lambda part: part.prefix)
        self._arrays = [part.metadata.arrays(spaces, order) for part in self._parts]

    def tables(self) -> Generator[pa.Table]:
        """See `Reader.tables`; errors name the file, the episode and the array."""
        with ExitStack() as stack:
            files = []
            for part, arrays in zip(self._parts, self._arrays, strict=True):
                files.append(stack.enter_context(closing(_Files(part.metadata, *arrays))))
            everything = (
                (
                    part.name(index)
                    if self._unit == TRAJECTORY
                    else files[number].unit(index, self._unit),
                    number,
                    index,
                )
                for number, part in enumerate(self._parts)
                for index in range(part.metadata.episodes)
            )
            # Trajectories ascend as they are; of others the units' names are all that is held.
            order = everything if self._unit == TRAJECTORY else sorted(everything)
            waiting: list[tuple[str, str, dict[str, Array]]] = []
            rows, kept = 0, [0] * len(files)
            for unit, number, index in order:
                if rows >= _ROWS_PER_BATCH and unit != waiting[-1][0]:
                    yield self._table(waiting)
                    waiting, rows = [], 0
                part, raw = self._parts[number], files[number].read(index)
                if part.filter is None or _passes(part.filter, index, raw["rewards",]):
                    episode = files[number].checked(index, raw)
                    waiting.append((unit, part.name(index), episode))
                    rows += len(episode["rewards"])
                    kept[number] += 1
            for part, count in zip(self._parts, kept, strict=True):
                if count == 0:
                    raise PipelineError(
                        f"{part.metadata.path}: found no episode that passes its filter; widen it"
                    )
            if waiting:
                yield self._table(waiting)

    def _table(self, waiting: list[tuple[str, str, dict[str, Array]]]) -> pa.Table:
        units, names, episodes = zip(*waiting, strict=True)
        columns = ("observations", "actions", "rewards", "terminations", "truncations")
        arrays = [[episode[name] for episode in episodes] for name in columns]
        return trajectory_table(self.spaces, units, names, *arrays)


def read_recorded(root: Path, spaces: Spaces, horizon: int | None = None) -> MixtureReader:
    """Open the one Minari dataset under ``root``, every episode a privacy unit.

    Args:
        root: the folder with exactly one Minari dataset in it, at any depth.
        spaces: those that the environment declares.
        horizon: the step limit that it declares.

    Raises:
        PipelineError: if there is not exactly one dataset, or it is unreadable or has spaces of other sizes.
    """
    found = sorted(root.glob("**/data/metadata.json"))
    if len(found) != 1:
        raise PipelineError(
            f"{root}: found {len(found)} Minari datasets, allowed is one; run `dvc repro collect`"
        )
    metadata = Metadata.read(found[0])
    return MixtureReader(metadata.data, [Part(metadata, "", None)], spaces, horizon)


class _Files:
    """The files of one dataset, open until `close`.

    In HDF5 every episode is a group of one file. In Arrow's formats it is a folder with its attributes as JSON and a
    file whose columns all have the length of the observations: there the last row of the others is padding.
    """

    def __init__(self, metadata: Metadata, observation: list[Leaf], action: Leaf):
        self._path, self._form = metadata.data, metadata.form
        self._observation = {("observations", *leaf.keys): leaf for leaf in observation}
        self._action = action
        self._names: list[Keys] = [
            *self._observation,
            ("actions",),
            *((name,) for name in _FLAG_KINDS),
        ]
        self._file: h5py.File | None = None
        if self._form == "hdf5":
            try:
                self._file = h5py.File(self._path, "r")
            except OSError:
                raise PipelineError(
                    f"{self._path}: truncated, corrupt or missing HDF5; {_AGAIN}"
                ) from None
            found = len(self._file)
        else:
            found = sum(entry.name.isdecimal() for entry in self._path.iterdir())
        if found != metadata.episodes:
            raise PipelineError(
                f"{self._path}: its number of episodes is not the one in metadata.json; {_AGAIN}"
            )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, index: int) -> dict[Keys, Array]:
        """Read the arrays of one episode."""
        try:
            if self._file is not None:
                group = h5py.h5g.open(self._file.id, f"episode_{index}".encode())
                return {name: _read_hdf5(group, name) for name in self._names}
            table = self._table(index, list(dict.fromkeys(str(name[0]) for name in self._names)))
            arrays = {name: _read_arrow(table, name) for name in self._names}
            return {
                name: values if name in self._observation else values[:-1]
                for name, values in arrays.items()
            }
        except _DAMAGE:
            raise PipelineError(
                f"{self._path}: episode {index}: a file or array is missing, nested or corrupt, or claims more than "
                f"the file holds; needed are {', '.join(map(_joined, self._names))}; {_AGAIN}"
            ) from None

    def _table(self, index: int, columns: list[str]) -> pa.Table:
        folder = self._path / str(index)
        return ds.dataset(
            folder, format=self._form, ignore_prefixes=[".", "_", "metadata"]
        ).to_table(columns)

    def checked(self, index: int, raw: dict[Keys, Array]) -> dict[str, Array]:
        """Check one episode of T steps: observations [T + 1, S], actions [T, A] or [T], and [T] of everything else."""
        where = f"{self._path}: episode {index}"
        episode: dict[str, Array] = {}
        for name, kinds in _FLAG_KINDS.items():
            check_array(f"{where}: {name}", raw[name,], kinds, ONE_NUMBER)
            episode[name] = raw[name,].reshape(-1)
        steps = len(episode["rewards"])
        if steps == 0:
            raise PipelineError(
                f"{where}: found no steps; allowed is at least one; drop it, or filter by lengths"
            )
        for keys, values in raw.items():
            inner = keys in self._observation
            if values.shape[:1] != (steps + inner,):
                rule = "one more than rewards" if inner else "as many as rewards"
                raise PipelineError(
                    f"{where}: {_joined(keys)}: wrong number of rows; allowed: {rule}"
                )
        observation = self._observation.items()
        flat = [leaf.vectors(raw[keys], f"{where}: {_joined(keys)}") for keys, leaf in observation]
        episode["observations"] = flat[0] if len(flat) == 1 else np.hstack(flat)
        episode["actions"] = self._action.chosen(raw["actions",], f"{where}: actions")
        return episode

    def unit(self, index: int, key: str) -> str:
        """Name the person of an episode, by its attribute ``key``, or an array of its ``infos``."""
        where = f"{self._path}: episode {index}: unit:"
        try:
            found = self._attribute(index, key)
        except _DAMAGE:
            raise PipelineError(f"{where} {key!r} is corrupt, or no array; {_AGAIN}") from None
        if found is None:
            raise PipelineError(
                f"{where} found no {key!r}; allowed: trajectory, an attribute of every episode, or an array of infos"
            )
        names = {_name(value) for value in np.asarray(found, dtype=object).ravel()}
        if None in names:
            raise PipelineError(f"{where} {key!r} is no name; allowed: text or whole numbers")
        if len(names) != 1:
            raise PipelineError(
                f"{where} {key!r} has {len(names)} values; allowed is one, the same at every step"
            )
        return str(names.pop())

    def _attribute(self, index: int, key: str) -> Any:
        keys = key.split("/")
        if self._file is not None:
            group = self._file[f"episode_{index}"]
            if key in group.attrs:
                return group.attrs[key]
            return _read_hdf5(group.id, ("infos", *keys)) if f"infos/{key}" in group else None
        found = json.loads((self._path / str(index) / "metadata.json").read_text(encoding="utf-8"))
        for part in keys:
            found = found.get(part) if isinstance(found, dict) else None
        if found is not None:
            return found
        try:
            return _read_arrow(self._table(index, ["infos"]), ("infos", *keys))
        except (KeyError, pa.ArrowInvalid):  # of a column that is not there
            return None


def _joined(keys: Keys) -> str:
    return "/".join(map(str, keys))


def _read_hdf5(group: h5py.h5g.GroupID, keys: Keys) -> Array:
    # The low-level calls: `group[name][()]` takes twice as long, and there are five arrays an episode.
    name = "/".join(f"_index_{key}" if isinstance(key, int) else key for key in keys)
    dataset = h5py.h5d.open(group, name.encode())
    if claims_too_much(dataset):
        raise ValueError
    values = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def _read_arrow(table: pa.Table, keys: Keys) -> Array:
    array = table[str(keys[0])].combine_chunks()
    for key in keys[1:]:
        if array.null_count > 0:
            raise ValueError
        array = array.field(str(key))
    values = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
    if array.null_count + values.null_count > 0:
        raise ValueError
    rows: Array = values.to_numpy(zero_copy_only=False)
    return rows if values is array else rows.reshape(len(array), array.type.list_size)


def _passes(wanted: EpisodeFilter, index: int, rewards: Array) -> bool:
    """Tell whether an episode lies in all ranges; ends belong to them and may be open."""
    total = float(rewards.sum()) if rewards.dtype.kind in "fiu" else math.nan
    for bounds, value in (
        (wanted.episodes, index),
        (wanted.lengths, len(rewards)),
        (wanted.returns, total),
    ):
        low, high = bounds or (None, None)
        below, above = low is not None and value < low, high is not None and value > high
        if math.isfinite(value) and (
            below or above
        ):  # RowCheck names what is not finite; a filter must not hide it
            return False
    return True


def _name(value: Any) -> str | None:
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            return None
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        return None
    name: str = id_text(pa.array([str(value)]))[0].as_py()
    return name
