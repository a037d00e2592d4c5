"""Which process this is, and its share of cores and memory."""

from typing import Any

import pytest
import torch

from primorl.config.params import Compute
from primorl.project.errors import PipelineError
from primorl.setup import compute
from primorl.setup.compute import Place
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


@pytest.mark.parametrize(("threads", "processes", "ahead"), [(1, 1, True), (5, 1, True), (6, 1, False), (3, 2, False)])
def test_rows_are_read_ahead_where_a_core_is_left(
    monkeypatch: pytest.MonkeyPatch, threads: int, processes: int, ahead: bool
) -> None:
    """Beside a compute that takes every core, reading ahead takes turns from it; beside a GPU there always is one."""
    monkeypatch.setattr(compute, "_cores", lambda: 6)
    monkeypatch.setattr(compute.torch, "get_num_threads", lambda: threads)
    place = Place(0, 2 * processes, 0, processes)
    assert compute.execution(settings(), CPU, place).read_ahead is ahead
    assert compute.execution(settings(), torch.device("cuda"), place).read_ahead
    assert compute.execution(settings(memory_mb=3), CPU, place).chunk_bytes == 3 << 20


@pytest.mark.parametrize(
    ("place", "number"), [(Place(), 0), (Place(1, 2, 0, 1), 0), (Place(1, 2, 1, 2), 1), (Place(3, 4, 3, 4), 1)]
)
def test_a_gpu_has_a_number(monkeypatch: pytest.MonkeyPatch, place: Place, number: int) -> None:
    """`torch.cuda.set_device`, which a group calls too, refuses one without: no machine of one GPU could join."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    device = compute.chosen_device(settings(device="auto"), place)
    assert chosen == [device] == [torch.device("cuda", number)]
