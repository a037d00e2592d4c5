"""A check, before anything is charged: on this machine a unit's update is the same whoever shares its chunk.

`local_update` keeps every element-wise operation and every norm within one (unit, member) pair. Matrix products are a
library's. It multiplies each pair's matrices by themselves, but does not promise that how it does so is the same
for any number of pairs and any place among them. So one made-up unit is trained in every place of a chunk of
every size that rounds can have. No byte of data is read.
"""

import torch

from primorl.dynamics.ensemble import Architecture
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.project.errors import PipelineError
from primorl.training.local_update import LocalBatches, Workspace, updates_of_units
from primorl.training.settings import LocalTraining

_STEPS = 2


def check_independence(
    shape: Architecture, local: LocalTraining, clip: EnsembleClip, sizes: range, device: torch.device
) -> None:
    """Train one made-up unit in every place of chunks of ``sizes`` units.

    Args:
        shape: sizes of the ensemble.
        local: the local steps.
        clip: applied after every step.
        sizes: numbers of units that a chunk may have.
        device: where rounds are computed.

    Raises:
        PipelineError: two updates differ in a bit.
    """
    start = tuple(w.to(device) for w in shape.initial_weights(0))
    alone = None
    workspace = Workspace()
    for units in sizes:
        # What follows a unit's last row depends on the longest unit of a chunk.
        batches = _of_one_unit(shape, local, units, _STEPS + units % 2, device)
        for part, update in enumerate(updates_of_units(start, batches, shape, local, clip, workspace)):
            if units == sizes[0]:
                alone = [*(alone or []), update[0].clone()]
            if alone is None or not torch.equal(update, alone[part].expand_as(update)):
                raise PipelineError(
                    f"compute.device: on this machine ({device.type}), one unit's update differs in the last bits with "
                    f"the number of units that are trained at once (found at {units}), which the guarantee does not "
                    "allow; train on another machine, or with another build of torch"
                )


def _of_one_unit(
    shape: Architecture, local: LocalTraining, units: int, steps: int, device: torch.device
) -> LocalBatches:
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
