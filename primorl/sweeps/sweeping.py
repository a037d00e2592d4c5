"""Run what is missing of a sweep: a grid or a search, here or on Slurm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from primorl.config.blocks import Partition
from primorl.config.datasets import checked as read_as
from primorl.config.explanations import explanations
from primorl.config.params import Params, load, plain
from primorl.config.reading import shown
from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.project.git import git_commit
from primorl.project.paths import PARAMS
from primorl.sweeps.file import Between, Choices, Sweep
from primorl.sweeps.folders import (
    changed_since,
    check_data,
    stages,
    sweep_folder,
    trial_folder,
    trial_params,
    unlink_left,
)
from primorl.sweeps.freshness import check_fresh
from primorl.sweeps.progress import Progress
from primorl.sweeps.rows import Row, read_row, write_flat
from primorl.sweeps.running import Grid, Start, run_trials, shares, start_here
from primorl.sweeps.search import Study
from primorl.sweeps.slurm import slurm_start
from primorl.sweeps.tracked import SweepRun
from primorl.sweeps.trial import Job
from primorl.sweeps.trials import Trial, expand, said, varying

TABLE = Path("rows.csv")


@dataclass(frozen=True)
class Done:
    """A sweep after its last trial.

    Attributes:
        trials: all of them.
        rows: of those that have one, in the same order.
        warnings: one line each.
    """

    trials: list[Trial]
    rows: list[Row]
    warnings: list[str]


def checked(sweep: Sweep, trials: list[Trial]) -> None:
    """Check the settings of all trials, at least one, before the first is run.

    Raises:
        PipelineError: names the file, the trial and its wrong keys; or the partitions are not those that it asks for.
    """
    for trial in trials:
        try:
            params = trial_params(trial)
        except PipelineError as wrong:
            raise PipelineError(f"{sweep.path}: {said(trial, varying(trials))}: {wrong}") from None
        check_data(params)
    check_partition(sweep, trial_params(trials[0]))  # all trials share it


def check_partition(sweep: Sweep, params: Params) -> None:
    """Check that params.yaml has what the sweep says of the block ``partition``.

    Raises:
        PipelineError: it has not, or what the sweep says does not fit.
    """
    there, said_here = plain(params.partition), sweep.content.partition
    if unknown := set(said_here) - set(there):
        raise PipelineError(f"{sweep.path}: partition.{min(unknown)}: unknown key; allowed are {', '.join(there)}")
    try:
        asked = plain(read_as(Partition, {**there, **said_here}))
    except ValidationError as refused:
        wrong = "; ".join(f"partition.{key}: {why}" for key, why in explanations(refused, {**there, **said_here}))
        raise PipelineError(f"{sweep.path}: {wrong}") from None
    for key, wanted in asked.items():
        if there[key] != wanted:
            raise PipelineError(
                f"{PARAMS}: partition.{key}: found {shown(there[key])}, and {sweep.path} is for {shown(wanted)}; set "
                "it there and run `dvc repro partition`"
            )


def run_sweep(sweep: Sweep, *, workers: int | None, slurm: str | None = None, start: Start | None = None) -> Done:
    """Run all trials that have not finished.

    Args:
        sweep: the sweep.
        workers: trials at a time; None: as cores allow, on Slurm all.
        slurm: Slurm's partition; None: processes of this machine.
        start: starts a trial; None: as a process, or as a job of Slurm.

    Raises:
        PipelineError: the sweep cannot begin.
        KeyboardInterrupt: it was interrupted; no process is left.
    """
    params, folder = load(), sweep_folder(sweep.name)
    unlink_left()
    stages()
    study = None if sweep.content.search is None else Study(sweep, params, lambda trial: _finished(sweep, trial))
    trials = expand(sweep) if study is None else study.trials()
    checked(sweep, trials or [_any_trial(sweep)])
    rows = {trial.name: row for trial in trials if (row := _finished(sweep, trial)) is not None}
    ran_before, missing = list(rows), [trial for trial in trials if trial.name not in rows]
    total = len(trials) if study is None else len(trials) + study.left
    if total > len(rows):
        check_fresh(params)
    count, threads = shares(workers, params.compute.threads, total - len(rows))
    if slurm is not None:
        threads, count = params.compute.threads or 1, workers or max(1, total)
    begin = start or (start_here if slurm is None else slurm_start(slurm, folder, threads))
    keys = varying(trials) if study is None else list(_space(sweep))
    tracked = SweepRun(sweep.name, params)
    commit = git_commit()
    named = sweep.path.name if sweep.path.is_absolute() else sweep.path

    def job(trial: Trial) -> Job:
        tags = tracked.tags(sweep.name, trial, keys)
        return Job(sweep.name, trial, threads, commit, f"primorl sweep {named}", tags)

    try:
        with Progress(sweep.name, total, len(rows), keys) as progress:

            def on_row(trial: Trial, row: Row) -> None:
                if trial.name not in {known.name for known in trials}:
                    trials.append(trial)
                rows[trial.name] = row
                progress.update(trial, row)

            run_trials(study or Grid(missing), job, workers=count, start=begin, on_row=on_row)
    finally:
        unlink_left()  # by trials whose processes were killed
        there = [rows[trial.name] for trial in trials if trial.name in rows]
        finished = [row for row in there if row.finished]
        changed = _changed(sweep, finished)
        write_flat(folder / TABLE, finished, changed)
        tracked.end(finished, _best(sweep, finished), folder / TABLE, complete=len(finished) >= total)
    return Done(trials, there, _stale(sweep, [changed[name] for name in ran_before]))


def write_table(path: Path, sweep: Sweep, rows: Sequence[Row]) -> None:
    """Write rows as a table that marks those whose settings or data are others now."""
    write_flat(path, rows, _changed(sweep, rows))


def _changed(sweep: Sweep, rows: Sequence[Row]) -> dict[str, list[str]]:
    """What changed since each trial ran, by its name."""
    return {row.trial: changed_since(sweep.name, Trial(row.settings, row.case)) for row in rows}


def _finished(sweep: Sweep, trial: Trial) -> Row | None:
    row = read_row(trial_folder(sweep.name, trial))
    return row if row is not None and row.finished else None


def _space(sweep: Sweep) -> Mapping[str, Between | Choices]:
    return {} if sweep.content.search is None else sweep.content.search.space


def _any_trial(sweep: Sweep) -> Trial:
    """A trial at one end of a search's space."""
    ends = {key: at.low if isinstance(at, Between) else at.choices[0] for key, at in _space(sweep).items()}
    return Trial({**sweep.content.settings, **ends})


def _best(sweep: Sweep, rows: list[Row]) -> float | None:
    """The best value of the search's metric; of a grid, the highest return, or value in the model."""
    search = sweep.content.search
    names = ("return_mean", "model_value") if search is None else (search.metric,)
    values = [value for row in rows if (value := row.first(*names)) is not None]
    better = min if search is not None and search.direction == "minimize" else max
    return better(values) if values else None


def _stale(sweep: Sweep, changed: Sequence[Sequence[str]]) -> list[str]:
    """What is to be said of trials that finished with other settings or data."""
    keys = sorted({key for own in changed for key in own})
    if not keys:
        return []
    return [
        f"{sweep_folder(sweep.name).relative_to(home())}: some trials finished before these changed: "
        f"{', '.join(keys)}; they are kept; delete their folders to run them again"
    ]
