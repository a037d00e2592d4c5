"""``source: tabular``: logs in Parquet or CSV, copied, and read by unit, trajectory and order."""

import itertools
import shutil
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base.errors import PipelineError
from primorl.config.datasets import DeclaredBounds, TabularDataset
from primorl.config.tabular import BoxActions, Categorical
from primorl.data.sources.spaces import declared
from primorl.data.sources.tabular.files import ROWS_PER_BATCH, LogFiles, fields_of
from primorl.data.sources.tabular.transitions import ZONE, TransitionMaker
from primorl.data.sources.tabular.watch import find_files, record_files
from primorl.data.storage.parquet import whole_units
from primorl.data.storage.schema import Spaces, id_text, whole

_HOUR = 3_600_000_000  # microseconds
_HALF_YEAR = 183 * 24 * _HOUR


def sort_batches(log: LogFiles, unit: str) -> Generator[pa.Table]:
    """Give the rows of ``log``, ascending by unit, trajectory (both as `id_text`) and order.

    Memory holds the mapped columns of the whole log; one that is larger has to come sorted.

    Raises:
        PipelineError: see `LogFiles.batches`.
    """
    rows = pa.concat_tables([log.schema.empty_table(), *log.batches()]).combine_chunks()
    keys = [rows["order"].to_numpy(), _ranks(rows["trajectory"]), _ranks(rows[unit])]
    order = np.lexsort(keys)
    if log.ordered_by_time:
        _refuse_moved(log, rows, keys, order)
    for start in range(0, len(order), ROWS_PER_BATCH):
        yield rows.take(pa.array(order[start : start + ROWS_PER_BATCH]))


def _refuse_moved(
    log: LogFiles, rows: pa.Table, keys: Sequence[npt.NDArray[Any]], order: npt.NDArray[np.int64]
) -> None:
    """Refuse rows that sorting would put in a wrong place: the only step back of a trajectory as it
    lies in the log, if a wrong date or the end of summer time explains it.

    A date is wrong where the step goes over half a year, in one file, and all other gaps of the
    trajectory together are a twentieth of that gap at most. Summer time can end in a night to
    Sunday: a step back by less than an hour there, of times without a zone.

    Raises:
        PipelineError: names the file and the row.
    """
    time, *ids = keys
    places = np.lexsort(ids)
    steps = np.diff(time[places])
    within = np.logical_and.reduce([np.diff(own[places]) == 0 for own in ids])
    trajectory = np.cumsum(~within)
    back = within & (steps < 0)
    back &= np.bincount(trajectory, back)[trajectory] == 1
    gaps = np.where(within, np.diff(time[order]), 0)  # a trajectory has the same places there
    longest = np.zeros(len(rows), np.int64)
    np.maximum.at(longest, trajectory, gaps)
    span = np.bincount(trajectory, gaps, len(rows))
    far = (longest > _HALF_YEAR) & (span <= 1.05 * longest) & (span > longest)
    far = back & far[trajectory] & (-steps >= longest[trajectory])
    far &= np.diff(rows["file"].to_numpy()[places]) == 0
    found = "a time over half a year before that of the row before, unlike all other steps"
    allowed = "the true date; or, if it is true, the trajectory's rows in order"
    log.refuse(rows, places[1:][far], found, allowed)
    if log.without_zone:
        hours = time[places[1:]] // _HOUR % (7 * 24)  # since a Thursday's begin
        month = time[places[1:]].astype("datetime64[us]").astype("datetime64[M]").astype(int) % 12
        night = (hours >= 3 * 24 - 1) & (hours < 3 * 24 + 4) & np.isin(month, (1, 2, 3, 8, 9, 10))
        found = "a time before that of the row before in the night in which summer time can end"
        bad = places[1:][back & (steps > -_HOUR) & night]
        log.refuse(rows, bad, found, f"{ZONE}; or rows of a trajectory in order")


