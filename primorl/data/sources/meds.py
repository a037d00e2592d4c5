"""``source: meds``: a folder in the Medical Event Data Standard becomes a log with one row for each
decision.

`collect` reads the shards once, in batches of whole subjects, and writes that log; `TabularReader`
reads it. What becomes of a subject depends on nobody else's events. Times are whole microseconds.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from primorl.base.errors import PipelineError
from primorl.base.reporting import progress_bar
from primorl.config.datasets import (
    Bounds,
    DatasetCommon,
    DeclaredBounds,
    MedsDataset,
    TabularDataset,
)
from primorl.config.meds import (
    MedsClock,
    MedsDose,
    MedsFlag,
    MedsGrid,
    MedsOptions,
    MedsRangeReward,
    MedsValue,
)
from primorl.config.tabular import (
    BoxActions,
    Categorical,
    Elapsed,
    ObservationColumn,
    TabularColumns,
    TabularOptions,
)
from primorl.data.sources.tabular.source import TabularReader
from primorl.data.sources.tabular.transitions import MICROSECONDS
from primorl.data.sources.tabular.watch import record_files

_EVENTS = 2**20  # in memory at a time
_TYPES = {
    "subject_id": pa.int64(),
    "time": pa.timestamp("us"),
    "code": pa.string(),
    "numeric_value": pa.float32(),
}
_STATIC = np.iinfo(np.int64).min  # the time of an event that has none
_NEVER = np.iinfo(np.int64).max
_BEGINS, _ENDS, _TERMINATES = range(3)  # roles; those of decision, dimensions, rewards follow

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class Meds:
    """See `primorl.data.sources.Source`."""

    def __init__(self, name: str, dataset: MedsDataset):
        self._name, self._dataset = name, dataset

    def collect(self, target: Path) -> None:
        """Write the log of all shards, and record what they were (`watch`)."""
        # First: a file that changes meanwhile is another one.
        _, files = record_files(self._name, self._dataset, target)
        codes = Codes(self._dataset.options)
        logs = Decisions(self._dataset, codes)
        shards, kept = Shards(files, codes), 0
        with pq.ParquetWriter(target / "log.parquet", logs.schema) as writer:
            for events in shards.read():
                table = logs.table(events)
                kept += pc.count_distinct(table["subject_id"]).as_py()
                writer.write_table(table)
        left_out = [f"{out} of {all_} {name}" for name, (out, all_) in logs.outside.items() if out]
        print(
            f"collect: {kept} of {shards.subjects} subjects in {len(files)} shards have a decision "
            f"and are kept; values left out beyond bounds: {', '.join(left_out) or 'none'}",
            file=sys.stderr,
        )
        if missing := codes.unseen():
            raise PipelineError(
                f"datasets/{self._name}.yaml: options: found {', '.join(map(repr, missing))}, "
                "which no event has as its code; allowed are codes of the data "
                "(metadata/codes.parquet lists them), and beginnings of codes with * at the end; "
                "correct or drop it"
            )

    def open(self, raw: Path) -> TabularReader:
        """Open that log."""
        log = as_tabular(self._dataset)
        reader = TabularReader(raw, self._name, log)
        assert isinstance(log.bounds.observation, DeclaredBounds)
        low, high = log.bounds.observation.low, log.bounds.observation.high
        reader.spaces = replace(reader.spaces, observation_low=low, observation_high=high)
        return reader


def as_tabular(dataset: MedsDataset) -> TabularDataset:
    """Describe the log that `Meds.collect` writes."""
    options = dataset.options
    observation: list[ObservationColumn] = []
    # a column for each dimension, but the time, which is read off `order`
    for entry in options.observation:
        if isinstance(entry, Elapsed):
            observation.append(entry)
        else:
            observation += [name for name, _, _ in entry.dimensions]
    bounds = [ends for entry in options.observation for _, *ends in entry.dimensions]
    binned = tuple(
        Categorical(column=dose.name, categories=levels(dose.bins))
        for dose in options.action
        if dose.bins
    )
    action: Categorical | tuple[Categorical, ...] | BoxActions = binned
    if len(binned) == 1:
        action = binned[0]
    elif not binned:
        names, low, high = zip(
            *((dose.name, dose.low, dose.high) for dose in options.action), strict=True
        )
        action = BoxActions(columns=names, low=low, high=high)
    columns = TabularColumns(
        unit="subject_id",
        trajectory="trajectory",
        order="time",
        observation=tuple(observation),
        action=action,
        reward="reward",
        terminated="terminated" if options.terminates else None,
    )
    declared = DeclaredBounds(
        low=tuple(low for low, _ in bounds), high=tuple(high for _, high in bounds)
    )
    common = {field.name: getattr(dataset, field.name) for field in fields(DatasetCommon)}
    common["bounds"] = Bounds(observation=declared, reward=dataset.bounds.reward)
    how = TabularOptions(
        files="data/raw",
        columns=columns,
        trajectory_ids="per_unit",
        end="last_row",
        beyond_bounds="clip",
    )
    return TabularDataset(**common, source="tabular", options=how)


def levels(bins: Sequence[float]) -> tuple[str, ...]:
    """Name the levels between some edges; a dose at an edge is of the level below."""
    inner = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(bins)]
    return f"up to {bins[0]:g}", *inner, f"above {bins[-1]:g}"


class Codes:
    """Tell which codes have which role, as the options say. Codes are numbered as they are met.

    Attributes:
        roles: [codes, roles], whether a code has a role; a code without any is left out. Roles are
            numbered as the options name them.
    """

    def __init__(self, options: MedsOptions):
        parts: list[Any] = [options.decision, *options.observation]
        parts += [*options.action, *options.reward]
        own = [options.begins, options.ends, options.terminates]
        own += [getattr(part, "codes", None) for part in parts]
        self._patterns = [codes or () for codes in own]
        self._roles = {id(part): _TERMINATES + 1 + number for number, part in enumerate(parts)}
        self._numbers: dict[str, int] = {}
        self._unseen = dict.fromkeys(code for codes in self._patterns for code in codes)
        self.roles: Flags = np.zeros((0, len(own)), dtype=bool)

    def role(self, part: Any) -> int:
        """Find the role of one entry of the options."""
        return self._roles[id(part)]

    def overlap(self, one: int, other: int) -> bool:
        """Say whether a code can have both roles."""
        pairs = [(a, b) for a in self._patterns[one] for b in self._patterns[other]]
        return any(_fits(a.removesuffix("*"), b) or _fits(b.removesuffix("*"), a) for a, b in pairs)

    def numbers(self, codes: pa.Array) -> Ints:
        """Number codes, ``[n]``; -1 where one has no role."""
        encoded = codes.dictionary_encode()
        for code in encoded.dictionary.to_pylist():
            if code in self._numbers:
                continue
            mine = np.zeros(len(self._patterns), dtype=bool)
            for role, patterns in enumerate(self._patterns):
                for pattern in (each for each in patterns if _fits(code, each)):
                    mine[role] = True
                    self._unseen.pop(pattern, None)
            self._numbers[code] = len(self.roles) if mine.any() else -1
            if mine.any():
                self.roles = np.vstack([self.roles, mine])
        known = [self._numbers[code] for code in encoded.dictionary.to_pylist()]
        chosen: Ints = np.array([*known, -1], dtype=np.int64)[encoded.indices.to_numpy()]
        return chosen

    def unseen(self) -> list[str]:
        """List the codes of the options that no event had."""
        return list(self._unseen)


def _fits(code: str, pattern: str) -> bool:
    return code.startswith(pattern[:-1]) if pattern.endswith("*") else code == pattern


@dataclass(frozen=True)
class Events:
    """Events of whole subjects, ascending by subject and time: each array is ``[n]``."""

    subject: Ints
    time: Ints
    code: Ints
    value: Floats

    def __getitem__(self, chosen: Any) -> "Events":
        return Events(*(column[chosen] for column in vars(self).values()))

    @classmethod
    def join(cls, parts: "Sequence[Events]") -> "Events":
        """Put parts behind each other."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))


