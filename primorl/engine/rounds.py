"""One round's sum of clipped updates: a fresh cohort, read and trained chunk by chunk under a memory bound.

Chunks have few sizes, so that `primorl.engine.rounds` can try out each. On a CPU a unit's update does not
depend on its chunk's size. On a GPU it may, where a library picks another kernel for another number of matrices. There,
the size follows from the unit's own length and from public numbers.
"""

import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.engine.local_update import CohortSource, Kernel, LocalBatches, local_batches, with_idle_units
from primorl.engine.setup import TrainingSetup
from primorl.model.ensemble import Normaliser, Weights

_MOST_ON_CPU = 64  # more units at once gain nothing


Chunk = tuple[Tensor, int]
"""Part of a cohort: indices of units, ``[U]``, sensitive, and how many units the chunk is filled up to."""


class Rounds:
    """Sums of a training's rounds, one after the other. Use it in a ``with`` block, which ends its threads.

    On a CPU each of torch's threads works on chunks of its own: an operation that two threads share is cut somewhere,
    and where decides the last bits of the unit that is cut. So the sum does not depend on the number of threads.

    Args:
        setup: the plan, which draws the cohorts and bounds the updates; the local steps; device and memory.
        source: the private units; one of its methods runs at a time.
        normaliser: of inputs and targets; released or public; on the setup's device.
    """

    def __init__(self, setup: TrainingSetup, source: CohortSource, normaliser: Normaliser) -> None:
        self._setup, self._source, self._normaliser = setup, source, normaliser
        self._threads = 0
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool, self._threads = None, 0

    def sum(self, weights: Weights) -> list[Tensor]:
        """Sum of the clipped updates of a fresh cohort, chunk by chunk, in float64. Sensitive.

        Args:
            weights: the released weights that every unit starts from.

        Raises:
            PipelineError: rows of this cohort could not be read.
        """
        threads = torch.get_num_threads() if self._setup.execution.device.type == "cpu" else 1
        pool = self._pool_of(threads)
        total = [torch.zeros(w.shape, dtype=torch.float64, device=w.device) for w in weights]
        begun: deque[Future[list[Tensor]]] = deque()

        def add_first() -> None:
            for whole, part in zip(total, begun.popleft().result(), strict=True):
                whole += part

        before = torch.get_num_threads()
        torch.set_num_threads(1)  # for the library of products, which counts threads for the whole process
        try:
            for units, size in self._chunks(threads):
                begun.append(pool.submit(self._sum, weights, self._read(units, size)))
                if len(begun) == threads:
                    add_first()
            while begun:
                add_first()
        finally:
            torch.set_num_threads(before)
        return total

    def late(self, number: int, weights: Weights) -> Tensor:
        """Sum of a query of this number, which is asked after the rounds, over all units; whole numbers. Sensitive."""
        query = list(self._setup.late_queries().values())[number]
        return query.total(self._source, self._normaliser, weights)

    def _chunks(self, threads: int) -> list[Chunk]:
        cohort = self._setup.plan.cohort()
        # Neighbours in length share a chunk: little padding. The sum does not care about the order.
        lengths, by_length = self._source.lengths(cohort).sort()
        most = self._setup.local.max_transitions_per_unit
        if most is not None:
            lengths = lengths.clamp(max=most)
        return chunks(self._setup, cohort[by_length.to(cohort.device)], lengths, threads)

    def _read(self, units: Tensor, size: int) -> LocalBatches:
        local, entropy = self._setup.local, self._setup.plan.entropy
        return with_idle_units(local_batches(self._source, units, self._normaliser, local, entropy), size)

    def _sum(self, weights: Weights, batches: LocalBatches) -> list[Tensor]:
        """Sum up one chunk on a thread of the pool, which has a kernel of its own."""
        if not hasattr(self._own, "kernel"):
            self._own.kernel = self._setup.kernel()
        total: list[Tensor] = self._own.kernel.sum(weights, batches, self._setup.plan.grid)
        return total

    def _pool_of(self, threads: int) -> ThreadPoolExecutor:
        """Threads that run their tensor operations on themselves alone."""
        if self._pool is not None and self._threads == threads:
            return self._pool
        self.__exit__()
        all_there = threading.Barrier(threads)

        def keep_to_itself() -> None:
            torch.get_num_threads()  # the first call takes over the number for all; from then on it is the thread's own
            torch.set_num_threads(1)

        before = torch.get_num_threads()
        self._pool, self._threads = ThreadPoolExecutor(threads, "chunk", keep_to_itself), threads
        for there in [self._pool.submit(all_there.wait) for _ in range(threads)]:
            there.result()
        torch.set_num_threads(before)  # for threads to come
        return self._pool


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
        found, of_length = lengths.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        sizes = torch.tensor([_gpu_size(setup, length) for length in found.tolist()])[of_length]
        parts = []
        for size in sorted(set(sizes.tolist())):
            same = cohort[(sizes == size).to(cohort.device)]
            parts += [(part, size) for part in torch.split(same, size)]
        return parts
    most = _cpu_sizes(setup, int(lengths[-1]))[-1]
    turns = math.ceil(len(cohort) / (most * threads))
    units = math.ceil(len(cohort) / (turns * threads))
    if threads == 1 or units > most - most // 4:
        units = most  # what is left over makes one smaller chunk
    return [(part, _filled_up(len(part))) for part in torch.split(cohort, units)]


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


