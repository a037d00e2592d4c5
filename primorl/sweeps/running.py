"""Run trials, several at a time, each in a process of its own, until there are none left."""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from primorl.project.files import locked
from primorl.project.processes import cores
from primorl.sweeps.folders import lock_of, trial_folder
from primorl.sweeps.rows import Row, read_row
from primorl.sweeps.trial import BUSY, Job, failed
from primorl.sweeps.trials import Trial

_PAUSE_SECONDS = 0.1
_GRACE_SECONDS = 30.0  # a stage ends its MLflow run


class Process(Protocol):
    """A started process, as `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""

    def kill(self) -> None:
        """End it."""


Start = Callable[[Job], Process]


class Source(Protocol):
    """Where trials come from."""

    def ask(self) -> Trial | None:
        """The next trial; None: there is none at the moment, or none any more."""

    def tell(self, trial: Trial, row: Row) -> None:
        """What became of a trial."""


class Grid:
    """A fixed list of trials, first to last."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = deque(trials)

    def ask(self) -> Trial | None:
        """The next trial of the list."""
        return self._left.popleft() if self._left else None

    def tell(self, trial: Trial, row: Row) -> None:
        """Nothing: a grid does not learn."""


def start_here(job: Job) -> Process:
    """Start a trial as a process of this machine, in the project's folder."""
    command = [sys.executable, "-m", "primorl.sweeps.trial", job.to_json()]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def run_trials(
    source: Source,
    make_job: Callable[[Trial], Job],
    *,
    workers: int,
    start: Start,
    on_row: Callable[[Trial, Row], None],
) -> None:
    """Run all trials of a source. A trial that another process runs is waited for.

    Args:
        source: of the trials.
        make_job: what a process is told of a trial.
        workers: processes at a time.
        start: starts one.
        on_row: called after every trial.

    Raises:
        KeyboardInterrupt: it was interrupted; no process is left.
    """
    running: list[tuple[Job, Process]] = []
    elsewhere: list[Job] = []
    before: dict[str, Row | None] = {}

    def end(job: Job, row: Row) -> None:
        source.tell(job.trial, row)
        on_row(job.trial, row)

    try:
        while True:
            again = []
            for job in [job for job in elsewhere if _is_free(job)]:
                elsewhere.remove(job)
                row = _row_of(job)
                if row is not None and row != before[job.trial.name]:
                    end(job, row)  # the other process has run it
                else:
                    again.append(job)
            while len(running) < workers:
                if again:
                    job = again.pop()
                elif (trial := source.ask()) is not None:
                    job = make_job(trial)
                else:
                    break
                before[job.trial.name] = _row_of(job)
                running.append((job, start(job)))
            elsewhere += again
            if not running and not elsewhere:
                return
            time.sleep(_PAUSE_SECONDS)
            ended = [(job, process, status) for job, process in running if (status := process.poll()) is not None]
            for job, process, status in ended:
                running.remove((job, process))
                if (left := _left_by(job, status)) is None:
                    elsewhere.append(job)
                else:
                    end(job, left)
    finally:
        _end([process for _, process in running])


def shares(workers: int | None, threads: int | None, trials: int) -> tuple[int, int]:
    """Processes at a time and threads of each, which together take all cores.

    Args:
        workers: that were asked for; None: as many as ``threads`` leave room for, one thread each by default.
        threads: ``compute.threads`` of params.yaml.
        trials: that are left; more workers would be idle.
    """
    count = workers or max(1, min(trials, cores() // (threads or 1)))
    return count, max(1, cores() // count)


def _is_free(job: Job) -> bool:
    with locked(lock_of(job.sweep, job.trial)) as free:
        return free


def _row_of(job: Job) -> Row | None:
    return read_row(trial_folder(job.sweep, job.trial))


def _left_by(job: Job, status: int) -> Row | None:
    """The row of a trial whose process has ended; None: another process has the trial."""
    with locked(lock_of(job.sweep, job.trial)) as free:
        if not free or status == BUSY:
            return None
        row = _row_of(job)
        if row is not None and (row.finished or status == 0):
            return row
        return failed(job, _how(status))


def _how(status: int) -> str:
    return f"its process was killed by signal {-status}" if status < 0 else f"its process ended with status {status}"


def _end(processes: Sequence[Process]) -> None:
    """Ask processes to end, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
