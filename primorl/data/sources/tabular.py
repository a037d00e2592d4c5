"""``source: tabular``: logs in Parquet or CSV, copied, read by unit, trajectory and order, and made
transitions.
"""

import itertools
import shutil
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base import PipelineError, say
from primorl.config.datasets import BoxActions, DeclaredBounds, TabularDataset
from primorl.data.sources.log_paths import find_files, record_files
from primorl.data.sources.logs import (
    HOUR,
    ROWS_PER_BATCH,
    ZONE,
    LogFiles,
    can_end_summer_time,
    fields_of,
)
from primorl.data.sources.spaces import check_fit, inspect_environment
from primorl.data.storage import schema
from primorl.data.storage.rows import whole_units

_HALF_YEAR = 183 * 24 * HOUR
_SEVERAL = 10  # units, more than meet by chance
_DECADES = 40 * _HALF_YEAR
# The years 1, 1753, 1900 and 1970: programs write their begin where a time is not known.
NO_TIMES = np.array([-62_135_596_800, -6_847_804_800, -2_208_988_800, 0]) * 10**6


def sort_batches(log: LogFiles, unit: str) -> Generator[pa.Table]:
    """Give the rows of ``log``, ascending by unit, trajectory (both as `id_text`) and order.

    Memory holds the mapped columns of the whole log; one that is larger has to come sorted.

    Raises:
        PipelineError: see `LogFiles.batches`.
    """
    rows = pa.concat_tables([log.schema.empty_table(), *log.batches()]).combine_chunks()
    keys = [rows["order"].to_numpy(), _ranks(rows["trajectory"]), _ranks(rows[unit])]
    order = np.lexsort(keys)
    within = np.logical_and.reduce([np.diff(own[order]) == 0 for own in keys[1:]])
    trajectory = np.cumsum(~within)
    if moved := len(np.unique(trajectory[within & (np.diff(order) < 0)])):
        many = "all" if moved == 1 + int((~within).sum()) else "some"
        found = f"{many} trajectories do not lie in order in the log"
        why = "a time of day, or a number that starts anew, is no order"
        say(f"ingest: {found}, and are sorted; {why}")
    if (within & (np.diff(rows["file"].to_numpy()[order]) != 0)).any():
        why = "if each numbers its own anew, make their ids unique"
        say(f"ingest: found trajectories that go on in another file; {why}")
    if moved:
        _refuse_moved(log, rows, keys, order, within, moved)
    for start in range(0, len(order), ROWS_PER_BATCH):
        yield rows.take(pa.array(order[start : start + ROWS_PER_BATCH]))


def _refuse_moved(
    log: LogFiles,
    rows: pa.Table,
    keys: Sequence[schema.Array],
    order: schema.Ints,
    within: schema.Flags,
    moved: int,
) -> None:
    """Refuse rows that sorting would put in a wrong place.

    A date is wrong where the only step back of a trajectory as it lies in the log goes over half a
    year, in one file, and all other gaps of the trajectory together are a twentieth of that gap at
    most; a number (-999) where all trajectories that lie in no order are so. Summer time can end in
    a night to Sunday: an only step back by less than an hour there, of times without a zone. A
    clock of 12 hours steps back by almost as many, and has no hour beyond.

    Args:
        log: of the rows.
        rows: as they lie in it.
        keys: order, trajectory and unit of every row.
        order: the rows, sorted by these.
        within: where the next row is of the same trajectory, sorted or not.
        moved: number of trajectories that do not lie in order.

    Raises:
        PipelineError: names the file and the row.
    """
    time, *ids = keys
    places = np.lexsort(ids)
    steps, trajectory = np.diff(time[places]), np.cumsum(~within)
    back = within & (steps < 0)
    alone = back & (np.bincount(trajectory, back)[trajectory] == 1)
    gaps = np.where(within, np.diff(time[order]), 0)  # a trajectory has the same places there
    longest = np.zeros(len(rows), gaps.dtype)
    np.maximum.at(longest, trajectory, gaps)
    span = np.bincount(trajectory, gaps, len(rows))
    least = _HALF_YEAR if log.ordered_by_time else 0
    far = (longest > least) & (span <= 1.05 * longest) & (span > longest)
    far = alone & far[trajectory] & (-steps >= longest[trajectory])
    far &= np.diff(rows["file"].to_numpy()[places]) == 0
    in_order = "the trajectory's rows in order"
    if log.ordered_by_time or far.sum() == moved:
        found = "a time far before that of the row before (over half a year, or as -999)"
        allowed = f"the true one; or, if it is true, {in_order}"
        log.refuse(rows, places[1:][far], f"{found}, unlike all other steps", allowed)
    if not log.ordered_by_time:
        return
    clock = time // HOUR % 24
    if clock.max() == 12 and clock.min() > 0:
        half = back & (steps <= -9 * HOUR) & (steps > -12 * HOUR)
        found = "a time 9 to 12 hours before that of the row before, and no row's hour is above 12"
        allowed = f"hours of 24 (13:05, not 01:05); or, if they are true, {in_order}"
        log.refuse(rows, places[1:][half], found, allowed)
    if log.without_zone:
        night = can_end_summer_time(time[places[1:]])
        found = "a time before that of the row before in the night in which summer time can end"
        bad = places[1:][alone & (steps > -HOUR) & night]
        log.refuse(rows, bad, found, f"{ZONE}; or {in_order}")


