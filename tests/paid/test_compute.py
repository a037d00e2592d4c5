"""Which process this is, its share of cores and memory, and how many threads it takes."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from primorl.base.errors import PipelineError
from primorl.base.processes import is_worker
from primorl.config.blocks import Compute
from primorl.paid import compute
from primorl.paid.compute import Place
from tests.projects import ROOT

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def settings(**changes: Any) -> Compute:
    plain = {"device": "cpu", "memory_mb": None, "data_mb": None, "threads": None, "processes": 1}
    return Compute(**(plain | changes))


def test_who_this_process_is_comes_from_torchrun_or_from_params(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compute, "_cores", lambda: 6)
    assert Place.of(settings()) == Place()
    assert Place.of(settings(processes=3)) == Place(0, 3, 0, 3)
    assert Place.of(settings(processes=None)) == Place(0, 6, 0, 6)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert Place.of(settings()) == Place(3, 4, 1, 2, launched=True)
    assert is_worker()
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(
        PipelineError, match="environment: RANK is set, and of RANK, WORLD_SIZE, LOCAL_RANK"
    ):
        Place.of(settings())


def test_processes_of_a_machine_share_its_cores_memory_and_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(compute, "_cores", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    compute.chosen_device(settings(), Place(0, 8, 0, 4))
    compute.chosen_device(settings(threads=5), Place(0, 8, 0, 4))
    compute.chosen_device(settings())
    assert threads == [1, 5]
    assert compute.kept_bytes(settings(data_mb=8), Place(0, 8, 0, 4)) == 2 << 20
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    for place in (Place(), Place(1, 2, 0, 1), Place(1, 2, 1, 2), Place(3, 4, 3, 4)):
        assert compute.chosen_device(settings(device="auto"), place) == devices[-1]
    assert [device.index for device in devices] == [0, 0, 1, 1]


def test_openmp_and_mkl_are_told_how_to_work_before_torch_is_loaded() -> None:
    names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_CBWR")
    code = f"import os, sys, primorl; print(*map(os.environ.get, {names}), 'torch' in sys.modules)"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "10000 1 AUTO False\n"
