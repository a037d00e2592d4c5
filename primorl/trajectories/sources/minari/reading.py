"""Minari datasets as batches of the dataset's schema: one, or several as a mixture.

All of Minari's formats are read here: its own classes build the environment that a dataset describes, whose entry point
may be any function of any module, and cannot read back some ``infos`` that they wrote in Arrow's formats.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from gymnasium import spaces as gym

from primorl.config.datasets import EpisodeFilter
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.hdf5 import claims_too_much
from primorl.trajectories.sources.minari.metadata import AGAIN, KINDS, Array, Keys, Leaf, Metadata, arrays_of
from primorl.trajectories.storage.schema import Spaces, id_text, trajectory_table

TRAJECTORY = "trajectory"
_ROWS_PER_BATCH = 2**16
__FLAG_KINDS = {"rewards": "fiu", "terminations": "b", "truncations": "b"}
_FLAG_KINDS = {"rewards": "fiu", "terminations": "b", "truncations": "b"}
# What h5py and Arrow raise about damaged files; Arrow's errors are ValueError, KeyError and TypeError too.
_DAMAGE = (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError, MemoryError, pa.ArrowException)


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
    """Episodes of Minari datasets; see `primorl.trajectories.sources.source.Reader`.

    Their ``trajectory_id`` is the part's prefix and the episode's number, padded with zeros so that the order of
    text is the order of numbers.

    Args:
        path: the file or folder that errors name.
        parts: the datasets.
        spaces: of the mixture.
        horizon: the step limit that is declared.
        unit: ``trajectory``, or the episodes' attribute or array of ``infos`` that names whose they are.
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
        self.path = path
        self.spaces = spaces
        self.horizon = horizon
        self._parts = sorted(parts, key=lambda part: part.prefix)
        self._unit = unit
        self._arrays = [arrays_of(part.metadata, spaces, order) for part in self._parts]

    def tables(self) -> Iterator[pa.Table]:
        """Batches of whole units.

        Raises:
            PipelineError: names the file, the episode and the array, what was found, what is allowed.
        """
        with ExitStack() as stack:
            files = []
            for part, arrays in zip(self._parts, self._arrays, strict=True):
                files.append(stack.enter_context(closing(_Files(part.metadata, *arrays))))
            yield from self._batches(files)

    def _batches(self, files: list["_Files"]) -> Iterator[pa.Table]:
        everything = (
            (self._unit_of(files[number], part, index), number, index)
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
                raise PipelineError(f"{part.metadata.path}: found no episode that passes its filter; widen it")
        if waiting:
            yield self._table(waiting)

    def _unit_of(self, files: "_Files", part: Part, index: int) -> str:
        return part.name(index) if self._unit == TRAJECTORY else files.unit(index, self._unit)

    def _table(self, waiting: list[tuple[str, str, dict[str, Array]]]) -> pa.Table:
        units, names, episodes = zip(*waiting, strict=True)
        columns = ("observations", "actions", "rewards", "terminations", "truncations")
        arrays = [[episode[name] for episode in episodes] for name in columns]
        return trajectory_table(self.spaces, units, names, *arrays)


class MinariReader(MixtureReader):
    """The one Minari dataset under ``root``, every episode a privacy unit.

    Args:
        root: the folder with exactly one Minari dataset in it, at any depth.
        spaces: those that the environment declares.
        horizon: the step limit that it declares.

    Raises:
        PipelineError: if there is not exactly one dataset, or it is unreadable or has spaces of other sizes.
    """

    def __init__(self, root: Path, spaces: Spaces, horizon: int | None = None):
        found = sorted(root.glob("**/data/metadata.json"))
        if len(found) != 1:
            raise PipelineError(f"{root}: found {len(found)} Minari datasets, allowed is one; run `dvc repro collect`")
        metadata = Metadata.read(found[0])
        super().__init__(metadata.data, [Part(metadata, "", None)], spaces, horizon)


class _Files:
    """The files of one dataset, open until `close`.

    In HDF5 every episode is a group of one file. In Arrow's formats it is a folder with its attributes as JSON and a
    file whose columns all have the length of the observations: there the last row of the others is padding.

    Args:
        metadata: of the dataset.
        observation: the arrays of an observation, in order.
        action: the one array of an action.

    Raises:
        PipelineError: if HDF5 cannot be opened, or there are not as many episodes as the metadata say.
    """

    def __init__(self, metadata: Metadata, observation: list[Leaf], action: Leaf):
        self._path, self._form = metadata.data, metadata.form
        self._observation = observation
        self._action = action
        self._names: list[Keys] = [("observations", *leaf.keys) for leaf in observation]
        self._names += [("actions",), *((name,) for name in _FLAG_KINDS)]
        self._file: h5py.File | None = None
        if self._form == "hdf5":
            try:
                self._file = h5py.File(self._path, "r")
            except OSError:
                raise PipelineError(f"{self._path}: truncated, corrupt or missing HDF5; {AGAIN}") from None
            found = len(self._file)
        else:
            found = sum(entry.name.isdecimal() for entry in self._path.iterdir())
        if found != metadata.episodes:
            raise PipelineError(
                f"{self._path}: its number of episodes is not the one in metadata.json; the dataset is incomplete; "
                f"{AGAIN}"
            )

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()

    def _where(self, index: int) -> str:
        return f"{self._path}: episode {index}"

    def read(self, index: int) -> dict[Keys, Array]:
        """Read the arrays of one episode.

        Raises:
            PipelineError: if a file or array is missing, nested or corrupt.
        """
        try:
            if self._file is not None:
                group = h5py.h5g.open(self._file.id, f"episode_{index}".encode())
                return {name: _read_hdf5(group, name) for name in self._names}
            table = self._table(index, list(dict.fromkeys(str(name[0]) for name in self._names)))
            arrays = {name: _read_arrow(table, name) for name in self._names}
            return {name: values if name[0] == "observations" else values[:-1] for name, values in arrays.items()}
        except _DAMAGE:
            raise PipelineError(
                f"{self._where(index)}: a file or array is missing, nested or corrupt, or claims more than the file "
                f"holds; needed are {', '.join('/'.join(map(str, name)) for name in self._names)}; {AGAIN}"
            ) from None

    def _table(self, index: int, columns: list[str]) -> pa.Table:
        folder = self._path / str(index)
        return ds.dataset(folder, format=self._form, ignore_prefixes=[".", "_", "metadata"]).to_table(columns)

    def checked(self, index: int, raw: dict[Keys, Array]) -> dict[str, Array]:
        """Check one episode of T steps: observations [T + 1, S], actions [T, A] or [T], and [T] of everything else.

        Raises:
            PipelineError: names the file, the episode and the array, what was found, what is allowed.
        """
        where = self._where(index)
        episode: dict[str, Array] = {}
        for name, kinds in _FLAG_KINDS.items():
            found = raw[name,]
            if found.dtype.kind not in kinds:
                raise PipelineError(f"{where}: {name}: found type {found.dtype}; allowed: {KINDS[kinds]}")
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
        for keys, values in raw.items():
            inner = keys[0] == "observations"
            if len(values) != steps + inner:
                rule = "one more than rewards" if inner else "as many as rewards"
                name = "/".join(map(str, keys))
                raise PipelineError(f"{where}: {name}: wrong number of rows; allowed: {rule}; record the episode again")
        flat = []
        for leaf in self._observation:
            keys = ("observations", *leaf.keys)
            flat.append(leaf.vectors(raw[keys], f"{where}: {'/'.join(map(str, keys))}"))
        episode["observations"] = flat[0] if len(flat) == 1 else np.hstack(flat)
        episode["actions"] = self._action.chosen(raw["actions",], f"{where}: actions")
        return episode

    def unit(self, index: int, key: str) -> str:
        """Name whose an episode is, by its attribute ``key``, or an array of its ``infos``.

        Raises:
            PipelineError: if there is neither, or it is no name, or several.
        """
        where = f"{self._where(index)}: unit:"
        try:
            found = self._attribute(index, key)
        except _DAMAGE:
            raise PipelineError(f"{where} {key!r} is corrupt, or no array; {AGAIN}") from None
        if found is None:
            raise PipelineError(
                f"{where} found no {key!r}; allowed: trajectory, an attribute of every episode, or an array of its "
                "infos"
            )
        names = {_name(value) for value in np.asarray(found, dtype=object).ravel()}
        if None in names:
            raise PipelineError(f"{where} {key!r} is no name; allowed: text or whole numbers")
        if len(names) != 1:
            raise PipelineError(f"{where} {key!r} has {len(names)} values; allowed is one, the same at every step")
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
    total = float(rewards.sum()) if rewards.dtype.kind in "fiu" else float("nan")
    return _within(wanted.episodes, index) and _within(wanted.lengths, len(rewards)) and _within(wanted.returns, total)


def _within(bounds: tuple[float | None, float | None] | None, value: float) -> bool:
    """Say whether a value lies in a range whose ends belong to it, and may be open; what is not finite passes."""
    if bounds is None or not math.isfinite(value):  # RowCheck names what is not finite; a filter must not hide it
        return True
    low, high = bounds
    return (low is None or value >= low) and (high is None or value <= high)


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
