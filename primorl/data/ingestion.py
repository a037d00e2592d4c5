"""Raw trajectories become one validated Parquet dataset; the checks that the rows of every source
must pass.
"""

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base import BadRows, PipelineError, say
from primorl.base.files import WITHDRAWALS, replaced_directory
from primorl.config.datasets import AnyDataset
from primorl.data.identity import membership
from primorl.data.sources import Reader, source_of
from primorl.data.storage.rows import PartWriter
from primorl.data.storage.schema import (
    IDS,
    Array,
    DatasetInfo,
    Ints,
    first_repeat,
    trajectory_starts,
    vectors,
    whole,
)


def ingest(raw: Path, target: Path, name: str, dataset: AnyDataset) -> DatasetInfo:
    """Read the files of ``collect`` in ``raw``, check every row and write ``target`` whole or not
    at all.

    Args:
        raw: the folder of raw files.
        target: the folder to replace.
        name: the dataset's entry in params.yaml.
        dataset: that entry.

    Returns:
        The facts written into the file.

    Raises:
        PipelineError: if the entry or the data are not fit for use; ``target`` is untouched.
    """
    reader = source_of(name, dataset).open(raw)
    info = DatasetInfo(
        dataset=name,
        environment=dataset.environment,
        unit=dataset.unit,
        spaces=reader.spaces,
        horizon=dataset.horizon or reader.horizon,
        termination=dataset.termination,
        population=dataset.population,
        trajectories_per_person=dataset.trajectories_per_person,
        duplicates=dataset.ingestion.duplicates,
        dataset_fingerprint="",
    )
    withdrawn, key = dataset.ingestion.exclude_units, "ingestion.exclude_units"
    listed = membership.read_ids(withdrawn, WITHDRAWALS, key) if withdrawn else []
    if withdrawn and not any(listed):
        raise PipelineError(f"{withdrawn}: found no id; allowed is one a line; or take {key} away")
    gone = membership.IdList(listed, withdrawn)
    for other in sorted(WITHDRAWALS.glob("*.txt")):
        if other.resolve() != Path(withdrawn or "").resolve():
            why = f"not named by {key} of datasets/{name}.yaml: who is in it is not left out"
            say(f"ingest: warning: {other}: {why}")
    with replaced_directory(target) as fresh, PartWriter(fresh, info.schema) as writer:
        fingerprint = _copy_rows(reader, info, gone, writer)
        info = replace(
            info, dataset_fingerprint=fingerprint.keyed_digest(membership.project_secret())
        )
        writer.finish(info)
    return info


def _copy_rows(
    reader: Reader, info: DatasetInfo, gone: membership.IdList, writer: PartWriter
) -> membership.Fingerprint:
    """Check all rows, write those of people who did not withdraw, and say how many people there
    are: their number is public, that of rows is not.
    """
    check, fingerprint = RowCheck(info, reader.path), membership.Fingerprint(info.schema)
    check_duplicates = membership.DuplicateCheck(reader.path)
    of = ("units",) if info.unit == "trajectory" else ("units", "trajectories")
    spellings = [membership.SpellingCheck(reader.path, each) for each in of]
    people = kept = 0
    with closing(reader.tables()) as tables:
        for everybody in tables:
            people += pc.count_distinct(everybody["unit_id"]).as_py()
            for check_spelling in spellings:
                check_spelling(everybody)
            table = gone.drop(everybody)
            if table.num_rows == 0:
                continue
            kept += pc.count_distinct(table["unit_id"]).as_py()
            check(table)
            if info.duplicates == "refuse":
                check_duplicates(table)
            fingerprint.update(table)
            writer.write(table)
    for every in spellings:
        every.finish()
    check.finish()
    check_duplicates.finish()
    gone.check_all_met(info.dataset)
    if kept == 0:
        raise PipelineError(f"{reader.path}: found no transitions; allowed is at least one")
    say(f"ingest: found {people} units; kept {kept}")
    return fingerprint


_EXACT = 2**24  # float32 has no whole number beyond for each
_RELATIVE_TOLERANCE = 1e-5  # a bound comes back this close from float32 and a rescaling


