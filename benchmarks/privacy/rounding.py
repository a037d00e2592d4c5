"""How far rounding carries one unit into the updates of others: ``python -m benchmarks.privacy.rounding``.

The sum of one round is computed with and without the last unit, with equal orders of rows. The stated sensitivity is
C. The settings are extreme on purpose: see "Known gap" in docs/privacy-proofs.md.
"""

from unittest import mock

import torch
from torch import Tensor

from benchmarks.machine import row, write
from primorl.dynamics.ensemble import Architecture
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.entropy import Entropy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training import cohort
from primorl.training.rounds import Rounds
from primorl.training.settings import Execution
from tests.units import Ragged, local_training, make_units, training_setup

CLIPPING_NORM, ROWS = 10.0, 400
SHAPE = Architecture(3, 1, 3, (64, 64), -10.0, 0.5, False)


def main() -> None:
    """Measure, print and keep the table."""
    command = "python -m benchmarks.privacy.rounding"
    rows = []
    for units, learning_rate in ((20, 0.05), (20, 1.0), (60, 0.3), (60, 1.0)):
        data = make_units(SHAPE, [ROWS] * units, 0)
        with mock.patch.object(cohort, "_shuffled", in_order):
            every, less, again = (total(own, data, learning_rate) for own in (data, data.without(units - 1), data))
        what = f"C 10, N 3, 2x64, T {ROWS}, B 1, learning rate {learning_rate:g}: one of {units} units left out"
        moved, control = distance(every, less), distance(every, again)
        rows.append(row(command, what, moved, control, "the same units twice", moved, "C"))
    write("rounding", rows)


def in_order(lengths: Tensor, most: int, entropy: Entropy) -> Tensor:
    """Every unit's rows as they come, in place of a secret order."""
    order = torch.arange(most).expand(len(lengths), most)
    return order.masked_fill(order >= lengths.unsqueeze(1), 0)


def total(units: Ragged, public: Ragged, learning_rate: float) -> list[Tensor]:
    """The sum of a round in which everybody is; the normaliser is that of ``public``, whoever takes part."""
    plan = Plan(units.units, "unit", PoissonSampler(1.0), EnsembleClip(CLIPPING_NORM, "flat", 3, 3), 3.0, 4, 1e-6)
    setup = training_setup(
        plan,
        SHAPE,
        local=local_training(learning_rate=learning_rate, batch_size=1),
        execution=Execution(torch.device("cpu"), 1 << 30),
    )
    normaliser = setup.make_normaliser((torch.cat(public.inputs), torch.cat(public.targets)), {})
    with Rounds(setup, units, normaliser) as rounds:
        return list(rounds.sum(setup.initial_weights(), last=True))


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Between two sums, in units of C."""
    squares = sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True))
    return squares**0.5 / CLIPPING_NORM


if __name__ == "__main__":
    main()
