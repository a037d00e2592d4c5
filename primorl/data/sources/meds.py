"""``source: meds``: a folder in the Medical Event Data Standard becomes a log with one row for each
decision.

`collect` reads one shard after the other and writes that log; `TabularReader` reads it. What
becomes of a subject depends on nobody else's events. Times are whole microseconds.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from primorl.base import PipelineError, say
from primorl.base.records import TimeUnit
from primorl.base.reporting import progress_bar
from primorl.config import datasets
from primorl.data.sources.log_paths import record_files
from primorl.data.sources.logs import HOUR
from primorl.data.sources.tabular import NO_TIMES, TabularReader
from primorl.data.storage.schema import Array, Flags, Floats, Ints, whole

_TYPES = {
    "subject_id": pa.int64(),
    "time": pa.timestamp("us"),
    "code": pa.string(),
    "numeric_value": pa.float32(),
}
MICROSECONDS: dict[TimeUnit, float] = {
    "seconds": 1e6,
    "minutes": 6e7,
    "hours": 3.6e9,
    "days": 8.64e10,
}
_STATIC = np.iinfo(np.int64).min  # the time of an event that has none
_NEVER = np.iinfo(np.int64).max
_DAY = 24 * HOUR
_LONGEST = 2**60  # microseconds, longer than any record
_MOST_CODES = 8  # that a warning names
_TIME = "give it its time, or the end of its day"
_LATE = (
    "events that terminate end no trajectory, as a death after the discharge; one that has a day "
    "alone belongs at its end"
)
_LONG = "trajectories are longer than the horizon, and cut there"
_EMPTY = f"trajectories have an end at their begin, taken for that of one before: {_TIME}"
_NUMBERLESS = "events of a dose or reward have no number, and add 0"
_AGAIN = "events have the subject, time and code of another: doses add, the last is observed"
_NO_TIME = f"{_TIME}, or drop the row; only `happened` takes events without one"
_UNDATED = "events are at 1900-01-01, 1970-01-01 or the like, as unknown times are often written"
_BEGINS, _ENDS, _TERMINATES = range(3)  # roles; those of decision, dimensions, rewards follow


class Meds:
    """See `primorl.data.sources.Source`."""

    def __init__(self, name: str, dataset: datasets.MedsDataset):
        self._name, self._dataset = name, dataset

    def collect(self, target: Path) -> None:
        """Write the log of all shards, and record what they were (`record_files`)."""
        # First: a file that changes meanwhile is another one.
        _, files = record_files(self._name, self._dataset, target)
        codes = Codes(self._dataset.options)
        logs = Decisions(self._dataset, codes)
        kept, subjects = 0, [np.empty(0, np.int64)]
        with (
            progress_bar(len(files), "collect meds", "shard") as progress,
            pq.ParquetWriter(target / "log.parquet", logs.schema) as writer,
        ):
            for path in files:
                events, own = read_shard(path, codes)
                subjects.append(own)
                table = logs.table(events)
                kept += pc.count_distinct(table["subject_id"]).as_py()
                writer.write_table(table)
                progress.update()
        everybody = np.concatenate(subjects)
        if len(np.unique(everybody)) < len(everybody):
            found = "found a subject in two files, or in two places of one"
            allowed = "all events of a subject in one file, together"
            remedy = "join them by subject_id and time, or finish the extraction (its merge)"
            raise PipelineError(f"{files[0].parent}: {found}; allowed: {allowed}; {remedy}")
        left_out = [f"{out} of {all_} {name}" for name, (out, all_) in logs.outside.items() if out]
        found = f"{kept} of {len(everybody)} subjects in {len(files)} shards have a decision"
        found += f" and are kept, with {logs.kept} of {logs.begun} trajectories"
        found += f"; values left out or cut: {', '.join(left_out) or 'none'}"
        told = [f"{count} {said}" for said, count in (+codes.told).items()]
        say("; ".join((f"collect: {found}", *told)))
        options = self._dataset.options
        for entry in (*options.observation, *options.action, *options.reward):
            read = sorted(codes.fitting[codes.role(entry)])
            if codes.role(entry) in codes.reads and len(read) > 1:
                found = f"{len(read)} codes, all in one unit? {', '.join(read[:_MOST_CODES])}"
                say(f"collect: {getattr(entry, 'name', 'a reward')} is read of {found}")
        if unseen := ", ".join(map(repr, codes.unseen)):
            where = f"datasets/{self._name}.yaml: options"
            raise PipelineError(f"{where}: found {unseen}, no event's code; correct or drop it")

    def open(self, raw: Path) -> TabularReader:
        """Open that log."""
        log = as_tabular(self._dataset)
        reader = TabularReader(raw, self._name, log)
        assert isinstance(log.bounds.observation, datasets.DeclaredBounds)
        low, high = log.bounds.observation.low, log.bounds.observation.high
        reader.spaces = replace(reader.spaces, observation_low=low, observation_high=high)
        return reader


def as_tabular(dataset: datasets.MedsDataset) -> datasets.TabularDataset:
    """Describe the log that `Meds.collect` writes."""
    options = dataset.options
    dimensions = [each for entry in options.observation for each in entry.dimensions]
    observation, lows, highs = zip(*dimensions, strict=True)
    binned = tuple(
        datasets.Categorical(column=dose.name, categories=levels(dose.bins))
        for dose in options.action
        if dose.bins
    )
    action: datasets.Categorical | tuple[datasets.Categorical, ...] | datasets.BoxActions = binned
    if len(binned) == 1:
        action = binned[0]
    elif not binned:
        names, low, high = zip(
            *((dose.name, dose.low, dose.high) for dose in options.action), strict=True
        )
        action = datasets.BoxActions(columns=names, low=low, high=high)
    columns = datasets.TabularColumns(
        unit="subject_id",
        trajectory="trajectory",
        order="time",
        observation=observation,
        action=action,
        reward="reward",
        terminated="terminated" if options.terminates else None,
    )
    declared = datasets.DeclaredBounds(low=lows, high=highs)
    common = {field.name: getattr(dataset, field.name) for field in fields(datasets.DatasetCommon)}
    common["bounds"] = replace(dataset.bounds, observation=declared)
    how = datasets.TabularOptions(
        files="data/raw",
        columns=columns,
        trajectory_ids="per_unit",
        end="last_row",
        beyond_bounds="clip",
    )
    return datasets.TabularDataset(**common, source="tabular", options=how)


def levels(bins: Sequence[float]) -> tuple[str, ...]:
    """Name the levels between some edges; a dose at an edge is of the level below."""
    inner = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(bins)]
    return f"up to {bins[0]:g}", *inner, f"above {bins[-1]:g}"


class Codes:
    """Tells which codes have which role, as the options say.

    Roles are numbered as the options name them.

    Attributes:
        unseen: the codes of the options that no event had so far.
        fitting: the codes that fit a pattern with a ``*``, by role.
        told: what is to be told of events and trajectories, and of how many; private.
        adds: roles of events with numbers that are added, or hold until another comes.
        reads: all roles of events with numbers.
        static: roles of events that need no time.
    """

    def __init__(self, options: datasets.MedsOptions):
        parts = [options.decision, *options.observation, *options.action, *options.reward]
        own = [options.begins, options.ends, options.terminates]
        own += [getattr(part, "codes", None) for part in parts]
        self._patterns = [codes or () for codes in own]
        self._roles = {id(part): _TERMINATES + 1 + number for number, part in enumerate(parts)}
        self.unseen = dict.fromkeys(itertools.chain(*self._patterns))
        self.fitting: defaultdict[int, set[str]] = defaultdict(set)
        self.told = Counter[str]()
        adds = [part for part in parts if getattr(part, "of", "count") != "count"]
        adds += [part for part in options.reward if getattr(part, "scale", None) is not None]
        values = [part for part in parts if isinstance(part, datasets.MedsValue)]
        self.adds = list(map(self.role, adds))
        self.reads = [*self.adds, *map(self.role, values)]
        self.static = [self.role(part) for part in parts if isinstance(part, datasets.MedsFlag)]

    def role(self, part: Any) -> int:
        """Find the role of one entry of the options."""
        return self._roles[id(part)]

    def overlap(self, one: int, other: int) -> bool:
        """Say whether a code can have both roles."""
        pairs = [(a, b) for a in self._patterns[one] for b in self._patterns[other]]
        return any(_fits(a.removesuffix("*"), b) or _fits(b.removesuffix("*"), a) for a, b in pairs)

    def roles_of(self, codes: Sequence[str | None]) -> Flags:
        """Tell which roles each code has, ``[codes, roles]``."""
        found = np.zeros((len(codes), len(self._patterns)), dtype=bool)
        for role, patterns in enumerate(self._patterns):
            for pattern in patterns:
                fits = np.array([_fits(code or "", pattern) for code in codes], dtype=bool)
                found[:, role] |= fits
                if fits.any():
                    self.unseen.pop(pattern, None)
                if pattern.endswith("*"):
                    self.fitting[role].update(filter(None, itertools.compress(codes, fits)))
        return found


def _fits(code: str, pattern: str) -> bool:
    return code.startswith(pattern[:-1]) if pattern.endswith("*") else code == pattern


def read_shard(path: Path, codes: Codes) -> tuple["Events", Ints]:
    """Read a shard: its events that have a role, and the subject of each run of rows.

    Raises:
        PipelineError: it is unreadable, lacks a column or is not sorted, or a row has a fault.
    """
    table = _open_shard(path)
    subject, time = (table[name].to_numpy() for name in ("subject_id", "time"))
    new = subject[1:] != subject[:-1]
    back = np.append(False, (time[1:] < time[:-1]) & ~new)
    found = "a time before that of the row before, of the same subject"
    remedy = "sort each subject's rows by time, those without one first (NULLS FIRST)"
    _refuse(path, np.flatnonzero(back), found, remedy)
    code = whole(table["code"])
    # The last row is for events without a code.
    roles = np.vstack([codes.roles_of(code.dictionary.to_pylist()), codes.roles_of([None])])
    kinds = pc.fill_null(code.indices, -1).to_numpy()
    rows = np.flatnonzero(roles[kinds].any(axis=1))
    runs = np.append(subject[:1], subject[1:][new])
    subject, time, roles = subject[rows], time[rows], roles[kinds[rows]]
    needed = np.delete(roles, codes.static, axis=1).any(axis=1)
    _refuse(path, rows[needed & (time == _STATIC)], "no time", _NO_TIME)
    keys = [kinds[rows], time, subject]
    order = np.lexsort(keys)
    event = np.zeros(len(rows), np.int64)  # a number for each subject, time and code
    event[order[1:]] = np.cumsum(np.any([np.diff(key[order]) for key in keys], axis=0))
    codes.told[_AGAIN] += len(rows) - len(np.unique(event))
    codes.told[_UNDATED] += int(np.isin(time, NO_TIMES).sum())
    value = table["numeric_value"].take(rows).to_numpy()
    adds = roles[:, codes.adds].any(axis=1)
    codes.told[_NUMBERLESS] += int((adds & np.isnan(value)).sum())
    remedy = "allowed: float32 numbers in numeric_value, empty where there is none"
    _refuse(path, rows[adds & np.isinf(value)], "an infinite number", remedy)
    return Events(subject, time, value, roles), runs


def _open_shard(path: Path) -> pa.Table:
    """Read MEDS' columns of a shard: subjects, times in microseconds (`_STATIC` without one), codes
    as a dictionary, and numbers.
    """
    try:
        there = pq.read_schema(path)
        if missing := [name for name in _TYPES if there.names.count(name) != 1]:
            found = f"{', '.join(missing)}: found no column, or two"
            raise PipelineError(f"{path}: {found}; convert it to MEDS 0.3 or later")
        kinds = {name: there.field(name).type for name in _TYPES}
        wrong = {
            # 7.2 and 7.8, or "7" and "07", would be one person
            "subject_id": not pa.types.is_integer(kinds["subject_id"]),
            "time": pa.types.is_integer(kinds["time"]),  # of any unit
            "numeric_value": "string" in str(kinds["numeric_value"]),
        }
        for name in (name for name, refused in wrong.items() if refused):
            found = f"found {kinds[name]}; allowed is {_TYPES[name]}; convert it"
            raise PipelineError(f"{path}: {name}: {found}")
        form = {"pre_buffer": False, "coerce_int96_timestamp_unit": "us"}
        file = pq.ParquetFile(path, read_dictionary=["code"], **form)
        table = file.read(list(_TYPES), use_threads=False).combine_chunks()
        subject, time, code, number = (table[name] for name in _TYPES)
        time = time.cast(_TYPES["time"], safe=False).cast(pa.int64()).fill_null(_STATIC)
        code = code.cast(pa.dictionary(pa.int32(), pa.string()))
        # Arrow has no way from decimals straight to float32
        number = number.cast(pa.float64(), safe=False).cast(pa.float32(), safe=False)
        subject = subject.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        raise PipelineError(
            f"{path}: not readable as Parquet, or of other types than MEDS has; repair it"
        ) from None
    if subject.null_count:
        raise PipelineError(f"{path}: found rows without a subject_id")
    return pa.table([subject, time, code, number], names=list(_TYPES))


def _refuse(path: Path, rows: Ints, found: str, remedy: str) -> None:
    """Raise the error about the first of some rows, if any."""
    if len(rows):
        raise PipelineError(f"{path}: row {rows[0] + 1}: found {found}; {remedy}")


@dataclass(frozen=True)
class Events:
    """Events of whole subjects, by subject and ascending time: each array is ``[n]``, and the roles
    of each event ``[n, roles]``.
    """

    subject: Ints
    time: Ints
    value: Floats
    roles: Flags

    @cached_property
    def who(self) -> Ints:
        """The number of each event's subject, in their order."""
        return np.cumsum(np.diff(self.subject, prepend=self.subject[:1]) != 0)

    @cached_property
    def times(self) -> Ints:
        """All different times, ascending."""
        return np.unique(self.time)

    def keys(self, who: Ints, time: Ints, *, after: bool = False) -> Ints:
        """Map subjects and times to numbers that ascend with both.

        Args:
            who: numbers of subjects, ``[m]``.
            time: ``[m]``.
            after: give the number of all that comes after the time.
        """
        side: Literal["left", "right"] = "right" if after else "left"
        return who * (len(self.times) + 1) + np.searchsorted(self.times, time, side)

    def series(self, chosen: Flags) -> "Series":
        """Give the chosen events."""
        own = self.who[chosen], self.time[chosen]
        return Series(self, *own, self.value[chosen], self.keys(*own))