class Shards:
    """The shards of a folder.

    Attributes:
        subjects: how many there are, once all are read.
    """

    subjects = 0

    def __init__(self, files: Sequence[Path], codes: Codes):
        self._files, self._codes = files, codes

    def read(self) -> Iterator[Events]:
        """Read the events that have a role, some whole subjects at a time.

        Raises:
            PipelineError: a shard is unreadable, lacks a column or is not sorted, or a subject is
                in two places.
        """
        files, codes = self._files, self._codes
        began = [np.empty(0, np.int64)]  # a subject for each place where its rows begin
        with progress_bar(len(files), "collect meds", "shard") as progress:
            for path in files:
                waiting: list[Events] = []
                none = np.empty(0, np.int64)
                last = Events(none, none, none, np.empty(0, np.float32))
                for events in _batches(path, codes):
                    both = Events.join((last, events))
                    new = both.subject[1:] != both.subject[:-1]
                    if ((both.time[1:] < both.time[:-1]) & ~new).any():
                        raise PipelineError(
                            f"{path}: found a subject's rows out of order; sort them by time"
                        )
                    first = np.append(len(last.subject) == 0, new)
                    began.append(both.subject[first])
                    last = events[-1:]
                    waiting.append(events[events.code >= 0])
                    if sum(len(part.subject) for part in waiting) >= _EVENTS:
                        known = Events.join(waiting)
                        complete = np.count_nonzero(known.subject != last.subject)
                        yield known[:complete]
                        waiting = [known[complete:]]
                if waiting:
                    yield Events.join(waiting)
                progress.update()
        subjects = np.concatenate(began)
        self.subjects = len(subjects)
        if len(np.unique(subjects)) < len(subjects):
            raise PipelineError(
                f"found a subject in two places of {len(files)} shards, {files[0]} to {files[-1]}; "
                "allowed is all rows of a subject together in one shard"
            )


