"""One round's sum of clipped updates: a fresh cohort, read and trained chunk by chunk under a memory bound."""

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Weights
from primorl.dynamics.normaliser import Normaliser
from primorl.training.chunks import Chunk, chunks
from primorl.training.cohort import CohortSource, local_batches
from primorl.training.local_update import LocalBatches, Workspace, ensemble_clip, sum_of_updates, with_idle_units
from primorl.training.setup import TrainingSetup


class Rounds:
    """The sums of a training's rounds, one after the other. Use it in a ``with`` block, which ends its threads.

    On a CPU each of torch's threads works on chunks of its own: an operation that two threads share is cut somewhere,
    and where decides the last bits of the unit that is cut. So the sum does not depend on the number of threads.

    Args:
        setup: the plan, which draws the cohorts and bounds the updates; the local steps; device and memory.
        source: the private units; one of its methods runs at a time.
        normaliser: of inputs and targets; released or public; on the setup's device.
    """

    def __init__(self, setup: TrainingSetup, source: CohortSource, normaliser: Normaliser) -> None:
        self._setup = setup
        self._source = source
        self._normaliser = normaliser
        self._clip = ensemble_clip(setup.plan)
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
            for chunk in self._chunks(threads):
                begun.append(pool.submit(self._sum, weights, self._read(chunk)))
                if len(begun) == threads:
                    add_first()
            while begun:
                add_first()
        finally:
            torch.set_num_threads(before)
        return total

    def _chunks(self, threads: int) -> list[Chunk]:
        cohort = self._setup.plan.cohort()
        if not len(cohort):
            return []
        # Neighbours in length share a chunk: little padding. The sum does not care about the order.
        lengths, by_length = self._source.lengths(cohort).sort()
        most = self._setup.local.max_transitions_per_unit
        if most is not None:
            lengths = lengths.clamp(max=most)
        return chunks(self._setup, cohort[by_length.to(cohort.device)], lengths, threads)

    def _read(self, chunk: Chunk) -> LocalBatches:
        local = self._setup.local
        batches = local_batches(
            self._source,
            chunk.units,
            self._normaliser,
            batch_size=local.batch_size,
            epochs=local.local_epochs,
            max_transitions=local.max_transitions_per_unit,
            entropy=self._setup.plan.entropy,
        )
        return with_idle_units(batches, chunk.size)

    def _sum(self, weights: Weights, batches: LocalBatches) -> list[Tensor]:
        """Sum up one chunk on a thread of the pool, which has a workspace of its own."""
        if not hasattr(self._own, "workspace"):
            self._own.workspace = Workspace()
        setup = self._setup
        return sum_of_updates(
            weights, batches, setup.architecture, setup.local, self._clip, self._own.workspace, setup.plan.grid
        )

    def _pool_of(self, threads: int) -> ThreadPoolExecutor:
        """Threads whose own tensor operations stay on them."""
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
