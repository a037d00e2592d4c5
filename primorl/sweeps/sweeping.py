"""Running the trials of a sweep: a grid, or a search of Optuna with its study in the ledger's database."""

import csv
import hashlib
import json
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from sqlalchemy.exc import SQLAlchemyError

from primorl.base.dvc import run_dvc
from primorl.base.errors import PipelineError
from primorl.base.files import HOST, home, locked, replaced_file
from primorl.base.paths import MANIFEST, PARAMS, PARTITIONS, SWEEPS
from primorl.base.processes import cores, git_commit, mark
from primorl.base.reporting import progress_bar
from primorl.config.params import Params, load, plain
from primorl.config.reading import shown
from primorl.data.storage.schema import Manifest
from primorl.paid.accounts import ledger_url, project_ledger
from primorl.sweeps.file import Between, Search, Sweep, Trial, expand
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
    import optuna
    from mlflow.tracking import MlflowClient


_OWNER = "owner"
_WAIT_SECONDS = 60


class Study:
    """Trials that Optuna chooses, for the one command of this machine that runs the search.

    A trial that a killed command of this machine left open is put into the queue again, so it is asked for first.

    Attributes:
        finished: the trials that have a value and a row, oldest first, each once.
        left: number of trials that are still to be asked for.
    """

    def __init__(self, sweep: Sweep, search: Search, params: Params) -> None:
        """Open the sweep's study in the database of ``params.ledger``, or create it."""
        self._search, self._settings = search, sweep.content.settings
        self._study = _open(study_name(sweep, search, params), search, params)
        finished, elsewhere = {}, 0
        for begun in self._study.get_trials(deepcopy=False):
            if begun.state.name == "COMPLETE":
                trial = self._trial(begun.params)
                row = read_row(trial_folder(sweep.name, trial))
                if row is not None and row.finished:
                    finished[trial.name] = trial
            elif begun.state.name == "RUNNING":
                if begun.user_attrs.get(_OWNER, HOST).startswith(HOST):
                    self._requeue(begun)
                else:
                    elsewhere += 1
        self.finished = list(finished.values())
        self.left = max(0, search.trials - len(finished) - elsewhere)

    def ask(self) -> Iterator[Trial]:
        """Ask Optuna for the trials that are left, each at the moment that it is wanted."""
        space = _distributions(self._search)
        while self.left > 0:
            self.left -= 1
            asked = self._study.ask(space)
            asked.set_user_attr(_OWNER, mark(psutil.Process()))
            yield self._trial(asked.params, asked.number)

    def tell(self, trial: Trial, row: Row) -> None:
        """Tell Optuna the trial's value, or that it has none."""
        from optuna.trial import TrialState

        assert trial.number is not None
        value = row.summary.get(self._search.metric)
        self._study.tell(trial.number, value, TrialState.FAIL if value is None else TrialState.COMPLETE)

    def _trial(self, chosen: Mapping[str, Any], number: int | None = None) -> Trial:
        space = self._search.space
        own = {key: value if isinstance(space[key], Between) else json.loads(value) for key, value in chosen.items()}
        return Trial({**self._settings, **own}, number=number)

    def _requeue(self, begun: "optuna.trial.FrozenTrial") -> None:
        from optuna.trial import TrialState

        self._study.tell(begun.number, state=TrialState.FAIL)
        if begun.params.keys() == self._search.space.keys():  # or it was killed while it was asked for
            self._study.enqueue_trial(begun.params)


def study_name(sweep: Sweep, search: Search, params: Params) -> str:
    """Name the study: an edited search begins one of its own, more trials of the same search go on with its study."""
    space = {key: asdict(where) for key, where in search.space.items()}
    compared = [sweep.content.settings, search.metric, search.direction, space, params.dataset]
    return f"{sweep.name}-{hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:8]}"


