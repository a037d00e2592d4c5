"""``source: tabular``: logs of any tool, in Parquet or CSV, their columns mapped in params.yaml."""

import glob
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from primorl.config.datasets import DeclaredBounds, TabularDataset
from primorl.config.tabular import BoxActions, Categorical, CountedActions, Elapsed, TabularOptions
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
    """Make the source of one dataset."""
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
        """Find the files that the options name, and the folder that their names begin in."""
        wanted = home() / Path(self.dataset.options.files).expanduser()
        if wanted.is_dir():
            return wanted, log_files(wanted)
        matched = [Path(found) for found in glob.glob(str(wanted), recursive=True)]  # noqa: PTH207
        return Path(*_fixed(wanted)), sorted(path for path in matched if path.is_file())

    def open(self, raw: Path) -> Reader:
        """Open the copies and compare their columns with the entry."""
        return TabularReader(raw, self.name, self.dataset)


def _fixed(path: Path) -> list[str]:
    """Give the parts of a pattern before its first wildcard; the folder of a plain file."""
    parts = list(path.parts[:-1])
    return parts[: next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))]


class TabularReader:
    """The logs under ``raw`` as batches of the dataset's schema. See `primorl.trajectories.sources.source.Reader`.

    Args:
        raw: what ``collect`` filled. Beside it, a log that is not sorted is sorted in a temporary folder.
        name: the dataset's entry, for errors.
        dataset: that entry.

    Attributes:
        consent: tables of ``unit_id`` and ``consent``, one row a unit; complete after the last of `tables`.

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
        """Fill ``consent`` from ``column``, which has one value a unit; call it before `tables`.

        Raises:
            PipelineError: if there is no such column.
        """
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


@dataclass
class _Observation:
    """Dimensions of an observation, as the options declare them: names, bounds, categories, and the elapsed time."""

    names: list[str] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    one_hot: list[tuple[int, int]] = field(default_factory=list)
    elapsed: ElapsedTime | None = None

    @classmethod
    def declared(cls, options: TabularOptions) -> "_Observation":
        columns, found = options.columns, cls()
        for entry in columns.observation:
            if isinstance(entry, Categorical):
                size = len(entry.categories)
                found.one_hot.append((len(found.names), size))
                found.names += [f"{entry.column}={category}" for category in entry.categories]
                found.low += [0.0] * size
                found.high += [1.0] * size
            elif isinstance(entry, Elapsed):
                told_by = [columns.trajectory]
                if options.trajectory_ids == "per_unit" and columns.unit is not None:
                    told_by.insert(0, columns.unit)
                found.elapsed = ElapsedTime(
                    name=entry.elapsed, unit=entry.unit, most=entry.most, trajectory=tuple(told_by)
                )
                found.names.append(entry.elapsed)
                found.low.append(0.0)
                found.high.append(entry.most)
            else:
                found.names.append(entry)
                found.low.append(-np.inf)
                found.high.append(np.inf)
        return found

    def check_bounds(self, name: str, bounds: DeclaredBounds) -> None:
        """Compare the bounds in the dataset's file."""
        if len(bounds.low) != len(self.names):
            raise PipelineError(
                f"datasets/{name}.yaml: bounds.observation: found {len(bounds.low)} dimensions, allowed are the "
                f"{len(self.names)} of options.columns.observation (a category is one)"
            )
        if self.elapsed is None:
            return
        place = self.names.index(self.elapsed.name)
        found, most = (bounds.low[place], bounds.high[place]), self.elapsed.most
        if found != (0, most):
            raise PipelineError(
                f"datasets/{name}.yaml: bounds.observation: found [{found[0]:g}, {found[1]:g}] for dimension "
                f"{place + 1}, the elapsed time; allowed is [0, {most:g}], as `most` declares"
            )


def _action_names(action: BoxActions | CountedActions | Categorical) -> tuple[str, ...]:
    """Name each dimension by its column, or each discrete action."""
    if isinstance(action, BoxActions):
        return action.columns
    choices = range(action.count) if isinstance(action, CountedActions) else action.categories
    return tuple(str(choice) for choice in choices)


def _declared(name: str, dataset: TabularDataset) -> tuple[Spaces, int | None]:
    """Give the spaces and the step limit of the environment or, without one, of the options."""
    action = dataset.options.columns.action
    seen, done = _Observation.declared(dataset.options), _action_names(action)
    if isinstance(dataset.bounds.observation, DeclaredBounds):
        seen.check_bounds(name, dataset.bounds.observation)
    horizon = None
    if dataset.environment is not None:
        spaces, horizon = declared(dataset.environment)
        _check_fit(name, spaces, len(seen.names), action)
    elif isinstance(action, BoxActions):
        assert action.low is not None
        assert action.high is not None
        spaces = Spaces(tuple(seen.low), tuple(seen.high), action.low, action.high)
    else:
        spaces = Spaces.with_discrete_actions(tuple(seen.low), tuple(seen.high), len(done))
    spaces = replace(spaces, one_hot=tuple(seen.one_hot), elapsed=seen.elapsed)
    return replace(spaces, observation_names=tuple(seen.names), action_names=done), horizon


def _check_fit(name: str, spaces: Spaces, size: int, action: BoxActions | CountedActions | Categorical) -> None:
    if spaces.discrete_actions == isinstance(action, BoxActions):
        kinds = ("discrete", "continuous") if spaces.discrete_actions else ("continuous", "discrete")
        raise PipelineError(
            f"datasets/{name}.yaml: options.columns.action: the environment has {kinds[0]} actions, found "
            f"{kinds[1]} ones; allowed is {{column, count}} or {{column, categories}} for discrete actions, "
            "{columns, low, high} for continuous ones"
        )
    for what, found, allowed in (
        ("observation", size, spaces.observation_size),
        ("action", len(_action_names(action)), spaces.action_size),
    ):
        if found != allowed:
            raise PipelineError(
                f"datasets/{name}.yaml: options.columns.{what}: found {found} dimensions or choices, the "
                f"environment declares {allowed}; correct the columns or `environment`"
            )
