"""A canary that is left out does what its absence would do, and nothing else."""

import pytest
import torch
from torch import Tensor

from primorl.attacks.units import Units, WithCanaries
from primorl.attacks.victims import ON_ONE_CORE
from primorl.dynamics.architecture import Architecture
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training.cohort import CohortSource
from primorl.training.training import train
from tests.units import local_training, server_training, training_setup

SHAPE = Architecture(2, 1, 2, (8,), -3.0, 0.5)


def some(units: int, steps: int, seed: int) -> Units:
    generator = torch.Generator().manual_seed(seed)
    return Units(
        torch.randn(units, steps, SHAPE.inputs, generator=generator),
        torch.randn(units, steps, SHAPE.targets, generator=generator),
    )


def test_rows_go_to_their_own_unit() -> None:
    real, canaries = some(3, 5, 0), some(4, 2, 1)
    joined = WithCanaries(real, canaries, torch.tensor([True, False, True, True]))
    units = torch.tensor([5, 0, 4, 3, 2])
    assert joined.units == 7
    assert joined.lengths(units).tolist() == [2, 5, 0, 2, 5]
    inputs, targets = joined.transitions(units, torch.tensor([[0, 1]]).expand(5, 2))
    for row, (source, own) in enumerate([(canaries, 2), (real, 0), (canaries, 1), (canaries, 0), (real, 2)]):
        assert torch.equal(inputs[row], source.inputs[own, :2])
        assert torch.equal(targets[row], source.targets[own, :2])


def released(source: CohortSource) -> Tensor:
    """The sum of all clipped updates of one round in which everybody joins."""
    plan = Plan(
        source.units,
        "trajectory",
        PoissonSampler(1.0),
        EnsembleClip(0.5, "flat", SHAPE.members, len(SHAPE.layers)),
        0.0,
        1,
        1e-5,
    )
    public = some(10, 5, 9).flat()
    setup = training_setup(
        plan,
        SHAPE,
        local=local_training(learning_rate=0.1, batch_size=8),
        server=server_training(0.0, 0.0, 1, None),
        execution=ON_ONE_CORE,
    )
    trained = train(setup, source, public)
    moved = [w - start for w, start in zip(trained.weights, SHAPE.initial_weights(0), strict=True)]
    return torch.cat([part.flatten() for part in moved]) * source.units


@pytest.mark.parametrize("included", [[False] * 4, [True, False, False, True], [True] * 4])
def test_an_excluded_canary_adds_nothing_to_the_sum(included: list[bool]) -> None:
    """The sum is that of a dataset without it; the twin is a canary that stays in, which moves the sum."""
    real, canaries = some(3, 5, 0), some(4, 2, 1)
    flags = torch.tensor(included)
    alone = released(real)
    sums = [released(Units(canaries.inputs[i : i + 1], canaries.targets[i : i + 1])) for i in range(4)]
    expected = alone + sum(part for part, inside in zip(sums, included, strict=True) if inside)
    found = released(WithCanaries(real, canaries, flags))
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=2e-5, rtol=0)
    assert all(float(part.norm()) > 0.1 for part in sums)
