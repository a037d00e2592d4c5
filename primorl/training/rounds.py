"""One round's sum of clipped updates: a fresh cohort, read and trained chunk by chunk under a memory bound."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Self

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Architecture, Normaliser, Weights
from primorl.training.cohort import CohortSource, local_batches
from primorl.training.cuda_graph import SumOfUpdates
from primorl.training.local_update import LocalBatches, ensemble_clip
from primorl.training.settings import LocalTraining
from primorl.training.setup import TrainingSetup

_Promise = Callable[[], tuple[LocalBatches | None, Sequence[Tensor]]]


class Rounds:
    """The sums of a training's rounds, one after the other.

    Within ``with``, and with ``execution.read_ahead``, one thread reads the next chunk's rows while a chunk is worked
    on: the first chunk of the next round too, whose cohort is drawn for it. One chunk ahead and no more, so memory
    stays bounded. Reading ahead releases nothing: rows that were read go into the sum of the round that they were
    drawn for, or are dropped.

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
        self._sum_of_updates = SumOfUpdates(setup.architecture, setup.local, ensemble_clip(setup.plan))
        self._execution = execution = setup.execution
        self._reader: ThreadPoolExecutor | None = None
        self._next: _Promise | None = None
        self._copies: torch.cuda.Stream | None = None
        if execution.device.type == "cuda":
            self._copies = torch.cuda.Stream(execution.device)  # type: ignore[no-untyped-call]
            # What standardises the rows may still be on its way to the GPU, by way of the stream that computes.
            self._copies.wait_stream(torch.cuda.current_stream(execution.device))

    def __enter__(self) -> Self:
        if self._execution.read_ahead and not self._plan.entropy.seeded:
            self._reader = _one_thread()
        return self

    def __exit__(self, *exception: object) -> None:
        """Drop what was read ahead, and wait for a chunk that is being read."""
        self._next = None
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
            self._reader = None

    def sum(self, weights: Weights, *, last: bool = False) -> list[Tensor]:
        """Sum of the clipped updates of a fresh cohort, chunk by chunk, in float64. Sensitive.

        Args:
            weights: the released weights that every unit starts from.
            last: no round follows, so no cohort is drawn for one.

        Raises:
            PipelineError: rows of this cohort could not be read, also where that was found out during the round before.
        """
        total = [torch.zeros(w.shape, dtype=torch.float64, device=w.device) for w in weights]
        promise, self._next = self._next or self._soon(self._begin), None
        while True:
            batches, rest = promise()
            self._await_copies(batches)
            if rest:
                promise = self._soon(partial(self._read, rest))
            elif not last:
                self._next = self._soon(self._begin)
            if batches is not None:
                updates = self._sum_of_updates(weights, batches)
                for whole, part in zip(total, updates, strict=True):
                    whole += part
            if not rest:
                return total

    def _soon(self, read: _Promise) -> _Promise:
        """``read``, begun at once where there is a thread for it, else when it is called."""
        return read if self._reader is None else self._reader.submit(read).result

    def _begin(self) -> tuple[LocalBatches | None, Sequence[Tensor]]:
        """The first batches of a fresh cohort, None if it is empty, and its other chunks."""
        chunks = self._chunks()
        return self._read(chunks) if chunks else (None, ())

    def _read(self, chunks: Sequence[Tensor]) -> tuple[LocalBatches, Sequence[Tensor]]:
        """The batches of the first of ``chunks``, and the others."""
        with torch.cuda.stream(self._copies) if self._copies else nullcontext():
            batches = local_batches(
                self._source,
                chunks[0],
                self._normaliser,
                batch_size=self._local.batch_size,
                epochs=self._local.local_epochs,
                max_transitions=self._local.max_transitions_per_unit,
                entropy=self._plan.entropy,
            )
        return batches, chunks[1:]

    def _await_copies(self, batches: LocalBatches | None) -> None:
        """Let the GPU's compute wait for ``batches``, which are copied beside it."""
        if self._copies is not None and batches is not None:
            compute = torch.cuda.current_stream(self._execution.device)
            compute.wait_stream(self._copies)
            for rows in (batches.inputs, batches.targets, batches.weights):
                rows.record_stream(compute)

    def _chunks(self) -> Sequence[Tensor]:
        """A fresh cohort in portions that fit the bound on memory."""
        cohort = self._plan.cohort()
        if not len(cohort):
            return ()
        # Neighbours in length share a chunk: little padding. The sum does not care about the order.
        lengths = self._source.lengths(cohort)
        by_length = lengths.argsort()
        longest = int(lengths.max())
        if self._local.max_transitions_per_unit is not None:
            longest = min(longest, self._local.max_transitions_per_unit)
        units = max(1, self._execution.chunk_bytes // _bytes_of_a_unit(self._architecture, self._local, longest))
        return torch.split(cohort[by_length.to(cohort.device)], units)


def _one_thread() -> ThreadPoolExecutor:
    """A thread whose own tensor operations stay on it."""
    threads = torch.get_num_threads()

    def keep_to_itself() -> None:
        torch.get_num_threads()  # the first call takes over the number for all; from then on it is the thread's own
        torch.set_num_threads(1)

    reader = ThreadPoolExecutor(1, thread_name_prefix="cohort")
    reader.submit(keep_to_itself).result()
    torch.set_num_threads(threads)  # for threads to come
    return reader


def _bytes_of_a_unit(shape: Architecture, local: LocalTraining, transitions: int) -> int:
    """Buffers of one unit: weights, update, the update in float64, activations of one step, its rows; those read ahead.

    A row being read is there raw and normalised, with the random key and the places that made its order.
    """
    activations = 3 * sum(shape.hidden) + 8 * shape.targets + shape.inputs
    members = shape.members * local.batch_size * activations + 4 * shape.parameters
    row = shape.inputs + shape.targets + 1
    rows = local.local_epochs * transitions * (row + 2 * row + 6)
    return 4 * (members + rows)
