"""Device, threads and memory of a stage: what the `compute` block of params.yaml asks for."""

import os
import time
from dataclasses import dataclass

import psutil
import torch

from primorl.config.blocks import Compute
from primorl.project.errors import PipelineError
from primorl.project.processes import cores
from primorl.training.settings import CHUNK_BYTES, Execution

_ONE_THREAD_UP_TO = 192
_PROBE_PRODUCTS = 40
_PROBE_EVERY_SECONDS, _PROBE_SHARE = 2.0, 0.02  # probes take at most this share of the time
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Place:
    """Which process this is among all that train together, and among those of this machine.

    Attributes:
        process: its number, from 0.
        processes: of all machines.
        local_process: its number on this machine.
        local_processes: of this machine.
        launched: whether torchrun started the other processes.
    """

    process: int = 0
    processes: int = 1
    local_process: int = 0
    local_processes: int = 1
    launched: bool = False

    @classmethod
    def of(cls, compute: Compute) -> "Place":
        """Read torchrun's variables; without them, this is process 0 of ``compute.processes`` and starts the others.

        Raises:
            PipelineError: if some of the variables are missing or not numbers.
        """
        if _VARIABLES[0] not in os.environ:
            count = compute.processes or (torch.cuda.device_count() if _takes_gpu(compute) else _cores())
            return cls(processes=count, local_processes=count)
        try:
            process, processes, local, of_machine = (int(os.environ[name]) for name in _VARIABLES)
        except (KeyError, ValueError):
            raise PipelineError(
                f"environment: RANK is set, and of {', '.join(_VARIABLES)} one is missing or not a number; start all "
                "processes with torchrun, or unset RANK"
            ) from None
        return cls(process, processes, local, of_machine, launched=True)


ALONE = Place()


def is_worker() -> bool:
    """Whether torchrun's variables say that this is not the first process."""
    return os.environ.get(_VARIABLES[0], "0") != "0"


def kept_bytes(compute: Compute, place: Place = ALONE) -> int:
    """Bytes of rows that this process may keep in memory: its share of ``data_mb``, or of half the free memory."""
    whole = compute.data_mb << 20 if compute.data_mb is not None else int(psutil.virtual_memory().available) // 2
    return whole // place.local_processes


def chosen_device(compute: Compute, place: Place = ALONE) -> torch.device:
    """Set the number of threads and return the device; ``auto`` takes a GPU if there is one.

    Several processes on a machine share its cores, and each has a GPU of its own if there are enough.

    Raises:
        PipelineError: if ``cuda`` was asked for and there is none.
    """
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    elif place.local_processes > 1:
        torch.set_num_threads(max(1, _cores() // place.local_processes))
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise PipelineError("params.yaml: compute.device: found cuda, but torch sees no GPU; use auto or cpu")
    if not _takes_gpu(compute):
        return torch.device("cpu")
    device = torch.device("cuda", place.local_process % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def policy_device(compute: Compute, width: int) -> torch.device:
    """The device of `chosen_device` for SAC. Small networks get one thread, unless params.yaml sets ``threads``.

    Up to 192 units a second thread saves a sixth of the time at best. Beyond, it saves a third and more
    (docs/benchmarks.md). The number is not changed during training, so that equal seeds give equal policies.
    """
    device = chosen_device(compute)
    if compute.threads is None and width <= _ONE_THREAD_UP_TO:
        torch.set_num_threads(1)
    return device


class ThreadChoice:
    """Keeps torch at one thread or at all of this process's threads, whichever is faster at the moment.

    The threads of a product wait for each other at its end. On an idle machine two threads halve the time of a round.
    Where other processes keep the cores busy, one thread of the two waits for its core at every product, and a round
    takes several times as long as with one thread. So a few products of random numbers are timed now and then.

    The number of threads changes rounding errors of a sum and nothing else. It is chosen without any data, and only
    for the private rounds, whose result is random anyway: seeded work keeps its number of threads.

    Args:
        compute: the settings; with ``threads`` set, that number stays.
        device: where the rounds run; on a GPU the number stays as well.
    """

    def __init__(self, compute: Compute, device: torch.device) -> None:
        self._most = torch.get_num_threads()
        self._fixed = compute.threads is not None or device.type != "cpu" or self._most == 1
        self._due = 0.0

    def update(self) -> None:
        """Measure again if it is time to; call it between rounds, on the thread that computes them."""
        started = time.monotonic()
        if self._fixed or started < self._due:
            return
        seconds = {threads: _probe(threads) for threads in (1, self._most)}
        torch.set_num_threads(min(seconds, key=lambda threads: seconds[threads]))
        now = time.monotonic()
        self._due = now + max(_PROBE_EVERY_SECONDS, (now - started) / _PROBE_SHARE)


def _probe(threads: int) -> float:
    """Seconds that a few batched products of a usual size take with so many threads."""
    torch.set_num_threads(threads)
    rows, weights = torch.ones(64, 16, 64), torch.ones(64, 64, 64)
    torch.bmm(rows, weights)  # starts the threads
    started = time.perf_counter()
    for _ in range(_PROBE_PRODUCTS):
        torch.bmm(rows, weights)
    return time.perf_counter() - started


def execution(compute: Compute, place: Place) -> Execution:
    """Choose the device and the bound on a chunk's memory for the rounds of a training; see `chosen_device`."""
    device = chosen_device(compute, place)
    chunk_bytes = compute.memory_mb << 20 if compute.memory_mb is not None else CHUNK_BYTES[device.type]
    return Execution(device, chunk_bytes)


def _takes_gpu(compute: Compute) -> bool:
    return compute.device != "cpu" and torch.cuda.is_available()


def _cores() -> int:
    usable = cores()
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))
