"""One trial in one process: ``python -m primorl.sweeps.trial JOB``, in the project's folder; JOB is `Job` as JSON.

A trial's folder is a small project of its own. It shares the data, ledger, secret, fits, checkpoints and MLflow store
of the project it lies in. The stages run there one after the other. A row is left in any case, unless
it is interrupted.
"""

import contextlib
import csv
import hashlib
import json
import os
import runpy
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from primorl.base import paths
from primorl.base.errors import PipelineError
from primorl.base.files import (
    file_sha256,
    home,
    locked,
    read_json,
    replaced_file,
    waited_for,
    write_json,
)
from primorl.base.processes import environment, processor, when_parent_ends
from primorl.base.records import read_record, record, write_record
from primorl.base.reporting import INTERRUPTED
from primorl.config import params
from primorl.config.params import Params
from primorl.config.reading import read_yaml
from primorl.sweeps.file import Trial, with_settings

FILE, OUTPUT = Path("row.json"), Path("output.txt")
Status = Literal["finished", "refused", "failed"]
_ENDED = Path("stages.json")
_DATA = Path("data")
_PRIVACY = "privacy.json"
_SPEED = ("compute", "ledger", "tracking")  # blocks of params.yaml on which no result depends
_LAST_OF_DATA = "partition"
_REPORT = "report"
_stopped = (
    threading.Event()
)  # an interrupt in the middle of an import may come out as another error


@record
class Row:
    """``row.json``: one trial's settings and results."""

    sweep: Annotated[str, "Name of the sweep."]
    trial: Annotated[str, "Digest of the settings, the name of the trial's folder."]
    case: Annotated[str | None, "Name of the group of settings; `null`: the sweep has no cases."]
    settings: Annotated[dict[str, Any], "Settings by dotted key of params.yaml."]
    status: Annotated[Status, "refused: the ledger would not grant it, and nothing was run."]
    error: Annotated[str | None, "Why it is not finished, in one line."]
    summary: Annotated[
        dict[str, Any], "Content of metrics/summary.json; empty if it is not finished."
    ]
    curve: Annotated[
        list[float],
        "Mean return after each epoch; the value in the model where nothing can be measured.",
    ]
    machine: Annotated[str, "Processor, cores, versions."]
    commit: Annotated[str | None, "Commit of the code."]
    command: Annotated[str, "What runs the sweep again."]
    seconds: Annotated[float, "Wall time of the stages."]

    @property
    def finished(self) -> bool:
        """Whether the trial has results."""
        return self.status == "finished"

    def first(self, *names: str) -> float | None:
        """Return the first of these figures that the summary has."""
        return next(
            (self.summary[name] for name in names if self.summary.get(name) is not None), None
        )

    def flat(self) -> dict[str, Any]:
        """Return scalars by column: the settings, then the summary; ranges become two columns."""
        found: dict[str, Any] = {"sweep": self.sweep, "trial": self.trial, "case": self.case}
        for key, value in self.settings.items():
            found[key] = json.dumps(value) if isinstance(value, dict | list) else value
        summary = {key: value for key, value in self.summary.items() if key not in found}
        for key, value in summary.items():
            if key == "spent_on_dataset" and isinstance(value, dict):
                found[key] = value.get("epsilon")  # of all charges when the trial ended
            elif key == "void" and isinstance(value, list):
                found[key] = "; ".join(map(str, value)) or None
            elif (
                isinstance(value, list)
                and len(value) == 2
                and all(isinstance(end, int | float) for end in value)
            ):
                found[f"{key}_low"], found[f"{key}_high"] = value
            elif not isinstance(value, dict | list):
                found[key] = value
        machine = {"machine": self.machine, "commit": self.commit, "command": self.command}
        return found | {"curve": json.dumps(self.curve), "seconds": self.seconds} | machine


def read_row(folder: Path) -> Row | None:
    """Read the row in a trial's folder; None: there is none yet."""
    if not (folder / FILE).exists():
        return None
    return read_record(folder / FILE, Row, "remove it: the sweep runs the trial again")


def finished_rows(folder: Path) -> list[Row]:
    """Read all rows with results below a sweep's folder, by the names of the trials."""
    found = [read_row(file.parent) for file in sorted(folder.glob(f"*/{FILE}"))]
    return [row for row in found if row is not None and row.finished]


@dataclass(frozen=True)
class Job:
    """Description of a trial for its process; ``tags`` are those of its MLflow run, ``command`` goes into the row."""

    sweep: str
    trial: Trial
    threads: int
    commit: str | None
    command: str
    tags: dict[str, str]

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Read the last word of `argv`."""
        content = json.loads(text)
        return cls(**content | {"trial": Trial(**content["trial"])})

    @property
    def argv(self) -> list[str]:
        """Command that runs the job."""
        return [sys.executable, "-m", "primorl.sweeps.trial", json.dumps(asdict(self))]


def trial_folder(sweep: str, trial: Trial) -> Path:
    """Return a trial's folder; it need not exist."""
    return home() / paths.SWEEPS / sweep / trial.name


