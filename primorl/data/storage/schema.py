"""Schema of a dataset: its columns, and the public facts that travel with it."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator

from primorl.base import PipelineError
from primorl.base.files import read_json
from primorl.base.records import adapter

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
IDS = ("unit_id", "trajectory_id")

_METADATA_KEY = b"primorl"
_ID_DIGITS = 12


def _or_infinite(infinity: float) -> BeforeValidator:
    return BeforeValidator(lambda bound: infinity if bound is None else bound)


Low: TypeAlias = Annotated[float, _or_infinite(-np.inf)]
High: TypeAlias = Annotated[float, _or_infinite(np.inf)]
"""A bound; in JSON an infinite one is null."""


@dataclass(frozen=True)
class Spaces:
    """The declared bounds of observations [S] and actions [A].

    They are public facts; open bounds are infinite.

    Discrete actions 0 … A - 1 are one-hot vectors of size A to the model, with bounds 0 and 1.

    Attributes:
        observation_low: lower bounds [S].
        observation_high: upper bounds [S].
        action_low: lower bounds [A].
        action_high: upper bounds [A].
        discrete_actions: whether an action is a whole number.
        one_hot: the parts of an observation that encode one category each: (first dimension, number
            of categories).
        observation_names: what each dimension is called [S]; ``meal=snack`` for a category. Without
            names of their own, dimensions are called ``observation_0``, ``observation_1`` and so
            on.
        action_names: what each dimension, or each discrete action, is called [A]. Without names of
            their own, dimensions are called ``action_0`` and so on, and discrete actions ``0``,
            ``1`` and so on.

    Raises:
        ValueError: if the number of names is not the number of dimensions.
    """

    observation_low: tuple[Low, ...]
    observation_high: tuple[High, ...]
    action_low: tuple[Low, ...]
    action_high: tuple[High, ...]
    discrete_actions: bool = False
    one_hot: tuple[tuple[int, int], ...] = ()
    observation_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        prefix = "" if self.discrete_actions else "action_"
        sizes = (self.observation_size, "observation_"), (self.action_size, prefix)
        for key, (size, prefix) in zip(("observation_names", "action_names"), sizes, strict=True):
            if not getattr(self, key):
                object.__setattr__(self, key, tuple(f"{prefix}{i}" for i in range(size)))
            if len(getattr(self, key)) != size:
                raise ValueError("names: allowed is one for each dimension")

    @classmethod
    def with_discrete_actions(
        cls, low: tuple[float, ...], high: tuple[float, ...], actions: int
    ) -> Self:
        """Spaces with ``actions`` discrete actions, and these bounds of observations."""
        return cls(low, high, (0.0,) * actions, (1.0,) * actions, discrete_actions=True)

    @property
    def observation_size(self) -> int:
        """S."""
        return len(self.observation_low)

    @property
    def action_size(self) -> int:
        """A: the dimensions of an action, or the number of discrete actions."""
        return len(self.action_low)


@dataclass(frozen=True)
class DatasetInfo:
    """The public facts that travel with every copy of a dataset.

    Attributes:
        dataset: its file in ``datasets/``.
        environment: the Gymnasium id of its environment; None: there is no simulator.
        unit: what one privacy unit is.
        spaces: the declared spaces.
        horizon: the declared step limit; None without one.
        termination: how model rollouts know an end: ``none``, ``learned`` or a rule's name.
        duplicates: ``refuse``, or ``allow`` where two units may have equal rows.
        dataset_fingerprint: keyed (HMAC) hash of all rows of the whole dataset, before any
            partition.
        population: who the people are: within it, equal ids are one person.
        trajectories_per_person: the most trajectories of one person; None: it is not declared.
    """

    dataset: str
    environment: str | None
    unit: str
    spaces: Spaces
    horizon: int | None
    termination: str
    duplicates: str
    dataset_fingerprint: str
    population: str = ""
    trajectories_per_person: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return arrow_schema(self.spaces)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        content: dict[str, Any] = json.loads(adapter(DatasetInfo).dump_json(self))
        return content

    @staticmethod
    def from_json(content: dict[str, Any]) -> "DatasetInfo":
        """Invert ``to_json``; keys it does not know are left aside."""
        found: DatasetInfo = adapter(DatasetInfo).validate_json(json.dumps(content))
        return found

    def to_metadata(self) -> dict[bytes, bytes]:
        """Key-value metadata for a Parquet file."""
        return {_METADATA_KEY: json.dumps(self.to_json(), allow_nan=False).encode()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None, file: Path) -> "DatasetInfo":
        """Read the facts back from the key-value metadata of ``file``.

        Raises:
            PipelineError: if the metadata is missing or malformed.
        """
        try:
            return cls.from_json(json.loads((metadata or {})[_METADATA_KEY]))
        except (KeyError, ValueError):
            raise PipelineError(
                f"{file}: not a file of this project; run `dvc repro ingest`"
            ) from None


def arrow_schema(spaces: Spaces) -> pa.Schema:
    """Columns of a dataset; ordered by (unit_id, trajectory_id, step).

    Args:
        spaces: the declared sizes S and A.
    """
    observation = pa.list_(pa.float32(), spaces.observation_size)
    box = pa.list_(pa.float32(), spaces.action_size)
    return pa.schema(
        [
            ("unit_id", pa.string()),
            ("trajectory_id", pa.string()),
            ("step", pa.int32()),
            ("observation", observation),
            ("action", pa.int32() if spaces.discrete_actions else box),
            ("reward", pa.float32()),
            ("next_observation", observation),
            ("terminated", pa.bool_()),
            ("truncated", pa.bool_()),
        ]
    )


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Give a column as one array; one chunk is not copied, as Arrow's own
    ``combine_chunks`` would.
    """
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def numbers(column: pa.ChunkedArray | pa.Array) -> Array:
    """Give a column of numbers or flags as a NumPy array, without a copy where Arrow allows.

    Arrow's own ``to_numpy`` imports pandas, which takes longer than to read a small partition; so
    does ``pa.array``.
    """
    array = whole(column) if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(array.type):
        return np.from_dlpack(array.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(array)


def row_numbers(rows: Ints) -> pa.Array:
    """Rows to take of a column; see `numbers`."""
    buffer = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, buffer])


