"""One round's sum of clipped updates: a fresh cohort, read and trained chunk by chunk under a memory bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pipeline.dynamics.cohort import CohortSource, local_batches
from pipeline.dynamics.ensemble import Architecture, Normaliser, Weights
from pipeline.dynamics.local_update import LocalTraining, sum_of_updates
from pipeline.privacy.plan import Plan


@dataclass(frozen=True)
class Execution:
    """What changes speed and nothing else: the device, and a bound in bytes on one chunk's buffers."""

    device: torch.device
    chunk_bytes: int


class Rounds:
    """The sums of a training's rounds, one after the other.

    Args:
        plan: draws the cohorts and bounds the updates.
        shape: sizes of the ensemble.
        source: the private units.
        normaliser: of inputs and targets; released or public.
        local: the units' local steps.
        max_transitions: cap on a unit's transitions in a round.
        execution: where and in what portions.
    """

    def __init__(
        self,
        plan: Plan,
        shape: Architecture,
        source: CohortSource,
        normaliser: Normaliser,
        local: LocalTraining,
        *,
        max_transitions: int | None,
        execution: Execution,
    ) -> None:
        self._plan = plan
        self._shape = shape
        self._source = source
        self._normaliser = normaliser
        self._local = local
        self._max_transitions = max_transitions
        self._execution = execution

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def sum(self, weights: Weights, *, last: bool = False) -> list[Tensor]:
        """Sum of the clipped updates of a fresh cohort, chunk by chunk, in float64. Sensitive.

        Args:
            weights: the released weights that every unit starts from.
            last: no round follows.
        """
        total = [torch.zeros(w.shape, dtype=torch.float64, device=w.device) for w in weights]
        for chunk in self._chunks():
            batches = local_batches(
                self._source,
                chunk,
                self._normaliser,
                batch_size=self._local.batch_size,
                epochs=self._local.epochs,
                max_transitions=self._max_transitions,
                entropy=self._plan.entropy,
            )
            updates = sum_of_updates(weights, batches, self._shape, self._local, self._plan.clip)
            for whole, part in zip(total, updates, strict=True):
                whole += part
        return total

    def _chunks(self) -> Sequence[Tensor]:
        """A fresh cohort in portions that fit the bound on memory."""
        cohort = self._plan.cohort()
        if not len(cohort):
            return ()
        # Neighbours in length share a chunk: little padding. The sum does not care about the order.
        lengths = self._source.lengths(cohort)
        by_length = lengths.argsort()
        longest = int(lengths.max())
        if self._max_transitions is not None:
            longest = min(longest, self._max_transitions)
        units = max(1, self._execution.chunk_bytes // _bytes_of_a_unit(self._shape, self._local, longest))
        return torch.split(cohort[by_length.to(cohort.device)], units)


def _bytes_of_a_unit(shape: Architecture, local: LocalTraining, transitions: int) -> int:
    """float32 buffers of one unit in a chunk: weights twice, activations of one step, its batches."""
    activations = 3 * sum(shape.hidden) + 8 * shape.targets + shape.inputs
    members = shape.members * local.batch_size * activations + 2 * shape.parameters
    rows = local.epochs * transitions * (shape.inputs + shape.targets + 1) * 2
    return 4 * (members + rows)