def _batches(path: Path, codes: Codes) -> Iterator[Events]:
    """Read all events of a shard; the code is -1 where it has no role."""
    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**16)
        if missing := [name for name in _TYPES if name not in file.schema_arrow.names]:
            raise PipelineError(f"{path}: found no column {', '.join(map(repr, missing))}")
        for batch in file.iter_batches(_EVENTS, columns=list(_TYPES), use_threads=False):
            columns = {name: batch.column(name) for name in _TYPES}
            ids = columns["subject_id"]
            # 7.2 and 7.8, or "7" and "07", would be one person
            if not pa.types.is_integer(ids.type):
                raise PipelineError(f"{path}: subject_id: found {ids.type}; allowed is int64")
            if ids.null_count:
                raise PipelineError(f"{path}: found rows without a subject_id")
            if pa.types.is_dictionary(columns["code"].type):
                columns["code"] = columns["code"].dictionary_decode()
            cast = [columns[name].cast(kind, safe=False) for name, kind in _TYPES.items()]
            subject, time, code, value = cast
            if len(subject) > 0:
                yield Events(
                    subject.to_numpy(),
                    pc.fill_null(time.cast(pa.int64()), _STATIC).to_numpy(),
                    codes.numbers(pc.fill_null(code, "")),
                    value.to_numpy(zero_copy_only=False),
                )
    except (pa.ArrowInvalid, OSError):
        found = "not readable as Parquet, or of other types than MEDS has"
        raise PipelineError(f"{path}: {found}; repair it") from None


@dataclass(frozen=True)
class Series:
    """Events of one kind of one subject: times, ascending, and values, each ``[m]``."""

    time: Ints
    value: Floats

    def first(self, since: int, *, after: bool = False) -> int:
        """Give the time of the first event at or after a time, or only ``after`` it; `_NEVER`
        without one.
        """
        later = self.time[int(np.searchsorted(self.time, since, "right" if after else "left")) :]
        return int(later[0]) if len(later) else _NEVER

    def last(self, time: Ints, since: int, *, before: bool) -> tuple[Flags, Floats, Ints]:
        """Find the last event from ``since`` up to each time, or only ``before`` it: whether there
        is one, value, time.
        """
        place = np.searchsorted(self.time, time, "left" if before else "right") - 1
        there = place >= np.searchsorted(self.time, since)
        place = np.where(there, place, len(self.time))
        value = np.append(self.value, np.float32(np.nan))[place]
        return there, value, np.append(self.time, 0)[place]

    def between(
        self, time: Ints, following: Ints, *, after: bool
    ) -> tuple[Ints, npt.NDArray[np.float64]]:
        """Count the events from each time up to the following one, and add their values; the later
        end belongs to them where ``after`` says so, else the earlier one.

        A missing value counts as 0.
        """
        side: Literal["left", "right"] = "right" if after else "left"
        low, high = (np.searchsorted(self.time, when, side) for when in (time, following))
        values = np.append(np.nan_to_num(self.value.astype(np.float64)), 0.0)
        sums = np.add.reduceat(values, np.column_stack((low, high)).ravel())[::2]
        return high - low, np.where(low < high, sums, 0.0)


@dataclass(frozen=True)
class Trajectory:
    """A trajectory of one subject that has a decision.

    Attributes:
        number: among the subject's begins.
        begin: time of its begin.
        time: of its decisions, and of what was observed in the end, ``[k + 1]``.
        terminated: whether it ended for good then.
    """

    number: int
    begin: int
    time: Ints
    terminated: bool


