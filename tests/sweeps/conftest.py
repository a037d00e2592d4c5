"""A project whose stages do next to nothing, and trials in forked processes."""

import os
import subprocess
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.config.params import Params
from primorl.sweeps import sweeping
from primorl.sweeps import trial as trials
from primorl.sweeps.file import Sweep, Trial, read_sweep
from primorl.sweeps.trial import Job, run
from tests.data.builders import episode
from tests.pipeline.training_project import write_partitions
from tests.projects import project_settings, write_settings
from tests.sweeps.stages import RAN

STAGES = {
    "partition": {"cmd": "python -m pipeline.partition"},
    "train": {"cmd": "python -m tests.sweeps.stages train"},
    "evaluate": {"cmd": "python -m tests.sweeps.stages evaluate"},
}
# Settings of a model that the two private units can train.
MODEL = {
    "privacy.target_epsilon": None,
    "privacy.noise_multiplier": 1.0,
    "privacy.sampling_probability": 0.5,
    "privacy.rounds": 4,
    "privacy.delta": 1e-3,
    "dynamics.hidden": [8],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """A project with partitions of two private units and one public."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    params = write_settings(project_settings() | {"dataset": "small"})
    write_partitions([episode(4, 0), episode(5, 1)], [episode(3, 2)])
    Path("metrics/seconds").mkdir(parents=True)
    Path("metrics/seconds/partition.json").write_text("{}")
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": STAGES}, sort_keys=False))
    return params


class NoRun:
    """In the place of the sweep's MLflow run, whose tables take seconds to make."""

    run_id, status = "", ""

    def metric(self, *_: object) -> None: ...

    def artifact(self, _: Path) -> None: ...

    def end(self, status: str) -> None:
        NoRun.status = status


class Forked:
    """A trial in a forked process: it has imported everything already."""

    def __init__(self, job: Job) -> None:
        self.process = get_context("fork").Process(target=lambda: os._exit(run(job)))
        self.process.start()
        self.terminate, self.kill = self.process.terminate, self.process.kill

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a trial", timeout or 0)
        return self.process.exitcode


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No MLflow, no imports, and a ledger that grants everything."""
    monkeypatch.setattr(sweeping, "_sweep_run", lambda *_: NoRun())
    monkeypatch.setattr(sweeping, "start_trial", Forked)
    monkeypatch.setattr(trials, "ask_ledger", lambda: None)


def sweep_of(content: Mapping[str, Any], name: str = "tiny") -> Sweep:
    Path(f"{name}.yaml").write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return read_sweep(Path(f"{name}.yaml"))


def job_of(trial: Trial, commit: str = "c0ffee", threads: int = 1) -> Job:
    return Job("tiny", trial, threads, commit, "primorl sweep tiny.yaml", {})


def ran() -> list[str]:
    """Stages that ran, with the trial's seed."""
    return (
        [line.rpartition(" ")[0] for line in RAN.read_text().splitlines()] if RAN.exists() else []
    )
