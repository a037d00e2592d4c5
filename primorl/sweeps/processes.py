"""Start the trials of a sweep, several at a time: as processes of this machine, or as jobs of Slurm."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from primorl.project.errors import PipelineError
from primorl.project.processes import cores
from primorl.sweeps.file import Trial
from primorl.sweeps.folders import trial_folder
from primorl.sweeps.rows import Row, read_row
from primorl.sweeps.trial import Job, record_failure

if TYPE_CHECKING:
    import submitit

_PAUSE_SECONDS = 0.1
_GRACE_SECONDS = 30.0  # a stage ends its MLflow run
_LOST = 70  # a job that ended without an exit status of its own
_DAYS = 2
_SLURM = "slurm"


Process: TypeAlias = "subprocess.Popen[bytes] | SlurmProcess"
Start = Callable[[Job], Process]


def start_here(job: Job) -> Process:
    """Start a trial as a process of this machine, in the project's folder."""
    return subprocess.Popen(job.argv, stdin=subprocess.DEVNULL)


class SlurmProcess:
    """A submitted job, in the place of a process."""

    def __init__(self, job: "submitit.Job[Any]") -> None:
        self._job = job

    def poll(self) -> int | None:
        """Return the exit status of the trial's process; None while it waits or runs."""
        return self.wait() if self._job.done() else None

    def terminate(self) -> None:
        """Cancel the job."""
        self._job.cancel()

    kill = terminate

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, once there is one. A cancelled job is not waited for."""
        return 0 if self._job.exception() is None else _LOST


def slurm_start(partition: str, folder: Path, threads: int, cluster: str = _SLURM) -> Start:
    """Return a function that submits a trial as a job, through submitit.

    The project must lie on a file system that all nodes share, with locks.

    Args:
        partition: Slurm's.
        folder: of the sweep; logs of the jobs go below it.
        threads: cores of a job.
        cluster: submitit's name of an executor.

    Raises:
        PipelineError: the partition has no name, or submitit or Slurm is not installed.
    """
    if not partition.strip():
        raise PipelineError("--slurm: found an empty name; allowed is a partition of Slurm (`sinfo` lists them)")
    try:
        import submitit
    except ImportError:
        raise PipelineError(
            "--slurm: needs submitit, which is not installed; run `pip install 'primorl[slurm]'`"
        ) from None
    missing = [program for program in ("sbatch", "srun") if cluster == _SLURM and shutil.which(program) is None]
    if missing:
        raise PipelineError(
            f"--slurm: {missing[0]} is not on the PATH; run this where jobs of Slurm can be submitted, or without "
            "--slurm"
        )
    executor = submitit.AutoExecutor(folder=folder / "slurm", cluster=cluster)
    executor.update_parameters(
        name="primorl", slurm_partition=partition, cpus_per_task=threads, timeout_min=_DAYS * 24 * 60
    )

    def start(job: Job) -> SlurmProcess:
        return SlurmProcess(executor.submit(submitit.helpers.CommandFunction(job.argv, cwd=Path.cwd())))

    return start


def share_cores(workers: int | None, threads: int | None, trials: int) -> tuple[int, int]:
    """Choose processes at a time and threads of each, which together take all cores.

    Args:
        workers: that were asked for; None: as many as ``threads`` leave room for, one thread each by default.
        threads: ``compute.threads`` of params.yaml.
        trials: that are left; more workers would be idle.
    """
    count = workers or max(1, min(trials, cores() // (threads or 1)))
    return count, max(1, cores() // count)


def run_trials(
    ask: Callable[[], Trial | None],
    make_job: Callable[[Trial], Job],
    on_row: Callable[[Trial, Row], None],
    *,
    workers: int,
    start: Start,
) -> None:
    """Run trials until there are none left.

    Args:
        ask: returns the next trial; None: there is none.
        make_job: makes the job of a trial.
        on_row: called after every trial.
        workers: processes at a time.
        start: starts one.

    Raises:
        KeyboardInterrupt: it was interrupted; no process is left.
    """
    running: list[tuple[Job, Process]] = []
    try:
        while True:
            while len(running) < workers and (trial := ask()) is not None:
                job = make_job(trial)
                running.append((job, start(job)))
            if not running:
                return
            time.sleep(_PAUSE_SECONDS)
            for job, process in list(running):
                status = process.poll()
                if status is not None:
                    running.remove((job, process))
                    on_row(job.trial, _row_of(job, status))
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
    return record_failure(job, f"its process {how}")