def _ranks(ids: pa.ChunkedArray) -> schema.Ints:
    """Number ids in the order of their text, [rows]."""
    encoded = schema.id_text(schema.whole(ids)).dictionary_encode()
    ranks = pc.rank(encoded.dictionary).cast(pa.int64())
    return schema.numbers(ranks.take(encoded.indices))


@dataclass(frozen=True)
class Tabular:
    """See `primorl.data.sources.Source`."""

    name: str
    dataset: TabularDataset

    def collect(self, target: Path) -> None:
        """Record the files (`record_files`), and copy them under their names."""
        folder, files = record_files(self.name, self.dataset, target)
        for file in files:
            copy = target / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)

    def check_log(self) -> Iterator[str]:
        """Compare the columns of the files with the entry.

        Raises:
            PipelineError: a column is missing, there twice or of a wrong type.
        """
        options, fields = self.dataset.options, fields_of(self.dataset.options.columns)
        folder, files = find_files(options.files)
        if files:
            LogFiles(folder, fields, options.csv, files)
        yield f"{options.files}: {'has the columns of the entry' if files else 'not there yet'}"

    def open(self, raw: Path) -> "TabularReader":
        """Open the copies and compare their columns with the entry."""
        return TabularReader(raw, self.name, self.dataset)


def read_spaces(name: str, dataset: TabularDataset) -> tuple[schema.Spaces, int | None]:
    """Give the spaces and the step limit of the environment or, without one, of the options.

    Raises:
        PipelineError: if the columns, the bounds and the environment do not fit each other.
    """
    columns, action = dataset.options.columns, dataset.options.columns.action
    sizes = [1 if isinstance(one, str) else len(one.categories) for one in columns.observation]
    ends = zip(itertools.accumulate(sizes), sizes, strict=True)
    one_hot = tuple((end - size, size) for end, size in ends if size > 1)
    names, low, high = zip(*columns.dimensions, strict=True)
    parts = [[name for name, _, _ in part.dimensions] for part in columns.choices]
    actions: tuple[str, ...] = tuple(map(", ".join, itertools.product(*parts)))
    if isinstance(action, BoxActions):
        actions = action.columns
    elif not isinstance(action, tuple):
        actions = columns.choices[0].categories
    bounds = dataset.bounds.observation
    if isinstance(bounds, DeclaredBounds) and len(bounds.low) != len(names):
        found = f"{len(bounds.low)} dimensions; options.columns.observation has {len(names)}"
        raise PipelineError(f"datasets/{name}.yaml: bounds.observation: found {found}")
    horizon = None
    spaces = schema.Spaces.with_discrete_actions(low, high, len(actions))
    if isinstance(action, BoxActions):
        nowhere = (0.0,) * len(actions)  # where the environment says them
        spaces = schema.Spaces(low, high, action.low or nowhere, action.high or nowhere)
    if dataset.environment is not None:
        own = spaces
        spaces, horizon, _ = inspect_environment(dataset.environment)
        check_fit(f"datasets/{name}.yaml: options.columns", own, spaces)
    return replace(spaces, one_hot=one_hot, observation_names=names, action_names=actions), horizon


REMEDY = (
    "where it is an outcome, set options.end: outcome, or flag true ends in columns.terminated; "
    "where every row has a cost, empty these cells, and set options.end: observed"
)
EVENT = "where an event ends it, put its reward into the row of the last decision, and drop its row"
FILL_IN = "carry the trajectory's last value forward, or drop the row"
_TRUE_ENDS = "columns.terminated, in MEDS options.terminates"


