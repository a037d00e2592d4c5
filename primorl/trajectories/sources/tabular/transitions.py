"""Rows of a log, in order, become transitions in the dataset's schema."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.config.tabular import TabularOptions
from primorl.trajectories.checks import unfit_probabilities
from primorl.trajectories.consent import consent_schema
from primorl.trajectories.sources.tabular.elapsed import elapsed_times
from primorl.trajectories.sources.tabular.fields import Field
from primorl.trajectories.sources.tabular.files import Log
from primorl.trajectories.storage.schema import BEHAVIOUR_PROBABILITY, Spaces, id_text, transition_table, whole

_REPAIR = "sort the log, or set options.sorted: false to have it sorted here"

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


def whole_units(batches: Iterator[pa.Table], unit: str) -> Iterator[pa.Table]:
    """Cut the rows where a unit ends: no unit is in two tables."""
    waiting: list[pa.Table] = []
    for batch in batches:
        starts = np.flatnonzero(_changes(batch[unit]))
        if waiting and batch[unit][0] != waiting[-1][unit][-1]:
            yield pa.concat_tables(waiting)
            waiting = []
        if starts[-1] > 0:
            yield pa.concat_tables([*waiting, batch.slice(0, starts[-1])])
            waiting = []
        waiting.append(batch.slice(starts[-1]))
    if waiting:
        yield pa.concat_tables(waiting)


def _changes(column: pa.ChunkedArray) -> Flags:
    """Mark the rows that do not repeat the value of the row before; the first is one."""
    values = whole(column)
    changed = np.ones(len(values), dtype=bool)
    if pa.types.is_integer(values.type):
        numbers = values.to_numpy()
        np.not_equal(numbers[1:], numbers[:-1], out=changed[1:])
    else:
        changed[1:] = pc.not_equal(values.slice(1), values.slice(0, len(values) - 1)).to_numpy(zero_copy_only=False)
    return changed


def consent_of_units(rows: pa.Table, unit: str, log: Log) -> pa.Table:
    """Find the value of the field ``consent`` of every unit of ``rows``, a table of whole units.

    Args:
        rows: with the fields ``consent`` and ``unit``.
        unit: the field that says whose a row is.
        log: that the rows are of.

    Raises:
        PipelineError: if rows of one unit differ; names the file and the row.
    """
    begins, differs = _changes(rows[unit]), _changes(rows["consent"])
    log.refuse(
        rows,
        np.flatnonzero(differs & ~begins),
        "another value of partition.public.column than in the unit's rows before",
        "one value for all rows of a unit: it is public as a whole, or private; correct the log",
    )
    starts = pa.array(np.flatnonzero(begins))
    units = id_text(whole(rows[unit].take(starts)))
    return pa.Table.from_arrays([units, whole(rows["consent"].take(starts))], schema=consent_schema())


class Transitions:
    """Turns tables of whole units, in the order of the log, into tables of transitions.

    A row says what was observed, done and rewarded at one time. What came after it is its ``next_observation`` columns
    or, without them, the next row of its trajectory. The last row of a trajectory has no next one: where it
    terminated, its next observation, on which nothing depends, is its own; else its outcome was not
    recorded, so the transition before is the last one and is truncated. Its action, reward and probability are not
    read.

    Args:
        log: that the rows are of.
        fields: what the columns of the tables are.
        spaces: of the dataset.
        unit: the field that says whose a row is.
        options: of the dataset.
        horizon: steps of the longest trajectory; None: not declared.
    """

    def __init__(
        self,
        log: Log,
        fields: Sequence[Field],
        spaces: Spaces,
        unit: str,
        options: TabularOptions,
        horizon: int | None,
    ):
        self._log = log
        self._fields = fields
        self._spaces = spaces
        self._unit = unit
        self._per_unit = options.trajectory_ids == "per_unit"
        self._end = options.end
        self._horizon = horizon
        # Without a unit column, trajectories that are numbered anew for each person look like one.
        self._or_merged = (
            "; or, where trajectories of several people have the same id, let columns.trajectory name a column in "
            "which no two have"
            if unit == "trajectory"
            else ""
        )
        self._previous: tuple[str, str] | None = None
        self._has_next = any(field.name.startswith("next_observation.") for field in fields)
        self._has_probability = any(field.name == BEHAVIOUR_PROBABILITY for field in fields)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Transitions of whole units.

        Raises:
            PipelineError: names the file and the row, what was found, what is allowed; it quotes no value.
        """
        rows = rows.combine_chunks()
        starts = np.flatnonzero(_changes(rows[self._unit]) | _changes(rows["trajectory"]))
        lasts = np.append(starts[1:], rows.num_rows) - 1
        units, trajectories = self._ids(rows, starts)
        self._check_order(rows, starts)
        self._check_keys(rows, starts, units, trajectories)
        terminated, truncated = self._ends(rows, starts, lasts)

        observation = self._matrix(rows, "observation", starts)
        self._check_finite(rows, observation, "observation")
        keep: Flags | None = None
        lengths = lasts - starts + 1
        if self._has_next:
            after = self._matrix(rows, "next_observation", starts)
        else:
            after = np.empty_like(observation)
            after[:-1] = observation[1:]
            after[lasts] = observation[lasts]
            cut = ~terminated[lasts]
            self._log.refuse(
                rows,
                starts[cut & (lengths == 1)],
                "a trajectory of this one row, whose outcome was not recorded: no transition",
                "two rows or more, a terminated one, or next_observation columns; drop the trajectory",
            )
            if cut.any():
                keep = np.ones(rows.num_rows, dtype=bool)
                keep[lasts[cut]] = False
                truncated[lasts[cut] - 1] = True
                lengths = lengths - cut
        if self._horizon is not None:
            self._log.refuse(
                rows,
                starts[lengths > self._horizon],
                "a trajectory longer than the horizon starts here",
                f"as many steps as `horizon` declares, or fewer; correct it, or split the trajectory{self._or_merged}",
            )

        action = self._action(rows)
        reward = _numbers(rows["reward"])
        probability = _numbers(rows[BEHAVIOUR_PROBABILITY]) if self._has_probability else None
        if keep is not None:
            rows = rows.select(["file", "row"]).filter(pa.array(keep))
            observation, after, action, reward = observation[keep], after[keep], action[keep], reward[keep]
            terminated, truncated = terminated[keep], truncated[keep]
            probability = None if probability is None else probability[keep]
        if self._has_next:
            self._check_finite(rows, after, "next_observation")
        self._check_action(rows, action)
        self._check_finite(rows, reward[:, None], "reward")
        if probability is not None:
            self._check_probability(rows, probability)
        return transition_table(
            self._spaces,
            units,
            trajectories,
            lengths,
            observation,
            action,
            reward,
            after,
            terminated,
            truncated,
            probability,
        )

    def _ids(self, rows: pa.Table, starts: Places) -> tuple[pa.Array, pa.Array]:
        """Give the text of each trajectory's unit and of its own id."""
        chosen = pa.array(starts)
        trajectories = id_text(rows["trajectory"].take(chosen).combine_chunks())
        units = trajectories if self._unit == "trajectory" else id_text(rows[self._unit].take(chosen).combine_chunks())
        if self._per_unit:
            trajectories = pc.binary_join_element_wise(units, trajectories, "/")
        return units, trajectories

    def _check_order(self, rows: pa.Table, starts: Places) -> None:
        order = rows["order"].to_numpy()
        inside = np.ones(rows.num_rows, dtype=bool)
        inside[starts] = False
        repeated = np.flatnonzero(inside[1:] & (order[1:] == order[:-1])) + 1
        self._log.refuse(
            rows,
            repeated,
            "an order that its trajectory has already",
            f"every one once; drop the duplicate{self._or_merged}",
        )
        self._log.refuse(
            rows,
            np.flatnonzero(inside[1:] & (order[1:] < order[:-1])) + 1,
            "a row out of order in its trajectory",
            f"ascending; {_REPAIR}",
        )

    def _check_keys(self, rows: pa.Table, starts: Places, units: pa.Array, trajectories: pa.Array) -> None:
        if self._previous is not None:  # the key before the first one
            units, trajectories = (
                pa.concat_arrays([pa.array([before], pa.string()), ids])
                for before, ids in zip(self._previous, (units, trajectories), strict=True)
            )
        else:
            starts = starts[1:]
        self._previous = units[-1].as_py(), trajectories[-1].as_py()
        before, after = units.slice(0, len(units) - 1), units.slice(1)
        later = pc.less_equal(trajectories.slice(1), trajectories.slice(0, len(units) - 1))
        bad = pc.or_(pc.less(after, before), pc.and_(pc.equal(after, before), later))
        self._log.refuse(
            rows,
            starts[bad.to_numpy(zero_copy_only=False)],
            "a trajectory out of order or in two places",
            f"ascending by unit, then trajectory (as text; ids of digits padded with zeros to 12); {_REPAIR}",
        )

    def _ends(self, rows: pa.Table, starts: Places, lasts: Places) -> tuple[Flags, Flags]:
        terminated, truncated = (
            rows[name].to_numpy().copy() if name in rows.column_names else np.zeros(rows.num_rows, dtype=bool)
            for name in ("terminated", "truncated")
        )
        ended = terminated | truncated
        early = ended.copy()
        early[lasts] = False
        self._log.refuse(
            rows,
            np.flatnonzero(early),
            "an end (terminated or truncated) before its trajectory's last row",
            f"one end, at the last row; split the trajectory at its ends{self._or_merged}",
        )
        open_end = ~ended[lasts]
        if self._end == "flags":
            self._log.refuse(
                rows,
                lasts[open_end],
                "the last row of a trajectory, with no end flag",
                "terminated or truncated there; mark it, or set options.end to last_row",
            )
        elif self._end == "horizon":
            rows_of = lasts - starts + 1
            full = (rows_of == self._horizon) | (~np.bool_(self._has_next) & (rows_of - 1 == (self._horizon or 0)))
            self._log.refuse(
                rows,
                lasts[open_end & ~full],
                "the last row of a trajectory that neither terminated nor reached the horizon",
                "as many rows as `horizon` declares; mark its end by flags, or set options.end to last_row",
            )
        truncated[lasts] |= ~terminated[lasts]
        return terminated, truncated

    def _matrix(self, rows: pa.Table, prefix: str, starts: Places) -> Floats:
        fields = [field for field in self._fields if field.name.startswith(f"{prefix}.")]
        # One row a dimension, turned at the end: to write column by column takes three times as long.
        turned = np.zeros((self._spaces.observation_size, rows.num_rows), dtype=np.float32)
        dimension = 0
        for field in fields:
            if field.elapsed is not None:
                order, unit, most = rows["order"].to_numpy(), field.elapsed.unit, field.elapsed.most
                turned[dimension] = elapsed_times(order, starts, unit, most, by_time=self._log.ordered_by_time)
                dimension += 1
                continue
            values = rows[field.name]
            if field.categories:
                turned[dimension + values.to_numpy(), np.arange(rows.num_rows)] = 1
                dimension += len(field.categories)
            else:
                turned[dimension] = _numbers(values)
                dimension += 1
        return np.ascontiguousarray(turned.T)

    def _action(self, rows: pa.Table) -> npt.NDArray[Any]:
        if self._spaces.discrete_actions:
            codes: npt.NDArray[np.int32] = rows["action"].to_numpy()
            return codes
        names = [field.name for field in self._fields if field.name.startswith("action.")]
        return np.ascontiguousarray(np.stack([_numbers(rows[name]) for name in names]).T)

    def _check_action(self, rows: pa.Table, action: npt.NDArray[Any]) -> None:
        if not self._spaces.discrete_actions:
            self._check_finite(rows, action, "action")
            return
        allowed = "one in every row but an unfinished trajectory's last; fill it in, or drop the trajectory"
        self._log.refuse(rows, np.flatnonzero(action < 0), "no action", allowed)

    def _check_probability(self, rows: pa.Table, probability: Floats) -> None:
        self._check_finite(rows, probability[:, None], BEHAVIOUR_PROBABILITY)
        unfit, allowed = unfit_probabilities(probability, discrete=self._spaces.discrete_actions)
        column = next(field.column for field in self._fields if field.name == BEHAVIOUR_PROBABILITY)
        found = f"a {BEHAVIOUR_PROBABILITY} out of range (column {column!r})"
        self._log.refuse(rows, np.flatnonzero(unfit), found, allowed)

    def _check_finite(self, rows: pa.Table, values: Floats, what: str) -> None:
        finite = np.isfinite(values)
        if not finite.all():
            bad = np.flatnonzero(~finite.all(axis=1))
            own = [field for field in self._fields if field.name == what or field.name.startswith(f"{what}.")]
            columns = [field.column for field in own for _ in field.categories or (None,)]
            self._log.refuse(
                rows,
                bad,
                f"a missing, NaN or infinite {what} (column {columns[int(np.argmin(finite[bad[0]]))]!r})",
                "finite float32 numbers; fill it in, or drop or repair the trajectory",
            )


def _numbers(column: pa.ChunkedArray) -> Floats:
    """Give a column of float32; a missing number is NaN."""
    numbers: Floats = whole(column).to_numpy(zero_copy_only=False)
    return numbers
