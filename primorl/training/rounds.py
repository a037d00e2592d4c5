"""One round's sum of clipped updates: a fresh cohort, read and trained chunk by chunk under a memory bound."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Self

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Weights
from primorl.dynamics.normaliser import Normaliser
from primorl.training.chunks import Chunk, bytes_of_a_unit, cpu_chunks, cpu_sizes, filled_up, gpu_chunks
from primorl.training.cohort import CohortSource, local_batches
from primorl.training.cuda_graph import SumOfUpdates
from primorl.training.local_update import LocalBatches, ensemble_clip
from primorl.training.setup import TrainingSetup

_Promise = Callable[[], tuple[LocalBatches | None, Sequence[Chunk]]]


class Rounds:
    """The sums of a training's rounds, one after the other.

    Within ``with``, and with ``execution.read_ahead``, one thread reads the next chunk's rows while a chunk is worked
    on: the first chunk of the next round too, whose cohort is drawn for it. One chunk ahead and no more, so memory
    stays bounded. Reading ahead releases nothing: rows that were read go into the sum of the round that they were
    drawn for, or are dropped.

    On a CPU each of torch's threads works on chunks of its own: an operation that two threads share is cut somewhere,
    and where decides the last bits of the unit that is cut. So the sum does not depend on the number of threads.

    Nothing is ever read ahead with seeded entropy, whose draws must keep one order.

    Args:
        setup: the plan, which draws the cohorts and bounds the updates; the local steps; device and memory.
        source: the private units; one of its methods runs at a time.
        normaliser: of inputs and targets; released or public; on the setup's device.
    """

    def __init__(self, setup: TrainingSetup, source: CohortSource, normaliser: Normaliser) -> None:
        self._plan, self._local, self._architecture = setup.plan, setup.local, setup.architecture
        self._source = source
        self._normaliser = normaliser
        self._make_sum = partial(
            SumOfUpdates, setup.architecture, setup.local, ensemble_clip(setup.plan), setup.plan.grid
        )
        self._sum_of_updates = self._make_sum()
        self._execution = execution = setup.execution
        self._reader: ThreadPoolExecutor | None = None
        self._next: _Promise | None = None
        self._workers: _Workers | None = None
        self._copies: torch.cuda.Stream | None = None
        if execution.device.type == "cuda":
            self._copies = torch.cuda.Stream(execution.device)  # type: ignore[no-untyped-call]
            # What standardises the rows may still be on its way to the GPU, by way of the stream that computes.
            self._copies.wait_stream(torch.cuda.current_stream(execution.device))

    def __enter__(self) -> Self:
        if self._execution.read_ahead and not self._plan.entropy.seeded:
            self._reader = _threads_of_one(1, "cohort")
        return self

    def __exit__(self, *exception: object) -> None:
        """Drop what was read ahead, and wait for a chunk that is being read."""
        self._next = None
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
            self._reader = None
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def sum(self, weights: Weights, *, last: bool = False) -> list[Tensor]:
        """Sum of the clipped updates of a fresh cohort, chunk by chunk, in float64. Sensitive.

        Args:
            weights: the released weights that every unit starts from.
            last: no round follows, so no cohort is drawn for one.

        Raises:
            PipelineError: rows of this cohort could not be read, also where that was found out during the round before.
        """
        threads = torch.get_num_threads() if self._execution.device.type == "cpu" else 1
        if threads == 1:
            return self._sum(weights, last, 1, lambda batches: partial(self._sum_of_updates, weights, batches))
        if self._workers is None or self._workers.threads != threads:
            self._workers = _Workers(threads, self._make_sum)
        torch.set_num_threads(1)  # for the library of products, which counts threads for the whole process
        try:
            workers = self._workers
            return self._sum(weights, last, threads, lambda batches: workers.begin(weights, batches).result)
        finally:
            torch.set_num_threads(threads)

    def _sum(
        self,
        weights: Weights,
        last: bool,
        threads: int,
        begin: Callable[[LocalBatches], Callable[[], list[Tensor]]],
    ) -> list[Tensor]:
        """`sum`, where ``begin`` starts on a chunk and gives what waits for its sum; ``threads`` chunks at a time."""
        total = [torch.zeros(w.shape, dtype=torch.float64, device=w.device) for w in weights]
        begun: deque[Callable[[], list[Tensor]]] = deque()

        def add_first() -> None:
            for whole, part in zip(total, begun.popleft()(), strict=True):
                whole += part

        promise, self._next = self._next or self._soon(partial(self._begin, threads)), None
        while True:
            batches, rest = promise()
            self._await_copies(batches)
            if rest:
                promise = self._soon(partial(self._read, rest))
            elif not last:
                self._next = self._soon(partial(self._begin, threads))
            if batches is not None:
                begun.append(begin(batches))
                if len(begun) == threads:
                    add_first()
            if not rest:
                while begun:
                    add_first()
                return total

    def _soon(self, read: _Promise) -> _Promise:
        """``read``, begun at once where there is a thread for it, else when it is called."""
        return read if self._reader is None else self._reader.submit(read).result

    def _begin(self, threads: int) -> tuple[LocalBatches | None, Sequence[Chunk]]:
        """The first batches of a fresh cohort, None if it is empty, and its other chunks."""
        chunks = self._chunks(threads)
        return self._read(chunks) if chunks else (None, ())

    def _read(self, chunks: Sequence[Chunk]) -> tuple[LocalBatches, Sequence[Chunk]]:
        """The batches of the first of ``chunks``, and the others."""
        with torch.cuda.stream(self._copies) if self._copies else nullcontext():
            batches = local_batches(
                self._source,
                chunks[0].units,
                self._normaliser,
                batch_size=self._local.batch_size,
                epochs=self._local.local_epochs,
                max_transitions=self._local.max_transitions_per_unit,
                entropy=self._plan.entropy,
            )
            batches = filled_up(batches, chunks[0].size, steps=False)
        return batches, chunks[1:]

    def _await_copies(self, batches: LocalBatches | None) -> None:
        """Let the GPU's compute wait for ``batches``, which are copied beside it."""
        if self._copies is not None and batches is not None:
            compute = torch.cuda.current_stream(self._execution.device)
            compute.wait_stream(self._copies)
            for rows in (batches.inputs, batches.targets, batches.weights):
                rows.record_stream(compute)

    def _chunks(self, threads: int) -> Sequence[Chunk]:
        """A fresh cohort in portions that fit the bound on memory."""
        cohort = self._plan.cohort()
        if not len(cohort):
            return ()
        # Neighbours in length share a chunk: little padding. The sum does not care about the order.
        lengths, by_length = self._source.lengths(cohort).sort()
        cohort = cohort[by_length.to(cohort.device)]
        if self._local.max_transitions_per_unit is not None:
            lengths = lengths.clamp(max=self._local.max_transitions_per_unit)
        execution, bytes_of = self._execution, partial(bytes_of_a_unit, self._architecture, self._local)
        if execution.device.type == "cpu":
            return cpu_chunks(cohort, cpu_sizes(execution.chunk_bytes, bytes_of(int(lengths[-1])))[-1], threads)
        return gpu_chunks(cohort, lengths, self._plan, execution.chunk_bytes, bytes_of)


