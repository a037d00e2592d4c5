"""Run what is missing of a sweep: a grid or a search, here or on Slurm."""

import hashlib
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.config.params import Params, load, plain
from primorl.config.reading import shown
from primorl.project.dvc import run_dvc
from primorl.project.errors import PipelineError
from primorl.project.files import home, locked
from primorl.project.git import git_commit
from primorl.project.paths import MANIFEST, PARAMS, PARTITIONS
from primorl.project.progress import progress_bar
from primorl.sweeps.file import Between, Sweep, Trial, expand
from primorl.sweeps.folders import (
    changed_since,
    check_data,
    stages,
    sweep_folder,
    trial_folder,
    trial_params,
    unlink_left,
)
from primorl.sweeps.processes import Start, run_trials, share_cores, slurm_start, start_here
from primorl.sweeps.rows import Row, finished_rows, read_row, write_table
from primorl.sweeps.search import Study
from primorl.sweeps.trial import Job
from primorl.tracking.store import Log, open_store
from primorl.trajectories.storage.manifest import Manifest

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

TABLE = Path("rows.csv")
_SWEEP_TAG = "primorl.sweep"
_LONGEST_TAG = 500  # characters
_CODE = ("primorl/", "pipeline/")
_GONE = ("deleted", "not in cache")


@dataclass(frozen=True)
class Done:
    """A sweep after its last trial: its trials, the rows of those that have one, and warnings, one line each."""

    trials: list[Trial]
    rows: list[Row]
    warnings: list[str]


def check_trials(sweep: Sweep, trials: list[Trial]) -> None:
    """Check the settings of all trials, at least one, before the first is run.

    Raises:
        PipelineError: names the file, the trial and its wrong keys; or the partitions are not those that it asks for.
    """
    for trial in trials:
        try:
            params = trial_params(trial)
        except PipelineError as wrong:
            raise PipelineError(f"{sweep.path}: {trial.describe(sweep.keys)}: {wrong}") from None
        check_data(params)
    check_partition(sweep, trial_params(trials[0]))  # all trials share it


def check_partition(sweep: Sweep, params: Params) -> None:
    """Check that params.yaml has what the sweep says of the block ``partition``.

    Raises:
        PipelineError: it has not.
    """
    there = plain(params.partition)
    for key, wanted in sweep.content.partition.items():
        if key not in there:
            raise PipelineError(f"{sweep.path}: partition.{key}: unknown key; allowed are {', '.join(there)}")
        if there[key] != wanted:
            raise PipelineError(
                f"{PARAMS}: partition.{key}: found {shown(there[key])}, and {sweep.path} is for {shown(wanted)}; set "
                "it there and run `dvc repro partition`"
            )


def check_fresh(params: Params) -> None:
    """Refuse partitions whose inputs changed after they were made: data, a withdrawal, a consent, or their settings.

    Other code is no reason, as nobody's data changed. A project that DVC does not keep has nothing to compare with.

    Args:
        params: as params.yaml has them.

    Raises:
        PipelineError: names what changed; or DVC cannot say.
    """
    if not (home() / ".dvc").is_dir():
        return
    found = Manifest.load(MANIFEST).info.dataset
    if params.dataset != found:  # DVC compares with the inputs of the dataset that params.yaml names
        raise PipelineError(
            f"{PARAMS}: dataset: found {params.dataset!r}, and {PARTITIONS} is of {found!r}; set dataset: {found}, so "
            "that changes of its data are noticed"
        )
    done = run_dvc(home(), "status", "--json", "--with-deps", "partition")
    if done.returncode != 0:
        said = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise PipelineError(f"dvc status: {said}; a sweep needs to know whether {PARTITIONS} is up to date")
    if changed := _changed_inputs(json.loads(done.stdout)):
        raise PipelineError(
            f"{PARTITIONS}: made before these changed: {', '.join(changed)}; run `dvc repro partition` first"
        )


