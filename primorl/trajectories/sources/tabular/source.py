"""``source: tabular``: logs of any tool, in Parquet or CSV, their columns mapped in params.yaml."""

import shutil
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from primorl.config.datasets import DeclaredBounds, TabularDataset
from primorl.config.tabular import BoxActions, Categorical, CountedActions, Elapsed
from primorl.project.elapsed import ElapsedTime
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.spaces import declared
from primorl.trajectories.sources.tabular.files import Field, Log, fields_of
from primorl.trajectories.sources.tabular.sorting import sorted_batches
from primorl.trajectories.sources.tabular.transitions import Transitions, consent_of_units, whole_units
from primorl.trajectories.sources.tabular.watch import log_files, named_files, record_copies
from primorl.trajectories.storage.schema import Spaces


@dataclass(frozen=True)
class Tabular:
    """See `primorl.trajectories.sources.Source`."""

    name: str
    dataset: TabularDataset

    def collect(self, target: Path) -> None:
        """Copy the files, under the names they have in their folder, and record the copies (`watch`)."""
        named = self.dataset.options.files
        folder, files = named_files(self.dataset.options.files)
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
                f"datasets/{self.name}.yaml: options.files: found {strange} of {len(files)} files at {named!r} with an "
                "unsupported name; allowed are .parquet, .csv and .csv.gz; rename them, or narrow the pattern"
            )
        record_copies(self.name, target)

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
    """The logs under ``raw`` as batches of the dataset's schema. See `primorl.trajectories.sources.Reader`.

    A log that is not sorted is sorted in a temporary folder beside ``raw``.

    Attributes:
        consent: tables of ``unit_id`` and ``consent``, one row a unit; complete after the last of `tables`.

    Raises:
        PipelineError: if there is no readable file, or columns do not fit the dataset.
    """

    def __init__(self, raw: Path, name: str, dataset: TabularDataset):
        self.path = raw
        self.spaces, self.horizon = _declared(name, dataset)
        self.behaviour_probabilities = dataset.options.columns.behaviour_probability is not None
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
        with closing(batches):  # or rows that were spilled to disk would stay as long as an error's traceback does
            for rows in whole_units(batches, unit):
                empty = False
                if self._fields[-1].name == "consent":
                    self.consent.append(consent_of_units(rows, unit, log))
                yield transitions(rows)
        if empty:
            raise PipelineError(f"{self.path}: found no rows in {len(log.paths)} files; allowed is at least one")


def _declared(name: str, dataset: TabularDataset) -> tuple[Spaces, int | None]:
    """Give the spaces and the step limit of the environment or, without one, of the options.

    Raises:
        PipelineError: if the columns, the bounds and the environment do not fit each other.
    """
    columns, action = dataset.options.columns, dataset.options.columns.action
    names: list[str] = []
    bounds: list[tuple[float, float]] = []
    one_hot: list[tuple[int, int]] = []
    elapsed = None
    for entry in columns.observation:
        if isinstance(entry, Categorical):
            one_hot.append((len(names), len(entry.categories)))
            names += [f"{entry.column}={category}" for category in entry.categories]
            bounds += [(0.0, 1.0)] * len(entry.categories)
        elif isinstance(entry, Elapsed):
            told_by = [columns.trajectory]
            if dataset.options.trajectory_ids == "per_unit" and columns.unit is not None:
                told_by.insert(0, columns.unit)
            elapsed = ElapsedTime(name=entry.elapsed, unit=entry.unit, most=entry.most, trajectory=tuple(told_by))
            names.append(entry.elapsed)
            bounds.append((0.0, entry.most))
        else:
            names.append(entry)
            bounds.append((-np.inf, np.inf))
    if isinstance(action, BoxActions):
        actions = action.columns
    else:
        choices = range(action.count) if isinstance(action, CountedActions) else action.categories
        actions = tuple(str(choice) for choice in choices)
    if isinstance(dataset.bounds.observation, DeclaredBounds):
        _check_bounds(name, dataset.bounds.observation, names, elapsed)
    low, high = zip(*bounds, strict=True)
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
    return replace(spaces, observation_names=tuple(names), action_names=actions), horizon


def _check_bounds(name: str, bounds: DeclaredBounds, names: list[str], elapsed: ElapsedTime | None) -> None:
    """Compare the bounds in the dataset's file with the dimensions of the observation."""
    if len(bounds.low) != len(names):
        raise PipelineError(
            f"datasets/{name}.yaml: bounds.observation: found {len(bounds.low)} dimensions, allowed are the "
            f"{len(names)} of options.columns.observation (a category is one)"
        )
    if elapsed is None:
        return
    place = names.index(elapsed.name)
    low, high = bounds.low[place], bounds.high[place]
    if (low, high) != (0, elapsed.most):
        raise PipelineError(
            f"datasets/{name}.yaml: bounds.observation: found [{low:g}, {high:g}] for dimension {place + 1}, the "
            f"elapsed time; allowed is [0, {elapsed.most:g}], as `most` declares"
        )


def _check_fit(name: str, spaces: Spaces, observation: int, actions: int, box: bool) -> None:
    """Compare the numbers of dimensions, or of discrete actions, with those of the environment."""
    if spaces.discrete_actions == box:
        kinds = ("discrete", "continuous") if spaces.discrete_actions else ("continuous", "discrete")
        raise PipelineError(
            f"datasets/{name}.yaml: options.columns.action: the environment has {kinds[0]} actions, found "
            f"{kinds[1]} ones; allowed is {{column, count}} or {{column, categories}} for discrete actions, "
            "{columns, low, high} for continuous ones"
        )
    for what, found, allowed in (
        ("observation", observation, spaces.observation_size),
        ("action", actions, spaces.action_size),
    ):
        if found != allowed:
            raise PipelineError(
                f"datasets/{name}.yaml: options.columns.{what}: found {found} dimensions or choices, the "
                f"environment declares {allowed}; correct the columns or `environment`"
            )