class _Workers:
    """Threads that each sum up chunks of their own, with one thread of torch's each.

    Args:
        threads: how many.
        make_sum: makes what sums up; it has memory of its own.
    """

    def __init__(self, threads: int, make_sum: Callable[[], SumOfUpdates]) -> None:
        self.threads = threads
        self._own = threading.local()
        self._make_sum = make_sum
        self._pool = _threads_of_one(threads, "chunk")

    def begin(self, start: Weights, batches: LocalBatches) -> Future[list[Tensor]]:
        """`SumOfUpdates` on one of the threads."""
        return self._pool.submit(self._sum, start, batches)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _sum(self, start: Weights, batches: LocalBatches) -> list[Tensor]:
        if not hasattr(self._own, "sum"):
            self._own.sum = self._make_sum()
        summed: list[Tensor] = self._own.sum(start, batches)
        return summed


def _threads_of_one(count: int, name: str) -> ThreadPoolExecutor:
    """Threads whose own tensor operations stay on them."""
    threads = torch.get_num_threads()
    all_there = threading.Barrier(count)

    def keep_to_itself() -> None:
        torch.get_num_threads()  # the first call takes over the number for all; from then on it is the thread's own
        torch.set_num_threads(1)

    pool = ThreadPoolExecutor(count, thread_name_prefix=name, initializer=keep_to_itself)
    for there in [pool.submit(all_there.wait) for _ in range(count)]:
        there.result()
    torch.set_num_threads(threads)  # for threads to come
    return pool
