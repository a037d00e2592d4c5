"""The sizes of the chunks that a cohort is trained in.

How many units a chunk has is one of a few numbers, which `primorl.training.independence` can try out one by one.

On a CPU a unit's update does not depend on which of them it is. On a GPU it may: libraries pick another kernel for
another number of matrices. There, a unit's chunk has a size that follows from its own length and from public numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from primorl.privacy.mechanism.plan import Plan
from primorl.training.local_update import LocalBatches
from primorl.training.networks import Network
from primorl.training.settings import LocalTraining

_MOST_ON_CPU = 64  # more units at once gain nothing, and all sizes up to here are tried out


@dataclass(frozen=True)
class Chunk:
    """Part of a cohort.

    Attributes:
        units: indices, ``[U]``; sensitive.
        size: units that the chunk is filled up to.
    """

    units: Tensor
    size: int


def cpu_sizes(chunk_bytes: int, bytes_of_a_unit: int) -> list[int]:
    """The sizes that a chunk may be filled up to on a CPU, ascending, where a unit takes so many bytes at least."""
    most = max(1, min(_MOST_ON_CPU, chunk_bytes // bytes_of_a_unit))
    return [size for size in range(1, most + 1) if _next_cpu_size(size) == size]


def cpu_chunks(cohort: Tensor, most: int, threads: int) -> list[Chunk]:
    """A cohort in order, in equal chunks of ``most`` units at most, as many for each of the ``threads``.

    Args:
        cohort: indices, ``[U]``.
        most: units of a chunk, one of `cpu_sizes`.
        threads: that work on chunks of their own.
    """
    if not len(cohort):
        return []
    turns = math.ceil(len(cohort) / (most * threads))
    units = math.ceil(len(cohort) / (turns * threads))
    if threads == 1 or units > most - most // 4:
        units = most  # what is left over makes one smaller chunk
    return [Chunk(part, _next_cpu_size(len(part))) for part in torch.split(cohort, units)]


def gpu_size(plan: Plan, chunk_bytes: int, bytes_of: Callable[[int], int], length: int) -> int:
    """Units of a GPU's chunk of units of one length: public numbers and that length determine it.

    Args:
        plan: whose qK is known; a usual cohort of this process fits into one chunk.
        chunk_bytes: the bound.
        bytes_of: bytes of a unit of so many transitions.
        length: of the units; rounded up to a power of two.
    """
    expected = plan.sampling_probability * len(plan.local_units)
    usual = next_size(math.ceil(expected + 3 * math.sqrt(expected)))
    fitting = max(1, chunk_bytes // bytes_of(1 << max(0, length - 1).bit_length()))
    return usual if usual <= fitting else 1 << (fitting.bit_length() - 1)


def gpu_chunks(
    cohort: Tensor, lengths: Tensor, plan: Plan, chunk_bytes: int, bytes_of: Callable[[int], int]
) -> list[Chunk]:
    """A cohort in chunks of `gpu_size`.

    Args:
        cohort: indices, ``[U]``, in order of length.
        lengths: transitions of each, ascending.
        plan: see `gpu_size`.
        chunk_bytes: see `gpu_size`.
        bytes_of: see `gpu_size`.
    """
    sizes = torch.tensor([gpu_size(plan, chunk_bytes, bytes_of, length) for length in lengths.tolist()])
    chunks = []
    for size in sorted(set(sizes.tolist())):
        chunks += [Chunk(part, size) for part in torch.split(cohort[(sizes == size).to(cohort.device)], size)]
    return chunks


def filled_up(batches: LocalBatches, units: int | None = None, *, steps: bool = True) -> LocalBatches:
    """The same batches and, behind them, units without rows; and steps without rows.

    Args:
        batches: of at least one unit and step.
        units: to so many; None: to the next of a few sizes.
        steps: whether steps too are filled up to the next of a few sizes.
    """
    held_steps, held_units = batches.weights.shape[:2]
    more_units = (next_size(held_units) if units is None else units) - held_units
    more_steps = next_size(held_steps) - held_steps if steps else 0
    if not more_units and not more_steps:
        return batches

    def filled(values: Tensor) -> Tensor:
        behind = [0, 0] * (values.dim() - 2)
        return pad(values, (*behind, 0, more_units, 0, more_steps))

    return LocalBatches(filled(batches.inputs), filled(batches.targets), filled(batches.weights))


def next_size(count: int) -> int:
    """The least of 1 … 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 … that is at least ``count``: at most a quarter more."""
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step


def bytes_of_a_unit(shape: Network, local: LocalTraining, transitions: int) -> int:
    """Buffers of one unit: weights, update, the update in float64, activations of one step, its rows; those read ahead.

    A row being read is there raw and normalised, with the random key and the places that made its order.
    """
    activations = 3 * sum(shape.hidden) + 8 * shape.targets + shape.inputs
    members = shape.members * local.batch_size * activations + 4 * shape.parameters
    row = shape.inputs + shape.targets + 1
    rows = local.local_epochs * transitions * (row + 2 * row + 6)
    return 4 * (members + rows)


def _next_cpu_size(count: int) -> int:
    """The least of 1 … 8, 12, 16, 20 … that is at least ``count``."""
    return count if count <= 8 else -(-count // 4) * 4
