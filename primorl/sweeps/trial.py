"""One trial in one process: ``python -m primorl.sweeps.trial JOB``, in the project's folder; JOB is `Job` as JSON.

The stages run one after the other in the trial's folder, with the project's ledger, secret, fits, checkpoints and
MLflow store. A row is left whatever becomes of the trial, unless it is interrupted.
"""

import contextlib
import csv
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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from primorl.project.errors import PipelineError
from primorl.project.files import home, read_json, waited_for
from primorl.project.paths import CURVES, MOPO, POLICY, SUMMARY
from primorl.project.processes import environment, processor, when_parent_ends
from primorl.project.reporting import INTERRUPTED
from primorl.sweeps.file import Trial
from primorl.sweeps.folders import Stage, TrialFolder, lock_of, stages, trial_folder, trial_params, unlink_data
from primorl.sweeps.rows import FILE, Row, Status, read_row, write_row

OUTPUT = Path("output.txt")
_PRIVACY = "privacy.json"
_stopped = threading.Event()  # an interrupt in the middle of an import may come out as another error
Ask = Callable[[], None]
"""Raises `Refused` if the ledger would not grant what the stages charge, as params.yaml in this folder has it."""


@dataclass(frozen=True)
class Job:
    """What a process needs to run a trial; ``tags`` are those of its MLflow run, ``command`` goes into the row."""

    sweep: str
    trial: Trial
    threads: int
    commit: str | None
    command: str
    tags: dict[str, str]

    def to_json(self) -> str:
        """Write the job as one word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Read what `to_json` wrote."""
        content = json.loads(text)
        return cls(**content | {"trial": Trial(**content["trial"])})

    @property
    def argv(self) -> list[str]:
        """Command that runs the job."""
        return [sys.executable, "-m", "primorl.sweeps.trial", self.to_json()]


def main(words: list[str]) -> int:
    """Run the trial of a job; end when the process that started this one ends.

    Returns:
        0 if there is a row now, 130 if it was interrupted.
    """
    when_parent_ends(os.getppid(), _stop)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run(Job.from_json(words[0]), _ask_ledger)
    except KeyboardInterrupt:
        return INTERRUPTED


def run(job: Job, ask: Ask) -> int:
    """Run a trial, or wait for the process that runs it already; see `main`."""
    folder = trial_folder(job.sweep, job.trial)
    before = read_row(folder)
    with waited_for(lock_of(folder)):
        known = read_row(folder)
        if known is not None and (known.finished or known != before):
            return 0
        (folder / FILE).unlink(missing_ok=True)
        trial = TrialFolder(job.sweep, job.trial, job.threads, job.commit)
        try:
            trial.prepare()
            with _inside(folder, job):
                status, error = _run_stages(trial, ask)
        except (PipelineError, OSError) as wrong:
            status, error = "failed", str(wrong)
        finally:
            unlink_data(folder)
        if status is None or _stopped.is_set():
            return INTERRUPTED
        _write(job, status, error, trial.seconds)
    return 0


def record_failure(job: Job, error: str) -> Row:
    """Write the row of a trial whose process could not leave one."""
    return _write(job, "failed", error, 0.0)


def _run_stages(trial: TrialFolder, ask: Ask) -> tuple[Status | None, str | None]:
    """Ask the ledger, then run the stages. The status is None where the trial was interrupted."""
    from primorl.privacy.ledger.history import Refused

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
                said = _last_error() or f"{stage.name}: exit status {status}"
                ask()  # two trials that fit alone may not fit together: the later one was refused
                return "failed", said
            trial.record_end(stage, time.perf_counter() - started)
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
def _inside(folder: Path, job: Job) -> Iterator[None]:
    """Work in the trial's folder, with the project as home; what the stages print goes to `OUTPUT` there."""
    from primorl.privacy.ledger.charges import WAIT
    from primorl.tracking import RUN_TAGS

    own = {"DVC_ROOT": str(home()), RUN_TAGS: json.dumps(job.tags), WAIT: "1"}
    with (
        environment(own),
        contextlib.chdir(folder),
        OUTPUT.open("w", encoding="utf-8", buffering=1) as text,
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
    ):
        yield


def _ask_ledger() -> None:
    from absl import logging

    from primorl.config import params
    from primorl.setup.next_charges import check_next

    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    check_next(params.load())


def _write(job: Job, status: Status, error: str | None, seconds: float) -> Row:
    """Write the trial's row; ``privacy.json`` is copied beside it."""
    folder = trial_folder(job.sweep, job.trial)
    folder.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {}
    curve: list[float] = []
    if status == "finished":
        summary = read_json(folder / SUMMARY)
        with (folder / CURVES).open(encoding="utf-8", newline="") as text:
            curve = [float(line["return_mean"] or line["model_value"]) for line in csv.DictReader(text)]
        policy = MOPO if trial_params(job.trial).dynamics.variant == "mopo" else POLICY
        shutil.copy(folder / policy / _PRIVACY, folder / _PRIVACY)
    row = Row(
        sweep=job.sweep,
        trial=job.trial.name,
        case=job.trial.case,
        settings=dict(job.trial.settings),
        status=status,
        error=error,
        summary=summary,
        curve=curve,
        machine=_machine(job.threads),
        commit=job.commit,
        command=job.command,
        seconds=seconds,
    )
    write_row(folder, row)
    return row


def _machine(threads: int) -> str:
    model = processor()
    with contextlib.suppress(PackageNotFoundError):
        model += f", torch {version('torch')}"
    return f"{model}, {threads} of {os.cpu_count()} cores"


def _last_error() -> str | None:
    lines = OUTPUT.read_text(encoding="utf-8", errors="replace").splitlines()
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
