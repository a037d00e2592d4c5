"""Minari datasets as batches of the dataset's schema: one, or several as a mixture."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from primorl.project.errors import PipelineError
from primorl.trajectories.sources.minari.storages import Episodes, Leaf, Metadata, episodes, leaves
from primorl.trajectories.sources.spaces import spaces_of
from primorl.trajectories.storage.schema import Spaces, id_text, trajectory_table

Array = npt.NDArray[Any]
Keep = Callable[[int, Array], bool]

_ROWS_PER_BATCH = 2**16
TRAJECTORY = "trajectory"


@dataclass(frozen=True)
class Part:
    """One dataset of a mixture.

    Attributes:
        metadata: of the dataset.
        prefix: stands before the episodes' numbers in their ids.
        keep: whether an episode belongs to the mixture, from its number and its rewards; None: every one.
    """

    metadata: Metadata
    prefix: str
    keep: Keep | None


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
        order: Space[Any] | None = None,
    ):
        self.path = path
        self.spaces = spaces
        self.horizon = horizon
        self._parts = sorted(parts, key=lambda part: part.prefix)
        self._unit = unit
        self._arrays = [_arrays(part.metadata, spaces, order) for part in self._parts]

    def tables(self) -> Iterator[pa.Table]:
        """Batches of whole units.

        Raises:
            PipelineError: names the file, the episode and the array, what was found, what is allowed.
        """
        with ExitStack() as files:
            opened = [
                files.enter_context(episodes(part.metadata, *arrays))
                for part, arrays in zip(self._parts, self._arrays, strict=True)
            ]
            batch = _Batch(self.spaces)
            kept = [0] * len(opened)
            for unit, number, index in self._in_order(opened):
                if batch.rows >= _ROWS_PER_BATCH and unit != batch.unit:
                    yield batch.table()
                keep, storage = self._parts[number].keep, opened[number]
                if keep is None or keep(index, storage.rewards(index)):
                    batch.add(unit, self._name(number, index), storage.read(index))
                    kept[number] += 1
            for part, episodes_of_part in zip(self._parts, kept, strict=True):
                if episodes_of_part == 0:
                    raise PipelineError(f"{part.metadata.path}: found no episode that passes its filter; widen it")
            if batch.rows > 0:
                yield batch.table()

    def _in_order(self, opened: list[Episodes]) -> Iterator[tuple[str, int, int]]:
        """(unit, part, episode), ascending by unit and trajectory; the units' names are all that is held."""
        everything = (
            (part, index) for part, storage in enumerate(opened) for index in range(self._parts[part].metadata.episodes)
        )
        if self._unit == TRAJECTORY:
            yield from ((self._name(part, index), part, index) for part, index in everything)
        else:
            yield from sorted((_unit(opened[part], index, self._unit), part, index) for part, index in everything)

    def _name(self, part: int, index: int) -> str:
        # One width for all datasets: were it the dataset's own, one more episode could rename, and
        # so move between private and public, all others.
        return f"{self._parts[part].prefix}{index:09d}"


