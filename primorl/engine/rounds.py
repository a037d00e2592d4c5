"""Sum the clipped updates of a round: draw a cohort, and read and train it in chunks under a memory
bound.

The guarantee needs a unit's update to be independent of the units beside it, to the last bit. On a
CPU it does not depend on the chunk's size. On a GPU it may, where a library picks another kernel
for another number of matrices; there, the size follows from the unit's own length and from public
numbers. Chunks have few sizes, and `check_setup` tests each of them before a training.
"""

import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor

from primorl.base import PipelineError
from primorl.engine import local_update
from primorl.engine.setup import TrainingSetup
from primorl.model.ensemble import Normaliser, Weights
from primorl.model.numerics import flatten, map_in_threads, start_pool

_MOST_ON_CPU, _CACHED_ON_CPU = 64, 6_000_000  # more units at once gain nothing; nor more bytes
_FEWEST_ON_CPU = 8  # of fewer units each operation is too short
_ROWS_ON_CPU = 32768  # of one product of linear heads
_LEAST_ROWS = 8
_TEST_STEPS = 2  # of the made-up unit in `check_setup`


class Chunk(NamedTuple):
    """Part of a cohort: indices of units, ``[U]``, sensitive; the number of units that padding
    fills it up to; and the rows of a batch.
    """

    units: Tensor
    size: int
    rows: int


