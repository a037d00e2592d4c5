"""Device, threads and memory of a stage, as the `compute` block of params.yaml asks for them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import torch

from primorl.base.errors import PipelineError
from primorl.base.processes import ONE_THREAD_UP_TO, place_among_processes
from primorl.base.reporting import exit_status
from primorl.config import params
from primorl.config.blocks import Compute
from primorl.config.params import Params
from primorl.engine.settings import CHUNK_BYTES, Execution
from primorl.engine.shards import Processes


def kept_bytes(compute: Compute) -> int:
    """Return how many bytes of rows this process may keep: its share of ``data_mb``, or of half the
    free memory.
    """
    half = int(psutil.virtual_memory().available) // 2
    whole = half if compute.data_mb is None else compute.data_mb << 20
    return whole // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def chosen_device(compute: Compute) -> torch.device:
    """Set the number of threads and return the device; ``auto`` takes a GPU if there is one.

    Of several processes on a machine, each has a GPU of its own if there are enough.

    Raises:
        PipelineError: if ``cuda`` was asked for and there is none.
    """
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    available = torch.cuda.is_available()
    if compute.device == "cuda" and not available:
        raise PipelineError(
            "params.yaml: compute.device: found cuda, but torch sees no GPU; use auto or cpu"
        )
    if compute.device == "cpu" or not available:
        return torch.device("cpu")
    place = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", place % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def policy_device(compute: Compute, width: int) -> torch.device:
    """Return the device of `chosen_device` for SAC.

    Small networks get one thread, unless params.yaml sets ``threads``.

    Up to 192 units a second thread saves a sixth of the time at best. Beyond, it saves a third and
    more (benchmarks/performance.md). The number is not changed during training, so that equal seeds
    give equal policies.
    """
    device = chosen_device(compute)
    if compute.threads is None and width <= ONE_THREAD_UP_TO:
        torch.set_num_threads(1)
    return device


def execution(compute: Compute) -> Execution:
    """Choose the device, the bound on a chunk's memory and the place of this process; see
    `chosen_device`.
    """
    device = chosen_device(compute)
    chunk_bytes = CHUNK_BYTES[device.type]
    if compute.memory_mb is not None:
        chunk_bytes = compute.memory_mb << 20
    return Execution(device, chunk_bytes, *place_among_processes())


@contextmanager
def joined(execution: Execution) -> Iterator[Processes | None]:
    """Yield the group of all processes, of which this is the first; None if there is no other
    process.

    Raises:
        PipelineError: a process ended or hangs.
    """
    if execution.ranks == 1:
        yield None
        return
    with Processes() as group:
        yield group


def run_worker(name: str, work: Callable[[Params], None]) -> int:
    """Run a stage's part in every process but the first, without an MLflow run or files; return the
    exit status.
    """
    return exit_status(name, lambda: work(params.load()), debug=False)