def _open(name: str, search: Search, params: Params) -> "optuna.Study":
    try:
        import optuna
    except ImportError:
        raise PipelineError("search: needs optuna; run `pip install 'primorl[sweep]'`") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    project_ledger(params).close()  # it makes the database's file, with access for its owner only
    url = ledger_url(params)
    wait = {"connect_args": {"timeout": _WAIT_SECONDS}} if url.startswith("sqlite") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(constant_liar=True)  # workers do not all look at the same place
    try:
        return optuna.create_study(
            storage=optuna.storages.RDBStorage(url, engine_kwargs=wait),
            study_name=name,
            sampler=sampler,
            direction=search.direction,
            load_if_exists=True,
        )
    except (SQLAlchemyError, RuntimeError) as broken:
        raise PipelineError(
            f"ledger.url: the study {name!r} cannot be kept in the ledger's database ({type(broken).__name__})"
        ) from None


def _distributions(search: Search) -> "dict[str, optuna.distributions.BaseDistribution]":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, where in search.space.items():
        if not isinstance(where, Between):
            found[key] = CategoricalDistribution([json.dumps(choice) for choice in where.choices])
        elif isinstance(where.low, int) and isinstance(where.high, int):
            found[key] = IntDistribution(where.low, where.high, log=where.log)
        else:
            found[key] = FloatDistribution(float(where.low), float(where.high), log=where.log)
    return found


TABLE = Path("rows.csv")
_SWEEP_TAG = "primorl.sweep"
_LONGEST_TAG = 500  # characters
_CODE = ("primorl/", "pipeline/")
_GONE = ("deleted", "not in cache")
_PAUSE_SECONDS = 0.1
_GRACE_SECONDS = 30.0  # a stage ends its MLflow run
_SLURM = ("--job-name=primorl", "--ntasks=1", "--time=2-0", "--quiet")
_REMEDY = "run `dvc repro partition` first: all trials of a sweep share its data"


def run_sweep(sweep: Sweep, *, workers: int | None, slurm: str | None = None) -> list[Row]:
    """Run all trials that have not finished; return the rows. If it is interrupted, no process is left.

    Args:
        sweep: the sweep.
        workers: trials at a time; None: as cores allow, on Slurm all.
        slurm: Slurm's partition; None: processes of this machine. The nodes share the project's file system and locks.
    """
    if slurm is not None and (not slurm.strip() or shutil.which("srun") is None):
        raise PipelineError(
            f"--slurm: found partition {slurm!r}, and srun {shutil.which('srun') or 'not on the PATH'}; run this where "
            "jobs of Slurm can be submitted and give a partition (`sinfo` lists them), or leave --slurm out"
        )
    unlink_left()
    search, folder = sweep.content.search, home() / SWEEPS / sweep.name
    with nullcontext(True) if search is None else locked(folder / "search.lock") as free:
        if not free:  # together they would run more trials than asked for
            raise PipelineError(f"{sweep.path}: another command runs this search; wait for it, or give it more workers")
        return _run_missing(sweep, workers, slurm, folder / TABLE)


def _run_missing(sweep: Sweep, workers: int | None, slurm: str | None, table: Path) -> list[Row]:
    params, search = load(), sweep.content.search
    study = None if search is None else Study(sweep, search, params)
    trials = expand(sweep) if study is None else study.finished
    check_trials(sweep, trials if search is None else [*trials, _any_trial(sweep, search)])
    before = {row.trial: row for row in finished_rows(table.parent)}
    rows = {trial.name: before[trial.name] for trial in trials if trial.name in before}
    missing = [trial for trial in trials if trial.name not in rows]
    left = len(missing) if study is None else study.left
    total, kept = len(rows) + left, list(rows)
    if left:
        check_fresh(params)
    count, threads = share_cores(workers, params.compute.threads, left)
    if slurm is not None:
        count, threads = workers or max(1, left), params.compute.threads or 1
    run, commit = _sweep_run(sweep.name, params), git_commit()
    file = sweep.path.name if sweep.path.is_absolute() else sweep.path

    def jobs() -> Iterator[Job]:
        for trial in missing if study is None else study.ask():
            yield Job(sweep.name, trial, threads, commit, f"primorl sweep {file}", _tags(run, sweep, trial))

    try:
        with progress_bar(total, sweep.name, "trial") as bar, closing(run_trials(jobs(), count, slurm)) as ended:
            bar.initial = bar.n = len(rows)
            for trial, row in ended:
                rows[trial.name] = row
                if study is not None:
                    study.tell(trial, row)
                bar.update()
                why = f": {row.error}" if row.error else ""
                words = f"{bar.n} of {total}: {trial.describe(sweep.keys)}: {row.status}{why}"
                bar.write(f"{sweep.name}: {words}", file=sys.stderr)
    finally:
        unlink_left()  # by trials whose processes were killed
        order = rows if study is not None else [trial.name for trial in trials if trial.name in rows]
        there = [rows[name] for name in order]
        finished = [row for row in there if row.finished]
        changed = _changes(sweep, finished)
        write_table(table, finished, changed)
        run.metric("finished", len(finished))
        run.artifact(table)
        run.end("FINISHED" if len(finished) >= total else "KILLED")  # the same command resumes it
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
            raise PipelineError(f"{sweep.path}: partition.{key}: unknown key; allowed are {', '.join(there)}")
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
    return [f"{name} ({how})" for name, how in sorted(found.items()) if not (name in outs and how in _GONE)]