def _ranks(ids: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Number ids in the order of their text, [rows]."""
    encoded = id_text(whole(ids)).dictionary_encode()
    ranks = pc.rank(encoded.dictionary).to_numpy().astype(np.int64)
    chosen: npt.NDArray[np.int64] = ranks[encoded.indices.to_numpy()]
    return chosen


@dataclass(frozen=True)
class Tabular:
    """See `primorl.data.sources.Source`."""

    name: str
    dataset: TabularDataset

    def collect(self, target: Path) -> None:
        """Record the files (`watch`), and copy them under the names they have in their folder."""
        folder, files = record_files(self.name, self.dataset, target)
        for file in files:
            copy = target / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)

    def check_columns(self) -> bool:
        """Compare the columns of the files with the entry; False where there are no files yet.

        Raises:
            PipelineError: a column is missing, there twice or of a wrong type.
        """
        folder, files = find_files(self.dataset.options.files)
        if files:
            LogFiles(
                folder, fields_of(self.dataset.options.columns), self.dataset.options.csv, files
            )
        return bool(files)

    def open(self, raw: Path) -> "TabularReader":
        """Open the copies and compare their columns with the entry."""
        return TabularReader(raw, self.name, self.dataset)


class TabularReader:
    """The logs under ``raw`` as batches of the dataset's schema. See `primorl.data.sources.Reader`.

    Raises:
        PipelineError: if there is no readable file, or columns do not fit the dataset.
    """

    def __init__(self, raw: Path, name: str, dataset: TabularDataset):
        self.path = raw
        self.spaces, self.horizon = _read_spaces(name, dataset)
        self._dataset = dataset
        self._unit = "trajectory" if dataset.options.columns.unit is None else "unit"
        self._fields = fields_of(dataset.options.columns)
        self._log = LogFiles(raw, self._fields, dataset.options.csv)
        self.files = len(self._log.paths)

    def tables(self) -> Generator[pa.Table]:
        """See `Reader.tables`; errors name the file and the row."""
        unit, log = self._unit, self._log
        limit = self._dataset.horizon or self.horizon
        transitions = TransitionMaker(log, self._fields, self.spaces, self._dataset, limit)
        in_order = self._dataset.options.sorted
        empty = True
        for rows in whole_units(log.batches() if in_order else sort_batches(log, unit), unit):
            empty = False
            yield transitions(rows)
        if empty:
            raise PipelineError(f"{self.path}: found no rows in {len(log.paths)} files")


def _read_spaces(name: str, dataset: TabularDataset) -> tuple[Spaces, int | None]:
    """Give the spaces and the step limit of the environment or, without one, of the options.

    Raises:
        PipelineError: if the columns, the bounds and the environment do not fit each other.
    """
    columns, action = dataset.options.columns, dataset.options.columns.action
    one_hot, first = [], 0
    for entry in columns.observation:
        if isinstance(entry, Categorical):
            one_hot.append((first, len(entry.categories)))
        first += 1 if isinstance(entry, str) else len(entry.dimensions)
    names, low, high = zip(*columns.dimensions, strict=True)
    parts = [[name for name, _, _ in part.dimensions] for part in columns.choices]
    actions: tuple[str, ...] = tuple(map(", ".join, itertools.product(*parts)))
    if isinstance(action, BoxActions):
        actions = action.columns
    elif not isinstance(action, tuple):
        actions = columns.choices[0].categories
    bounds = dataset.bounds.observation
    if isinstance(bounds, DeclaredBounds) and len(bounds.low) != len(names):
        raise PipelineError(
            f"datasets/{name}.yaml: bounds.observation: found {len(bounds.low)} dimensions, "
            f"allowed are the {len(names)} of options.columns.observation (a category is one)"
        )
    horizon = None
    if dataset.environment is not None:
        spaces, horizon, _ = declared(dataset.environment)
        _check_fit(name, spaces, len(names), len(actions), isinstance(action, BoxActions))
    elif isinstance(action, BoxActions):
        assert action.low is not None
        assert action.high is not None
        spaces = Spaces(low, high, action.low, action.high)
    else:
        spaces = Spaces.with_discrete_actions(low, high, len(actions))
    spaces = replace(spaces, one_hot=tuple(one_hot), observation_names=names)
    return replace(spaces, action_names=actions), horizon


def _check_fit(name: str, spaces: Spaces, observation: int, actions: int, box: bool) -> None:
    """Compare the numbers of dimensions, or of discrete actions, with those of the environment."""
    key = f"datasets/{name}.yaml: options.columns"
    if spaces.discrete_actions == box:
        raise PipelineError(
            f"{key}.action: not of the environment's kind; allowed is {{column, count}} or "
            "{column, categories} (or a list of them) for discrete actions, {columns, low, high} "
            "for continuous ones"
        )
    for what, found, allowed in (
        ("observation", observation, spaces.observation_size),
        ("action", actions, spaces.action_size),
    ):
        if found != allowed:
            raise PipelineError(
                f"{key}.{what}: found {found} dimensions or choices, the environment declares "
                f"{allowed}; correct the columns or `environment`"
            )