class Decisions:
    """Makes rows of the log from events.

    Attributes:
        schema: of the rows.
        outside: for each value observed, how many outside its bounds, of how many; private.
    """

    def __init__(self, dataset: MedsDataset, codes: Codes):
        self._dataset, self._options, self._codes = dataset, dataset.options, codes
        level = pa.dictionary(pa.int32(), pa.string())
        kind = pa.float32() if self._options.action[0].bins is None else level
        observation = as_tabular(dataset).options.columns.observation
        names = [entry for entry in observation if isinstance(entry, str)]
        self.outside: dict[str, tuple[int, int]] = {}
        self.schema = pa.schema(
            [("subject_id", pa.int64()), ("trajectory", pa.int64()), ("time", pa.timestamp("us"))]
            + [(name, pa.float32()) for name in names]
            + [(dose.name, kind) for dose in self._options.action]
            + [("reward", pa.float64()), ("terminated", pa.bool_())]
        )

    def table(self, events: Events) -> pa.Table:
        """Make the rows of all decisions of some whole subjects."""
        for entry in self._options.observation:
            if isinstance(entry, MedsValue):
                values = events.value[self._codes.roles[events.code, self._codes.role(entry)]]
                inside = int(np.sum((values >= entry.low) & (values <= entry.high)))
                outside, there = self.outside.get(entry.name, (0, 0))
                self.outside[entry.name] = outside + len(values) - inside, there + len(values)
        parts = []
        new = np.flatnonzero(np.diff(events.subject)) + 1
        for own in np.split(np.arange(len(events.subject)), new):
            parts += self._of_subject(events[own]) if len(own) else []
        if not parts:
            return self.schema.empty_table()
        columns: dict[str, Any] = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
        # Nothing was done or gained at what was observed in the end.
        final = columns.pop("final")
        columns["time"] = pa.array(columns["time"]).cast(pa.timestamp("us"))
        for dose in self._options.action:
            columns[dose.name] = _done(dose, columns[dose.name], final)
        columns["reward"] = pa.array(columns["reward"], mask=final)
        table = pa.table({name: pa.array(columns[name]) for name in self.schema.names})
        return table.cast(self.schema)

    def _of_subject(self, events: Events) -> list[dict[str, npt.NDArray[Any]]]:
        """Make the rows of each trajectory of one subject, as columns."""
        roles = self._codes.roles[events.code]
        found = []
        for trajectory in self._trajectories(events, roles):
            time = trajectory.time
            following = np.append(time[1:], time[-1])
            count = len(time)
            columns = {
                "subject_id": np.repeat(events.subject[0], count),
                "trajectory": np.repeat(trajectory.number, count),
                "time": time,
            }
            for entry in self._options.observation:
                columns |= self._observe(entry, events, roles, trajectory)
            for dose in self._options.action:
                series = self._series(dose, events, roles)
                columns[dose.name] = _given(dose, series, trajectory, following)
            columns["reward"] = self._rewards(columns, events, roles, following)
            columns["terminated"] = np.arange(count) == (count - 2 if trajectory.terminated else -1)
            columns["final"] = np.arange(count) == count - 1
            kept = count - trajectory.terminated  # nothing follows on an end for good
            found.append({name: column[:kept] for name, column in columns.items()})
        return found

    def _series(self, part: Any, events: Events, roles: Flags, static: bool = False) -> Series:
        """Give the events that have the role of one entry of the options; those without a time only
        if they are asked for.

        Of an entry with bounds they are those with a number within, of a rate those with a number.
        """
        chosen = roles[:, self._codes.role(part)] & ((events.time > _STATIC) | static)
        if isinstance(part, MedsValue):
            chosen &= (events.value >= part.low) & (events.value <= part.high)
        elif isinstance(part, MedsDose) and part.of == "last":
            chosen &= np.isfinite(events.value)
        return Series(events.time[chosen], events.value[chosen])

    def _trajectories(self, events: Events, roles: Flags) -> Iterator[Trajectory]:
        """Find the trajectories, from the first decision at which all is known that has to be."""
        timed = events.time > _STATIC
        times = events.time[timed]
        begins = np.unique(events.time[timed & roles[:, _BEGINS]])
        if self._options.begins is None:
            begins = times[:1]
        ending = timed & roles[:, [_ENDS, _TERMINATES]].any(axis=1)
        stops = Series(events.time[ending], events.value[ending])
        deaths = events.time[timed & roles[:, _TERMINATES]]
        needed = [
            (entry, self._series(entry, events, roles))
            for entry in self._options.observation
            if isinstance(entry, MedsValue) and entry.first is None
        ]
        kept = 0
        for number, begin in enumerate(begins.tolist()):
            following = int(begins[number + 1]) if number + 1 < len(begins) else _NEVER
            stop = stops.first(begin, after=True)
            stopped = stop <= following and stop < _NEVER
            end = stop if stopped else int(times[np.searchsorted(times, following) - 1])
            known = begin
            for entry, series in needed:
                found = min(series.first(begin - _lookback(entry)), end)
                known = max(known, found + self._gives_away(entry))
            time = self._clock(events, roles, begin, min(known, end), end)
            horizon = self._dataset.horizon
            final = end if len(time) <= horizon else int(time[horizon])
            if len(time) == 0 or kept == self._dataset.trajectories_per_person:
                continue
            kept += 1
            terminated = stopped and end in deaths and len(time) <= horizon
            yield Trajectory(number, begin, np.append(time[:horizon], final), terminated)

    def _clock(self, events: Events, roles: Flags, begin: int, known: int, end: int) -> Ints:
        """Give the times of the decisions from ``known`` on and before ``end``."""
        decision = self._options.decision
        if isinstance(decision, MedsGrid):
            step = max(1, round(decision.every * MICROSECONDS[decision.unit]))
            return np.arange(begin - (begin - known) // step * step, end, step)
        time: Ints = np.unique(self._series(decision, events, roles).time)
        return time[(time >= known) & (time < end)]

    def _observe(
        self, entry: Any, events: Events, roles: Flags, trajectory: Trajectory
    ) -> dict[str, npt.NDArray[Any]]:
        """Make the columns of one entry of the observation; the time since the row before has
        none.
        """
        time, begin = trajectory.time, trajectory.begin
        if isinstance(entry, Elapsed):
            return {}
        if isinstance(entry, MedsClock):
            since = (time - begin) / MICROSECONDS[entry.unit]
            return {entry.clock: since.clip(max=entry.most)}
        before = self._gives_away(entry)
        if isinstance(entry, MedsFlag):
            series = self._series(entry, events, roles, static=True)
            return {entry.happened: series.last(time, _STATIC, before=before)[0]}
        series = self._series(entry, events, roles)
        there, value, at = series.last(time, begin - _lookback(entry), before=before)
        age = ((time - at) / MICROSECONDS[entry.unit]).clip(max=entry.most)
        first = np.float32(np.nan if entry.first is None else entry.first)
        return {
            entry.name: np.where(there, value, first),
            entry.age: np.where(there, age, entry.most),
        }

    def _rewards(
        self, columns: dict[str, npt.NDArray[Any]], events: Events, roles: Flags, following: Ints
    ) -> npt.NDArray[np.float64]:
        time = columns["time"]
        reward = np.zeros(len(time))
        for part in self._options.reward:
            if isinstance(part, MedsRangeReward):
                value = np.append(columns[part.observation][1:], np.nan)
                within = (value >= part.low) & (value <= part.high)
                reward += np.where(within, part.inside, part.outside)
                continue
            count, total = self._series(part, events, roles).between(time, following, after=True)
            reward += count * (part.value or 0) if part.scale is None else total * part.scale
        return reward

    def _gives_away(self, entry: MedsValue | MedsFlag) -> bool:
        """Say whether a code of the action is observed: then only what came before the
        decision is.
        """
        doses = [self._codes.role(dose) for dose in self._options.action]
        return any(self._codes.overlap(self._codes.role(entry), dose) for dose in doses)


def _given(
    dose: MedsDose, series: Series, trajectory: Trajectory, following: Ints
) -> npt.NDArray[np.float64]:
    """Compute what was done from each decision up to the following one."""
    if dose.of == "last":
        there, value, _ = series.last(following, trajectory.begin, before=True)
        return np.where(there, value, 0.0).astype(np.float64)
    count, total = series.between(trajectory.time, following, after=False)
    return total if dose.of == "sum" else count.astype(np.float64)


def _done(dose: MedsDose, given: npt.NDArray[np.float64], final: Flags) -> pa.Array:
    """Cut doses at their bounds, or name their levels; null in a final row."""
    if dose.bins is None:
        return pa.array(np.clip(given, dose.low, dose.high).astype(np.float32), mask=final)
    level = pa.array(np.searchsorted(np.array(dose.bins), given).astype(np.int32), mask=final)
    return pa.DictionaryArray.from_arrays(level, pa.array(levels(dose.bins)))


def _lookback(entry: MedsValue) -> int:
    """How long before the begin of a trajectory a value may be, in microseconds."""
    return round(entry.most * MICROSECONDS[entry.unit]) if entry.before else 0