def write_finished(path: Path, sweep: Sweep) -> int:
    """Write all finished trials as a table that marks those with other settings or data than now; count them."""
    rows = finished_rows(home() / SWEEPS / sweep.name)
    write_table(path, rows, _changes(sweep, rows))
    return len(rows)


def check_table_name(path: Path) -> None:
    """Refuse the name of a table that ends in neither ``.csv`` nor ``.parquet``."""
    if path.suffix not in (".csv", ".parquet"):
        raise PipelineError(f"{path}: found the ending {path.suffix!r}, allowed are .csv and .parquet")


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

        pq.write_table(pa.table({name: _one_type([line.get(name) for line in lines]) for name in columns}), fresh)


def _one_type(values: list[Any]) -> list[Any]:
    """Return values of one type, which Parquet needs: as they are, as float, or else as text."""
    types = {type(value) for value in values if value is not None}
    if len(types) <= 1:
        return values
    if types == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def share_cores(workers: int | None, threads: int | None, trials: int) -> tuple[int, int]:
    """Choose processes at a time and threads of each, which together take all cores.

    Without ``workers`` there are as many as ``threads`` of each leave room for, one by default, and as trials are left.
    """
    count = workers or max(1, min(trials, cores() // (threads or 1)))
    return count, max(1, cores() // count)


def run_trials(jobs: Iterator[Job], workers: int, slurm: str | None) -> Generator[tuple[Trial, Row]]:
    """Run trials, ``workers`` at a time, and yield each with its row when it ends.

    A job is taken when there is room for it. When the iterator is closed, no process is left.
    """
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    try:
        while True:
            while len(running) < workers and (job := next(jobs, None)) is not None:
                running.append((job, start_trial(job, slurm)))
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


def start_trial(job: Job, slurm: str | None) -> "subprocess.Popen[bytes]":
    """Start a trial in the project's folder: as a process of this machine, or as a job of a partition of Slurm.

    ``srun`` stays as long as its job; a signal that ends it cancels the job.
    """
    words = job.argv
    if slurm is not None:
        logs = home() / SWEEPS / job.sweep / "slurm"
        logs.mkdir(parents=True, exist_ok=True)
        asked = [f"--partition={slurm}", f"--cpus-per-task={job.threads}", f"--output={logs / '%j.log'}", *_SLURM]
        words = ["srun", *asked, *words]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL)


def _any_trial(sweep: Sweep, search: Search) -> Trial:
    ends = {key: at.low if isinstance(at, Between) else at.choices[0] for key, at in search.space.items()}
    return Trial({**sweep.content.settings, **ends})


def _changes(sweep: Sweep, rows: Sequence[Row]) -> dict[str, list[str]]:
    return {row.trial: changed_since(sweep.name, Trial(row.settings, row.case)) for row in rows}


def _sweep_run(name: str, params: Params) -> Log:
    """Open MLflow's run of a sweep in a project, which the runs of its trials are nested in."""
    mark = hashlib.sha256("\0".join([socket.gethostname(), str(home()), name]).encode()).hexdigest()[:16]

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
