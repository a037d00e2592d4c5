"""Servers and averaged policies of the benchmark do what their rows say."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.quality.paper.mechanisms import Adam, Shrinking, averaged, table
from primorl.policy.exported import DeterministicPolicy, mlp, side_by_side
from primorl.policy.networks import initial_layers
from primorl.training.state import TrainingState

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


def test_the_best_case_stands_first() -> None:
    rows = [
        {"case": case, "seed": 0, "score": score, "seconds": 1.0}
        for case, score in (("base", 1), ("shrinking steps", 2))
    ]
    assert table(rows).splitlines()[2] == "| shrinking steps | 2 | 2 | 1 |"