def lock_of(folder: Path) -> Path:
    """Return the lock file of a trial. It lies beside the folder, which may be deleted."""
    return folder.with_name(f"{folder.name}.lock")


def trial_params(trial: Trial) -> Params:
    """Read a trial's choices as its stages will read them; a refusal names the trial's keys."""
    return params.parse(_raw(trial), paths.PARAMS)


def stages() -> dict[str, list[str]]:
    """List the stages of ``dvc.yaml`` after ``partition``, without the report, as the words after ``python -m``."""
    found = {}
    for name, content in _split_pipeline()[1].items():
        if name == _REPORT:
            continue
        words = shlex.split(str(content.get("cmd")))
        if words[:2] != ["python", "-m"] or len(words) < 3:
            raise PipelineError(
                f"{paths.PIPELINE}: stages.{name}.cmd: found {content.get('cmd')!r}; a sweep runs `python -m MODULE`"
            )
        found[name] = words[2:]
    return found


def unlink_left() -> None:
    """Remove the links to the data that killed trials of any sweep have left."""
    for data in (home() / paths.SWEEPS).glob(f"*/*/{_DATA}"):
        with locked(lock_of(data.parent)) as free:
            if free:
                _unlink_data(data.parent)


def changed_since(sweep: str, trial: Trial) -> list[str]:
    """List changes since a trial ran: blocks of params.yaml, files of its dataset, the partitions."""
    then = _ended(trial_folder(sweep, trial)).get("made_by", {})
    try:
        now = _digests(_raw(trial))
    except PipelineError:  # params.yaml does not have its keys any more
        return [str(paths.PARAMS)]
    return [name for name, digest in now.items() if then.get(name, digest) != digest]


class TrialFolder:
    """A trial's folder, for the process that holds its lock.

    Attributes:
        path: of the folder.
        seconds: wall time of each stage that ran to its end, also in an earlier attempt.
    """

    def __init__(self, job: Job) -> None:
        """Make the folder, with params.yaml, dvc.yaml, datasets/ and a link to the data; to be called in the project.

        Outputs of an earlier attempt with the same code, settings and data stay. Anything else is deleted.
        """
        self.path = trial_folder(job.sweep, job.trial)
        raw = with_settings(_raw(job.trial), {"compute.threads": job.threads})
        pipeline = paths.PIPELINE.read_text(encoding="utf-8")
        self._made_by = _digests(raw) | {"code": _digest(f"{job.commit} {pipeline}")}
        ended = _ended(self.path)
        self.seconds: dict[str, float] = {}
        if ended.get("made_by") == self._made_by:
            self.seconds = ended["seconds"]
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        with replaced_file(self.path / paths.PARAMS) as fresh:
            fresh.write_text(
                yaml.safe_dump(raw, sort_keys=False, allow_unicode=True), encoding="utf-8"
            )
        shutil.copy(paths.PIPELINE, self.path / paths.PIPELINE)
        shutil.copytree(paths.DATASETS, self.path / paths.DATASETS, dirs_exist_ok=True)
        (self.path / paths.SECONDS).mkdir(parents=True, exist_ok=True)
        for stage in _split_pipeline()[0]:  # whose seconds later stages read
            if paths.seconds_of(stage).exists():
                shutil.copy(paths.seconds_of(stage), self.path / paths.SECONDS)
        _unlink_data(self.path)
        (self.path / _DATA).symlink_to(_DATA.resolve(), target_is_directory=True)

    def check_same_data(self) -> None:
        """Refuse, in the trial's folder, other partitions than those that the trial began with.

        Otherwise a model of the old people would be asked about the new ones.
        """
        if _digest_of_data() != self._made_by[str(paths.PARTITIONS)]:
            raise PipelineError(
                f"{paths.PARTITIONS}: made anew while the trial ran; run the sweep again"
            )

    def record_end(self, stage: str, seconds: float) -> None:
        """Record that a stage ran to its end."""
        self.seconds[stage] = round(seconds, 1)
        write_json(self.path / _ENDED, {"made_by": self._made_by, "seconds": self.seconds})


def main(words: list[str]) -> int:
    """Run the trial of a job; end when the process that started this one ends.

    Returns 0 if there is a row now, 130 if it was interrupted.
    """
    when_parent_ends(os.getppid(), _stop)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run(Job.from_json(words[0]))
    except KeyboardInterrupt:
        return INTERRUPTED


def run(job: Job) -> int:
    """Run a trial, or wait for the process that runs it already; see `main`."""
    folder = trial_folder(job.sweep, job.trial)
    before = read_row(folder)
    with waited_for(lock_of(folder)):
        known = read_row(folder)
        if known is not None and (known.finished or known != before):
            return 0
        (folder / FILE).unlink(missing_ok=True)
        try:
            trial = TrialFolder(job)
            with _inside(folder, job):
                status, error = _run_stages(trial)
        except (PipelineError, OSError) as wrong:
            status, error = "failed", str(wrong)
        finally:
            _unlink_data(folder)
        if status is None or _stopped.is_set():
            return INTERRUPTED
        write_row(job, status, error)
    return 0


