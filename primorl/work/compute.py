"""Device, threads and memory of a stage, as the `compute` block of params.yaml asks for them."""

import os

import torch

from primorl.base.errors import PipelineError
from primorl.base.processes import ONE_THREAD_UP_TO, place_among_processes
from primorl.config.blocks import Compute
from primorl.engine.settings import CHUNK_BYTES, Execution


def choose_device(compute: Compute) -> torch.device:
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
    """Return the device of `choose_device` for SAC.

    Small networks get one thread, unless params.yaml sets ``threads``.

    Up to 192 units a second thread saves a sixth of the time at best. Beyond, it saves a third and
    more (benchmarks/performance.md). The number is not changed during training, so that equal seeds
    give equal policies.
    """
    device = choose_device(compute)
    if compute.threads is None and width <= ONE_THREAD_UP_TO:
        torch.set_num_threads(1)
    return device


def choose_execution(compute: Compute) -> Execution:
    """Choose the device, the bound on a chunk's memory and the place of this process; see
    `choose_device`.
    """
    device = choose_device(compute)
    chunk_bytes = CHUNK_BYTES[device.type]
    if compute.memory_mb is not None:
        chunk_bytes = compute.memory_mb << 20
    return Execution(device, chunk_bytes, *place_among_processes())