@dataclass(frozen=True)
class Series:
    """Events of one kind, each array ``[m]``; asked about subjects at times, as arrays too."""

    events: Events
    who: Ints
    time: Ints
    value: Floats
    key: Ints

    def before(self, who: Ints, time: Ints, *, at: bool) -> Ints:
        """Count the events of earlier subjects, and of this one before a time or also ``at`` it."""
        found: Ints = np.searchsorted(self.key, self.events.keys(who, time, after=at))
        return found

    def first_of(self, groups: Ints) -> "Series":
        """Keep the first event of each group; the groups ascend, ``[m]``."""
        first = np.diff(groups, prepend=-1) != 0
        own = self.who[first], self.time[first], self.value[first], self.key[first]
        return Series(self.events, *own)

    def first(self, who: Ints, since: Ints, *, after: bool = False) -> Ints:
        """Give the time of the first event at or after a time, or only ``after`` it; `_NEVER`
        without one.
        """
        place = self.before(who, since, at=after)
        there = place < self.before(who, np.full_like(since, _NEVER), at=True)
        return np.where(there, np.append(self.time, _NEVER)[place], _NEVER)

    def last(
        self, who: Ints, time: Ints, since: Ints, *, before: bool
    ) -> tuple[Flags, Floats, Ints]:
        """Find the last event from ``since`` up to each time, or only ``before`` it: whether there
        is one, value, time.
        """
        place = self.before(who, time, at=not before) - 1
        there = place >= self.before(who, since, at=False)
        place = np.where(there, place, len(self.time))
        value = np.append(self.value, np.float32(np.nan))[place]
        return there, value, np.append(self.time, 0)[place]

    def between(self, who: Ints, time: Ints, following: Ints, *, after: bool) -> tuple[Ints, Array]:
        """Count the events from each time up to the following one, and add their values; the later
        end belongs to them where ``after`` says so, else the earlier one.

        A missing value counts as 0.
        """
        low, high = (self.before(who, when, at=after) for when in (time, following))
        values = np.append(np.nan_to_num(self.value.astype(np.float64)), 0.0)
        sums = np.add.reduceat(values, np.column_stack((low, high)).ravel())[::2]
        return high - low, np.where(low < high, sums, 0.0)


