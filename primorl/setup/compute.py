"""Where a stage computes: the `compute` block of params.yaml, made real."""

import os
from dataclasses import dataclass

import psutil
import torch

from primorl.config.blocks import Compute
from primorl.project.errors import PipelineError
from primorl.training.settings import CHUNK_BYTES, Execution

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Place:
    """Which process this is among all that train together, and among those of this machine.

    ``launched``: torchrun has started the others.
    """

    process: int = 0
    processes: int = 1
    local_process: int = 0
    local_processes: int = 1
    launched: bool = False

    @classmethod
    def of(cls, compute: Compute) -> "Place":
        """As torchrun's variables say; without them the first of ``compute.processes``, which starts the others.

        Raises:
            PipelineError: some of the variables are missing or no numbers.
        """
        if _VARIABLES[0] not in os.environ:
            count = compute.processes or (torch.cuda.device_count() if _takes_gpu(compute) else _cores())
            return cls(processes=count, local_processes=count)
        try:
            process, processes, local, of_machine = (int(os.environ[name]) for name in _VARIABLES)
        except (KeyError, ValueError):
            raise PipelineError(
                f"environment: RANK is set, and of {', '.join(_VARIABLES)} one is missing or no number; start all "
                "processes with torchrun, or unset RANK"
            ) from None
        return cls(process, processes, local, of_machine, launched=True)

    @classmethod
    def of_training(cls, compute: Compute, variant: str) -> "Place":
        """The place for ``train_model``; variant mopo is trained by one process."""
        return cls() if variant == "mopo" else cls.of(compute)

    @property
    def own_gpu(self) -> bool:
        """Whether there is a GPU for each process of this machine."""
        return 0 < self.local_processes <= torch.cuda.device_count()


ALONE = Place()


def is_worker() -> bool:
    """Whether torchrun's variables say that this is not the first process."""
    return os.environ.get(_VARIABLES[0], "0") != "0"


def kept_bytes(compute: Compute, place: Place = ALONE) -> int:
    """How much of the rows this process may keep in memory: its share of ``data_mb``, or of half of what is free."""
    whole = compute.data_mb << 20 if compute.data_mb is not None else int(psutil.virtual_memory().available) // 2
    return whole // place.local_processes


def chosen_device(compute: Compute, place: Place = ALONE) -> torch.device:
    """Set the number of threads and return the device; ``auto`` takes a GPU where there is one.

    Several processes on a machine share its cores, and have a GPU each as far as they go.

    Raises:
        PipelineError: ``cuda`` was asked for and there is none.
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


def execution(compute: Compute, device: torch.device, place: Place = ALONE) -> Execution:
    """How rounds are computed on ``device``, which `chosen_device` chose.

    Rows are read ahead on a core that computes nothing, if there is one; beside a GPU there always is.
    """
    chunk_bytes = compute.memory_mb << 20 if compute.memory_mb is not None else CHUNK_BYTES[device.type]
    idle = _cores() - torch.get_num_threads() * place.local_processes
    return Execution(device, chunk_bytes, read_ahead=device.type == "cuda" or idle > 0)


def _takes_gpu(compute: Compute) -> bool:
    return compute.device != "cpu" and torch.cuda.is_available()


def _cores() -> int:
    """Processor cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))