def action_vectors(table: pa.Table, spaces: Spaces) -> Floats:
    """Give the actions of ``table`` as the model sees them, [rows, A]: as they are, or one-hot."""
    if not spaces.discrete_actions:
        return vectors(table["action"])
    one_hot: Floats = np.eye(spaces.action_size, dtype=np.float32)[numbers(table["action"])]
    return one_hot


def vectors(column: pa.ChunkedArray) -> Floats:
    """Give a fixed-size-list column as a float32 matrix [rows, size], without a copy where Arrow
    allows.
    """
    array = whole(column)
    matrix: Floats = numbers(array.flatten()).reshape(-1, array.type.list_size)
    return matrix


def run_starts(column: pa.ChunkedArray) -> Ints:
    """Find the rows where a text column differs from the row before; row 0 comes first."""
    return np.flatnonzero(changes(column))


def trajectory_starts(table: pa.Table) -> Ints:
    """Find the rows of ``table`` at which a trajectory begins."""
    return np.flatnonzero(changes(table["unit_id"]) | changes(table["trajectory_id"]))


def changes(column: pa.ChunkedArray) -> Flags:
    """Compare each row's value, text or a whole number, with the row before: bool [rows]; True in
    row 0.
    """
    values = whole(column)
    changed = np.ones(len(values), dtype=bool)
    before = values.slice(0, max(len(values) - 1, 0))
    changed[1:] = numbers(pc.not_equal(values.slice(1), before))
    return changed


def first_repeat(values: pa.Array) -> tuple[int, int] | None:
    """Find the first value that was there before: the place where it was, and its own; None: all
    values differ.
    """
    codes = numbers(values.dictionary_encode().indices)  # numbered as they are met
    again = np.flatnonzero(codes != np.arange(len(codes)))
    return (int(codes[again[0]]), int(again[0])) if len(again) else None


def id_text(ids: pa.Array) -> pa.Array:
    """Ids as text.

    Ids of digits only are padded with zeros, so that the order of text is that of numbers.

    The width is the same for all data. If it depended on the data, one more unit could rename all
    others, and so move them between private and public.
    """
    text = ids.cast(pa.string())
    digits = pc.match_substring_regex(text, "^[0-9]+$")
    return pc.if_else(digits, pc.ascii_lpad(text, _ID_DIGITS, "0"), text)


def trajectory_bytes(table: pa.Table, starts: Ints) -> Iterator[memoryview]:
    """Give the numbers of each trajectory, row by row, little-endian, without ids.

    They tell people apart.

    Args:
        table: whole trajectories.
        starts: the first row of each.
    """
    names = ("observation", "action", "reward", "next_observation", "terminated", "truncated")
    columns = []
    for name in names:
        listed = pa.types.is_fixed_size_list(table[name].type)
        columns.append(vectors(table[name]) if listed else numbers(table[name])[:, None])
    rows = np.empty((table.num_rows, sum(values.shape[1] for values in columns)), dtype="<f4")
    np.concatenate(columns, axis=1, out=rows, casting="unsafe")
    flat_bytes = rows.data.cast("B")
    places = (np.append(starts, table.num_rows) * rows.strides[0]).tolist()
    return (flat_bytes[start:end] for start, end in itertools.pairwise(places))


