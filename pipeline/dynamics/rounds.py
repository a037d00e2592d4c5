"""One round's sum of clipped updates: a fresh cohort, read and trained chunk by chunk under a memory bound."""

from dataclasses import dataclass

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


def round_sum(
    plan: Plan,
    shape: Architecture,
    source: CohortSource,
    weights: Weights,
    normaliser: Normaliser,
    local: LocalTraining,
    max_transitions: int | None,
    execution: Execution,
) -> list[Tensor]:
    """Sum of the clipped updates of a fresh cohort, chunk by chunk, in float64. Sensitive."""
    cohort = plan.cohort()
    # Neighbours in length share a chunk: little padding. The sum does not care about the order.
    lengths = source.lengths(cohort)
    by_length = lengths.argsort()
    longest = int(lengths.max()) if len(cohort) else 0
    if max_transitions is not None:
        longest = min(longest, max_transitions)
    units = max(1, execution.chunk_bytes // _bytes_of_a_unit(shape, local, longest))
    total = [torch.zeros(w.shape, dtype=torch.float64, device=w.device) for w in weights]
    chunks = torch.split(cohort[by_length.to(cohort.device)], units) if len(cohort) else ()
    for chunk in chunks:
        batches = local_batches(
            source,
            chunk,
            normaliser,
            batch_size=local.batch_size,
            epochs=local.epochs,
            max_transitions=max_transitions,
            entropy=plan.entropy,
        )
        for whole, part in zip(total, sum_of_updates(weights, batches, shape, local, plan.clip), strict=True):
            whole += part
    return total


def _bytes_of_a_unit(shape: Architecture, local: LocalTraining, transitions: int) -> int:
    """float32 buffers of one unit in a chunk: weights twice, activations of one step, its batches."""
    activations = 3 * sum(shape.hidden) + 8 * shape.targets + shape.inputs
    members = shape.members * local.batch_size * activations + 2 * shape.parameters
    rows = local.epochs * transitions * (shape.inputs + shape.targets + 1) * 2
    return 4 * (members + rows)
