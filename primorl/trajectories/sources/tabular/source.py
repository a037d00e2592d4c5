"""``source: tabular``: logs of any tool, in Parquet or CSV, their columns mapped in params.yaml."""

import glob
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from primorl.config.datasets import DeclaredBounds, TabularDataset
from primorl.config.tabular import BoxActions, Categorical, CountedActions, Elapsed, TabularColumns
from primorl.project.elapsed import ElapsedTime
from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.trajectories.sources.source import Reader
from primorl.trajectories.sources.spaces import declared
from primorl.trajectories.sources.tabular.fields import Field, fields_of
from primorl.trajectories.sources.tabular.files import Log, log_files
from primorl.trajectories.sources.tabular.sorting import sorted_batches
from primorl.trajectories.sources.tabular.transitions import Transitions, consent_of_units, whole_units
from primorl.trajectories.storage.schema import Spaces


def source(name: str, dataset: TabularDataset) -> "Tabular":
    """The source of one dataset."""
    return Tabular(name, dataset)


@dataclass(frozen=True)
class Tabular:
    """See `primorl.trajectories.sources.source.Source`."""

    name: str
    dataset: TabularDataset

    def collect(self, target: Path) -> None:
        """Copy the files, under the names they have in their folder."""
        named = self.dataset.options.files
        folder, files = self._files()
        if not files:
            raise PipelineError(
                f"datasets/{self.name}.yaml: options.files: found no file at {named!r}; allowed are a file, a "
                "folder or a pattern (*, **) of .parquet, .csv and .csv.gz, from the project's root"
            )
        for file in files:
            copy = target / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        strange = len(files) - len(log_files(target))
        if strange > 0:
            raise PipelineError(
                f"datasets/{self.name}.yaml: options.files: found {strange} of {len(files)} files at {named!r} "
                "with an unsupported name; allowed are .parquet, .csv and .csv.gz, with no dot or "
                "underscore in front; rename them, or narrow the pattern"
            )

    def check_columns(self) -> bool:
        """Compare the columns of the files with the entry; False where there are no files yet.

        Raises:
            PipelineError: a column is missing, there twice or of a wrong type.
        """
        folder, files = self._files()
        if files:
            Log(folder, fields_of(self.dataset.options.columns), self.dataset.options.csv, files)
        return bool(files)

    def _files(self) -> tuple[Path, list[Path]]:
        """The files that the options name, and the folder that their names begin in."""
        wanted = home() / Path(self.dataset.options.files).expanduser()
        if wanted.is_dir():
            return wanted, log_files(wanted)
        matched = [Path(found) for found in glob.glob(str(wanted), recursive=True)]  # noqa: PTH207
        return Path(*_fixed(wanted)), sorted(path for path in matched if path.is_file())

    def open(self, raw: Path) -> Reader:
        """Open the copies and compare their columns with the entry."""
        return TabularReader(raw, self.name, self.dataset)


def _fixed(path: Path) -> list[str]:
    """The parts of a pattern before the first that is none of a name; the folder of a plain file."""
    parts = list(path.parts[:-1])
    return parts[: next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))]


class TabularReader:
    """The logs under ``raw`` as batches of the dataset's schema. See `primorl.trajectories.sources.source.Reader`.

    Args:
        raw: what ``collect`` filled. Beside it, a log that is not sorted is sorted in a temporary folder.
        name: the dataset's entry, for errors.
        dataset: that entry.

    Raises:
        PipelineError: if there is no readable file, or columns do not fit the dataset.
    """

    def __init__(self, raw: Path, name: str, dataset: TabularDataset):
        self.path = raw
        self.spaces, self.horizon = _declared(name, dataset)
        self.behaviour_probabilities = dataset.options.columns.behaviour_probability is not None
        self._options = dataset.options
        self._fields = fields_of(dataset.options.columns)
        self._unit = "trajectory" if dataset.options.columns.unit is None else "unit"
        self.consent: list[pa.Table] = []
        self._keeps_consent = False
        self._limit = dataset.horizon or self.horizon
        self._log = Log(raw, self._fields, dataset.options.csv)

    def keep_consent(self, column: str) -> None:
        """See `primorl.trajectories.sources.source.ConsentReader`."""
        self._fields = [*self._fields, Field("consent", column, "label")]
        self._log = Log(self.path, self._fields, self._options.csv)
        self._keeps_consent = True

    def tables(self) -> Iterator[pa.Table]:
        """Batches of whole units, ascending.

        Raises:
            PipelineError: names the file and the row, what was found, what is allowed, what to do.
        """
        options = self._options
        unit = self._unit
        transitions = Transitions(self._log, self._fields, self.spaces, unit, options, self._limit)
        batches = self._log.batches() if options.sorted else sorted_batches(self._log, unit, self.path)
        empty = True
        with closing(batches):  # or rows that were spilled to disk would stay as long as an error's traceback does
            for rows in whole_units(batches, unit):
                empty = False
                if self._keeps_consent:
                    self.consent.append(consent_of_units(rows, unit, self._log))
                yield transitions(rows)
        if empty:
            raise PipelineError(f"{self.path}: found no rows in {len(self._log.paths)} files; allowed is at least one")