def _changed_inputs(status: dict[str, Any]) -> list[str]:
    """List paths and keys of ``dvc status --json``, each once, with what DVC says of them."""
    entries = [entry for stage in status.values() for entry in stage if isinstance(entry, dict)]
    outs = {path: how for entry in entries for path, how in entry.get("changed outs", {}).items()}
    found = {path: how for path, how in outs.items() if path.startswith("data/")}
    for entry in entries:
        for path, how in entry.get("changed deps", {}).items():
            if isinstance(how, dict):  # keys of a file of settings
                found |= {f"{path}: {key}": said for key, said in how.items()}
            elif not path.startswith(_CODE):
                found[path] = how
    # What lies between the data and the partitions may be deleted to save room.
    return [f"{name} ({how})" for name, how in sorted(found.items()) if not (name in outs and how in _GONE)]


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
    params, folder, search = load(), sweep_folder(sweep.name), sweep.content.search
    unlink_left()
    stages()
    with _one_search(sweep):
        study = None if search is None else Study(sweep, params)
        trials = expand(sweep) if study is None else study.trials()
        check_trials(sweep, trials or [_any_trial(sweep)])
        rows = {}
        for trial in trials:
            row = read_row(trial_folder(sweep.name, trial))
            if row is not None and row.finished:
                rows[trial.name] = row
        ran_before = list(rows)
        missing = iter([trial for trial in trials if trial.name not in rows])
        total = len(trials) if study is None else len(trials) + study.left
        if total > len(rows):
            check_fresh(params)
        count, threads = share_cores(workers, params.compute.threads, total - len(rows))
        begin = start or start_here
        if slurm is not None:
            threads, count = params.compute.threads or 1, workers or max(1, total)
            begin = slurm_start(slurm, folder, threads)
        tracked = _SweepRun(sweep.name, params)
        commit = git_commit()
        file = sweep.path.name if sweep.path.is_absolute() else sweep.path

        def make_job(trial: Trial) -> Job:
            tags = tracked.tags(sweep.name, trial, sweep.keys)
            return Job(sweep.name, trial, threads, commit, f"primorl sweep {file}", tags)

        try:
            with progress_bar(total, sweep.name, "trial") as bar:
                bar.initial = bar.n = len(rows)

                def on_row(trial: Trial, row: Row) -> None:
                    if study is not None:
                        study.tell(trial, row)
                    if all(trial.name != known.name for known in trials):
                        trials.append(trial)
                    rows[trial.name] = row
                    why = f": {row.error}" if row.error else ""
                    bar.update()
                    words = f"{bar.n} of {total}: {trial.describe(sweep.keys)}: {row.status}{why}"
                    bar.write(f"{sweep.name}: {words}", file=sys.stderr)

                ask = study.ask if study is not None else lambda: next(missing, None)
                run_trials(ask, make_job, on_row, workers=count, start=begin)
        finally:
            unlink_left()  # by trials whose processes were killed
            there = [rows[trial.name] for trial in trials if trial.name in rows]
            finished = [row for row in there if row.finished]
            changed = _changes(sweep, finished)
            write_table(folder / TABLE, finished, changed)
            tracked.end(finished, _best(sweep, finished), folder / TABLE, complete=len(finished) >= total)
    return Done(trials, there, _warnings(sweep, [key for name in ran_before for key in changed[name]]))


def write_finished(path: Path, sweep: Sweep) -> int:
    """Write all finished trials as a table that marks those with other settings or data than now; count them."""
    rows = finished_rows(sweep_folder(sweep.name))
    write_table(path, rows, _changes(sweep, rows))
    return len(rows)


@contextmanager
def _one_search(sweep: Sweep) -> Iterator[None]:
    """Refuse a second command of the same search: together they would run more trials than asked for."""
    if sweep.content.search is None:
        yield
        return
    with locked(sweep_folder(sweep.name) / "search.lock") as free:
        if not free:
            raise PipelineError(f"{sweep.path}: another command runs this search; wait for it, or give it more workers")
        yield


def _any_trial(sweep: Sweep) -> Trial:
    assert sweep.content.search is not None
    space = sweep.content.search.space
    ends = {key: at.low if isinstance(at, Between) else at.choices[0] for key, at in space.items()}
    return Trial({**sweep.content.settings, **ends})


def _changes(sweep: Sweep, rows: Sequence[Row]) -> dict[str, list[str]]:
    return {row.trial: changed_since(sweep.name, Trial(row.settings, row.case)) for row in rows}


def _best(sweep: Sweep, rows: list[Row]) -> float | None:
    """Return the best value of the search's metric; of a grid, the highest return, or value in the model."""
    search = sweep.content.search
    names = ("return_mean", "model_value") if search is None else (search.metric,)
    values = [value for row in rows if (value := row.first(*names)) is not None]
    better = min if search is not None and search.direction == "minimize" else max
    return better(values) if values else None


def _warnings(sweep: Sweep, changed: list[str]) -> list[str]:
    if not changed:
        return []
    return [
        f"{sweep_folder(sweep.name).relative_to(home())}: some trials finished before these changed: "
        f"{', '.join(sorted(set(changed)))}; they are kept; delete their folders to run them again"
    ]


class _SweepRun:
    """MLflow's run of a sweep in a project, which the runs of its trials are nested in."""

    def __init__(self, name: str, params: Params) -> None:
        mark = hashlib.sha256("\0".join([socket.gethostname(), str(home()), name]).encode()).hexdigest()[:16]

        def begin(client: "MlflowClient", experiment: str) -> str:
            known = client.search_runs([experiment], f"tags.`{_SWEEP_TAG}` = '{mark}'", max_results=1)
            if known:
                return str(known[0].info.run_id)
            tags = {_SWEEP_TAG: mark, "sweep": name, "dataset": params.dataset}
            return str(client.create_run(experiment, tags=tags, run_name=f"sweep {name}").info.run_id)

        store, run_id = open_store(params, begin)
        self._log = Log(store, run_id or "")
        self._log.resume()

    def tags(self, sweep: str, trial: Trial, keys: Sequence[str]) -> dict[str, str]:
        """Return the tags of a trial's pipeline run; ``keys`` are those that vary."""
        own = {"sweep": sweep, "trial": trial.name}
        if trial.case is not None:
            own["case"] = trial.case
        own |= {key: json.dumps(trial.settings[key])[:_LONGEST_TAG] for key in keys}
        return own | ({"mlflow.parentRunId": self._log.run_id} if self._log.run_id else {})

    def end(self, rows: Sequence[Row], best: float | None, table: Path, *, complete: bool) -> None:
        """Log what there is, and end the run: as killed where trials are missing, which the next command resumes."""
        self._log.metric("finished", len(rows))
        if best is not None:
            self._log.metric("best", best)
        if table.exists():
            self._log.artifact(table)
        self._log.end("FINISHED" if complete else "KILLED")
