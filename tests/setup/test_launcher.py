"""The processes of a training, each a real one: started, stopped, killed, hung, and left by the first."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from primorl.config import params as params_module
from primorl.config.params import Params
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.privacy.mechanism.plan import Plan
from primorl.project.errors import PipelineError
from primorl.setup import compute
from tests.pipeline.training_project import charged, statement, trained, with_changes, write_partitions
from tests.projects import write_settings
from tests.training.crew import CPU
from tests.trajectories.builders import episode

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(small: Params) -> Params:
    write_partitions([episode(1 + 7 * i % 30, i) for i in range(9)], [episode(20, 100 + i) for i in range(4)])
    return both(with_changes(small))


def both(params: Params, processes: int = 2) -> Params:
    raw = params_module.plain(params)
    raw["compute"]["processes"] = processes
    return write_settings(raw)


@pytest.fixture(autouse=True)
def earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "EARLIER", frozenset(psutil.Process().children()))


EARLIER: frozenset[psutil.Process] = frozenset()


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child not in EARLIER]


def test_two_processes_make_the_model_of_one(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for processes in (2, 1):
        certain = with_changes(
            data, privacy={"sampling_probability": 1.0}, dynamics={"variant": "no_privacy", "batch_size": 64}
        )
        trained(both(certain, processes))
        made.append(GaussianEnsemble.load(Path("models/dynamics"), CPU).weights)
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert children() == []
    assert "RANK" not in os.environ


def test_a_killed_process_costs_one_round_and_one_line(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = 0
    release = Plan.release

    def killing(self: Plan, total: Any) -> Any:
        nonlocal releases
        releases += 1
        released = release(self, total)
        if releases == 2:
            (worker,) = children()
            worker.kill()
        return released

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "release", killing)
        with pytest.raises(PipelineError, match=r"train_model: process 1 of 2 was killed by signal 9; a round") as lost:
            trained(data)
    assert "\n" not in str(lost.value)
    assert children() == []
    assert [charge.state for charge in charged(data)] == ["reserved"]
    assert not Path("models/dynamics").exists()
    trained(both(data, 1))
    (charge,) = charged(data)
    assert charge.state == "committed"
    assert statement()["rounds"] == 4
    assert json.loads(Path("models/dynamics/config.json").read_text())["rounds"] == 3, "one was lost, none made up for"


def test_nothing_private_is_opened_elsewhere_before_the_ledger_has_granted_it(
    data: Params, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = with_changes(data, privacy={"budget": {"epsilon": 0.01, "delta": 1e-3}})
    with pytest.raises(PipelineError, match="budget"):
        trained(both(refused))
    assert children() == []
    both(dataclasses.replace(data, seed=5))  # what the others read
    with pytest.raises(PipelineError, match="train_model: process 1 of 2 failed; a round"):
        trained(data)
    told = capfd.readouterr().err
    assert "error: process 1: params.yaml, data/partitions, .primorl/fits or the project's code differ" in told


LEADER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]])
time.sleep(600)
"""
WORKER = """
import os, time
from primorl.setup import compute
compute.begin_worker()
print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_no_process_outlives_the_first() -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER, WORKER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    worker = psutil.Process(int(leader.stdout.readline()))
    assert worker.is_running()
    leader.kill()
    leader.wait()
    psutil.wait_procs([worker], timeout=20)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_process_whose_first_was_gone_before_it_looked_ends() -> None:
    environment = {**os.environ, compute._LEADER: str(os.getppid())}
    worker = subprocess.Popen([sys.executable, "-c", WORKER], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        assert worker.wait(timeout=60) == 1
    finally:
        worker.kill()
        worker.communicate()


def test_a_start_that_fails_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = subprocess.Popen, []

    def failing(*arguments: Any, **options: Any) -> Any:
        if left:
            raise OSError("no more processes")
        left.append(start(*arguments, **options))
        return left[0]

    monkeypatch.setattr(compute.subprocess, "Popen", failing)
    with (
        pytest.raises(OSError, match="no more"),
        compute.started(3, [sys.executable, "-c", "import time; time.sleep(600)"]),
    ):
        pytest.fail("one of them was not started")
    assert left[0].returncode == -9
