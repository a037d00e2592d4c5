"""One trial in one process: ``python -m primorl.sweeps.trial JOB``, in the project's folder; JOB is `Job` as JSON.

The stages run one after the other in the trial's folder, with the project's ledger, secret, fits, checkpoints and
MLflow store. A row is left whatever becomes of the trial, unless it is interrupted.
"""

import contextlib
import json
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from primorl.project.errors import PipelineError
from primorl.project.files import home, locked, read_json
from primorl.project.paths import CURVES, MOPO, POLICY, SUMMARY
from primorl.project.processes import environment, processor, when_parent_ends
from primorl.project.reporting import INTERRUPTED
from primorl.sweeps.folders import OUTPUT, Stage, TrialFolder, lock_of, stages, trial_folder, trial_params
from primorl.sweeps.rows import FILE, Row, Status, read_row, write_row
from primorl.sweeps.trials import Trial

BUSY = 75
"""Exit status where another process runs the same trial."""
_PRIVACY = "privacy.json"
_stopped = threading.Event()  # an interrupt in the middle of an import may come out as another error
Ask = Callable[[], None]
"""Raises `Refused` if the ledger would not grant what the stages charge, as params.yaml in this folder has it."""


@dataclass(frozen=True)
class Job:
    """What a process needs to run a trial.

    Attributes:
        sweep: its name.
        trial: the settings.
        threads: of the process.
        commit: of the code.
        command: for the row.
        tags: of the trial's MLflow run.
    """

    sweep: str
    trial: Trial
    threads: int
    commit: str | None
    command: str
    tags: dict[str, str]

    def to_json(self) -> str:
        """All of it as one word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """What `to_json` made."""
        content = json.loads(text)
        return cls(**content | {"trial": Trial(**content["trial"])})


def main(words: list[str]) -> int:
    """Run the trial of a job; end when the process that started this one ends.

    Returns:
        0 if there is a row now, `BUSY` if another process runs it, 130 if it was interrupted.
    """
    when_parent_ends(os.getppid(), _stop)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run(Job.from_json(words[0]), _ask)
    except KeyboardInterrupt:
        return INTERRUPTED


def run(job: Job, ask: Ask) -> int:
    """`main`, with the question to the ledger as a function."""
    folder = trial_folder(job.sweep, job.trial)
    with locked(lock_of(job.sweep, job.trial)) as free:
        if not free:
            return BUSY
        known = read_row(folder)
        if known is not None and known.finished:
            return 0
        (folder / FILE).unlink(missing_ok=True)
        trial = TrialFolder(job.sweep, job.trial, job.threads, job.commit)
        try:
            trial.lay()
            with _inside(folder, job) as output:
                status, error = _run(trial, ask, output)
        except (PipelineError, OSError) as wrong:
            status, error = "failed", str(wrong)
        finally:
            trial.unlink()
        if status is None or _stopped.is_set():
            return INTERRUPTED
        folder.mkdir(parents=True, exist_ok=True)
        write_row(folder, _row(job, folder, status, error, trial.seconds))
    return 0


def failed(job: Job, error: str) -> Row:
    """The row of a trial whose process could not leave one."""
    folder = trial_folder(job.sweep, job.trial)
    folder.mkdir(parents=True, exist_ok=True)
    row = _row(job, folder, "failed", error, 0.0)
    write_row(folder, row)
    return row


def _run(trial: TrialFolder, ask: Ask, output: Path) -> tuple[Status | None, str | None]:
    """Ask the ledger, then run the stages. The status is None where the trial was interrupted."""
    from primorl.privacy.ledger.requests import Refused

    try:
        ask()
        for stage in stages():
            if trial.has_ended(stage):
                continue
            trial.check_same_data()
            started = time.perf_counter()
            status = _run_stage(stage)
            if status == INTERRUPTED:
                return None, None
            if status != 0:
                said = _last_error(output) or f"{stage.name}: exit status {status}"
                ask()  # two trials that fit alone may not fit together: the later one was refused
                return "failed", said
            trial.ended(stage, time.perf_counter() - started)
    except Refused as refused:
        return "refused", str(refused)
    return "finished", None


def _run_stage(stage: Stage) -> int:
    """Run a stage's module as ``python -m`` does, in this process; return its exit status."""
    before, sys.argv = sys.argv, [stage.module, *stage.words]
    try:
        runpy.run_module(stage.module, run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before
        signal.signal(signal.SIGTERM, _interrupt)
    return 0


@contextlib.contextmanager
def _inside(folder: Path, job: Job) -> Iterator[Path]:
    """Work in the trial's folder, with the project as home; what the stages print goes to a file there."""
    from primorl.privacy.ledger.charges import WAIT
    from primorl.tracking import RUN_TAGS

    own = {"DVC_ROOT": str(home()), RUN_TAGS: json.dumps(job.tags), WAIT: "1"}
    output = folder / OUTPUT
    with (
        environment(own),
        contextlib.chdir(folder),
        output.open("w", encoding="utf-8", buffering=1) as text,
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
    ):
        yield output


def _ask() -> None:
    from absl import logging

    from primorl.config import params
    from primorl.setup.next_charges import check_next

    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    check_next(params.load())


def _row(job: Job, folder: Path, status: Status, error: str | None, seconds: float) -> Row:
    """The trial's row; ``privacy.json`` is copied beside it."""
    summary: dict[str, Any] = {}
    curve: list[float] = []
    if status == "finished":
        summary, curve = read_json(folder / SUMMARY), _curve(folder / CURVES)
        policy = MOPO if trial_params(job.trial).dynamics.variant == "mopo" else POLICY
        shutil.copy(folder / policy / _PRIVACY, folder / _PRIVACY)
    return Row(
        sweep=job.sweep,
        trial=job.trial.name,
        case=job.trial.case,
        settings=dict(job.trial.settings),
        status=status,
        error=error,
        summary=summary,
        curve=curve,
        machine=machine(job.threads),
        commit=job.commit,
        command=job.command,
        seconds=seconds,
    )


def _curve(file: Path) -> list[float]:
    """Mean returns by epoch, or values in the model where nothing was measured."""
    import csv

    with file.open(encoding="utf-8", newline="") as text:
        return [float(line["return_mean"] or line["model_value"]) for line in csv.DictReader(text)]


def machine(threads: int) -> str:
    """Processor, cores, torch's version and threads, in one line."""
    from importlib.metadata import PackageNotFoundError, version

    model = processor()
    with contextlib.suppress(PackageNotFoundError):
        model += f", torch {version('torch')}"
    return f"{model}, {threads} of {os.cpu_count()} cores"


def _last_error(output: Path) -> str | None:
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return found[-1] if found else None


def _stop() -> None:
    """Interrupt this process: a killed sweep leaves no trial behind."""
    _stopped.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(signal_number: int, frame: object) -> None:
    _stopped.set()
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
