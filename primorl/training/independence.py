"""A check, before anything is charged: on this machine a unit's update is the same whoever shares its chunk.

`local_update` keeps every element-wise operation and every norm within one (unit, member) pair. Matrix products are a
library's, which does not promise to multiply a pair's matrices in the same way for any number of pairs and any place
among them. So one made-up unit is trained in every place of a chunk of every size that rounds can have. No byte of data
is read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from primorl.project.errors import PipelineError
from primorl.training.local_update import Kernel, LocalBatches
from primorl.training.rounds import chunk_sizes
from primorl.training.setup import TrainingSetup

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
