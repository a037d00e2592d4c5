"""The baselines of DPTD: other steps on the same clipped gradients."""

import math

import pytest
import torch

from primorl.evaluation.private.dptd_baselines import DescentAscent, RecursiveMomentum, langevin_step
from primorl.evaluation.private.episodes import Episodes
from tests.evaluation.private.chain import chain, problem, settings


def test_descent_ascent_steps_against_and_along_the_gradients() -> None:
    estimator, question = settings(DescentAscent, kappa=0.5, eta=0.25), problem(1)
    values = estimator.begin(question)
    released = torch.randn(2 * values["theta"].numel(), generator=torch.Generator().manual_seed(0))
    of_theta, of_omega = released.double().view(2, 2, -1).unbind(1)
    after = estimator.stepped(question, values, released, 0)
    torch.testing.assert_close(after["theta"], (values["theta"] - 0.5 * of_theta).clamp(-1, 1))
    torch.testing.assert_close(after["omega"], (values["omega"] + 0.25 * of_omega).clamp(-1, 1))


def test_recursive_momentum_is_exact_on_the_same_cohort() -> None:
    estimator, question = settings(RecursiveMomentum, kappa=0.1, eta=1.0, momentum=0.3), problem(2)
    values, episodes = estimator.begin(question), Episodes.read(chain([3, 5]), torch.arange(2))
    for done in range(4):
        gradient = super(RecursiveMomentum, estimator).contributions(question, values, episodes).mean(0)
        released = estimator.contributions(question, values, episodes).mean(0)
        values = estimator.stepped(question, values, released, done)
        recursed = torch.stack((values["p"], values["d"]), 1).flatten()
        torch.testing.assert_close(recursed, gradient)  # without noise and sampling the recursion tracks the gradient


def test_langevin_steps_have_the_heat_of_the_noise() -> None:
    step = langevin_step(8.0, 5.0, 1.0)
    assert step * 5.0 == pytest.approx(math.sqrt(2 * step / 8.0))
    assert langevin_step(8.0, 0.0, 0.1) == langevin_step(8.0, 1e-9, 0.1) == 0.1
