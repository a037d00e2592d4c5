"""The device, the memory and the place of this process."""

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from primorl.base.processes import choose_device, is_worker
from primorl.config.params import Compute
from primorl.stages.training import choose_execution
from primorl.work.desk import rows_in_memory
from tests.projects import ROOT

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}


CPU = Compute(device="cpu")


def test_torchrun_says_which_process_this_is_and_what_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 << 20))
    alone = choose_execution(CPU)
    assert (alone.rank, alone.ranks, is_worker()) == (0, 1, False)
    assert rows_in_memory() == 8 << 20
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    shared = choose_execution(CPU)
    assert (shared.rank, shared.ranks, is_worker()) == (3, 4, True)
    assert rows_in_memory() == 2 << 20
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert choose_device("auto") == torch.device("cuda", 1)


def test_openmp_and_mkl_are_told_how_to_work_before_torch_is_loaded() -> None:
    names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_CBWR")
    code = f"import os, sys, primorl; print(*map(os.environ.get, {names}), 'torch' in sys.modules)"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "10000 1 AUTO False\n"