class MinariReader(MixtureReader):
    """The one Minari dataset under ``root``, every episode a privacy unit.

    Args:
        root: the folder with exactly one Minari dataset in it, at any depth.
        spaces: what the environment declares.
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


def stored_spaces(metadata: Metadata) -> Spaces:
    """The spaces that a dataset itself declares.

    Raises:
        PipelineError: if it stores none, or some that are not supported.
    """
    if metadata.observation is None or metadata.action is None:
        raise PipelineError(
            f"{metadata.path}: stores no spaces; name the environment that declares them (`environment` in params.yaml)"
        )
    for leaf in leaves(metadata.observation):
        if not isinstance(leaf.space, Box | Discrete | MultiBinary | MultiDiscrete):
            raise PipelineError(
                f"{metadata.path}: observation space: found {type(leaf.space).__name__}; allowed are Box, Discrete, "
                "MultiBinary and MultiDiscrete, and Dict and Tuple of them"
            )
    return spaces_of(str(metadata.path), metadata.observation, metadata.action)


def _arrays(metadata: Metadata, spaces: Spaces, order: Space[Any] | None) -> tuple[list[Leaf], Leaf]:
    """The arrays of an observation, in order, and the one of an action; compares the dataset's spaces with ``spaces``.

    Older Minari stored none where they are the environment's: then the arrays alone have to fit.
    """
    if metadata.observation is None or metadata.action is None:
        box = Box(-np.inf, np.inf, (spaces.observation_size,), np.float32)
        A = spaces.action_size
        return leaves(box), Leaf((), Discrete(A) if spaces.discrete_actions else Box(-np.inf, np.inf, (A,), np.float32))
    own = stored_spaces(metadata)
    for what in ("observation", "action"):
        found, allowed = getattr(own, f"{what}_size"), getattr(spaces, f"{what}_size")
        if found != allowed:
            raise PipelineError(
                f"{metadata.path}: {what} space: found {found} dimensions, declared are {allowed}; "
                "correct `environment` in params.yaml, or the parts of the mixture"
            )
    if own.discrete_actions != spaces.discrete_actions:
        kinds = {True: "discrete actions", False: "a box"}
        raise PipelineError(
            f"{metadata.path}: action space: found {kinds[own.discrete_actions]}, declared are "
            f"{kinds[spaces.discrete_actions]}; correct `environment` in params.yaml, or the parts of the mixture"
        )
    return _ordered(leaves(metadata.observation), order, metadata.path), Leaf((), metadata.action)


def _ordered(stored: list[Leaf], order: Space[Any] | None, path: Path) -> list[Leaf]:
    """The stored arrays in the environment's order: a policy meets its observations in that one."""
    if order is None or len(stored) == 1:
        return stored
    declared = [leaf.keys for leaf in leaves(order)]
    by_keys = {leaf.keys: leaf for leaf in stored}
    if declared != [()] and set(declared) != set(by_keys):
        raise PipelineError(
            f"{path}: observation space: its entries are not the environment's; correct `environment` in params.yaml"
        )
    return stored if declared == [()] else [by_keys[keys] for keys in declared]


def _unit(storage: Episodes, index: int, key: str) -> str:
    found = storage.unit(index, key)
    if found is None:
        raise PipelineError(
            f"{storage.where(index)}: unit: found no {key!r}; allowed: trajectory, an attribute of every episode, "
            "or an array of its infos"
        )
    names = {_name(value) for value in np.asarray(found, dtype=object).ravel()}
    if None in names:
        raise PipelineError(f"{storage.where(index)}: unit: {key!r} is no name; allowed: text or whole numbers")
    if len(names) != 1:
        raise PipelineError(
            f"{storage.where(index)}: unit: {key!r} has {len(names)} values; allowed is one, the same at every step"
        )
    return str(names.pop())


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


def within(bounds: tuple[float | None, float | None] | None, value: float) -> bool:
    """Whether a value lies in a range whose ends belong to it, and may be open; what is not finite passes."""
    if bounds is None or not math.isfinite(value):  # RowCheck names what is not finite; a filter must not hide it
        return True
    low, high = bounds
    return (low is None or value >= low) and (high is None or value <= high)


class _Batch:
    """Episodes that wait to become one table."""

    def __init__(self, spaces: Spaces):
        self._spaces = spaces
        self._units: list[str] = []
        self._names: list[str] = []
        self._episodes: list[dict[str, Array]] = []
        self.rows = 0

    @property
    def unit(self) -> str | None:
        """The unit of the last episode."""
        return self._units[-1] if self._units else None

    def add(self, unit: str, name: str, episode: dict[str, Array]) -> None:
        self._units.append(unit)
        self._names.append(name)
        self._episodes.append(episode)
        self.rows += len(episode["rewards"])

    def table(self) -> pa.Table:
        columns = ("observations", "actions", "rewards", "terminations", "truncations")
        arrays = [[episode[name] for episode in self._episodes] for name in columns]
        table = trajectory_table(self._spaces, self._units, self._names, *arrays)
        self._units, self._names, self._episodes, self.rows = [], [], [], 0
        return table