_STEPS = 2


def check_setup(setup: TrainingSetup) -> None:
    """Train one made-up unit in every place of a chunk of every size that this training's rounds can have.

    Raises:
        PipelineError: two updates differ in a bit where they must not.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in rounds
    try:
        for sizes in chunk_sizes(setup):
            check_independence(setup.kernel(), sizes)
    finally:
        torch.set_num_threads(threads)


def check_independence(kernel: Kernel, sizes: Sequence[int]) -> None:
    """Train one made-up unit in every place of chunks of ``sizes`` units.

    Args:
        kernel: of the training.
        sizes: numbers of units of a chunk, among which a unit's update must not differ.

    Raises:
        PipelineError: two updates differ in a bit.
    """
    device = kernel.device
    start = tuple(w.to(device) for w in kernel.shape.initial_weights(0))
    expected: list[Tensor] = []
    for units in sizes:
        # How many steps follow a unit's last one depends on the longest unit of a chunk.
        updates = kernel.updates(start, _of_one_unit(kernel, units, _STEPS + units % 2))
        expected = expected or [update[0].clone() for update in updates]
        if not all(torch.equal(update, one.expand_as(update)) for update, one in zip(updates, expected, strict=True)):
            raise PipelineError(
                f"compute.device: on this machine ({device.type}), the last bits of one unit's update differ with the "
                f"units that are trained beside it (found for {units} of them), which the guarantee does not allow; "
                "train on another machine or with another build of torch"
            )


def _of_one_unit(kernel: Kernel, units: int, steps: int) -> LocalBatches:
    """Make the batches of ``units`` equal units: `_STEPS` steps, the last of half as many rows, and padding."""
    generator, rows = torch.Generator().manual_seed(0), kernel.local.batch_size
    inputs = torch.randn(_STEPS, 1, rows, kernel.shape.inputs, generator=generator)
    targets = torch.randn(_STEPS, 1, rows, kernel.shape.columns, generator=generator)
    weights = torch.full((_STEPS, 1, rows), 1 / rows)
    held = (rows + 1) // 2
    weights[-1] = (torch.arange(rows) < held) / held
    parts = []
    for values in (inputs, targets, weights):
        padding = values.new_zeros(steps - _STEPS, *values.shape[1:])
        parts.append(torch.cat((values, padding)).expand(-1, units, *values.shape[2:]).contiguous().to(kernel.device))
    return LocalBatches(*parts)
