"""A check, before anything is charged: on this machine a unit's update is the same whoever shares its chunk.

`local_update` keeps every element-wise operation and every norm within one (unit, member) pair. Matrix products are a
library's. It multiplies each pair's matrices by themselves, but does not promise that how it does so is the same
for any number of pairs and any place among them. So one made-up unit is trained in every place of a chunk of
every size that rounds can have. No byte of data is read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.project.errors import PipelineError
from primorl.training.local_update import LocalBatches, Workspace, ensemble_clip, updates_of_units
from primorl.training.policy_network import Network
from primorl.training.rounds import chunk_sizes
from primorl.training.settings import LocalTraining
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
            check_independence(
                setup.architecture, setup.local, ensemble_clip(setup.plan), sizes, setup.execution.device
            )
    finally:
        torch.set_num_threads(threads)


def check_independence(
    shape: Network, local: LocalTraining, clip: EnsembleClip, sizes: Sequence[int], device: torch.device
) -> None:
    """Train one made-up unit in every place of chunks of ``sizes`` units.

    Args:
        shape: sizes of the network.
        local: the local steps.
        clip: applied after every step.
        sizes: numbers of units of a chunk, among which a unit's update must not differ.
        device: where rounds are computed.

    Raises:
        PipelineError: two updates differ in a bit.
    """
    start = tuple(w.to(device) for w in shape.initial_weights(0))
    workspace = Workspace()
    expected: list[Tensor] = []
    for units in sizes:
        # How many steps follow a unit's last one depends on the longest unit of a chunk.
        batches = _of_one_unit(shape, local, units, _STEPS + units % 2, device)
        updates = updates_of_units(start, batches, shape, local, clip, workspace)
        expected = expected or [update[0].clone() for update in updates]
        if not all(torch.equal(update, one.expand_as(update)) for update, one in zip(updates, expected, strict=True)):
            raise PipelineError(
                f"compute.device: on this machine ({device.type}), the last bits of one unit's update differ with the "
                f"units that are trained beside it (found for {units} of them), which the guarantee does not allow; "
                "train on another machine or with another build of torch"
            )


def _of_one_unit(shape: Network, local: LocalTraining, units: int, steps: int, device: torch.device) -> LocalBatches:
    """The batches of ``units`` equal units: `_STEPS` steps, the last of half as many rows, and padding."""
    generator = torch.Generator().manual_seed(0)
    rows = local.batch_size
    inputs = torch.randn(_STEPS, 1, rows, shape.inputs, generator=generator)
    targets = torch.randn(_STEPS, 1, rows, shape.columns, generator=generator)
    weights = torch.full((_STEPS, 1, rows), 1 / rows)
    held = (rows + 1) // 2
    weights[-1] = (torch.arange(rows) < held) / held
    parts = []
    for values in (inputs, targets, weights):
        padding = values.new_zeros(steps - _STEPS, *values.shape[1:])
        parts.append(torch.cat((values, padding)).expand(-1, units, *values.shape[2:]).contiguous().to(device))
    return LocalBatches(*parts)