class TabularReader:
    """The logs under ``raw`` as batches of the dataset's schema. See `primorl.data.sources.Reader`.

    A row has the observation, action and reward of one time. The next observation is its
    ``next_observation`` columns or, without them, the next row of its trajectory. The last row of a
    trajectory has no next one: where it terminated, its next observation, on which nothing depends,
    is its own; else its outcome was not recorded, so the transition before is the last one and is
    truncated. Its action and reward are not read.

    Raises:
        PipelineError: if there is no readable file, or columns do not fit the dataset.
    """

    def __init__(self, raw: Path, name: str, dataset: TabularDataset):
        self.path = raw
        self.spaces, self.horizon = read_spaces(name, dataset)
        self._dataset, self._options, self._bounds = dataset, dataset.options, dataset.bounds
        columns = self._options.columns
        self._unit = "trajectory" if columns.unit is None else "unit"
        self._has_next = columns.next_observation is not None
        self._fields = fields_of(columns)
        self._log = LogFiles(raw, self._fields, self._options.csv)
        # Where a trajectory is a unit, those that are numbered anew for each person look like one.
        merged = "; or, if people share trajectory ids, let columns.trajectory name unique ones"
        self._or_merged = merged if self._unit == "trajectory" else ""
        self._unused = self._earns = False  # rewards of last rows that are cut; others
        self._had = set[float]()  # rewards of rows that end their trajectory
        self._cut = dict[str, None]()  # what had values beyond bounds; how many is private
        self._levels = set[float | None]()  # of trajectories with one reward in all rows, or None

    def tables(self) -> Generator[pa.Table]:
        """See `Reader.tables`; errors name the file and the row, and quote no value."""
        unit, log = self._unit, self._log
        batches = log.batches() if self._options.sorted else sort_batches(log, unit)
        for rows in whole_units(batches, unit):
            yield self._make_transitions(rows.combine_chunks())
        if self._unused:
            hint = "" if self._earns else "warning: no other row has a reward: "
            found = "the last row of trajectories that do not terminate has a reward"
            say(f"ingest: {hint}{found}, which is not used: {REMEDY}")
        for what in self._cut:
            say(f"ingest: some values of {what} were beyond bounds, and cut there")
        if None not in self._levels and len(self._levels) > 1:
            why = "an outcome is the reward of the last row alone"
            say(f"ingest: warning: a trajectory's rows all earn the same; {why}")
        earned = np.array(self._bounds.reward if self._bounds.outcomes else (), np.float32)
        for name, value in zip(self._bounds.outcomes or (), earned, strict=True):
            if value not in self._had:
                found = f"no trajectory ends with {name!r} of bounds.outcomes ({value:g})"
                why = f"That is private; its end must be marked as a true one ({_TRUE_ENDS})"
                say(f"ingest: warning: {found}. {why}")

    def _make_transitions(self, rows: pa.Table) -> pa.Table:
        starts = np.flatnonzero(
            schema.changes(rows[self._unit]) | schema.changes(rows["trajectory"])
        )
        lasts = np.append(starts[1:], rows.num_rows) - 1
        unit, name = self._ids(rows, pa.array(starts))
        if again := schema.first_repeat(pc.binary_join_element_wise(unit, name, "\0")):
            found = "a row of a trajectory whose other rows do not lie before or after it"
            self._log.refuse(
                rows, starts[[again[1]]], found, "all together; or options.sorted: false"
            )
        self._check_order(rows, starts)
        terminated, truncated = self._ends(rows, lasts)
        observation = self._matrix(rows, "observation")
        observation = self._check(rows, observation, "observation")
        if self._has_next:
            after = self._matrix(rows, "next_observation")
            self._refuse_shifted(rows, observation, after)
        else:
            after = np.roll(observation, -1, axis=0)
            after[lasts] = observation[lasts]
        cut = ~terminated[lasts] & (not self._has_next)
        lengths = self._lengths(rows, starts, lasts, cut)
        truncated[lasts[cut] - 1] = True
        earned = np.nan_to_num(schema.numbers(rows["reward"])) != 0
        self._unused |= bool(earned[lasts[cut]].any())
        self._earns |= bool(earned.sum() > earned[lasts[cut]].sum())
        if self._dataset.termination == "learned":
            # An end at the horizon is no business of the state that it comes in.
            horizon = self._dataset.horizon or self.horizon
            full = lasts[terminated[lasts] & (lengths == horizon)]
            terminated[full], truncated[full] = False, True
        keep, ended = np.ones(rows.num_rows, dtype=bool), np.zeros(rows.num_rows, dtype=bool)
        keep[lasts[cut]], ended[lasts[~cut]] = False, True
        rows, after = rows.filter(pa.array(keep)), after[keep]
        reward = self._rewards(rows, ended[keep])
        first = np.cumsum(lengths) - lengths
        same = np.array_equal(reward, np.repeat(reward[first], lengths))
        self._levels.update(reward[first][lengths > 1].tolist() if same else [None])
        if self._has_next:
            after = self._check(rows, after, "next_observation")
        return schema.Transitions(
            unit=unit,
            name=name,
            lengths=lengths,
            observation=observation[keep],
            action=self._action(rows),
            reward=reward,
            next_observation=after,
            terminated=terminated[keep],
            truncated=truncated[keep],
        ).table(self.spaces)

    def _refuse_shifted(
        self, rows: pa.Table, observation: schema.Floats, after: schema.Floats
    ) -> None:
        """Refuse next observations that were shifted as a whole, so that the last row of a unit has
        the first observation of the next unit. Within a unit they may go on.
        """
        firsts = np.flatnonzero(schema.changes(rows[self._unit]))[1:]
        begins = observation[firsts]
        shifted = (after[firsts - 1] == begins).all(1)
        chance = (after[firsts - 1] == np.roll(begins, 1, axis=0)).all(1)  # few states, or one
        if len(firsts) >= _SEVERAL and shifted.mean() > 0.5 + chance.mean():
            found = "a next observation that is the first of the unit after it"
            allowed = "one of the same trajectory: shift columns within each trajectory alone"
            self._log.refuse(rows, (firsts - 1)[shifted], found, allowed)

    def _ids(self, rows: pa.Table, starts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Give the ids of the unit and of the trajectory that begin at some rows."""
        trajectories = units = schema.id_text(schema.whole(rows["trajectory"]).take(starts))
        if self._unit != "trajectory":
            units = schema.id_text(schema.whole(rows[self._unit]).take(starts))
        if self._options.trajectory_ids == "per_unit":
            trajectories = pc.binary_join_element_wise(units, trajectories, "/")
        return units, trajectories

    def _lengths(
        self, rows: pa.Table, starts: schema.Ints, lasts: schema.Ints, cut: schema.Flags
    ) -> schema.Ints:
        """Count the transitions of trajectories, the last rows of some of which are ``cut``."""
        self._log.refuse(
            rows,
            starts[cut & (lasts == starts)],
            "a trajectory of this one row, whose outcome was not recorded: no transition",
            "two rows or more, a terminated one, or next_observation columns; drop the trajectory",
        )
        if self._options.end == "observed":
            earned = ~np.isnan(schema.numbers(rows["reward"].take(pa.array(lasts)))) & cut
            found = "a reward in the last row of a trajectory that does not terminate"
            allowed = "an empty cell, or options.end: outcome where it scores an outcome"
            self._log.refuse(rows, lasts[earned], found, allowed)
        return lasts - starts + 1 - cut

    def _rewards(self, rows: pa.Table, ended: schema.Flags) -> schema.Floats:
        """Give the rewards, [rows], which must lie within the declared bounds; ``ended`` tells the
        rows that end their trajectory.
        """
        reward = self._check(rows, schema.numbers(rows["reward"])[:, None], "reward")[:, 0]
        if self._bounds.before_end is not None:
            low, high = self._bounds.before_end
            wrong = ~ended & ((reward < low) | (reward > high))
            found = "a reward outside bounds.before_end in a row that ends no trajectory"
            allowed = f"{low:g} to {high:g}; if it is a true end, mark it ({_TRUE_ENDS})"
            self._log.refuse(rows, np.flatnonzero(wrong), found, allowed)
        if self._bounds.outcomes is not None:
            unnamed = ended & ~np.isin(reward, np.array(self._bounds.reward, np.float32))
            self._had.update(reward[ended].tolist())
            found = "a reward that bounds.outcomes does not name in a row that ends its trajectory"
            allowed = "the least or the largest of bounds.reward; or declare no outcomes"
            self._log.refuse(rows, np.flatnonzero(unnamed), found, allowed)
        return reward

    def _check_order(self, rows: pa.Table, starts: schema.Ints) -> None:
        order = rows["order"].to_numpy()
        inside = np.ones(rows.num_rows, dtype=bool)
        inside[starts] = False
        again = np.flatnonzero(inside[1:] & (order[1:] <= order[:-1])) + 1
        if self._log.ordered_by_time:
            unknown = np.isin(order, NO_TIMES)
            far = unknown[:-1] & inside[1:] & (np.diff(order) > _DECADES)
            found = "a time that stands for an unknown one, such as 1900-01-01 or 1970-01-01"
            allowed = "the true one, within 20 years of the next; correct or drop the row"
            self._log.refuse(rows, np.flatnonzero(far), found, allowed)
        allowed = "a later one in every row; drop a duplicate, or number rows of equal time"
        if self._log.ordered_by_time:
            allowed += " (times are read to the microsecond, whole numbers as they are)"
        found = "an order that another row of its trajectory has"
        if self._options.sorted:
            found = "an order that is not after that of the row before"
            allowed += ", or set options.sorted: false to have the log sorted here"
        allowed += self._or_merged
        if self._log.without_zone:
            allowed = f"{ZONE}; {allowed}"
        if len(again) and (other := rows["file"][again[0] - 1]) != rows["file"][again[0]]:
            found += f", which is in {self._log.paths[other.as_py()]}"
        self._log.refuse(rows, again, found, allowed)

    def _ends(self, rows: pa.Table, lasts: schema.Ints) -> tuple[schema.Flags, schema.Flags]:
        terminated, truncated = np.zeros((2, rows.num_rows), bool)
        for name, flags in (("terminated", terminated), ("truncated", truncated)):
            if name in rows.column_names:
                flags[:] = rows[name].to_numpy()
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

    def _matrix(self, rows: pa.Table, prefix: str) -> schema.Floats:
        # One row a dimension, turned at the end: to write column by column takes three times as
        # long.
        turned = np.zeros((self.spaces.observation_size, rows.num_rows), dtype=np.float32)
        dimension = 0
        for field in self._fields:
            if not field.name.startswith(f"{prefix}."):
                continue
            values = rows[field.name].to_numpy()
            if field.categories:
                turned[dimension + values, np.arange(rows.num_rows)] = 1
            else:
                turned[dimension] = values
            dimension += len(field.categories) or 1
        return np.ascontiguousarray(turned.T)

    def _action(self, rows: pa.Table) -> schema.Array:
        fields = [field for field in self._fields if field.name.startswith("action.")]
        parts = np.stack([rows[field.name].to_numpy() for field in fields])
        if self.spaces.discrete_actions:
            allowed = f"one in every row but an unfinished trajectory's last; {EVENT}"
            self._log.refuse(rows, np.flatnonzero((parts < 0).any(axis=0)), "no action", allowed)
            codes: schema.Array = parts[0]
            for field, part in zip(fields[1:], parts[1:], strict=True):
                codes = codes * len(field.categories) + part
            return codes
        return self._check(rows, np.ascontiguousarray(parts.T), "action")

    def _check(self, rows: pa.Table, values: schema.Floats, what: str) -> schema.Floats:
        """Refuse missing numbers [rows, columns]; refuse or clip observations and rewards beyond
        the bounds that the entry declares as numbers.

        The error names the first row, and all columns of this batch with such values; it quotes no
        value.
        """
        key = what.removeprefix("next_")
        names = ("reward",) if key == "reward" else getattr(self.spaces, f"{key}_names")
        finite = np.isfinite(values)
        if not finite.all():
            bad = ", ".join(repr(names[i]) for i in np.flatnonzero(~finite.all(axis=0)))
            moved = "or, if rows have the reward of the row before, move all"
            missing = {
                "reward": f"fill it in, or drop the trajectory; {moved}",
                "action": f"fill it in; {EVENT}",
            }
            self._log.refuse(
                rows,
                np.flatnonzero(~finite.all(axis=1)),
                f"a missing, NaN or infinite {what} (in {bad})",
                f"finite float32 numbers; {missing.get(key, FILL_IN)}",
            )
        declared = getattr(self._bounds, key, "space")
        if isinstance(declared, str):
            return values
        pair = (declared.low, declared.high) if isinstance(declared, DeclaredBounds) else declared
        low, high = np.array(pair, np.float32)  # the numbers are float32 too
        outside = (values < low) | (values > high)
        if self._options.beyond_bounds == "clip":
            if outside.any():
                self._cut[what] = None
            return np.clip(values, low, high)
        bad = ", ".join(names[i] for i in np.flatnonzero(outside.any(axis=0)))
        self._log.refuse(
            rows,
            np.flatnonzero(outside.any(axis=1)),
            f"the first of values beyond bounds.{key} of: {bad}",
            "within them; correct the log or the bounds, or set options.beyond_bounds: clip",
        )
        return values