@dataclass(frozen=True)
class Rows:
    """Rows of the log, one for each decision and one for the end of each trajectory: each array is
    ``[k]``.

    Attributes:
        who: number of the subject.
        number: of the trajectory, among the subject's begins.
        begin: time at which the trajectory began.
        since: time from which on a rate that was set holds in it.
        time: of the row.
        following: time of the next row; of a final row its own.
        final: whether it is the end of a trajectory.
        died: whether the trajectory ended for good.
    """

    who: Ints
    number: Ints
    begin: Ints
    since: Ints
    time: Ints
    following: Ints
    final: Flags
    died: Flags


class Decisions:
    """Makes rows of the log from events.

    Attributes:
        schema: of the rows.
        outside: of each value observed, how many are beyond its bounds, how many without a number,
            of how many; the same of continuous doses of a step; private.
        begun: how many trajectories begin; private.
        kept: how many of them are in the rows; private.
    """

    def __init__(self, dataset: datasets.MedsDataset, codes: Codes):
        self.outside: defaultdict[str, Ints] = defaultdict(lambda: np.zeros(2, int))
        self.begun = self.kept = 0
        self._dataset, self._options, self._codes = dataset, dataset.options, codes
        level = pa.dictionary(pa.int32(), pa.string())
        kind = pa.float32() if self._options.action[0].bins is None else level
        names = [name for entry in self._options.observation for name, _, _ in entry.dimensions]
        self.schema = pa.schema(
            [("subject_id", pa.int64()), ("trajectory", pa.int64()), ("time", pa.timestamp("us"))]
            + [(name, pa.float32()) for name in names]
            + [(dose.name, kind) for dose in self._options.action]
            + [("reward", pa.float64()), ("terminated", pa.bool_())]
        )

    def table(self, events: Events) -> pa.Table:
        """Make the rows of all decisions of some whole subjects."""
        if len(events.time) == 0:
            return self.schema.empty_table()
        rows = self._rows(events)
        columns: dict[str, Any] = {
            "subject_id": events.subject[np.searchsorted(events.who, rows.who)],
            "trajectory": rows.number,
            "time": pa.array(rows.time).cast(pa.timestamp("us")),
        }
        for entry in self._options.observation:
            columns |= self._observe(entry, events, rows)
            if isinstance(entry, datasets.MedsValue):
                values = events.value[events.roles[:, self._codes.role(entry)]]
                none, beyond = np.isnan(values), ~_inside(entry, values)
                self._count_outside(f"{entry.name} beyond bounds", beyond & ~none)
                self._count_outside(f"{entry.name} without a number", none)
        for dose in self._options.action:
            columns[dose.name] = self._give(dose, self._series(dose, events), rows)
        # Nothing was done or gained at what was observed in the end.
        columns["reward"] = pa.array(self._rewards(columns, events, rows), mask=rows.final)
        columns["terminated"] = rows.died & np.append(rows.final[1:], False)
        table = pa.table({name: pa.array(columns[name]) for name in self.schema.names})
        # Nothing follows on an end for good.
        return table.cast(self.schema).filter(pa.array(~(rows.died & rows.final)))

    def _series(self, part: Any, events: Events) -> Series:
        """Give the events that have the role of one entry of the options.

        Of an entry with bounds they are those with a number within, of a rate those with a number.
        """
        chosen = events.roles[:, self._codes.role(part)]
        if isinstance(part, datasets.MedsValue):
            chosen = chosen & _inside(part, events.value)
        elif isinstance(part, datasets.MedsDose) and part.of == "last":
            chosen = chosen & np.isfinite(events.value)
        return events.series(chosen)

    def _count_outside(self, what: str, bad: Flags) -> None:
        self.outside[what] += np.array([np.sum(bad), len(bad)])

    def _rows(self, events: Events) -> Rows:
        """Find the trajectories, from the first decision at which all is known that has to be."""
        roles = events.roles
        everything = events.series(events.time > _STATIC)
        deaths, begins = events.series(roles[:, _TERMINATES]), events.series(roles[:, _BEGINS])
        begins = begins.first_of(begins.key)
        if self._options.begins is None:
            begins = everything.first_of(everything.who)
        who, begin = begins.who, begins.time
        told = self._codes.told
        ends = events.series(roles[:, _ENDS])
        told[_EMPTY] += int(np.sum(ends.first(who, begin) == begin))
        self.begun += len(who)
        number = np.arange(len(who)) - np.searchsorted(who, who)
        # A trajectory lasts until something ends it, the next one begins, or the record ends.
        following = begins.first(who, begin, after=True)
        stops = events.series(roles[:, _ENDS] | roles[:, _TERMINATES])
        stop = stops.first(who, begin, after=True)
        stopped = (stop <= following) & (stop < _NEVER)
        last = everything.time[everything.before(who, following, at=False) - 1]
        end = np.where(stopped, stop, last)
        died = stopped & (deaths.before(who, end, at=True) > deaths.before(who, end, at=False))
        counted = np.full(int(everything.who.max(initial=-1)) + 1, _NEVER)  # first deaths
        np.minimum.at(counted, who[died], end[died])
        deaths = deaths.first_of(deaths.key)  # and none that repeats what was counted
        told[_LATE] += int((deaths.time < counted[deaths.who]).sum())
        # A rate of a day before holds, but not one of an earlier trajectory.
        since = np.where(number > 0, np.append(0, end)[:-1] + 1, _STATIC)
        since = since.clip(begin - _DAY, begin)
        known = begin
        for entry in self._options.observation:
            if isinstance(entry, datasets.MedsValue) and entry.first is None:
                found = self._series(entry, events).first(who, begin - _lookback(entry))
                known = np.maximum(known, np.minimum(found, end) + self._gives_away(entry))
        decided, times = self._decide(events, who, begin, np.minimum(known, end), end)
        # Of each person's trajectories with a decision the first count, and of theirs the first.
        kept = np.flatnonzero(decided)
        most = self._dataset.trajectories_per_person or len(kept)
        kept = kept[np.arange(len(kept)) - np.searchsorted(who[kept], who[kept]) < most]
        self.kept += len(kept)
        count = np.minimum(decided[kept], self._dataset.horizon)
        cut = decided[kept] > count
        told[_LONG] += int(cut.sum())
        # One row more than decisions: it tells what the last one led to.
        of = np.repeat(np.arange(len(kept)), count + 1)
        step = _ranges(count + 1)
        final = step == count[of]
        place = (np.cumsum(decided) - decided)[kept][of] + step
        time = np.where(final & ~cut[of], end[kept][of], np.append(times, 0)[place])
        after = np.where(final, time, np.append(time[1:], 0))
        alive = died[kept] & ~cut
        who, number, begin, since = (each[kept][of] for each in (who, number, begin, since))
        return Rows(who, number, begin, since, time, after, final, alive[of])

    def _decide(
        self, events: Events, who: Ints, begin: Ints, known: Ints, end: Ints
    ) -> tuple[Ints, Ints]:
        """Count the decisions of each trajectory from ``known`` on and before ``end``, up to one
        beyond the horizon; and give the times of all of them.
        """
        decision, most = self._options.decision, self._dataset.horizon + 1
        if isinstance(decision, datasets.MedsGrid):
            step = max(1, round(decision.every * MICROSECONDS[decision.unit]))
            start = begin - (begin - known) // step * step
            count = np.clip(-((start - end) // step), 0, most)
            return count, np.repeat(start, count) + step * _ranges(count)
        series = self._series(decision, events)
        series = series.first_of(series.key)
        low, high = (series.before(who, when, at=False) for when in (known, end))
        count = np.clip(high - low, 0, most)
        return count, series.time[np.repeat(low, count) + _ranges(count)]

    def _observe(self, entry: Any, events: Events, rows: Rows) -> dict[str, Array]:
        """Make the columns of one entry of the observation."""
        if isinstance(entry, datasets.MedsElapsed):
            passed = np.diff(rows.time, prepend=rows.time[:1]) / MICROSECONDS[entry.unit]
            begins = np.append(True, rows.final[:-1])
            return {entry.elapsed: np.where(begins, 0.0, passed).clip(max=entry.most)}
        if isinstance(entry, datasets.MedsClock):
            passed = (rows.time - rows.begin) / MICROSECONDS[entry.unit]
            return {entry.clock: passed.clip(max=entry.most)}
        before = self._gives_away(entry)
        if isinstance(entry, datasets.MedsFlag | datasets.MedsSince):
            ever = np.full_like(rows.time, _STATIC)
            found = self._series(entry, events).last(rows.who, rows.time, ever, before=before)
            there, _, at = found
            if isinstance(entry, datasets.MedsFlag):
                return {entry.happened: there}
            passed = np.where(there, (rows.time - at) / MICROSECONDS[entry.unit], entry.most)
            return {entry.since: passed.clip(max=entry.most)}
        since = rows.begin - _lookback(entry)
        found = self._series(entry, events).last(rows.who, rows.time, since, before=before)
        there, value, at = found
        first = np.float32(np.nan if entry.first is None else entry.first)
        most = entry.most or 0.0
        age = ((rows.time - at) / MICROSECONDS[entry.unit]).clip(max=most)
        both = {
            entry.name: np.where(there, value, first),
            f"{entry.name}_age": np.where(there, age, most),
        }
        return both if entry.age else {entry.name: both[entry.name]}

    def _give(self, dose: datasets.MedsDose, series: Series, rows: Rows) -> pa.Array:
        """Compute what was done from each decision up to the following one, cut at its bounds, or
        as a level; null in a final row.
        """
        if dose.of == "last":
            there, value, _ = series.last(rows.who, rows.following, rows.since, before=True)
            given = np.where(there, value, 0.0).astype(np.float64)
        else:
            count, total = series.between(rows.who, rows.time, rows.following, after=False)
            given = total if dose.of == "sum" else count.astype(np.float64)
        # In MEDS' own type: as float64, a dose of float32(0.1) is above 0.1.
        given = given.astype(np.float32)
        if dose.bins is None:
            cut = np.clip(given, dose.low, dose.high)
            self._count_outside(f"{dose.name} beyond bounds (cut)", (cut != given)[~rows.final])
            return pa.array(cut, mask=rows.final)
        level = np.searchsorted(np.array(dose.bins, np.float32), given).astype(np.int32)
        chosen = pa.array(level, mask=rows.final)
        return pa.DictionaryArray.from_arrays(chosen, pa.array(levels(dose.bins)))

    def _rewards(self, columns: dict[str, Array], events: Events, rows: Rows) -> Array:
        reward = np.zeros(len(rows.time))
        for part in self._options.reward:
            if isinstance(part, datasets.MedsRangeReward):
                # A float64 NaN would widen float32, in which 0.1 is above a declared 0.1.
                value = np.append(columns[part.observation][1:], np.float32(np.nan))
                within = (value >= part.low) & (value <= part.high)
                reward += np.where(within, part.inside, part.outside)
                continue
            series = self._series(part, events)
            count, total = series.between(rows.who, rows.time, rows.following, after=True)
            reward += count * (part.value or 0) if part.scale is None else total * part.scale
        return reward

    def _gives_away(self, entry: Any) -> bool:
        """Say whether a code of the action is observed: then only what came before the
        decision is.
        """
        doses = [self._codes.role(dose) for dose in self._options.action]
        return any(self._codes.overlap(self._codes.role(entry), dose) for dose in doses)


def _ranges(lengths: Ints) -> Ints:
    """Count from 0 to each length, one range after the other."""
    return np.arange(np.sum(lengths)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _inside(entry: datasets.MedsValue, values: Floats) -> Flags:
    inside: Flags = (values >= entry.low) & (values <= entry.high)
    return inside


def _lookback(entry: datasets.MedsValue) -> int:
    """How long before the begin of a trajectory a value may be, in microseconds."""
    longest = min((entry.most or 0) * MICROSECONDS[entry.unit], _LONGEST)
    return round(longest) if entry.before else 0
