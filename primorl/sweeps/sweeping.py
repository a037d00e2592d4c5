"""Running the trials of a sweep."""

import csv
import hashlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.base.dvc import run_dvc
from primorl.base.errors import PipelineError
from primorl.base.files import home, replaced_file
from primorl.base.paths import MANIFEST, PARAMS, PARTITIONS, SWEEPS
from primorl.base.processes import cores, git_commit
from primorl.base.reporting import progress_bar
from primorl.config.params import Params, load, plain
from primorl.config.reading import shown
from primorl.data.storage.schema import Manifest
from primorl.sweeps.file import Sweep, Trial, expand
from primorl.sweeps.trial import (
    Job,
    Row,
    changed_since,
    finished_rows,
    read_row,
    stages,
    trial_folder,
    trial_params,
    unlink_left,
    write_row,
)
from primorl.tracking.store import Log, open_store

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


TABLE = Path("rows.csv")
_SWEEP_TAG = "primorl.sweep"
_LONGEST_TAG = 500  # characters
_CODE = ("primorl/", "pipeline/")
_GONE = ("deleted", "not in cache")
_PAUSE_SECONDS = 0.1
_GRACE_SECONDS = 30.0  # a stage ends its MLflow run
_REMEDY = "run `dvc repro partition` first: all trials of a sweep share its data"


def run_sweep(sweep: Sweep, *, workers: int | None) -> list[Row]:
    """Run all trials that have not finished; return the rows. If it is interrupted, no process is left.

    Args:
        sweep: the sweep.
        workers: trials at a time; None: as cores allow.
    """
    unlink_left()
    params, trials, table = load(), expand(sweep), home() / SWEEPS / sweep.name / TABLE
    check_trials(sweep, trials)
    before = {row.trial: row for row in finished_rows(table.parent)}
    rows = {trial.name: before[trial.name] for trial in trials if trial.name in before}
    missing, kept = [trial for trial in trials if trial.name not in rows], list(rows)
    if missing:
        check_fresh(params)
    count, threads = share_cores(workers, params.compute.threads, len(missing))
    run, commit = _sweep_run(sweep.name, params), git_commit()
    file = sweep.path.name if sweep.path.is_absolute() else sweep.path
    command = f"primorl sweep {file}"
    jobs = [
        Job(sweep.name, trial, threads, commit, command, _tags(run, sweep, trial))
        for trial in missing
    ]
    try:
        with (
            progress_bar(len(trials), sweep.name, "trial") as bar,
            closing(run_trials(iter(jobs), count)) as ended,
        ):
            bar.initial = bar.n = len(rows)
            for trial, row in ended:
                rows[trial.name] = row
                bar.update()
                why = f": {row.error}" if row.error else ""
                words = f"{bar.n} of {len(trials)}: {trial.describe(sweep.keys)}: {row.status}{why}"
                bar.write(f"{sweep.name}: {words}", file=sys.stderr)
    finally:
        unlink_left()  # by trials whose processes were killed
        there = [rows[trial.name] for trial in trials if trial.name in rows]
        finished = [row for row in there if row.finished]
        changed = _changes(sweep, finished)
        write_table(table, finished, changed)
        run.metric("finished", len(finished))
        run.artifact(table)
        run.end(
            "FINISHED" if len(finished) == len(trials) else "KILLED"
        )  # the same command resumes it
    if names := {key for name in kept for key in changed[name]}:
        print(
            f"warning: {table.parent.relative_to(home())}: some trials finished before these changed: "
            f"{', '.join(sorted(names))}; they are kept; delete their folders to run them again",
            file=sys.stderr,
        )
    return there


def check_trials(sweep: Sweep, trials: list[Trial]) -> None:
    """Check the settings of all trials, at least one, and that the partitions are those that they ask for."""
    if not MANIFEST.exists():
        raise PipelineError(f"{MANIFEST}: not there; {_REMEDY}")
    found = Manifest.load(MANIFEST).info.dataset
    for trial in trials:
        try:
            params = trial_params(trial)
        except PipelineError as wrong:
            raise PipelineError(f"{sweep.path}: {trial.describe(sweep.keys)}: {wrong}") from None
        if params.dataset != found:
            raise PipelineError(
                f"{PARTITIONS}: found dataset {found!r}, and the sweep is of {params.dataset!r}; set dataset: "
                f"{params.dataset} in {PARAMS} and {_REMEDY}"
            )
    stages()
    there = plain(params.partition)  # all trials share it
    for key, wanted in sweep.content.partition.items():
        if key not in there:
            raise PipelineError(
                f"{sweep.path}: partition.{key}: unknown key; allowed are {', '.join(there)}"
            )
        if there[key] != wanted:
            raise PipelineError(
                f"{PARAMS}: partition.{key}: found {shown(there[key])}, and {sweep.path} is for {shown(wanted)}; set "
                "it there and run `dvc repro partition`"
            )


def check_fresh(params: Params) -> None:
    """Refuse partitions after a change of their inputs: data, a withdrawal, a consent, or their settings.

    Other code is no reason, as no data changed. A project that DVC does not keep has nothing to compare with.
    """
    if not (home() / ".dvc").is_dir():
        return
    found = Manifest.load(MANIFEST).info.dataset
    if (
        params.dataset != found
    ):  # DVC compares with the inputs of the dataset that params.yaml names
        raise PipelineError(
            f"{PARAMS}: dataset: found {params.dataset!r}, and {PARTITIONS} is of {found!r}; set dataset: {found}, so "
            "that changes of its data are noticed"
        )
    done = run_dvc(home(), "status", "--json", "--with-deps", "partition")
    if done.returncode != 0:
        said = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise PipelineError(
            f"dvc status: {said}; a sweep needs to know whether {PARTITIONS} is up to date"
        )
    if changed := _changed_inputs(json.loads(done.stdout)):
        raise PipelineError(
            f"{PARTITIONS}: made before these changed: {', '.join(changed)}; run `dvc repro partition` first"
        )


