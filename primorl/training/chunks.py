"""Sizes of the chunks that a cohort is trained in: few, so that `primorl.training.independence` can try out each.

On a CPU a unit's update does not depend on its chunk's size. On a GPU it may, where a library picks another kernel for
another number of matrices. There, the size follows from the unit's own length and from public numbers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.training.setup import TrainingSetup

_MOST_ON_CPU = 64  # more units at once gain nothing


@dataclass(frozen=True)
class Chunk:
    """Part of a cohort.

    Attributes:
        units: indices, ``[U]``; sensitive.
        size: units that the chunk is filled up to.
    """

    units: Tensor
    size: int


def chunk_sizes(setup: TrainingSetup) -> list[list[int]]:
    """Sizes of all chunks that the rounds of ``setup`` can have; within one list a unit's update must not differ."""
    if setup.execution.device.type == "cpu":
        return [_cpu_sizes(setup, 1)]
    return [[size] for size in {_gpu_size(setup, 1 << doublings) for doublings in range(31)}]


def chunks(setup: TrainingSetup, cohort: Tensor, lengths: Tensor, threads: int) -> list[Chunk]:
    """Cut a cohort into chunks that fit the bound on memory.

    On a CPU they are equally large, as many for each of the ``threads``.

    Args:
        setup: with the bound, the device and the plan.
        cohort: indices, ``[U]``, in order of length.
        lengths: transitions of each, ascending.
        threads: that work on chunks of their own.
    """
    if not len(cohort):
        return []
    if setup.execution.device.type != "cpu":
        sizes = torch.tensor([_gpu_size(setup, length) for length in lengths.tolist()])
        parts = []
        for size in sorted(set(sizes.tolist())):
            same = cohort[(sizes == size).to(cohort.device)]
            parts += [Chunk(part, size) for part in torch.split(same, size)]
        return parts
    most = _cpu_sizes(setup, int(lengths[-1]))[-1]
    turns = math.ceil(len(cohort) / (most * threads))
    units = math.ceil(len(cohort) / (turns * threads))
    if threads == 1 or units > most - most // 4:
        units = most  # what is left over makes one smaller chunk
    return [Chunk(part, _filled_up(len(part))) for part in torch.split(cohort, units)]


def _cpu_sizes(setup: TrainingSetup, transitions: int) -> list[int]:
    """Sizes of chunks on a CPU, ascending, of units with so many transitions."""
    most = min(_MOST_ON_CPU, _fitting(setup, transitions))
    return [size for size in range(1, most + 1) if _filled_up(size) == size]


def _filled_up(units: int) -> int:
    """The least of 1 … 8, 12, 16, 20 … that is at least ``units``."""
    return units if units <= 8 else -(-units // 4) * 4


def _gpu_size(setup: TrainingSetup, length: int) -> int:
    """Size of a GPU's chunk of units of one length, rounded up to a power of two.

    A usual cohort of this process fits into one chunk, if memory allows.
    """
    plan = setup.plan
    expected = plan.sampling_probability * len(plan.local_units)
    usual = math.ceil(expected + 3 * math.sqrt(expected))
    fitting = _fitting(setup, 1 << max(0, length - 1).bit_length())
    return usual if usual <= fitting else 1 << (fitting.bit_length() - 1)


def _fitting(setup: TrainingSetup, transitions: int) -> int:
    """Units of so many transitions that fit the bound on memory, at least one.

    Counted are the buffers of a unit: its weights, its update, also in float64, the activations of one step; its rows,
    raw and normalised, with the random keys that made their order, and those of the next chunk.
    """
    shape, local = setup.architecture, setup.local
    activations = 3 * sum(shape.hidden) + 8 * shape.targets + shape.inputs
    members = shape.members * local.batch_size * activations + 4 * shape.parameters
    row = shape.inputs + shape.targets + 1
    rows = local.local_epochs * transitions * (row + 2 * row + 6)
    return max(1, setup.execution.chunk_bytes // (4 * (members + rows)))
