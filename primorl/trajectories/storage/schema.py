"""What a dataset is: its columns, the facts that travel with it, and the check every source must pass."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.project.errors import PipelineError
from primorl.project.files import finite

Array = npt.NDArray[Any]

_METADATA_KEY = b"primorl"
_BOUNDS = ("observation_low", "observation_high", "action_low", "action_high")
_ID_DIGITS = 12
_RELATIVE_TOLERANCE = 1e-5  # a bound that went through float32 and a rescaling comes back this close


@dataclass(frozen=True)
class Spaces:
    """The declared bounds of observations [S] and actions [A]; public facts, infinite where open.

    Discrete actions 0 … A - 1 are one-hot vectors of size A to the model, with bounds 0 and 1. ``one_hot`` names the
    parts of an observation that are one-hot too, a declared category each: (first dimension, number of categories).
    """

    observation_low: tuple[float, ...]
    observation_high: tuple[float, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    discrete_actions: bool = False
    one_hot: tuple[tuple[int, int], ...] = ()

    @classmethod
    def with_discrete_actions(
        cls, observation_low: tuple[float, ...], observation_high: tuple[float, ...], actions: int
    ) -> Self:
        """Spaces with ``actions`` discrete actions."""
        return cls(observation_low, observation_high, (0.0,) * actions, (1.0,) * actions, discrete_actions=True)

    @property
    def observation_size(self) -> int:
        """S."""
        return len(self.observation_low)

    @property
    def action_size(self) -> int:
        """A: dimensions, or the number of discrete actions."""
        return len(self.action_low)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, with null for an infinite bound."""
        bounds = {name: [finite(bound) for bound in getattr(self, name)] for name in _BOUNDS}
        return bounds | {"discrete_actions": self.discrete_actions, "one_hot": [list(block) for block in self.one_hot]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The inverse of ``to_json``."""
        bounds = {
            name: tuple(
                (-np.inf if name.endswith("low") else np.inf) if bound is None else bound for bound in content[name]
            )
            for name in _BOUNDS
        }
        one_hot = tuple((int(first), int(size)) for first, size in content["one_hot"])
        return cls(**bounds, discrete_actions=bool(content["discrete_actions"]), one_hot=one_hot)


@dataclass(frozen=True)
class DatasetInfo:
    """The public facts that travel with every copy of a dataset.

    Attributes:
        dataset: its entry of ``datasets`` in params.yaml.
        environment: the Gymnasium id of its environment; None: there is no simulator.
        unit: what one privacy unit is.
        spaces: the declared spaces.
        horizon: the declared step limit; None without one.
        termination: how model rollouts know an end: ``none``, ``learned`` or a rule's name.
        duplicates: ``refuse``, or ``allow`` where two units may have equal rows.
        dataset_fingerprint: keyed (HMAC) hash of all rows of the whole dataset, before any partition.
    """

    dataset: str
    environment: str | None
    unit: str
    spaces: Spaces
    horizon: int | None
    termination: str
    duplicates: str
    dataset_fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self) | {"spaces": self.spaces.to_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The inverse of ``to_json``; keys it does not know are left aside."""
        known = {name: content[name] for name in cls.__dataclass_fields__}
        return cls(**known | {"spaces": Spaces.from_json(content["spaces"])})

    def to_metadata(self) -> dict[bytes, bytes]:
        """Key-value metadata for a Parquet file."""
        return {_METADATA_KEY: json.dumps(self.to_json(), allow_nan=False).encode()}

    @classmethod
    def from_schema(cls, schema: pa.Schema, file: Path) -> Self:
        """Read the facts back from the schema of ``file``.

        Raises:
            PipelineError: the metadata is missing or malformed.
        """
        try:
            return cls.from_json(json.loads((schema.metadata or {})[_METADATA_KEY]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PipelineError(
                f"{file}: Parquet metadata {_METADATA_KEY.decode()!r} missing or malformed; "
                "run `dvc repro ingest` again"
            ) from None


def arrow_schema(spaces: Spaces) -> pa.Schema:
    """Columns of a dataset; ordered by (unit_id, trajectory_id, step)."""
    observation = pa.list_(pa.float32(), spaces.observation_size)
    return pa.schema(
        [
            ("unit_id", pa.string()),
            ("trajectory_id", pa.string()),
            ("step", pa.int32()),
            ("observation", observation),
            ("action", pa.int32() if spaces.discrete_actions else pa.list_(pa.float32(), spaces.action_size)),
            ("reward", pa.float32()),
            ("next_observation", observation),
            ("terminated", pa.bool_()),
            ("truncated", pa.bool_()),
        ]
    )


def action_vectors(table: pa.Table, spaces: Spaces) -> npt.NDArray[np.float32]:
    """The actions of ``table`` as the model sees them, [rows, A]: as they are, or one-hot."""
    if not spaces.discrete_actions:
        return vectors(table["action"])
    chosen = table["action"].to_numpy()
    onehot = np.zeros((len(chosen), spaces.action_size), dtype=np.float32)
    onehot[np.arange(len(chosen)), chosen] = 1
    return onehot


def vectors(column: pa.ChunkedArray) -> npt.NDArray[np.float32]:
    """A fixed-size-list column as a float32 matrix [rows, size], without a copy where Arrow allows."""
    array = column.combine_chunks()
    matrix: npt.NDArray[np.float32] = array.flatten().to_numpy(zero_copy_only=False).reshape(-1, array.type.list_size)
    return matrix


def run_starts(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Rows at which the value of a text column differs from the row before; row 0 first."""
    values = column.combine_chunks().cast(pa.string())
    changed = pc.not_equal(values.slice(1), values.slice(0, max(len(values) - 1, 0)))
    starts = np.flatnonzero(changed.to_numpy(zero_copy_only=False)) + 1
    return np.concatenate([[0], starts])[: len(values)].astype(np.int64)


def id_text(ids: pa.Array) -> pa.Array:
    """Ids as text; those of digits only are padded with zeros, so that the order of text is that of numbers.

    One width for all data: were it the data's own, one more unit could rename all others, and so move them between
    private and public.
    """
    text = ids.cast(pa.string())
    digits = pc.match_substring_regex(text, "^[0-9]+$")
    return pc.if_else(digits, pc.ascii_lpad(text, _ID_DIGITS, "0"), text)


def trajectory_starts(table: pa.Table) -> npt.NDArray[np.int64]:
    """The rows of ``table`` at which a trajectory begins."""
    return np.union1d(run_starts(table["unit_id"]), run_starts(table["trajectory_id"]))


def trajectory_bytes(table: pa.Table, starts: npt.NDArray[np.int64]) -> Iterator[memoryview]:
    """The numbers of each trajectory, row by row, little-endian; the names are left out.

    Args:
        table: whole trajectories.
        starts: the first row of each.
    """
    columns = []
    for name in ("observation", "action", "reward", "next_observation", "terminated", "truncated"):
        values = table[name]
        flat = pa.types.is_fixed_size_list(values.type)
        columns.append(vectors(values) if flat else values.to_numpy()[:, None].astype(np.float32))
    rows = np.hstack(columns).astype("<f4", copy=False)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), table.num_rows], strict=True):
        yield rows[start:end].data.cast("B")


def trajectory_table(
    spaces: Spaces,
    unit_ids: Sequence[str],
    trajectory_ids: Sequence[str],
    observations: Sequence[Array],
    actions: Sequence[Array],
    rewards: Sequence[Array],
    terminated: Sequence[Array],
    truncated: Sequence[Array],
) -> pa.Table:
    """Whole trajectories as one table in the dataset's schema.

    Args:
        spaces: the declared sizes S and A.
        unit_ids: the privacy unit of each trajectory.
        trajectory_ids: a name for each trajectory.
        observations: [T + 1, S] each, the true last observation included: no transition crosses an end.
        actions: [T, A] each; whole numbers [T] where they are discrete.
        rewards: [T] each.
        terminated: [T] each.
        truncated: [T] each.
    """
    lengths = np.array([len(steps) for steps in rewards])
    everything = _float32(np.concatenate(observations))
    last = np.zeros(len(everything), dtype=bool)
    last[np.cumsum(lengths) + np.arange(len(lengths))] = True
    first = np.roll(last, 1)  # the row after a trajectory's last observation opens the next one
    return transition_table(
        spaces,
        unit_ids,
        trajectory_ids,
        lengths,
        everything[~last],
        np.concatenate(actions),
        np.concatenate(rewards),
        everything[~first],
        np.concatenate(terminated),
        np.concatenate(truncated),
    )


def transition_table(
    spaces: Spaces,
    unit_ids: Sequence[str],
    trajectory_ids: Sequence[str],
    lengths: npt.NDArray[np.int64],
    observation: Array,
    action: Array,
    reward: Array,
    next_observation: Array,
    terminated: Array,
    truncated: Array,
) -> pa.Table:
    """Transitions of whole trajectories, one after the other, as one table in the dataset's schema.

    Args:
        spaces: the declared sizes S and A.
        unit_ids: the privacy unit of each trajectory.
        trajectory_ids: a name for each trajectory.
        lengths: how many transitions each trajectory has; together R.
        observation: [R, S].
        action: [R, A]; whole numbers [R] where they are discrete.
        reward: [R].
        next_observation: [R, S].
        terminated: [R].
        truncated: [R].
    """
    trajectory = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    first = np.cumsum(lengths) - lengths

    def text(values: Sequence[str]) -> pa.Array:
        return pa.array(values, pa.string()).take(pa.array(trajectory))

    def matrix(values: Array) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(_float32(values).ravel()), values.shape[1])

    return pa.Table.from_arrays(
        [
            text(unit_ids),
            text(trajectory_ids),
            pa.array((np.arange(len(trajectory)) - np.repeat(first, lengths)).astype(np.int32)),
            matrix(observation),
            pa.array(action.astype(np.int32)) if spaces.discrete_actions else matrix(action),
            pa.array(_float32(reward)),
            matrix(next_observation),
            pa.array(terminated),
            pa.array(truncated),
        ],
        schema=arrow_schema(spaces),
    )


def _float32(values: Array) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which RowCheck refuses
        return values.astype(np.float32)


class RowCheck:
    """Checks a stream of batches of whole units against the schema and the declared spaces.

    Every source hands its batches through here, in order; the check remembers the last key, so order
    and uniqueness hold over the whole stream.

    Args:
        spaces: what the environment declares.
        origin: the file or folder that errors name.
        may_terminate: whether an episode may end by termination.
    """

    def __init__(self, spaces: Spaces, origin: Path, may_terminate: bool = True):
        self._spaces = spaces
        self._may_terminate = may_terminate
        self._schema = arrow_schema(spaces)
        self._vectors = [field.name for field in self._schema if pa.types.is_fixed_size_list(field.type)]
        self._origin = origin
        self._previous: tuple[str, str] | None = None
        self._trajectories: set[str] = set()

    def __call__(self, table: pa.Table) -> None:
        """Check one batch.

        Raises:
            PipelineError: names the origin, the trajectory and the step, what was found, what is
                allowed and what to do; it quotes no value.
        """
        self._columns(table)
        if table.num_rows == 0:
            return
        starts = trajectory_starts(table)
        steps = table["step"].to_numpy()
        where = _Where(self._origin, table, starts)
        self._order(where, starts)
        expected = np.arange(table.num_rows) - np.repeat(starts, np.diff([*starts, table.num_rows]))
        where.refuse(
            steps != expected,
            "step numbers not contiguous from 0",
            "0, 1, 2, … in every trajectory; sort the rows by step",
        )
        for name in self._vectors:
            bad = _non_finite(vectors(table[name]))
            where.refuse(bad, f"a non-finite {name}", "finite float32 numbers; drop or repair the trajectory")
        with np.errstate(over="ignore"):
            change = vectors(table["next_observation"]) - vectors(table["observation"])
        where.refuse(
            _non_finite(change),
            "a step whose change of observation overflows float32",
            "next_observation - observation within float32; rescale the observations, or drop the trajectory",
        )
        bad = ~np.isfinite(table["reward"].to_numpy())
        where.refuse(bad, "a non-finite reward", "finite float32 numbers; drop or repair the trajectory")
        self._ends(where, table, starts)
        if self._spaces.discrete_actions:
            chosen = table["action"].to_numpy()
            where.refuse(
                (chosen < 0) | (chosen >= self._spaces.action_size),
                "an action outside the declared space",
                f"whole numbers from 0 to {self._spaces.action_size - 1}; correct the data or the declared actions",
            )
        else:
            self._actions(where, vectors(table["action"]))

    def _columns(self, table: pa.Table) -> None:
        for column in self._schema:
            if column.name not in table.column_names:
                raise PipelineError(f"{self._origin}: column {column.name} missing; allowed is {column.type}")
            found = table.schema.field(column.name).type
            if found != column.type:
                raise PipelineError(
                    f"{self._origin}: column {column.name}: found {found}, allowed {column.type}; "
                    "check that the dataset belongs to the environment"
                )
            array = table[column.name]
            inner = sum(chunk.flatten().null_count for chunk in array.chunks) if column.name in self._vectors else 0
            if array.null_count + inner > 0:
                raise PipelineError(
                    f"{self._origin}: column {column.name}: found missing values, allowed none; fill or drop them"
                )

    def _order(self, where: "_Where", starts: npt.NDArray[np.int64]) -> None:
        units, trajectories = where.keys(starts)
        for row, key in zip(starts, zip(units, trajectories, strict=True), strict=True):
            if not all(key) or any("\0" in part for part in key):
                where.refuse_row(int(row), "an empty unit_id or trajectory_id, or one with a NUL", "a name; fill it in")
            if row == 0 and self._previous is not None and key[0] == self._previous[0]:
                where.refuse_row(
                    0,
                    "a unit split over two batches or row groups",
                    "all rows of a unit together; run the stage before again",
                )
            if self._previous is not None and key <= self._previous:
                where.refuse_row(
                    int(row),
                    "rows out of order or duplicated",
                    "every (unit_id, trajectory_id) once and ascending, all its rows together; sort, drop duplicates",
                )
            if key[1] in self._trajectories:
                where.refuse_row(
                    int(row),
                    "one trajectory in two units",
                    "one unit a trajectory; correct the unit column, or, where trajectories are numbered anew for each "
                    "unit, set options.trajectory_ids: per_unit",
                )
            self._previous = key
            self._trajectories.add(key[1])

    def _ends(self, where: "_Where", table: pa.Table, starts: npt.NDArray[np.int64]) -> None:
        if not self._may_terminate:
            where.refuse(
                table["terminated"].to_numpy(),
                "an episode that terminates, while params.yaml says `termination: none`",
                "ends by truncation only; or set the dataset's termination to learned, or to the environment's rule",
            )
        ended = pc.or_(table["terminated"], table["truncated"]).to_numpy()
        last = np.zeros(table.num_rows, dtype=bool)
        last[np.append(starts[1:], table.num_rows) - 1] = True
        where.refuse(
            ended & ~last,
            "an end (terminated or truncated) before the last step",
            "one end, at the last step; split the trajectory at its ends",
        )
        where.refuse(
            last & ~ended,
            "end flags missing at the last step",
            "terminated or truncated; mark a cut recording as truncated",
        )

    def _actions(self, where: "_Where", actions: npt.NDArray[np.float32]) -> None:
        low, high = np.array(self._spaces.action_low), np.array(self._spaces.action_high)
        slack_low, slack_high = (_RELATIVE_TOLERANCE * np.maximum(1, np.abs(bound)) for bound in (low, high))
        outside = (actions < low - slack_low) | (actions > high + slack_high)
        if outside.any():
            dimension = int(np.flatnonzero(outside.any(axis=0))[0])
            where.refuse(
                outside.any(axis=1),
                f"an action outside the declared space (dimension {dimension})",
                f"[{low[dimension]:g}, {high[dimension]:g}]; clip the actions as the environment did, "
                "or correct `environment`",
            )


def _non_finite(matrix: npt.NDArray[np.float32]) -> npt.ArrayLike:
    """Which rows hold a number that is not finite, [rows]; empty where none does, which is thirty times as quick."""
    finite = np.isfinite(matrix)
    return [] if finite.all() else ~finite.all(axis=1)


class _Where:
    """Names the row an error is about."""

    def __init__(self, origin: Path, table: pa.Table, starts: npt.NDArray[np.int64]):
        self._origin = origin
        self._table = table
        self._starts = starts

    def keys(self, rows: npt.NDArray[np.int64]) -> tuple[list[str], list[str]]:
        chosen = self._table.select(["unit_id", "trajectory_id"]).take(pa.array(rows))
        return chosen["unit_id"].to_pylist(), chosen["trajectory_id"].to_pylist()

    def refuse(self, bad: npt.ArrayLike, found: str, allowed: str) -> None:
        rows = np.flatnonzero(bad)
        if len(rows) > 0:
            self.refuse_row(int(rows[0]), found, allowed)

    def refuse_row(self, row: int, found: str, allowed: str) -> None:
        start = self._starts[np.searchsorted(self._starts, row, side="right") - 1]
        trajectory = self._table["trajectory_id"][row].as_py()
        raise PipelineError(
            f"{self._origin}: trajectory {trajectory!r}, step {row - int(start)}: found {found}; allowed: {allowed}"
        )
