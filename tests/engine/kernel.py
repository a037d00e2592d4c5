"""Networks of all kinds and batches for tests of the kernel."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from primorl.engine.local_update import LocalBatches
from primorl.model.architecture import Architecture, CloneNetwork, Network
from primorl.model.features import Polynomials

KINDS = (
    "dynamics",
    "dynamics with ends",
    "actions in a box",
    "discrete actions",
    "linear",
    "linear with ends",
    "linear logits",
)


def network(
    kind: str,
    hidden: tuple[int, ...] = (16, 12),
    *,
    size: int = 3,
    actions: int = 2,
    members: int = 3,
) -> Network:
    if kind in KINDS[4:6]:
        heads = Polynomials(size + actions, (), 2)
        return Architecture(
            size, actions, members, (), -10.0, 0.5, kind == KINDS[5], heads, spread=False
        )
    if kind in KINDS[6:]:
        return CloneNetwork(size, actions, True, (), -5.0, 1.0)
    if kind.startswith("dynamics"):
        return Architecture(size, actions, members, hidden, -10.0, 0.5, kind == KINDS[1])
    return CloneNetwork(size, actions, kind == KINDS[3], hidden, -5.0, 1.0)


def weights_of(shape: Network, seed: int = 0) -> tuple[Tensor, ...]:
    """Weights whose last layer is not zero."""
    drawn = torch.Generator().manual_seed(seed)
    return tuple(
        w + 0.3 * torch.randn(w.shape, generator=drawn) for w in shape.initial_weights(seed)
    )


def targets_of(shape: Network, rows: Sequence[int], drawn: torch.Generator) -> Tensor:
    """Random targets of the shape ``rows``, such as the network has."""
    if isinstance(shape, CloneNetwork) and shape.discrete_actions:
        choice = torch.randint(shape.action_size, tuple(rows), generator=drawn)
        return torch.nn.functional.one_hot(choice, shape.action_size).float()
    if isinstance(shape, CloneNetwork):
        return torch.rand(*rows, shape.action_size, generator=drawn) * 2 - 1
    targets = torch.randn(*rows, shape.columns, generator=drawn)
    if shape.learned_termination:
        targets[..., -1] = (targets[..., -1] > 1).float()
    return targets


def batches_of(
    shape: Network, steps: Sequence[int], rows: int, seed: int = 0, scale: float = 1.0
) -> LocalBatches:
    """Units of so many steps each, the last step of each of fewer rows."""
    drawn, most = torch.Generator().manual_seed(seed), max(steps)
    weights = torch.zeros(most, len(steps), rows)
    for unit, own in enumerate(steps):
        weights[:own, unit] = 1 / rows
        last = 1 + unit % rows
        weights[own - 1, unit] = (torch.arange(rows) < last) / last
    inputs = torch.randn(most, len(steps), rows, shape.inputs, generator=drawn) * scale
    return LocalBatches(inputs, targets_of(shape, (most, len(steps), rows), drawn), weights)


def some(batches: LocalBatches, units: Sequence[int], steps: int) -> LocalBatches:
    """The batches of ``units`` alone, cut to so many steps."""
    parts = (batches.inputs, batches.targets, batches.weights)
    inputs, targets, weights = (part[:steps, list(units)].contiguous() for part in parts)
    counts = None if batches.counts is None else batches.counts[list(units)]
    return LocalBatches(inputs, targets, weights, counts)


def joint_norm(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(p.double().square().sum()) for p in parts))


def gap(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The norm of the difference."""
    return joint_norm([a.double() - b.double() for a, b in zip(ours, theirs, strict=True)])


def equal(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
