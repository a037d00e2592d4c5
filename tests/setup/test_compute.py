"""Which process this is, its share of cores and memory, and how many threads it takes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.config.blocks import Compute
from primorl.project.errors import PipelineError
from primorl.setup import compute
from primorl.setup.compute import Place, ThreadChoice
from tests.training.crew import CPU


def settings(**changes: Any) -> Compute:
    plain = {"device": "cpu", "memory_mb": None, "data_mb": None, "threads": None, "processes": 1}
    return Compute(**(plain | changes))


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_who_this_process_is_comes_from_torchrun_or_from_params(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_cores", lambda: 6)
    assert Place.of(settings()) == Place()
    assert Place.of(settings(processes=3)) == Place(0, 3, 0, 3)
    assert Place.of(settings(processes=None)) == Place(0, 6, 0, 6)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert Place.of(settings()) == Place(3, 4, 1, 2, launched=True)
    assert compute.is_worker()
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(PipelineError, match="environment: RANK is set, and of RANK, WORLD_SIZE, LOCAL_RANK"):
        Place.of(settings())


def test_processes_of_a_machine_share_its_cores_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(compute, "_cores", lambda: 6)
    monkeypatch.setattr(compute.torch, "set_num_threads", seen.append)
    compute.chosen_device(settings(), Place(0, 8, 0, 4))
    compute.chosen_device(settings(threads=5), Place(0, 8, 0, 4))
    compute.chosen_device(settings())
    assert seen == [1, 5]
    assert compute.kept_bytes(settings(data_mb=8), Place(0, 8, 0, 4)) == 2 << 20


@pytest.mark.parametrize(
    ("place", "number"), [(Place(), 0), (Place(1, 2, 0, 1), 0), (Place(1, 2, 1, 2), 1), (Place(3, 4, 3, 4), 1)]
)
def test_a_gpu_has_a_number(monkeypatch: pytest.MonkeyPatch, place: Place, number: int) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    device = compute.chosen_device(settings(device="auto"), place)
    assert chosen == [device] == [torch.device("cuda", number)]


class Machine:
    """A machine whose products take as long as it is told, at a time that it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.threads, self.now, self.probes = most, 100.0, 0
        self.seconds = {1: 0.02, most: 0.01}
        monkeypatch.setattr(compute.torch, "get_num_threads", lambda: self.threads)
        monkeypatch.setattr(compute.torch, "set_num_threads", lambda threads: setattr(self, "threads", threads))
        monkeypatch.setattr(compute.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(compute, "_probe", self.probe)

    def probe(self, threads: int) -> float:
        self.probes += 1
        self.threads = threads
        self.now += self.seconds[threads]
        return self.seconds[threads]


def test_threads_follow_what_is_faster_now(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 4)
    choice = ThreadChoice(settings(), CPU)
    choice.update()
    assert machine.threads == 4
    machine.seconds[4] = 0.2
    choice.update()
    assert (machine.threads, machine.probes) == (4, 2), "it is too early to measure again"
    machine.now += 2.0
    choice.update()
    assert (machine.threads, machine.probes) == (1, 4)
    machine.seconds[4] = 0.01
    machine.now += 2.0
    choice.update()
    assert (machine.threads, machine.probes) == (1, 4), "a probe of 0.2 s is not repeated every two seconds"
    machine.now += 0.22 / 0.02
    choice.update()
    assert machine.threads == 4


WATCHED = """
import importlib, os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(*(os.environ.get(name) for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_CBWR")))
            sys.exit(0)
sys.meta_path.insert(0, Watch())
importlib.import_module(sys.argv[1])
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("module", "seen"),
    [(f"pipeline.{s}", "10000 1 AUTO") for s in ("train_model", "evaluate")] + [("torch", "None None None")],
)
def test_openmp_and_mkl_are_told_how_to_work_before_torch_is_loaded(module: str, seen: str) -> None:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", WATCHED, module], env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (seen, 0), done.stderr
