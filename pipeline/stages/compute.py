"""Where a stage computes: the `compute` block of params.yaml, made real."""

import psutil
import torch

from pipeline.errors import PipelineError
from pipeline.params import Compute


def kept_bytes(compute: Compute) -> int:
    """How much of the private rows may stay in memory: ``data_mb``, or half of what is free."""
    if compute.data_mb is not None:
        return compute.data_mb << 20
    return int(psutil.virtual_memory().available) // 2


def chosen_device(compute: Compute) -> torch.device:
    """Set the number of threads and return the device; ``auto`` takes a GPU where there is one.

    Raises:
        PipelineError: ``cuda`` was asked for and there is none.
    """
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise PipelineError("params.yaml: compute.device: found cuda, but torch sees no GPU; use auto or cpu")
    if compute.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(compute.device)
