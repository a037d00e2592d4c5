"""Servers and averaged policies of the benchmark do what their rows say."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.quality.paper.changes import (
    Adam,
    PessimisticSac,
    Shrinking,
    TruncatedRollouts,
    autograd_sum,
    averaged,
    layer_normed,
)
from benchmarks.quality.paper.mechanisms import table
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import outputs
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.exported import DeterministicPolicy, mlp, side_by_side
from primorl.policy.networks import initial_layers
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.training.local_update import LocalBatches, sum_of_updates
from primorl.training.settings import LocalTraining
from primorl.training.state import TrainingState
from tests.policy import test_rollouts
from tests.policy.pendulum import CONFIG

ROUNDS = 10


def state(done: int) -> TrainingState:
    return replace(TrainingState.begin((torch.zeros(3),)), done=done)


def test_shrinking_steps_add_up_to_constant_ones() -> None:
    """But for the half of a step that a sum has over an integral. Twin: no two rounds have the same."""
    steps = [float(Shrinking(ROUNDS)(state(done), (torch.ones(1),))[0]) for done in range(ROUNDS)]
    assert math.isclose(sum(steps), ROUNDS + 1, rel_tol=1e-6)
    assert len(set(steps)) == ROUNDS


@pytest.mark.parametrize("variance", [0.0, 0.01])
def test_adam_is_torchs_and_takes_the_noise_out(variance: float) -> None:
    """The first step of Adam is its rate in every weight; with the noise taken out small weights step further."""
    released = (torch.tensor([0.2, -0.2, 0.11]),)
    (step,) = Adam(0.003, variance)(state(0), released)
    expected = released[0] / (released[0].square() - variance).clamp(min=0.1 * variance).sqrt()
    torch.testing.assert_close(step, 0.003 * expected)
    if not variance:
        torch.testing.assert_close(step.abs(), torch.full((3,), 0.003))
        server, weights = Adam(0.01, 0.0), torch.zeros(3, requires_grad=True)
        adam = torch.optim.Adam([weights], lr=0.01, betas=(0.9, 0.99))
        moved = torch.zeros(3)
        for done in range(5):
            gradient = torch.randn(3, generator=torch.Generator().manual_seed(done))
            moved += server(state(done), (gradient,))[0]
            weights.grad = -gradient
            adam.step()
        torch.testing.assert_close(moved, weights.detach())


def test_policies_are_averaged_before_tanh() -> None:
    S, A, one = 3, 2, torch.ones(2)
    layers = [initial_layers((S, 5, 4, A), 1, torch.Generator().manual_seed(seed)) for seed in range(3)]
    policies = DeterministicPolicy(side_by_side(layers), torch.zeros(S), torch.ones(S), -one, one)
    rows = torch.randn(1, 7, S, generator=torch.Generator().manual_seed(9))
    mean = torch.stack([mlp(own, rows)[0] for own in layers]).mean(0)
    torch.testing.assert_close(averaged(policies).act(rows)[0], mean.tanh())


def test_autograd_sums_what_the_engine_sums() -> None:
    """Twin: with a layer norm between the layers, or without the clip, it is another sum."""
    shape = Architecture(2, 1, 3, (8, 8), -5.0, 1.0)
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(2, 6, (2, 4, 1), generator=generator)
    batches = LocalBatches(
        torch.randn(2, 4, 5, shape.inputs, generator=generator),
        torch.randn(2, 4, 5, shape.targets, generator=generator),
        (torch.arange(5) < counts) / counts,
    )
    local = LocalTraining(
        learning_rate=0.05,
        batch_size=5,
        local_epochs=1,
        weight_decay=0.01,
        max_transitions_per_unit=None,
        beta_nll=0.0,
    )
    start = shape.initial_weights(0)
    clip, loose = (EnsembleClip(norm, "flat", members=3, layers=3) for norm in (0.05, 50.0))
    expected = sum_of_updates(start, batches, shape, local, clip)
    for found, wanted in zip(autograd_sum(outputs)(start, batches, shape, local, clip), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)
    for other in (
        autograd_sum(layer_normed)(start, batches, shape, local, clip),
        sum_of_updates(start, batches, shape, local, loose),
    ):
        assert not torch.allclose(other[0], expected[0], rtol=1e-2)


def test_layer_norm_makes_hidden_units_blind_to_a_common_shift() -> None:
    shape = Architecture(2, 1, 2, (8,), -5.0, 1.0)
    weight, bias, *last = shape.initial_weights(0)
    rows = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))
    shifted = (weight, bias + 3.0, *last)
    torch.testing.assert_close(layer_normed(shifted, rows), layer_normed((weight, bias, *last), rows))
    assert not torch.allclose(outputs(shifted, rows), outputs((weight, bias, *last), rows), rtol=0.01)


def test_rollouts_begin_again_where_the_uncertainty_is_large() -> None:
    """The steps are bootstrapped. Twin: with a bound that nothing reaches they go on, to the last bit as `Rollouts`."""
    model, act = test_rollouts.Counter(), test_rollouts.halfway  # whose uncertainty is the action, 2 of 0 to 4
    plain, scaling = test_rollouts.rollouts(batch=3, horizon=4, reset_fraction=1.0)

    def made(most: float) -> torch.Tensor:
        generators = SeedGenerators.of((0,), torch.device("cpu"))
        starts = torch.zeros(7, 1)
        own = TruncatedRollouts(
            model, scaling, starts, batch=3, horizon=4, reset_fraction=1.0, generators=generators, most=most
        )
        return own.collect(act).rows

    torch.testing.assert_close(made(9.0), plain.collect(act).rows, rtol=0, atol=0)
    rows = made(1.0)
    assert bool((rows[..., scaling.columns.observation] == rows[0, 0, scaling.columns.observation]).all())
    assert bool((rows[..., scaling.columns.continues] == 1).all())


def test_pessimistic_critics_learn_from_the_mean_less_two_deviations() -> None:
    """Of two values a and b the deviation is |a - b| / 2. Twin: the actor still climbs the lesser one."""
    columns = test_rollouts.rollouts(batch=3, horizon=4, reset_fraction=1.0)[1].columns
    sac = PessimisticSac(CONFIG, columns, SeedGenerators.of((0,), torch.device("cpu")))
    sac._pairs.normal_(generator=torch.Generator().manual_seed(2))
    sac.target.vector.normal_(generator=torch.Generator().manual_seed(3))
    first, second = (values.clone() for values in super(PessimisticSac, sac)._values(sac.target))
    for found in sac._values(sac.target):
        torch.testing.assert_close(found, (first + second) / 2 - (first - second).abs())
    for found, wanted in zip(sac._values(sac.critic), super(PessimisticSac, sac)._values(sac.critic), strict=True):
        torch.testing.assert_close(found, wanted)


def test_the_best_case_stands_first() -> None:
    rows = [
        {"case": case, "seed": 0, "score": score, "seconds": 1.0}
        for case, score in (("base", 1), ("shrinking steps", 2))
    ]
    assert table(rows).splitlines()[2] == "| shrinking steps | 2 | 2 | 1 |"