class Rounds:
    """Compute the sums of a training's rounds, one after the other.

    A ``with`` block ends its threads.

    On a CPU each thread works on whole chunks. Where two threads share one operation, the place
    where torch splits it changes the last bits of a unit's update. Whole chunks make the sum
    independent of the number of threads.

    Args:
        setup: the mechanism, which draws the cohorts and bounds the updates; the local steps;
            device and memory.
        source: the private units; one of its methods runs at a time.
        normaliser: of inputs and targets; released or public; on the setup's device.
    """

    def __init__(
        self, setup: TrainingSetup, source: local_update.CohortSource, normaliser: Normaliser
    ) -> None:
        self._setup, self._source, self._normaliser = setup, source, normaliser
        cpu = setup.execution.device.type == "cpu"
        self._threads = torch.get_num_threads() if cpu else 1
        self._pool = start_pool(self._threads)
        self._of_thread = threading.local()  # a kernel for each thread of the pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def sum(self, weights: Tensor) -> Tensor:
        """Sum the clipped updates of a fresh cohort, float64 ``[d]``. Sensitive.

        Args:
            weights: the released weights that every unit starts from, ``[d]`` (`flatten`).

        Raises:
            PipelineError: rows of this cohort could not be read.
        """
        total = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        train = partial(self._sum_chunk, self._setup.shape(weights))
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # the BLAS library counts threads for the whole process
        try:
            # Chunks are read here, one after the other, while the threads train those that were
            # read before.
            batches = map(self._read_chunk, self._draw_chunks())
            for part in map_in_threads(self._pool, self._threads, train, batches):
                total += part
        finally:
            torch.set_num_threads(before)
        return total

    def _draw_chunks(self) -> list[Chunk]:
        """Draw a cohort, and cut those of its units that this process holds into chunks."""
        execution, local = self._setup.execution, self._setup.local
        cohort = self._setup.mechanism.cohort()
        cohort = cohort[cohort % execution.ranks == execution.rank] // execution.ranks
        lengths = self._source.lengths(cohort)
        if local.max_transitions_per_unit is not None:
            lengths = lengths.clamp(max=local.max_transitions_per_unit)
        # Units of as many steps share a chunk, which needs little padding then; of them those that
        # are neighbours on disk, so that a page is read for few chunks. The order does not
        # change the sum.
        rows = torch.tensor(_all_rows(self._setup), device=lengths.device)
        steps = -(-lengths // local.batch_size)
        if len(rows) > 1:
            steps = torch.searchsorted(rows, lengths)
        order = steps.sort(stable=True).indices
        cohort = cohort[order.to(cohort.device)]
        return cut_chunks(self._setup, cohort, lengths[order], self._threads)

    def _read_chunk(self, chunk: Chunk) -> local_update.LocalBatches:
        """Read the rows of a chunk's units, and add idle units up to its size."""
        setup = self._setup
        batches = local_update.read_batches(
            self._source,
            chunk.units,
            setup.local,
            setup.mechanism.entropy,
            setup.execution.device,
            chunk.rows,
        )
        return local_update.add_idle_units(batches, chunk.size)

    def _sum_chunk(self, weights: Weights, batches: local_update.LocalBatches) -> Tensor:
        """Sum the clipped updates of one chunk on a thread of the pool, which has a kernel of its
        own.

        Rows are standardised here: features take most of the memory and time of a round of linear
        heads.
        """
        if not hasattr(self._of_thread, "kernel"):
            self._of_thread.kernel = self._setup.kernel()
        kernel: local_update.Kernel = self._of_thread.kernel
        rows = batches.standardise(self._normaliser)
        return flatten(kernel.sum(weights, rows, self._setup.mechanism.grid))


def chunk_sizes(setup: TrainingSetup) -> list[tuple[int, list[int]]]:
    """List the rows of a batch, each with the sizes of its chunks, among which no unit's update may
    differ.
    """
    if setup.execution.device.type == "cpu":
        return [(rows, _cpu_sizes(setup, 1, rows)) for rows in _all_rows(setup)]
    sizes = {
        (rows, _gpu_size(setup, 1 << doublings, rows))
        for rows in _all_rows(setup)
        for doublings in range(31)
    }
    return [(rows, [size]) for rows, size in sorted(sizes)]


def cut_chunks(setup: TrainingSetup, cohort: Tensor, lengths: Tensor, threads: int) -> list[Chunk]:
    """Cut a cohort into chunks that fit the bound on memory.

    On a CPU they are equally large, and each thread gets the same number. On a GPU the size follows
    from the length. Where a unit takes one step on all of its rows, units of about equal length
    have a batch of few rows.

    Args:
        setup: with the bound, the device and the mechanism.
        cohort: indices, ``[U]``, in order of the number of local steps or of the rows of a batch.
        lengths: transitions of each.
        threads: that work on chunks of their own.
    """
    chunks: list[Chunk] = []
    rows_of_batches = _all_rows(setup)
    fewer = torch.tensor(rows_of_batches[:-1], device=lengths.device)
    ends = torch.searchsorted(lengths, fewer, right=True).tolist()
    first = 0
    for rows, last in zip(rows_of_batches, [*ends, len(lengths)], strict=True):
        if last > first:
            chunks += _cut(setup, cohort[first:last], lengths[first:last], rows, threads)
        first = last
    return chunks


def _cut(
    setup: TrainingSetup, cohort: Tensor, lengths: Tensor, rows: int, threads: int
) -> list[Chunk]:
    """Cut units with batches of ``rows`` rows into chunks."""
    if setup.execution.device.type != "cpu":
        distinct, index = lengths.unique(return_inverse=True)
        sizes = torch.tensor([_gpu_size(setup, length, rows) for length in distinct.tolist()])
        of_units, chunks = sizes[index], []
        for size in sorted(set(of_units.tolist())):
            same_size = cohort[(of_units == size).to(cohort.device)]
            chunks += [Chunk(part, size, rows) for part in torch.split(same_size, size)]
        return chunks
    largest = _cpu_sizes(setup, int(lengths.max()), rows)[-1]
    chunks_per_thread = math.ceil(len(cohort) / (largest * threads))
    units = math.ceil(len(cohort) / (chunks_per_thread * threads))
    if threads == 1 or units > largest - largest // 4:
        units = largest  # the remainder makes one smaller chunk
    return [Chunk(part, _padded_size(len(part)), rows) for part in torch.split(cohort, units)]


def _all_rows(setup: TrainingSetup) -> list[int]:
    """List the numbers of rows of a batch, ascending: powers of two from 8 on where units take one
    step on all rows.
    """
    most = setup.local.batch_size
    if not setup.local.one_batch:
        return [most]
    rows = [_LEAST_ROWS]
    while rows[-1] < most:
        rows.append(2 * rows[-1])
    return [*rows[:-1], most]


def _cpu_sizes(setup: TrainingSetup, transitions: int, rows: int) -> list[int]:
    """List the sizes of chunks on a CPU, ascending, of units with at most ``transitions``
    transitions.
    """
    if local_update.takes_one_product(setup.architecture, setup.local):
        most = max(_MOST_ON_CPU, _ROWS_ON_CPU // rows)
    else:  # weights and updates of a chunk stay in the processor's cache
        cached = _CACHED_ON_CPU // (8 * setup.architecture.parameters)
        most = min(_MOST_ON_CPU, max(_FEWEST_ON_CPU, cached))
    largest = min(most, _units_that_fit(setup, transitions, rows))
    return [size for size in range(1, largest + 1) if _padded_size(size) == size]


def _padded_size(units: int) -> int:
    """Round ``units`` up to the next of 1, 2, …, 8, 12, 16, 20, …, 64, 128, 192, …."""
    grain = 1 if units <= 8 else 4 if units <= 64 else 64
    return -(-units // grain) * grain


def _gpu_size(setup: TrainingSetup, length: int, rows: int) -> int:
    """Compute the size of a GPU's chunk from the units' length, rounded up to a power of two.

    A usual cohort of this process fits into one chunk, if memory allows.
    """
    expected = setup.mechanism.expected_cohort / setup.execution.ranks
    usual_cohort = math.ceil(expected + 3 * math.sqrt(expected))
    limit = _units_that_fit(setup, 1 << max(0, length - 1).bit_length(), rows)
    return usual_cohort if usual_cohort <= limit else 1 << (limit.bit_length() - 1)


def _units_that_fit(setup: TrainingSetup, transitions: int, batch: int) -> int:
    """Compute how many units of so many transitions fit the bound on memory, at least one.

    A unit needs memory for its weights, its update (float32 and float64) and the activations of one
    step. Its rows need memory raw, normalised, with the random keys of their order, and once more
    for the next chunk, which is read ahead. Features are made when a chunk is trained: of all of
    its steps, and copied, unless there is one product.
    """
    shape, local = setup.architecture, setup.local
    activations = 3 * sum(shape.hidden) + 8 * shape.targets + shape.inputs
    members = shape.members * batch * activations + 4 * shape.parameters
    row, made = shape.inputs + shape.targets + 1, 0
    if shape.features is not None:
        row += shape.features.inputs - shape.inputs
        made = 0 if local_update.takes_one_product(shape, local) else 2 * shape.inputs
    rows = local.local_epochs * max(transitions, batch) * (row + 2 * row + 6 + made)
    return max(1, setup.execution.chunk_bytes // (4 * (members + rows)))


def check_setup(setup: TrainingSetup) -> None:
    """Train one made-up unit in every place of a chunk of every size that this training's rounds
    can have, if it is private.

    Raises:
        PipelineError: two updates differ in a bit where they must not.
    """
    if not setup.mechanism.is_private:
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in rounds
    try:
        for rows, sizes in chunk_sizes(setup):
            check_independence(setup.kernel(), sizes, rows)
    finally:
        torch.set_num_threads(threads)


def check_independence(kernel: local_update.Kernel, sizes: Sequence[int], rows: int) -> None:
    """Train one made-up unit in every place of chunks of ``sizes`` units.

    Args:
        kernel: of the training.
        sizes: numbers of units of a chunk, among which a unit's update must not differ.
        rows: of a batch.

    Raises:
        PipelineError: two updates differ in a bit.
    """
    device = kernel.device
    start = tuple(w.to(device) for w in kernel.shape.initial_weights(0))
    expected: list[Tensor] = []
    for units in sizes:
        # The longest unit of a chunk decides how many steps of padding the others have: try none
        # and one.
        steps = 1 if kernel.one_product else _TEST_STEPS + units % 2
        updates = kernel.updates(start, _equal_units(kernel, units, rows, steps))
        expected = expected or [update[0].clone() for update in updates]
        if not all(
            torch.equal(update, one.expand_as(update))
            for update, one in zip(updates, expected, strict=True)
        ):
            raise PipelineError(
                f"compute.device: on this machine ({device.type}) one unit's update depends on "
                f"those beside it (found for {units}); use another machine or build of torch"
            )


def _equal_units(
    kernel: local_update.Kernel, units: int, rows: int, steps: int
) -> local_update.LocalBatches:
    """Make batches of ``units`` equal units: `_TEST_STEPS` steps, the last with half the rows, then
    padding.
    """
    generator, own = torch.Generator().manual_seed(0), min(steps, _TEST_STEPS)
    inputs = torch.randn(own, 1, rows, kernel.shape.inputs, generator=generator)
    targets = torch.randn(own, 1, rows, kernel.shape.columns, generator=generator)
    weights = torch.full((own, 1, rows), 1 / rows)
    held = (rows + 1) // 2
    weights[-1] = (torch.arange(rows) < held) / held
    parts = []
    for values in (inputs, targets, weights):
        padding = values.new_zeros(steps - own, *values.shape[1:])
        parts.append(
            torch.cat((values, padding))
            .expand(-1, units, *values.shape[2:])
            .contiguous()
            .to(kernel.device)
        )
    return local_update.LocalBatches(*parts)