def _changed_inputs(status: dict[str, Any]) -> list[str]:
    """List paths and keys of ``dvc status --json``, each once, with their states."""
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
    return [
        f"{name} ({how})"
        for name, how in sorted(found.items())
        if not (name in outs and how in _GONE)
    ]


def write_finished(path: Path, sweep: Sweep) -> int:
    """Write all finished trials as a table that marks those with other settings or data than now; count them."""
    rows = finished_rows(home() / SWEEPS / sweep.name)
    write_table(path, rows, _changes(sweep, rows))
    return len(rows)


def check_table_name(path: Path) -> None:
    """Refuse the name of a table that ends in neither ``.csv`` nor ``.parquet``."""
    if path.suffix not in (".csv", ".parquet"):
        raise PipelineError(
            f"{path}: found the ending {path.suffix!r}, allowed are .csv and .parquet"
        )


def write_table(path: Path, rows: Sequence[Row], changed: Mapping[str, Sequence[str]]) -> None:
    """Write rows as a table, one line a trial: ``.csv`` or ``.parquet``.

    ``changed`` lists by trial the changes of the project since it ran; it becomes the column ``stale``.
    """
    lines = [row.flat() | {"stale": ", ".join(changed.get(row.trial, ())) or None} for row in rows]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    with replaced_file(path) as fresh:
        if path.suffix == ".csv":
            with fresh.open("w", encoding="utf-8", newline="") as text:
                writer = csv.DictWriter(text, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(lines)
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(
            pa.table({name: _one_type([line.get(name) for line in lines]) for name in columns}),
            fresh,
        )


def _one_type(values: list[Any]) -> list[Any]:
    """Return values of one type, which Parquet needs: as they are, as float, or else as text."""
    types = {type(value) for value in values if value is not None}
    if len(types) <= 1:
        return values
    if types == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [
        value if value is None or isinstance(value, str) else json.dumps(value) for value in values
    ]


def share_cores(workers: int | None, threads: int | None, trials: int) -> tuple[int, int]:
    """Choose processes at a time and threads of each, which together take all cores.

    Without ``workers`` there are as many as ``threads`` of each leave room for, one by default, and as trials are left.
    """
    count = workers or max(1, min(trials, cores() // (threads or 1)))
    return count, max(1, cores() // count)


def run_trials(jobs: Iterator[Job], workers: int) -> Generator[tuple[Trial, Row]]:
    """Run trials, ``workers`` at a time, and yield each with its row when it ends.

    A job is taken when there is room for it. When the iterator is closed, no process is left.
    """
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    try:
        while True:
            while len(running) < workers and (job := next(jobs, None)) is not None:
                running.append((job, start_trial(job)))
            if not running:
                return
            time.sleep(_PAUSE_SECONDS)
            for job, process in list(running):
                status = process.poll()
                if status is not None:
                    running.remove((job, process))
                    yield job.trial, _row_of(job, status)
    finally:
        for _, process in running:
            process.terminate()
        for _, process in running:
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _row_of(job: Job, status: int) -> Row:
    row = read_row(trial_folder(job.sweep, job.trial))
    if row is not None and (row.finished or status == 0):
        return row
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return write_row(job, "failed", f"its process {how}")


def start_trial(job: Job) -> "subprocess.Popen[bytes]":
    """Start a trial as a process, in the project's folder."""
    return subprocess.Popen(job.argv, stdin=subprocess.DEVNULL)


def _changes(sweep: Sweep, rows: Sequence[Row]) -> dict[str, list[str]]:
    return {row.trial: changed_since(sweep.name, Trial(row.settings, row.case)) for row in rows}


def _sweep_run(name: str, params: Params) -> Log:
    """Open MLflow's run of a sweep in a project, which the runs of its trials are nested in."""
    mark = hashlib.sha256(
        "\0".join([socket.gethostname(), str(home()), name]).encode()
    ).hexdigest()[:16]

    def begin(client: "MlflowClient", experiment: str) -> str:
        known = client.search_runs([experiment], f"tags.`{_SWEEP_TAG}` = '{mark}'", max_results=1)
        if known:
            return str(known[0].info.run_id)
        tags = {_SWEEP_TAG: mark, "sweep": name, "dataset": params.dataset}
        return str(client.create_run(experiment, tags=tags, run_name=f"sweep {name}").info.run_id)

    store, run_id = open_store(params, begin)
    log = Log(store, run_id or "")
    log.resume()
    return log


def _tags(run: Log, sweep: Sweep, trial: Trial) -> dict[str, str]:
    """Return the tags of a trial's pipeline run: the sweep, the case, and the varied settings."""
    tags = {"sweep": sweep.name, "trial": trial.name}
    if trial.case is not None:
        tags["case"] = trial.case
    for key in sweep.keys:
        tags[key] = json.dumps(trial.settings[key])[:_LONGEST_TAG]
    if run.run_id:
        tags["mlflow.parentRunId"] = run.run_id
    return tags
