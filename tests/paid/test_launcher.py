"""The processes of a training, each a real one: started, stopped, killed, and left by the first."""

import json
import multiprocessing
import os
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from primorl.base.errors import PipelineError
from primorl.config.params import Params, plain
from primorl.paid import compute
from primorl.privacy.mechanism.plan import Plan
from tests.data.builders import episode
from tests.pipeline.training_project import (
    edited,
    statement,
    states,
    trained,
    with_changes,
    write_partitions,
)
from tests.projects import write_settings

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def data(small: Params) -> Params:
    write_partitions(
        [episode(1 + 7 * i % 30, i) for i in range(9)], [episode(20, 100 + i) for i in range(4)]
    )
    return both(with_changes(small))


def both(params: Params, processes: int = 2) -> Params:
    """Settings for so many processes, also in the file that the others read."""
    return write_settings(plain(edited(params, compute={"processes": processes})))


def workers() -> list[psutil.Process]:
    """Processes of this one's that train; a process of another test may be a zombie, which has no command."""
    found = [
        child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE
    ]
    return [child for child in found if "pipeline.train_model" in child.cmdline()]


def test_a_killed_process_costs_one_round_and_one_line(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases: list[Any] = []
    release = Plan.release

    def killing(self: Plan, total: Any) -> Any:
        releases.append(release(self, total))
        if len(releases) == 2:
            (lost,) = workers()
            lost.kill()
        return releases[-1]

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "release", killing)
        with pytest.raises(
            PipelineError, match=r"process 1 of 2 was killed by signal 9; a round[^\n]*$"
        ):
            trained(data)
    assert workers() == []
    assert states(data) == ["reserved"]
    assert not Path("models/dynamics").exists()
    trained(both(data, 1))
    assert states(data) == ["committed"]
    assert statement()["rounds"] == 4
    assert json.loads(Path("models/dynamics/config.json").read_text())["rounds"] == 3, (
        "one was lost, none made up for"
    )


def test_nothing_private_is_opened_elsewhere_first(
    data: Params, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = both(with_changes(data, privacy={"budget": {"epsilon": 0.01, "delta": 1e-3}}))
    with monkeypatch.context() as patched:
        patched.setattr(compute, "started", lambda *_: pytest.fail("processes were started"))
        with pytest.raises(PipelineError, match="budget"):
            trained(refused)
    both(replace(data, seed=5))  # what the others read
    with pytest.raises(PipelineError, match="train_model: process 1 of 2 failed; a round"):
        trained(data)
    told = capfd.readouterr().err
    assert (
        "error: process 1: params.yaml, data/partitions, .primorl/fits or the project's code differ"
        in told
    )


def worker(told: Connection) -> None:
    compute.begin_worker()
    told.send(os.getpid())
    time.sleep(600)


def leader(told: Connection) -> None:
    FORK.Process(target=worker, args=(told,)).start()
    time.sleep(600)


def test_no_process_outlives_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = FORK.Pipe()
    first = FORK.Process(target=leader, args=(there,))
    first.start()
    second = psutil.Process(here.recv())
    assert second.is_running()
    first.kill()
    psutil.wait_procs([second], timeout=20)
    assert not second.is_running() or second.status() == psutil.STATUS_ZOMBIE
    monkeypatch.setenv(compute._LEADER, str(os.getppid()))
    late = FORK.Process(target=worker, args=(there,))
    late.start()
    late.join(20)
    assert late.exitcode == 1