def _torch() -> str:
    with contextlib.suppress(PackageNotFoundError):
        return f", torch {version('torch')}"
    return ""


def write_row(job: Job, status: Status, error: str | None) -> Row:
    """Write the trial's row; ``privacy.json`` is copied beside it."""
    folder = trial_folder(job.sweep, job.trial)
    summary: dict[str, Any] = {}
    curve: list[float] = []
    if status == "finished":
        summary = read_json(folder / paths.SUMMARY)
        with (folder / paths.CURVES).open(encoding="utf-8", newline="") as text:
            curve = [
                float(line["return_mean"] or line["model_value"]) for line in csv.DictReader(text)
            ]
        policy = paths.MOPO if trial_params(job.trial).dynamics.variant == "mopo" else paths.POLICY
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
        machine=f"{processor()}{_torch()}, {job.threads} of {os.cpu_count()} cores",
        commit=job.commit,
        command=job.command,
        seconds=round(sum(_ended(folder).get("seconds", {}).values()), 1),
    )
    write_record(folder / FILE, row)
    return row


def ask_ledger() -> None:
    """Raise `Refused` if the ledger would not grant the charges of the stages for params.yaml in this folder."""
    from absl import logging

    from primorl.paid.bill import check_next

    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    check_next(params.load())


def _run_stages(trial: TrialFolder) -> tuple[Status | None, str | None]:
    """Ask the ledger, then run the stages. The status is None where the trial was interrupted."""
    from primorl.privacy.ledger.history import Refused

    try:
        ask_ledger()
        for stage, words in stages().items():
            if stage in trial.seconds:
                continue
            trial.check_same_data()
            started = time.perf_counter()
            status = _run_stage(words)
            if status == INTERRUPTED:
                return None, None
            if status != 0:
                said = _last_error() or f"{stage}: exit status {status}"
                ask_ledger()  # two trials that fit alone may not fit together: the later one was refused
                return "failed", said
            trial.record_end(stage, time.perf_counter() - started)
    except Refused as refused:
        return "refused", str(refused)
    return "finished", None


def _run_stage(words: list[str]) -> int:
    """Run a stage's module as ``python -m`` does, in this process; return its exit status."""
    before, sys.argv = sys.argv, words
    try:
        runpy.run_module(words[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before
        signal.signal(signal.SIGTERM, _interrupt)
    return 0


@contextlib.contextmanager
def _inside(folder: Path, job: Job) -> Iterator[None]:
    """Work in the trial's folder, with the project as home; output of the stages goes to `OUTPUT` there."""
    from primorl.privacy.ledger.charges import WAIT
    from primorl.tracking import RUN_TAGS

    with (
        environment({"DVC_ROOT": str(home()), RUN_TAGS: json.dumps(job.tags), WAIT: "1"}),
        contextlib.chdir(folder),
        OUTPUT.open("w", encoding="utf-8", buffering=1) as text,
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
    ):
        yield


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


def _ended(folder: Path) -> dict[str, Any]:
    return read_json(folder / _ENDED) if (folder / _ENDED).exists() else {}


def _raw(trial: Trial) -> dict[str, Any]:
    raw = read_yaml(paths.PARAMS, "a sweep changes keys of it")
    return with_settings(raw if isinstance(raw, dict) else {}, trial.settings)


def _digests(raw: dict[str, Any]) -> dict[str, str]:
    """Digest the inputs of a trial's results: blocks of params.yaml, files of its dataset, the partitions."""
    found = {
        key: _digest(json.dumps(value, sort_keys=True))
        for key, value in raw.items()
        if key not in _SPEED
    }
    for name in ("defaults", raw.get("dataset")):
        file = paths.DATASETS / f"{name}.yaml"
        found[str(file)] = _digest(file.read_text(encoding="utf-8") if file.exists() else "")
    return found | {str(paths.PARTITIONS): _digest_of_data()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of_data() -> str:
    return file_sha256(paths.MANIFEST) if paths.MANIFEST.exists() else ""


def _split_pipeline() -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the stages of dvc.yaml: those up to ``partition``, and those after it."""
    content = read_yaml(paths.PIPELINE, "it lists the stages")
    listed = content.get("stages") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or _LAST_OF_DATA not in listed:
        raise PipelineError(
            f"{paths.PIPELINE}: stages.{_LAST_OF_DATA}: missing; a sweep runs the stages after it"
        )
    names = list(listed)
    end = names.index(_LAST_OF_DATA) + 1
    return {name: listed[name] for name in names[:end]}, {
        name: listed[name] for name in names[end:]
    }


def _unlink_data(folder: Path) -> None:
    """Remove the link to the data, or rows that were copied in its place."""
    data = folder / _DATA
    if data.is_symlink():
        data.unlink()
    elif data.is_dir():
        shutil.rmtree(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
