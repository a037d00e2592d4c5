"""Rows of a log, in order, become transitions in the dataset's schema."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.config.datasets import DeclaredBounds, TabularDataset
from primorl.data.sources.tabular.files import Field, LogFiles
from primorl.data.storage.schema import (
    Spaces,
    Transitions,
    changes,
    id_text,
    numbers,
    whole,
)

ZONE = "times with their zone, as a local hour comes twice when summer time ends"

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


class TransitionMaker:
    """Turns tables of whole units, in the order of the log, into tables of transitions.

    A row has the observation, action and reward of one time. The next observation is its
    ``next_observation`` columns or, without them, the next row of its trajectory. The last row of a
    trajectory has no next one: where it terminated, its next observation, on which nothing depends,
    is its own; else its outcome was not recorded, so the transition before is the last one and is
    truncated. Its action and reward are not read.
    """

    def __init__(
        self,
        log: LogFiles,
        fields: Sequence[Field],
        spaces: Spaces,
        dataset: TabularDataset,
        horizon: int | None,
    ):
        self._log, self._fields, self._spaces = log, fields, spaces
        self._unit = "trajectory" if dataset.options.columns.unit is None else "unit"
        self._horizon = horizon
        self._options, self._bounds = dataset.options, dataset.bounds
        self._learned = dataset.termination == "learned"
        self._has_next = any(field.name.startswith("next_observation.") for field in fields)
        # Where a trajectory is a unit, those that are numbered anew for each person look like one.
        merged = (
            "; or, if people's trajectories share ids, let columns.trajectory name a column of "
            "unique ids"
        )
        self._or_merged = merged if self._unit == "trajectory" else ""

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Transitions of whole units.

        Raises:
            PipelineError: names the file, the row, and the values allowed; it quotes no value.
        """
        rows = rows.combine_chunks()
        starts = np.flatnonzero(changes(rows[self._unit]) | changes(rows["trajectory"]))
        lasts = np.append(starts[1:], rows.num_rows) - 1
        self._check_order(rows, starts)
        terminated, truncated = self._ends(rows, lasts)
        observation = self._matrix(rows, "observation")
        observation = self._check(rows, observation, "observation")
        if self._has_next:
            after = self._matrix(rows, "next_observation")
        else:
            after = np.roll(observation, -1, axis=0)
            after[lasts] = observation[lasts]
        cut = ~terminated[lasts] & (not self._has_next)
        lengths = self._lengths(rows, starts, lasts, cut)
        truncated[lasts[cut] - 1] = True
        if self._learned:  # an end at the horizon is no business of the state that it comes in
            full = lasts[terminated[lasts] & (lengths == self._horizon)]
            terminated[full], truncated[full] = False, True
        keep, ended = np.ones(rows.num_rows, dtype=bool), np.zeros(rows.num_rows, dtype=bool)
        keep[lasts[cut]], ended[lasts[~cut]] = False, True
        unit, name = self._ids(rows, pa.array(starts))
        rows, after = rows.filter(pa.array(keep)), after[keep]
        if self._has_next:
            after = self._check(rows, after, "next_observation")
        return Transitions(
            unit=unit,
            name=name,
            lengths=lengths,
            observation=observation[keep],
            action=self._action(rows),
            reward=self._rewards(rows, ended[keep]),
            next_observation=after,
            terminated=terminated[keep],
            truncated=truncated[keep],
        ).table(self._spaces)

    def _ids(self, rows: pa.Table, starts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Give the ids of the unit and of the trajectory that begin at some rows."""
        trajectories = units = id_text(whole(rows["trajectory"]).take(starts))
        if self._unit != "trajectory":
            units = id_text(whole(rows[self._unit]).take(starts))
        if self._options.trajectory_ids == "per_unit":
            trajectories = pc.binary_join_element_wise(units, trajectories, "/")
        return units, trajectories

    def _lengths(self, rows: pa.Table, starts: Places, lasts: Places, cut: Flags) -> Places:
        """Count the transitions of trajectories, the last rows of some of which are ``cut``."""
        self._log.refuse(
            rows,
            starts[cut & (lasts == starts)],
            "a trajectory of this one row, whose outcome was not recorded: no transition",
            "two rows or more, a terminated one, or next_observation columns; drop the trajectory",
        )
        if self._options.end == "observed":
            earned = ~np.isnan(numbers(rows["reward"].take(pa.array(lasts)))) & cut
            found = "a reward in the last row of a trajectory that does not terminate"
            allowed = "an empty cell, or options.end: outcome where it is an outcome's score"
            self._log.refuse(rows, lasts[earned], found, allowed)
        lengths = lasts - starts + 1 - cut
        if self._horizon is not None:
            allowed = f"at most as many steps as `horizon` says; or split it{self._or_merged}"
            too_long = starts[lengths > self._horizon]
            self._log.refuse(rows, too_long, "a trajectory longer than the horizon", allowed)
        return lengths

    def _rewards(self, rows: pa.Table, ended: Flags) -> Floats:
        """Give the rewards, [rows], which must lie within the declared bounds; ``ended`` tells the
        rows that end their trajectory.
        """
        reward = self._check(rows, numbers(rows["reward"])[:, None], "reward")[:, 0]
        if self._bounds.before_end is not None:
            low, high = self._bounds.before_end
            wrong = ~ended & ((reward < low) | (reward > high))
            found = "a reward outside bounds.before_end in a row that ends no trajectory"
            self._log.refuse(rows, np.flatnonzero(wrong), found, f"{low:g} to {high:g}")
        if self._bounds.outcomes is not None:
            unnamed = ended & ~np.isin(reward, self._bounds.reward)
            found = "a reward that bounds.outcomes does not name in a row that ends its trajectory"
            allowed = "the least or the largest of bounds.reward; or declare no outcomes"
            self._log.refuse(rows, np.flatnonzero(unnamed), found, allowed)
        return reward

    def _check_order(self, rows: pa.Table, starts: Places) -> None:
        order = rows["order"].to_numpy()
        inside = np.ones(rows.num_rows, dtype=bool)
        inside[starts] = False
        again = np.flatnonzero(inside[1:] & (order[1:] <= order[:-1])) + 1
        allowed = (
            "a later one in every row; drop a duplicate, number rows of equal time, or set "
            f"options.sorted: false to have the log sorted here{self._or_merged}"
        )
        if self._log.without_zone:
            allowed = f"{ZONE}; {allowed}"
        self._log.refuse(rows, again, "an order that is not after that of the row before", allowed)

    def _ends(self, rows: pa.Table, lasts: Places) -> tuple[Flags, Flags]:
        flags = {name: np.zeros(rows.num_rows, bool) for name in ("terminated", "truncated")}
        for name in flags.keys() & set(rows.column_names):
            flags[name] = rows[name].to_numpy().copy()
        terminated, truncated = flags.values()
        ended = terminated | truncated
        has_no_end = ~ended[lasts]
        ended[lasts] = False
        found = "an end (terminated or truncated) before its trajectory's last row"
        allowed = f"one end, at the last row; split the trajectory at its ends{self._or_merged}"
        self._log.refuse(rows, np.flatnonzero(ended), found, allowed)
        if self._options.end == "flags":
            found = "the last row of a trajectory, with no end flag"
            allowed = "terminated or truncated there; mark it, or set options.end to last_row"
            self._log.refuse(rows, lasts[has_no_end], found, allowed)
        elif self._options.end == "outcome":
            terminated[lasts] |= has_no_end
        truncated[lasts] |= ~terminated[lasts]
        return terminated, truncated

    def _matrix(self, rows: pa.Table, prefix: str) -> Floats:
        # One row a dimension, turned at the end: to write column by column takes three times as
        # long.
        turned = np.zeros((self._spaces.observation_size, rows.num_rows), dtype=np.float32)
        dimension = 0
        for field in self._fields:
            if not field.name.startswith(f"{prefix}."):
                continue
            if field.categories:
                turned[dimension + rows[field.name].to_numpy(), np.arange(rows.num_rows)] = 1
                dimension += len(field.categories)
                continue
            turned[dimension] = numbers(rows[field.name])
            dimension += 1
        return np.ascontiguousarray(turned.T)

    def _action(self, rows: pa.Table) -> npt.NDArray[Any]:
        fields = [field for field in self._fields if field.name.partition(".")[0] == "action"]
        names = [field.name for field in fields]
        if self._spaces.discrete_actions:
            parts = np.stack([rows[name].to_numpy() for name in names])
            allowed = "one in every row but an unfinished trajectory's last"
            self._log.refuse(rows, np.flatnonzero((parts < 0).any(axis=0)), "no action", allowed)
            codes: npt.NDArray[np.int32] = parts[0]
            for field, part in zip(fields[1:], parts[1:], strict=True):
                codes = codes * len(field.categories) + part
            return codes
        values = np.ascontiguousarray(np.stack([numbers(rows[name]) for name in names]).T)
        return self._check(rows, values, "action")

    def _check(
        self,
        rows: pa.Table,
        values: Floats,
        what: Literal["observation", "next_observation", "action", "reward"],
    ) -> Floats:
        """Refuse missing numbers [rows, columns]; refuse or clip observations and rewards beyond
        the bounds that the entry declares as numbers.

        The error names the first row, and all columns of this batch with such values; it quotes no
        value.
        """
        key = what.removeprefix("next_")
        names = ("reward",) if key == "reward" else getattr(self._spaces, f"{key}_names")
        finite = np.isfinite(values)
        if not finite.all():
            bad = ", ".join(repr(names[i]) for i in np.flatnonzero(~finite.all(axis=0)))
            self._log.refuse(
                rows,
                np.flatnonzero(~finite.all(axis=1)),
                f"a missing, NaN or infinite {what} (in {bad})",
                "finite float32 numbers; fill it in (docs/prepare-a-log.md), or drop it",
            )
        declared = getattr(self._bounds, key, "space")
        if isinstance(declared, str):
            return values
        pair = (declared.low, declared.high) if isinstance(declared, DeclaredBounds) else declared
        low, high = np.array(pair, np.float32)  # the numbers are float32 too
        if self._options.beyond_bounds == "clip":
            return np.clip(values, low, high)
        outside = (values < low) | (values > high)
        bad = ", ".join(names[i] for i in np.flatnonzero(outside.any(axis=0)))
        self._log.refuse(
            rows,
            np.flatnonzero(outside.any(axis=1)),
            f"the first of values beyond bounds.{key} of: {bad}",
            "within them; correct the log or the bounds, or set options.beyond_bounds: clip",
        )
        return values
