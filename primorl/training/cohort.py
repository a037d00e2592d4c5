"""From a cohort's unit indices to the padded, shuffled local batches of its units."""

import math
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.entropy import Entropy, uniforms
from primorl.training.local_update import LocalBatches
from primorl.training.settings import LocalTraining


class CohortSource(Protocol):
    """Where training gets transitions from: it names units and steps, the source hands out tensors."""

    @property
    def units(self) -> int:
        """Number of units, K."""

    def lengths(self, units: Tensor) -> Tensor:
        """Transitions of each unit: int64 ``[U]`` for int64 ``[U]``."""

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``steps[u, m]`` of unit ``units[u]``: ``[U, M, S + A]`` and ``[U, M, S + 1]``."""


@runtime_checkable
class TrajectorySource(CohortSource, Protocol):
    """A source that knows where trajectories begin."""

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        """Whether these rows are the first of a trajectory: bool ``[U, M]``."""


def local_batches(
    source: CohortSource, units: Tensor, normaliser: Normaliser, local: LocalTraining, entropy: Entropy
) -> LocalBatches:
    """Shuffle every unit's transitions, anew for each epoch, and cut them into its local batches.

    The orders (and, with ``max_transitions_per_unit``, the uniform subset used in this round) are secret and
    independent across units. Drawn from a seed, they would depend on who else is in the cohort, and an adversary who
    knows the seed would see one person's absence move everybody's update.

    Args:
        source: the private units.
        units: indices, ``[U]``.
        normaliser: public maps applied to inputs and targets.
        local: size of a batch (the last one of an epoch may be smaller), epochs, most transitions of a unit.
        entropy: where the orders come from.
    """
    batch_size, epochs, max_transitions = local.batch_size, local.local_epochs, local.max_transitions_per_unit
    lengths = source.lengths(units)
    most = int(lengths.max()) if len(units) else 0
    order = _shuffled(lengths, most, entropy)
    if max_transitions is not None and max_transitions < most:
        order, most = order[:, :max_transitions], max_transitions
        lengths = lengths.clamp(max=max_transitions)
    orders = [order]
    orders += [order.gather(1, _shuffled(lengths, most, entropy)) for _ in range(epochs - 1)]

    batches = math.ceil(most / batch_size)
    padding = batches * batch_size - most
    steps = torch.nn.functional.pad(torch.stack(orders, dim=1), (0, padding))  # [U, E, batches·B]
    inputs, targets = source.transitions(units, steps.flatten(1))
    own = torch.arange(batches * batch_size, device=lengths.device) < lengths.unsqueeze(1)
    device = normaliser.input_mean.device
    inputs, targets, own = (part.to(device) for part in (inputs, targets, own))
    # Padding must be finite: weight 0 times an overflow would be NaN, and how much padding a unit
    # gets depends on its neighbours in the chunk, so one unit's length could zero another's update.
    padded = ~own.repeat(1, epochs).unsqueeze(-1)
    inputs, targets = inputs.masked_fill(padded, 0.0), targets.masked_fill(padded, 0.0)
    own = own.view(len(units), batches, batch_size)
    weights = own / own.sum(-1, keepdim=True).clamp(min=1)

    by_step = (len(units), epochs * batches, batch_size)
    return LocalBatches(
        inputs=normaliser.inputs(_by_step(inputs, by_step)),
        targets=normaliser.targets(_by_step(targets, by_step)),
        weights=weights.repeat(1, epochs, 1).transpose(0, 1).to(torch.float32).contiguous(),
    )


def _shuffled(lengths: Tensor, most: int, entropy: Entropy) -> Tensor:
    """A uniform order of each unit's first ``lengths[u]`` steps, ``[U, most]``; what follows them is padding.

    Padding points at step 0, a row of the unit's own.
    """
    keys = uniforms(entropy, (len(lengths), most)).to(lengths.device)
    padding = torch.arange(most, device=lengths.device) >= lengths.unsqueeze(1)
    # On one core numpy sorts several times as fast as torch.
    order = torch.from_numpy(np.argsort(keys.masked_fill_(padding, 2.0).numpy(), axis=1))
    return order.masked_fill_(padding, 0)


def _by_step(rows: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """``[U, J·B, D]`` → ``[J, U, B, D]``."""
    return rows.view(*shape, rows.shape[-1]).transpose(0, 1)