class RowCheck:
    """Checks a stream of batches of whole units, in the dataset's schema, against declared facts.

    Every source hands its batches through here, in order. The check remembers the last key, so
    order holds over the whole stream; call `finish` after the last batch, which compares all
    trajectory ids. Errors name a trajectory by its number, counted from 1 in the order of the
    stream, and never by its id, which may name a person.

    Args:
        info: the declared facts. Its fingerprint is not used.
        origin: the file or folder that errors name.
    """

    def __init__(self, info: DatasetInfo, origin: Path):
        self._info, self._spaces, self._origin = info, info.spaces, origin
        self._unit, self._trajectory = "", ""  # of the last trajectory: below all other ids
        self._mixed = False  # whether ids descend from a unit to the next: two may be the same
        self._trajectories: list[pa.Array] = []
        # dimensions beyond `_EXACT`, and beyond the declared space
        self._large, self._beyond = np.zeros((2, info.spaces.observation_size), bool)
        self._jumped = 0  # steps without the next row's observation after, less those with it
        self._seen = 0  # trajectories of earlier batches
        self._starts = np.empty(0, dtype=np.int64)  # the first row of each trajectory of the batch

    def __call__(self, table: pa.Table) -> None:
        """Check one batch.

        Raises:
            PipelineError: if a row is unfit. The message names the origin, the trajectory's number
                and the step, what was found, what is allowed and what to do; it quotes no value and
                no id.
        """
        if table.num_rows == 0:
            return
        starts = self._starts = trajectory_starts(table)
        self._check_order(table, starts)
        if (horizon := self._info.horizon) is not None:
            too_long = np.diff(starts, append=table.num_rows) > horizon
            allowed = (
                f"at most {horizon} steps (rows, less a last one cut off), as `horizon` or the "
                "environment says"
            )
            self._refuse(too_long, "an episode longer than the horizon", allowed, starts + horizon)
        self._check_numbers(table)
        self._check_ends(table, starts)
        self._check_actions(table)
        self._seen += len(starts)

    def finish(self) -> None:
        """Compare the ids of all trajectories; call it after the last batch.

        Raises:
            PipelineError: if two units have a trajectory of the same id.
        """
        lost = f"numbers beyond {_EXACT} lose digits (float32)", "count a time from its begin"
        beyond = "observations beyond the space that is declared", "correct data or environment"
        for flags, (found, remedy) in ((self._large, lost), (self._beyond, beyond)):
            if names := list(itertools.compress(self._spaces.observation_names, flags)):
                found += f", in {', '.join(names[:12])}; {remedy}"
                say(f"ingest: warning: {self._origin}: {found}")
        if self._jumped > 0:
            found = "most next observations are not the observation of the row after them"
            remedy = "if the rows follow one another, they belong to other rows"
            say(f"ingest: warning: {self._origin}: {found}; {remedy}")
        places = first_repeat(pa.concat_arrays(self._trajectories)) if self._mixed else None
        if places is not None:
            first, again = places
            found = f"number {again + 1}: found one trajectory in two units (number {first + 1})"
            remedy = "correct the ids, or set options.trajectory_ids: per_unit"
            raise BadRows(f"{self._origin}: trajectory {found}; {remedy}")

    def _check_order(self, table: pa.Table, starts: Ints) -> None:
        """Check ids, their order, and how many trajectories each unit has, of all trajectories of
        the batch at once.
        """
        chosen = pa.array(starts)
        units, trajectories = (whole(table[name]).take(chosen) for name in IDS)
        for ids in (units, trajectories):
            unusable = pc.or_(pc.equal(ids, ""), pc.match_substring(ids, "\0"))
            found = "an empty unit_id or trajectory_id, or one with a NUL"
            self._refuse(unusable, found, "a name; fill it in", starts)
        self._trajectories.append(trajectories)
        most = self._info.trajectories_per_person
        if most is not None and len(units) > most:
            # Units are sorted: one with more than `most` is the same so many places later.
            beyond = pc.equal(units[most:], units[: len(units) - most])
            found = "a person with more trajectories than declared"
            allowed = f"at most {most}, as `trajectories_per_person` says"
            self._refuse(beyond, found, allowed, starts[most:])
        allowed = "every (unit_id, trajectory_id) once, ascending, all its rows together; sort them"
        allowed += ", or set options.sorted: false"
        split = [units[0].as_py() == self._unit]
        self._refuse(split, "a unit split over two batches or row groups", allowed)
        earlier_units = pa.concat_arrays([pa.array([self._unit]), units[:-1]])
        earlier = pa.concat_arrays([pa.array([self._trajectory]), trajectories[:-1]])
        not_later = pc.less_equal(trajectories, earlier)
        self._mixed = self._mixed or pc.any(not_later).as_py()
        same = pc.equal(units, earlier_units)
        disordered = pc.or_(pc.less(units, earlier_units), pc.and_(same, not_later))
        self._refuse(disordered, "rows out of order or duplicated", allowed, starts)
        self._unit, self._trajectory = units[-1].as_py(), trajectories[-1].as_py()

    def _check_numbers(self, table: pa.Table) -> None:
        repair = "finite float32 numbers; drop or repair the trajectory"
        boxes = () if self._spaces.discrete_actions else ("action",)
        for name in ("observation", "next_observation", *boxes):
            self._refuse(_non_finite(vectors(table[name])), f"a non-finite {name}", repair)
        seen, after = vectors(table["observation"]), vectors(table["next_observation"])
        self._large |= (np.abs(seen) > _EXACT).any(axis=0)
        low, high = _widen(self._spaces.observation_low, self._spaces.observation_high)
        self._beyond |= ((seen < low) | (seen > high)).any(axis=0)
        followed = np.delete((after[:-1] == seen[1:]).all(axis=1), self._starts[1:] - 1)
        self._jumped += len(followed) - 2 * int(followed.sum())
        with np.errstate(over="ignore"):
            change = after - seen
        found = "a step whose change of observation overflows float32"
        allowed = "changes within float32; rescale observations, or drop the trajectory"
        self._refuse(_non_finite(change), found, allowed)
        self._refuse(~np.isfinite(whole(table["reward"]).to_numpy()), "a non-finite reward", repair)

    def _check_ends(self, table: pa.Table, starts: Ints) -> None:
        if self._info.termination == "none":
            found = "an episode that terminates, with `termination: none`"
            allowed = "ends by truncation; or set termination to learned or a rule"
            self._refuse(table["terminated"], found, allowed)
        ended = pc.or_(table["terminated"], table["truncated"]).to_numpy()
        last = np.zeros(table.num_rows, dtype=bool)
        last[np.append(starts[1:], table.num_rows) - 1] = True
        found = "an end (terminated or truncated) before the last step"
        self._refuse(ended & ~last, found, "one, at the last step; split the trajectory there")
        allowed = "terminated or truncated; mark a cut recording as truncated"
        self._refuse(last & ~ended, "end flags missing at the last step", allowed)

    def _check_actions(self, table: pa.Table) -> None:
        if self._spaces.discrete_actions:
            chosen = whole(table["action"]).to_numpy()
            last = self._spaces.action_size - 1
            allowed = f"whole numbers from 0 to {last}; correct the data or the declared actions"
            outside = (chosen < 0) | (chosen >= self._spaces.action_size)
            self._refuse(outside, "an action outside the declared space", allowed)
            return
        actions = vectors(table["action"])
        ends = self._spaces.action_low, self._spaces.action_high
        low, high = _widen(*ends)
        outside = (actions < low) | (actions > high)
        if outside.any():
            first = int(outside.any(axis=0).argmax())
            low, high = (end[first] for end in ends)
            found = f"an action outside the declared space ({self._spaces.action_names[first]!r})"
            allowed = f"[{low:g}, {high:g}]; clip them, or correct the declared bounds"
            self._refuse(outside.any(axis=1), found, allowed)

    def _refuse(
        self, bad: npt.ArrayLike, found: str, allowed: str, rows: Ints | None = None
    ) -> None:
        """Raise the error about the first row that is bad, if any; ``rows`` says which rows the
        flags are of.
        """
        places = np.flatnonzero(bad)
        if len(places) == 0:
            return
        row = int(places[0] if rows is None else rows[places[0]])
        trajectory = int(np.searchsorted(self._starts, row, side="right")) - 1
        number, step = self._seen + trajectory + 1, row - int(self._starts[trajectory])
        where = f"{self._origin}: trajectory number {number}, step {step}"
        raise BadRows(f"{where}: found {found}; allowed: {allowed}")


def _widen(*ends: Sequence[float]) -> Array:
    """Widen bounds ``[2, n]`` by what rounding moves a number."""
    bounds = np.array(ends)
    return bounds + [[-_RELATIVE_TOLERANCE], [_RELATIVE_TOLERANCE]] * np.abs(bounds).clip(1)


def _non_finite(matrix: Array) -> npt.ArrayLike:
    """Find the rows with a number that is not finite, [rows]; empty where there is none, which is
    much faster.
    """
    finite = np.isfinite(matrix)
    return [] if finite.all() else ~finite.all(axis=1)
