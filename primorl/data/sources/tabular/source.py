"""Sorts the rows of a log by unit, trajectory and order, in bounded memory."""

import shutil
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.base.errors import PipelineError
from primorl.base.files import scratch_directory
from primorl.base.records import ElapsedTime
from primorl.config.columns import (
    BoxActions,
    Carried,
    Categorical,
    CountedActions,
    Dimension,
    Elapsed,
    ObservationColumn,
)
from primorl.config.datasets import DeclaredBounds, TabularDataset
from primorl.data.sources.spaces import declared
from primorl.data.sources.tabular.files import ROWS_PER_BATCH, Field, Log, fields_of
from primorl.data.sources.tabular.transitions import Transitions, consent_of_units, whole_units
from primorl.data.sources.tabular.watch import log_files, named_files, record_files
from primorl.data.storage.schema import Spaces, id_text

_BYTES_PER_BUCKET = 2**26
_MOST_BUCKETS = 512  # each is an open file, and systems often allow 1,024
_TEXT_BYTES = 24  # about what an id takes


def sorted_batches(log: Log, unit: str, beside: Path) -> Generator[pa.Table]:
    """Give the rows of ``log``, ascending by unit, trajectory (both as `id_text`) and order.

    Each range of units is written to a file of its own in a temporary folder, and each file is
    sorted by itself. The log is read twice and written once. Memory holds one range of about 64
    MiB, or one unit where that is larger.

    ``unit`` is the field that names the unit of a row. The temporary folder is made ``beside`` a
    path, on a disk with room for the mapped columns.

    Raises:
        PipelineError: see `Log.batches`.
    """
    limits = _limits(log, unit)
    with scratch_directory(beside) as folder:
        for path in _spill(log, unit, limits, folder):
            with pa.memory_map(str(path)) as file:
                bucket = _sorted(pa.ipc.open_stream(file).read_all(), unit)
            path.unlink()
            for start in range(0, bucket.num_rows, ROWS_PER_BATCH):
                yield bucket.slice(start, ROWS_PER_BATCH)


