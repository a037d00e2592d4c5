"""``source: meds``: a folder in the Medical Event Data Standard becomes a log with one row for each
decision.

`collect` reads the shards once, in batches of whole subjects, and writes that log; `TabularReader`
reads it. What becomes of a subject depends on nobody else's events. Times are whole microseconds.
"""

import itertools
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
from primorl.config.columns import (
    BoxActions,
    Categorical,
    Elapsed,
    ObservationColumn,
    TabularColumns,
)
from primorl.config.datasets import (
    Bounds,
    DatasetCommon,
    DeclaredBounds,
    MedsDataset,
    TabularDataset,
    TabularOptions,
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
from primorl.data.sources.tabular.source import TabularReader
from primorl.data.sources.tabular.transitions import MICROSECONDS
from primorl.data.sources.tabular.watch import named_files, record_files, source_files

_EVENTS = 2**18  # in memory at a time
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
        named, key = source_files(self._dataset) or ("", "")
        folder, found = named_files(named)
        files = [file for file in found if file.suffix == ".parquet"]
        if not files:
            raise PipelineError(
                f"datasets/{self._name}.yaml: {key}: found no .parquet file in {named!r}; allowed "
                "is a folder in the Medical Event Data Standard, with data/**/*.parquet"
            )
        # First: a file that changes meanwhile is another one.
        record_files(self._name, target, folder, found)
        codes = Codes(self._dataset.options)
        logs = Decisions(self._dataset, codes)
        with pq.ParquetWriter(target / "log.parquet", logs.schema) as writer:
            for events in read(files, codes):
                writer.write_table(logs.table(events))
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
    options, (first, *_) = dataset.options, dataset.options.action
    observation: list[ObservationColumn] = []
    # a column for each dimension, but the time, which is read off `order`
    for entry in options.observation:
        if isinstance(entry, Elapsed):
            observation.append(entry)
        else:
            observation += [name for name, _, _ in entry.dimensions]
    bounds = [ends for entry in options.observation for _, *ends in entry.dimensions]
    action: Categorical | BoxActions
    if first.bins:
        action = Categorical(column=first.name, categories=levels(first.bins))
    else:
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
    def joined(cls, parts: "Sequence[Events]") -> "Events":
        """Put parts behind each other."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))


def read(files: Sequence[Path], codes: Codes) -> Iterator[Events]:
    """Read the events that have a role, some whole subjects at a time.

    Raises:
        PipelineError: a shard is unreadable, lacks a column or is not sorted, or a subject is in
            two places.
    """
    began = [np.empty(0, np.int64)]  # a subject for each place where its rows begin
    with progress_bar(len(files), "collect meds", "shard") as progress:
        for path in files:
            waiting: list[Events] = []
            none = np.empty(0, np.int64)
            last = Events(none, none, none, np.empty(0, np.float32))
            for events in _batches(path, codes):
                both = Events.joined((last, events))
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
                    known = Events.joined(waiting)
                    complete = np.count_nonzero(known.subject != last.subject)
                    yield known[:complete]
                    waiting = [known[complete:]]
            if waiting:
                yield Events.joined(waiting)
            progress.update()
    subjects = np.concatenate(began)
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


class Track:
    """Events of one kind, by subject and time.

    Args:
        events: ascending by subject, numbered from 0, and time, ``[m]``.
        times: all times of the chunk, ascending.
    """

    def __init__(self, events: Events, times: Ints):
        self.subject, self.time, self.value = events.subject, events.time, events.value
        self._times = times
        self._keys = self._key(events.subject, events.time, "left")

    def _key(self, subject: Ints, time: Ints, side: Literal["left", "right"]) -> Ints:
        """Number pairs of subject and time in their order; from the right, behind events then."""
        key: Ints = subject * (len(self._times) + 1) + np.searchsorted(self._times, time, side)
        return key

    def place(self, subject: Ints, time: Ints, *, after: bool) -> Ints:
        """Find each subject's first event at or after a time, or only ``after`` it; past the
        subject's last if none.
        """
        key = self._key(subject, time, "right" if after else "left")
        return np.searchsorted(self._keys, key)

    def at(self, place: Ints, subject: Ints) -> Ints:
        """Give the times of the events at ``place``; `_NEVER` where that is past the subject's
        last.
        """
        whose = np.append(self.subject, -1)[place]
        return np.where(whose == subject, np.append(self.time, _NEVER)[place], _NEVER)

    def last(
        self, subject: Ints, time: Ints, since: Ints, *, before: bool
    ) -> tuple[Flags, Floats, Ints]:
        """Find the last event from ``since`` up to a time, or only ``before`` it: whether there is
        one, value, time.
        """
        place = self.place(subject, time, after=not before) - 1
        there = place >= self.place(subject, since, after=False)
        place = np.where(there, place, len(self.time))
        value = np.append(self.value, np.float32(np.nan))[place]
        return there, value, np.append(self.time, 0)[place]

    def sums(self, low: Ints, high: Ints) -> npt.NDArray[np.float64]:
        """Add the values from place ``low`` up to ``high``; a missing one counts as 0.

        No other event has a say.
        """
        values = np.append(np.nan_to_num(self.value.astype(np.float64)), 0.0)
        pairs = np.column_stack((low, high)).ravel()
        sums: npt.NDArray[np.float64] = np.add.reduceat(values, pairs)[::2]
        return np.where(low < high, sums, 0.0)


class Chunk:
    """Some whole subjects' events, by role.

    Attributes:
        ids: of the subjects.
        timed: all events with a role and a time.
    """

    def __init__(self, events: Events, codes: Codes):
        new = np.append(True, events.subject[1:] != events.subject[:-1])
        self.ids: Ints = events.subject[new]
        self._events = replace(events, subject=np.cumsum(new) - 1)
        self._times: Ints = np.unique(events.time)
        self._roles = codes.roles[events.code]
        self._timed = events.time > _STATIC
        self.timed = self.track(self._timed)

    def track(self, chosen: Flags) -> Track:
        """Give the chosen events."""
        return Track(self._events[chosen], self._times)

    def of(self, *roles: int, static: bool = False) -> Track:
        """Give the events that have one of the roles, those without a time only if they are asked
        for.
        """
        return self.track(self._roles[:, list(roles)].any(axis=1) & (self._timed | static))

    def times(self, role: int) -> Track:
        """Give one event of a role for each time at which there are some."""
        chosen = self._roles[:, role] & self._timed
        events = self._events[chosen]
        same = (np.diff(events.subject) == 0) & (np.diff(events.time) == 0)
        chosen[np.flatnonzero(chosen)[1:][same]] = False
        return self.track(chosen)

    def measured(self, role: int, low: float, high: float) -> Track:
        """Give the events of a role with a number between two bounds."""
        value = self._events.value
        return self.track(self._roles[:, role] & self._timed & (value >= low) & (value <= high))


@dataclass(frozen=True)
class Trajectories:
    """Trajectories that have a decision; each array is ``[k]``.

    Attributes:
        subject: number of the subject in the chunk.
        number: of the trajectory among the subject's begins.
        begin: time of its begin.
        first: number of its first decision, on the grid or among the events that ask for one.
        count: of decisions.
        final: time at which the last decision's result is observed.
        terminated: whether it ended for good then.
    """

    subject: Ints
    number: Ints
    begin: Ints
    first: Ints
    count: Ints
    final: Ints
    terminated: Flags

    def __getitem__(self, chosen: Any) -> "Trajectories":
        return Trajectories(*(column[chosen] for column in vars(self).values()))


@dataclass(frozen=True)
class Clock:
    """When decisions are taken: at the times of some events, or every ``step`` microseconds."""

    events: Track | None
    step: int = 1

    def number(self, subject: Ints, begin: Ints, time: Ints) -> Ints:
        """Number the first decision at or after a time, of trajectories with this begin."""
        if self.events is None:
            return -((begin - time) // self.step)
        return self.events.place(subject, time, after=False)

    def time(self, begin: Ints, number: Ints) -> Ints:
        """Give the time of a decision."""
        if self.events is None:
            return begin + number * self.step
        return np.append(self.events.time, _NEVER)[np.minimum(number, len(self.events.time))]


class Decisions:
    """Makes rows of the log from events.

    Attributes:
        schema: of the rows.
    """

    def __init__(self, dataset: MedsDataset, codes: Codes):
        self._dataset, self._options, self._codes = dataset, dataset.options, codes
        level = pa.dictionary(pa.int32(), pa.string())
        kind = pa.float32() if self._options.action[0].bins is None else level
        observation = as_tabular(dataset).options.columns.observation
        names = [entry for entry in observation if isinstance(entry, str)]
        self.schema = pa.schema(
            [("subject_id", pa.int64()), ("trajectory", pa.int64()), ("time", pa.timestamp("us"))]
            + [(name, pa.float32()) for name in names]
            + [(dose.name, kind) for dose in self._options.action]
            + [("reward", pa.float64()), ("terminated", pa.bool_())]
        )

    def table(self, events: Events) -> pa.Table:
        """Make the rows of all decisions of some whole subjects."""
        if len(events.subject) == 0:
            return self.schema.empty_table()
        chunk, decision = Chunk(events, self._codes), self._options.decision
        if isinstance(decision, MedsGrid):
            clock = Clock(None, max(1, round(decision.every * MICROSECONDS[decision.unit])))
        else:
            clock = Clock(chunk.times(self._codes.role(decision)))
        return self._rows(chunk, clock, self._trajectories(chunk, clock))

    def _trajectories(self, chunk: Chunk, clock: Clock) -> Trajectories:
        """Find the trajectories, from the first decision at which all is known that has to be."""
        timed = chunk.timed
        if self._options.begins is None:
            subject, first = np.unique(timed.subject, return_index=True)
            begin = timed.time[first]
        else:
            begins = chunk.times(_BEGINS)
            subject, begin = begins.subject, begins.time
        number = np.arange(len(subject)) - np.searchsorted(subject, subject)
        following = np.full(len(subject), _NEVER)  # begin of the subject's next one
        following[:-1][subject[1:] == subject[:-1]] = begin[1:][subject[1:] == subject[:-1]]

        stops, terminal = chunk.of(_ENDS, _TERMINATES), chunk.of(_TERMINATES)
        stop = stops.at(stops.place(subject, begin, after=True), subject)
        stopped = (stop <= following) & (stop < _NEVER)
        end = np.where(stopped, stop, timed.time[timed.place(subject, following, after=False) - 1])
        fatal = terminal.at(terminal.place(subject, end, after=False), subject)
        terminated = stopped & (fatal == end)

        known = begin
        for entry in self._options.observation:
            if isinstance(entry, MedsValue) and entry.first is None:
                track = chunk.measured(self._codes.role(entry), entry.low, entry.high)
                place = track.place(subject, begin - _lookback(entry), after=False)
                found = track.at(place, subject)
                known = np.maximum(known, np.minimum(found, end) + self._gives_away(entry))
        first = clock.number(subject, begin, np.minimum(known, end))
        asked = clock.number(subject, begin, end) - first
        count = np.minimum(asked, self._dataset.horizon)
        final = np.where(count < asked, clock.time(begin, first + count), end)
        terminated &= count == asked
        every = Trajectories(subject, number, begin, first, count, final, terminated)
        kept = every[count > 0]
        rank = np.arange(len(kept.subject)) - np.searchsorted(kept.subject, kept.subject)
        return kept[rank < (self._dataset.trajectories_per_person or _NEVER)]

    def _rows(self, chunk: Chunk, clock: Clock, trajectories: Trajectories) -> pa.Table:
        """Make a row of each decision, and one of what was observed in the end where a trajectory
        went on.
        """
        of = np.repeat(np.arange(len(trajectories.count)), trajectories.count + 1)
        each = trajectories[of]
        place = np.arange(len(of)) - np.searchsorted(of, of)
        last = place == each.count
        time = np.where(last, each.final, clock.time(each.begin, each.first + place))
        following = np.where(last, time, np.append(time[1:], 0))

        columns: dict[str, Any] = {"subject_id": chunk.ids[each.subject], "trajectory": each.number}
        columns["time"] = pa.array(time).cast(pa.timestamp("us"))
        for entry in self._options.observation:
            if isinstance(entry, Elapsed):
                continue
            if isinstance(entry, MedsClock):
                since = (time - each.begin) / MICROSECONDS[entry.unit]
                columns[entry.clock] = since.clip(max=entry.most)
                continue
            before, role = self._gives_away(entry), self._codes.role(entry)
            if isinstance(entry, MedsFlag):
                track, always = chunk.of(role, static=True), np.full(len(time), _STATIC)
                columns[entry.happened], _, _ = track.last(
                    each.subject, time, always, before=before
                )
                continue
            track = chunk.measured(role, entry.low, entry.high)
            earliest = each.begin - _lookback(entry)
            there, value, at = track.last(each.subject, time, earliest, before=before)
            age = ((time - at) / MICROSECONDS[entry.unit]).clip(max=entry.most)
            first = np.float32(np.nan if entry.first is None else entry.first)
            columns[entry.name] = np.where(there, value, first)
            columns[entry.age] = np.where(there, age, entry.most)
        for dose in self._options.action:
            columns[dose.name] = self._dose(chunk, dose, each, time, following, last)
        reward = np.zeros(len(time))
        for part in self._options.reward:
            if isinstance(part, MedsRangeReward):
                value = np.append(columns[part.observation][1:], np.nan)
                within = (value >= part.low) & (value <= part.high)
                reward += np.where(within, part.inside, part.outside)
                continue
            track = chunk.of(self._codes.role(part))
            low, high = (track.place(each.subject, when, after=True) for when in (time, following))
            if part.scale is not None:
                reward += track.sums(low, high) * part.scale
            else:
                reward += (high - low) * (part.value or 0)
        columns["reward"] = pa.array(reward, mask=last)
        columns["terminated"] = each.terminated & (place == each.count - 1)
        table = pa.table({name: pa.array(columns[name]) for name in self.schema.names})
        return table.cast(self.schema).filter(pa.array(~(last & each.terminated)))

    def _dose(
        self,
        chunk: Chunk,
        dose: MedsDose,
        each: Trajectories,
        time: Ints,
        following: Ints,
        last: Flags,
    ) -> pa.Array:
        """Give what was done from each time up to the following one; null in the last row of a
        trajectory.
        """
        role = self._codes.role(dose)
        if dose.of == "last":
            track = chunk.measured(role, -np.inf, np.inf)  # one without a number changes no rate
            there, value, _ = track.last(each.subject, following, each.begin, before=True)
            given = np.where(there, value, 0.0)
        else:
            track = chunk.of(role)
            low, high = (track.place(each.subject, when, after=False) for when in (time, following))
            given = track.sums(low, high) if dose.of == "sum" else (high - low).astype(np.float64)
        if dose.bins is None:
            return pa.array(np.clip(given, dose.low, dose.high).astype(np.float32), mask=last)
        level = pa.array(np.searchsorted(np.array(dose.bins), given).astype(np.int32), mask=last)
        return pa.DictionaryArray.from_arrays(level, pa.array(levels(dose.bins)))

    def _gives_away(self, entry: MedsValue | MedsFlag) -> bool:
        """Say whether a code of the action is observed: then only what came before the
        decision is.
        """
        doses = [self._codes.role(dose) for dose in self._options.action]
        return any(self._codes.overlap(self._codes.role(entry), dose) for dose in doses)


def _lookback(entry: MedsValue) -> int:
    """How long before the begin of a trajectory a value may be, in microseconds."""
    return round(entry.most * MICROSECONDS[entry.unit]) if entry.before else 0
