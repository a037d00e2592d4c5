"""How far rounding carries one unit into the updates of others: ``python -m benchmarks.privacy.rounding``.

The sum of one round is computed with and without the last unit, with equal orders of rows. The difference must be that
unit's own update, of norm C at most, and nothing else. The settings are extreme on purpose.
"""

import math
from unittest import mock

import torch
from torch import Tensor

from benchmarks.machine import row, write
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.entropy import Entropy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training import cohort
from primorl.training.rounds import Rounds
from primorl.training.settings import Execution
from tests.units import Ragged, local_training, make_units, training_setup

ROWS = 400
SETTINGS = (
    (20, 64, 10.0, 0.05),
    (20, 64, 10.0, 1.0),
    (60, 64, 10.0, 0.3),
    (60, 64, 10.0, 1.0),
    (20, 37, 50.0, 5.0),
)
"""Units, width of a layer, C, learning rate."""


def main() -> None:
    """Measure, print and keep the table."""
    command = "python -m benchmarks.privacy.rounding"
    rows = []
    for units, width, norm, learning_rate in SETTINGS:
        shape = Architecture(3, 1, 3, (width, width), -10.0, 0.5, False)
        data = make_units(shape, [ROWS] * units, 0)
        last = Ragged(data.inputs[-1:], data.targets[-1:])
        with mock.patch.object(cohort, "_shuffled", in_order):
            every, less, own = (
                total(part, shape, norm, learning_rate) for part in (data, data.without(units - 1), last)
            )
        difference = [a - b for a, b in zip(every, less, strict=True)]
        moved, others = length(difference) / norm, distance(difference, own) / norm
        what = (
            f"C {norm:g}, N 3, 2x{width}, T {ROWS}, B 1, learning rate {learning_rate:g}: one of {units} units left out"
        )
        rows.append(row(command, what, moved, others, "of that, updates of other units", moved, "C"))
    write("rounding", rows)


def in_order(lengths: Tensor, most: int, entropy: Entropy) -> Tensor:
    """Every unit's rows as they come, in place of a secret order."""
    order = torch.arange(most).expand(len(lengths), most)
    return order.masked_fill(order >= lengths.unsqueeze(1), 0)


def total(units: Ragged, shape: Architecture, norm: float, learning_rate: float) -> list[Tensor]:
    """The sum of a round in which everybody is."""
    plan = Plan(units.units, "unit", PoissonSampler(1.0), EnsembleClip(norm, "flat", 3, 3), 3.0, 4, 1e-6)
    setup = training_setup(
        plan,
        shape,
        local=local_training(learning_rate=learning_rate, batch_size=1),
        execution=Execution(torch.device("cpu"), 1 << 30),
    )
    identity = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4))
    with Rounds(setup, units, identity) as rounds:
        return list(rounds.sum(setup.initial_weights(), last=True))


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Between two sums."""
    return length([a - b for a, b in zip(one, other, strict=True)])


def length(parts: list[Tensor]) -> float:
    """L2 norm of all parts together."""
    return math.sqrt(sum(float(part.square().sum()) for part in parts))


if __name__ == "__main__":
    main()