def _choices(action: BoxActions | CountedActions | Categorical) -> int:
    """Dimensions of continuous actions, number of discrete ones."""
    if isinstance(action, BoxActions):
        return len(action.columns)
    return action.count if isinstance(action, CountedActions) else len(action.categories)


def _declared(name: str, dataset: TabularDataset) -> tuple[Spaces, int | None]:
    """The environment's spaces and step limit or, without one, what the options declare."""
    columns, action = dataset.options.columns, dataset.options.columns.action
    sizes = [len(entry.categories) if isinstance(entry, Categorical) else 0 for entry in columns.observation]
    starts = np.cumsum([0, *(size or 1 for size in sizes)]).tolist()
    one_hot = tuple((start, size) for start, size in zip(starts, sizes, strict=False) if size > 0)
    size = starts[-1]
    bounds = dataset.bounds.observation
    if isinstance(bounds, DeclaredBounds) and len(bounds.low) != size:
        raise PipelineError(
            f"datasets/{name}.yaml: bounds.observation: found {len(bounds.low)} dimensions, allowed are the "
            f"{size} of options.columns.observation (a category is one)"
        )
    ids = (columns.unit, columns.trajectory) if dataset.options.trajectory_ids == "per_unit" else (columns.trajectory,)
    told_by = tuple(column for column in ids if column is not None)
    times = [
        (place, ElapsedTime(name=entry.elapsed, unit=entry.unit, most=entry.most, trajectory=told_by))
        for place, entry in zip(starts, columns.observation, strict=False)
        if isinstance(entry, Elapsed)
    ]
    elapsed = times[0][1] if times else None
    for place, most in ((place, time.most) for place, time in times):
        if isinstance(bounds, DeclaredBounds) and (bounds.low[place], bounds.high[place]) != (0, most):
            raise PipelineError(
                f"datasets/{name}.yaml: bounds.observation: found [{bounds.low[place]:g}, {bounds.high[place]:g}] for "
                f"dimension {place + 1}, the elapsed time; allowed is [0, {most:g}], as `most` declares"
            )
    count = _choices(action)
    seen, done = _observation_names(columns), _action_names(action)
    if dataset.environment is None:
        low, high = [-np.inf] * size, [np.inf] * size
        for first, number in one_hot:
            low[first : first + number], high[first : first + number] = [0.0] * number, [1.0] * number
        for place, time in times:
            low[place], high[place] = 0.0, time.most
        if isinstance(action, BoxActions):
            assert action.low is not None
            assert action.high is not None
            spaces = Spaces(tuple(low), tuple(high), action.low, action.high)
        else:
            spaces = Spaces.with_discrete_actions(tuple(low), tuple(high), count)
        return replace(spaces, one_hot=one_hot, elapsed=elapsed, observation_names=seen, action_names=done), None
    spaces, horizon = declared(dataset.environment)
    if spaces.discrete_actions == isinstance(action, BoxActions):
        kinds = ("discrete", "continuous") if spaces.discrete_actions else ("continuous", "discrete")
        raise PipelineError(
            f"datasets/{name}.yaml: options.columns.action: the environment has {kinds[0]} actions, found "
            f"{kinds[1]} ones; allowed is {{column, count}} or {{column, categories}} for discrete actions, "
            "{columns, low, high} for continuous ones"
        )
    for what, found, allowed in (
        ("observation", size, spaces.observation_size),
        ("action", count, spaces.action_size),
    ):
        if found != allowed:
            raise PipelineError(
                f"datasets/{name}.yaml: options.columns.{what}: found {found} dimensions or choices, the "
                f"environment declares {allowed}; correct the columns or `environment`"
            )
    return replace(spaces, one_hot=one_hot, elapsed=elapsed, observation_names=seen, action_names=done), horizon


def _observation_names(columns: TabularColumns) -> tuple[str, ...]:
    """The column of each dimension; ``meal=snack`` for one category of a column; what an elapsed time is called."""
    names: list[str] = []
    for entry in columns.observation:
        if isinstance(entry, Categorical):
            names += [f"{entry.column}={category}" for category in entry.categories]
        elif isinstance(entry, Elapsed):
            names.append(entry.elapsed)
        else:
            names.append(entry)
    return tuple(names)


def _action_names(action: BoxActions | CountedActions | Categorical) -> tuple[str, ...]:
    """The column of each dimension, or what each discrete action is called."""
    if isinstance(action, BoxActions):
        return action.columns
    if isinstance(action, CountedActions):
        return tuple(str(number) for number in range(action.count))
    return tuple(str(category) for category in action.categories)