def _limits(log: Log, unit: str) -> npt.NDArray[np.object_]:
    """Find unit ids, ascending, that cut the log into ranges of about equal numbers of units.

    Memory holds the ids of all units; so do the later checks of membership.
    """
    ids, rows = set[str](), 0
    for batch in log.batches(only=[unit]):
        ids.update(id_text(pc.unique(batch[unit])).to_pylist())
        rows += batch.num_rows
    widths = []
    for kind in log.schema().types:
        widths.append(_TEXT_BYTES if pa.types.is_string(kind) else max(kind.bit_width // 8, 1))
    buckets = min(-(-rows * sum(widths) // _BYTES_PER_BUCKET), _MOST_BUCKETS)
    size = -(-len(ids) // max(buckets, 1))
    return np.array(sorted(ids)[size::size] if size else [], dtype=object)


def _spill(log: Log, unit: str, limits: npt.NDArray[np.object_], folder: Path) -> list[Path]:
    paths = [folder / f"{index}.arrows" for index in range(len(limits) + 1)]
    ids = {unit, "trajectory"}
    schema = log.schema()
    for name in ids:
        schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
    with ExitStack() as stack:
        files = [stack.enter_context(pa.OSFile(str(path), "wb")) for path in paths]
        writers = [stack.enter_context(pa.ipc.new_stream(file, schema)) for file in files]
        for batch in log.batches():
            for name in ids:
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(place, name, id_text(batch[name].combine_chunks()))
            encoded = batch[unit].combine_chunks().dictionary_encode()
            names = encoded.dictionary.to_numpy(zero_copy_only=False)
            of_id = np.searchsorted(limits, names, side="right")
            bucket = of_id[encoded.indices.to_numpy()]
            order = np.argsort(bucket, kind="stable")
            ends = np.cumsum(np.bincount(bucket, minlength=len(paths)))
            batch = batch.take(pa.array(order))
            for writer, start, end in zip(writers, [0, *ends[:-1]], ends, strict=True):
                if end > start:
                    writer.write_table(batch.slice(start, end - start))
    return paths


def _sorted(rows: pa.Table, unit: str) -> pa.Table:
    keys = [rows["order"].to_numpy(), _ranks(rows["trajectory"]), _ranks(rows[unit])]
    return rows.take(pa.array(np.lexsort(keys)))


def _ranks(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    encoded = column.combine_chunks().dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), dtype=np.int64)
    ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    chosen: npt.NDArray[np.int64] = ranks[encoded.indices.to_numpy()]
    return chosen


@dataclass(frozen=True)
class Tabular:
    """See `primorl.data.sources.Source`."""

    name: str
    dataset: TabularDataset

    def collect(self, target: Path) -> None:
        """Copy the files, under the names they have in their folder, and record the copies
        (`watch`).
        """
        named = self.dataset.options.files
        folder, files = named_files(self.dataset.options.files)
        if not files:
            raise PipelineError(
                f"datasets/{self.name}.yaml: options.files: found no file at {named!r}; allowed "
                "are a file, a folder or a pattern (*, **) of .parquet, .csv and .csv.gz, from "
                "the project's root"
            )
        for file in files:
            copy = target / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        strange = len(files) - len(log_files(target))
        if strange > 0:
            raise PipelineError(
                f"datasets/{self.name}.yaml: options.files: found {strange} of {len(files)} files "
                f"at {named!r} with an unsupported name; allowed are .parquet, .csv and .csv.gz; "
                "rename them, or narrow the pattern"
            )
        record_files(self.name, target, target, log_files(target))

    def check_columns(self) -> bool:
        """Compare the columns of the files with the entry; False where there are no files yet.

        Raises:
            PipelineError: a column is missing, there twice or of a wrong type.
        """
        folder, files = named_files(self.dataset.options.files)
        if files:
            Log(folder, fields_of(self.dataset.options.columns), self.dataset.options.csv, files)
        return bool(files)

    def open(self, raw: Path) -> "TabularReader":
        """Open the copies and compare their columns with the entry."""
        return TabularReader(raw, self.name, self.dataset)


class TabularReader:
    """The logs under ``raw`` as batches of the dataset's schema. See `primorl.data.sources.Reader`.

    A log that is not sorted is sorted in a temporary folder beside ``raw``.

    Attributes:
        consent: tables of ``unit_id`` and ``consent``, one row a unit; complete after the last of
            `tables`.

    Raises:
        PipelineError: if there is no readable file, or columns do not fit the dataset.
    """

    def __init__(self, raw: Path, name: str, dataset: TabularDataset):
        self.path = raw
        self.spaces, self.horizon = _declared(name, dataset)
        self.consent: list[pa.Table] = []
        self._dataset = dataset
        self._unit = "trajectory" if dataset.options.columns.unit is None else "unit"
        self._fields = fields_of(dataset.options.columns)
        self._log = Log(raw, self._fields, dataset.options.csv)

    def keep_consent(self, column: str) -> None:
        """Fill ``consent`` from ``column``, which has one value a unit; call it before `tables`.

        Raises:
            PipelineError: if there is no such column.
        """
        self._fields.append(Field("consent", column, "label"))
        self._log = Log(self.path, self._fields, self._dataset.options.csv)

    def tables(self) -> Generator[pa.Table]:
        """See `Reader.tables`; errors name the file and the row."""
        options, unit, log = self._dataset.options, self._unit, self._log
        limit = self._dataset.horizon or self.horizon
        transitions = Transitions(log, self._fields, self.spaces, unit, self._dataset, limit)
        batches = log.batches() if options.sorted else sorted_batches(log, unit, self.path)
        empty = True
        # or rows that were spilled to disk would stay as long as an error's traceback does
        with closing(batches):
            for rows in whole_units(batches, unit):
                empty = False
                if self._fields[-1].name == "consent":
                    self.consent.append(consent_of_units(rows, unit, log))
                yield transitions(rows)
        if empty:
            raise PipelineError(f"{self.path}: found no rows in {len(log.paths)} files")


def _declared(name: str, dataset: TabularDataset) -> tuple[Spaces, int | None]:
    """Give the spaces and the step limit of the environment or, without one, of the options.

    Raises:
        PipelineError: if the columns, the bounds and the environment do not fit each other.
    """
    columns, action = dataset.options.columns, dataset.options.columns.action
    dimensions: list[Dimension] = []
    one_hot: list[tuple[int, int]] = []
    elapsed = None
    for entry in columns.observation:
        if isinstance(entry, Categorical):
            one_hot.append((len(dimensions), len(entry.categories)))
        elif isinstance(entry, Elapsed):
            elapsed = ElapsedTime(name=entry.elapsed, unit=entry.unit, most=entry.most)
        dimensions += ((entry, -np.inf, np.inf),) if isinstance(entry, str) else entry.dimensions
    names, low, high = zip(*dimensions, strict=True)
    if isinstance(action, BoxActions):
        actions = action.columns
    else:
        choices = range(action.count) if isinstance(action, CountedActions) else action.categories
        actions = tuple(str(choice) for choice in choices)
    if isinstance(dataset.bounds.observation, DeclaredBounds):
        _check_bounds(name, dataset.bounds.observation, columns.observation, names)
    horizon = None
    if dataset.environment is not None:
        spaces, horizon = declared(dataset.environment)
        _check_fit(name, spaces, len(names), len(actions), isinstance(action, BoxActions))
    elif isinstance(action, BoxActions):
        assert action.low is not None
        assert action.high is not None
        spaces = Spaces(low, high, action.low, action.high)
    else:
        spaces = Spaces.with_discrete_actions(low, high, len(actions))
    spaces = replace(spaces, one_hot=tuple(one_hot), elapsed=elapsed)
    return replace(spaces, observation_names=names, action_names=actions), horizon


def _check_bounds(
    name: str, bounds: DeclaredBounds, entries: Sequence[ObservationColumn], names: Sequence[str]
) -> None:
    """Compare the bounds in the dataset's file with the dimensions of the observation."""
    if len(bounds.low) != len(names):
        raise PipelineError(
            f"datasets/{name}.yaml: bounds.observation: found {len(bounds.low)} dimensions, "
            f"allowed are the {len(names)} of options.columns.observation (a category is one, a "
            "carried column is two)"
        )
    for entry in entries:
        if not isinstance(entry, Elapsed | Carried):
            continue
        own = entry.elapsed if isinstance(entry, Elapsed) else entry.age
        place = names.index(own)
        low, high = bounds.low[place], bounds.high[place]
        if (low, high) != (0, entry.most):
            raise PipelineError(
                f"datasets/{name}.yaml: bounds.observation: found [{low:g}, {high:g}] for "
                f"dimension {place + 1}, {own!r}; allowed is [0, {entry.most:g}], as `most` "
                "declares"
            )
        if isinstance(entry, Carried) and entry.first is not None:
            # Its value comes before its age.
            low, high = bounds.low[place - 1], bounds.high[place - 1]
            if not low <= entry.first <= high:
                raise PipelineError(
                    f"datasets/{name}.yaml: options.columns.observation: found first "
                    f"{entry.first:g} of {entry.carried!r}; allowed is within its bounds, "
                    f"[{low:g}, {high:g}]"
                )


def _check_fit(name: str, spaces: Spaces, observation: int, actions: int, box: bool) -> None:
    """Compare the numbers of dimensions, or of discrete actions, with those of the environment."""
    if spaces.discrete_actions == box:
        raise PipelineError(
            f"datasets/{name}.yaml: options.columns.action: not of the environment's kind; allowed "
            "is {column, count} or {column, categories} for discrete actions, {columns, low, high} "
            "for continuous ones"
        )
    sizes = {"observation": spaces.observation_size, "action": spaces.action_size}
    for what, found in (("observation", observation), ("action", actions)):
        if found != (allowed := sizes[what]):
            raise PipelineError(
                f"datasets/{name}.yaml: options.columns.{what}: found {found} dimensions or "
                f"choices, the environment declares {allowed}; correct the columns or "
                "`environment`"
            )