@dataclass(frozen=True)
class Transitions:
    """R transitions of E whole trajectories, one after the other.

    Attributes:
        unit: the privacy unit of each trajectory [E].
        name: an id of each trajectory [E].
        lengths: how many transitions each trajectory has [E]; together R.
        observation: [R, S].
        action: [R, A]; whole numbers [R] where they are discrete.
        reward: [R].
        next_observation: [R, S].
        terminated: [R].
        truncated: [R].
    """

    unit: Sequence[str] | pa.Array
    name: Sequence[str] | pa.Array
    lengths: Ints
    observation: Array
    action: Array
    reward: Array
    next_observation: Array
    terminated: Array
    truncated: Array

    @classmethod
    def of_episode(
        cls, name: str, observation: Array, action: Array, reward: Array, *others: Array
    ) -> Self:
        """Make the transitions of one episode, which is a unit of its own; ``others`` are next
        observations and ends.
        """
        return cls([name], [name], np.array([len(reward)]), observation, action, reward, *others)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Put parts one after the other."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))

    def table(self, spaces: Spaces) -> pa.Table:
        """Make one table in the dataset's schema."""
        trajectory = pa.array(np.repeat(np.arange(len(self.lengths)), self.lengths))
        first = np.cumsum(self.lengths) - self.lengths
        step = np.arange(len(trajectory)) - np.repeat(first, self.lengths)
        if spaces.discrete_actions:
            # Fit into int32; numbers outside stay outside and `RowCheck` refuses them.
            chosen = np.clip(self.action.reshape(-1), -1, spaces.action_size)
            action = pa.array(chosen.astype(np.int32))
        else:
            action = _matrix(self.action)
        columns = [
            pa.array(self.unit, pa.string()).take(trajectory),
            pa.array(self.name, pa.string()).take(trajectory),
            pa.array(step.astype(np.int32)),
            _matrix(self.observation),
            action,
            pa.array(_float32(self.reward)),
            _matrix(self.next_observation),
            pa.array(self.terminated),
            pa.array(self.truncated),
        ]
        return pa.Table.from_arrays(columns, schema=arrow_schema(spaces))


def _matrix(values: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(_float32(values).ravel()), values.shape[1])


def _float32(values: Array) -> Floats:
    # A number too large for float32 becomes infinite, and RowCheck refuses it.
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


PUBLIC_BY: dict[str, str] = {
    "hash": "by a hash of the id, nobody was asked",
    "file": "by consent, in a list of ids",
}
"""Ways to choose public units, in words for a statement or a card."""


@dataclass(frozen=True)
class Manifest:
    """Public declarations about a partitioned dataset: its facts and the numbers of its units.

    Attributes:
        info: the dataset's facts.
        private_units: how many units are protected.
        public_units: how many are not.
        public_by: how those were chosen: ``hash`` of the id, or consent in a ``file``.
        secret_check: of the secret that keys the digests (`membership.secret_check`).
    """

    info: DatasetInfo
    private_units: int
    public_units: int
    public_by: str = "hash"
    secret_check: str = ""

    def declared_horizon(self) -> int:
        """Give the most steps of an episode.

        Data without an environment must declare it: no policy could be judged otherwise. Declared
        later, it would make another dataset, and the model would be charged again.

        Raises:
            PipelineError: it is not declared.
        """
        if self.info.horizon is None:
            allowed = "the most steps of an episode, known beforehand"
            raise PipelineError(
                f"datasets/{self.info.dataset}.yaml: horizon: found null; allowed is {allowed}"
            )
        return self.info.horizon

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, flat: the dataset's facts, its sizes and the counts."""
        own = {name: value for name, value in vars(self).items() if name != "info"}
        spaces = self.info.spaces
        sizes = {"observation_size": spaces.observation_size, "action_size": spaces.action_size}
        return self.info.to_json() | sizes | own

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read ``manifest.json``.

        Raises:
            PipelineError: if it is missing, not JSON, or without the keys of a manifest.
        """
        content = read_json(path)
        keys = ("private_units", "public_units", "public_by", "secret_check")
        try:
            return cls(DatasetInfo.from_json(content), *(content[key] for key in keys))
        except (KeyError, TypeError, ValueError):
            raise PipelineError(f"{path}: not a manifest; run `dvc repro partition`") from None
