"""The barrier pulls to uniform actions without data, and a user moves the episodes' regression by
her clip alone.
"""

import pytest
import torch

from primorl.online.learning import Cohort, online_plan
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import SeededEntropy
from research.paper_mode import NoiseAlone
from research.private_po import EpisodeRegression, barrier_gradient
from tests.online.cohorts import USERS, RecordedCohort, met, network, with_user

SHAPE = network()


def test_the_barrier_has_its_largest_value_at_uniform_actions() -> None:
    generator = torch.Generator().manual_seed(0)
    states, theta = torch.randn(50, 3, generator=generator), SHAPE.initial(0) * 100

    def barrier(parameters: torch.Tensor) -> float:
        chances = torch.log_softmax(SHAPE.outputs(parameters[None], states[None])[0], -1)
        return float(chances.mean())

    gradient = barrier_gradient(SHAPE, theta, states)
    small = 1e-2 * gradient / gradient.norm() ** 2
    assert barrier(theta + small) - barrier(theta) == pytest.approx(1e-2, rel=0.05)
    assert barrier_gradient(SHAPE, torch.zeros_like(theta), states).norm() < 1e-6


def test_an_episode_is_regressed_on_its_score() -> None:
    """Without noise and clip, many steps find the least squares of returns' differences on sums of
    scores.
    """
    base, current, theta = met(SHAPE), met(SHAPE, seed=3), SHAPE.initial(0)
    plan = online_plan(
        users=9, cohort=USERS, noise_multiplier=0.0, releases=400, appearances=1, delta=1e-5
    )
    exact = EpisodeRegression(
        clipping_norm=1.0, steps=400, step_size=0.05, learning_rate=1.0, ball=1e9
    )
    cohort = RecordedCohort(plan, 400)
    exact.step(SHAPE, theta, base, current, cohort)
    assert cohort.rows[-1].mean(0).norm() < 1e-2 * cohort.rows[0].mean(0).norm()
    empty = RecordedCohort(plan, 400)
    exact.step(SHAPE, theta, with_user(base, None), with_user(current, None), empty)
    assert not empty.rows[0][1].any()
    assert torch.equal(empty.rows[0][2], cohort.rows[0][2])


def test_noise_alone_is_the_release_of_nobody() -> None:
    sizes = {"users": 9, "cohort": USERS, "releases": 1, "appearances": 1}

    def plan() -> Plan:
        entropy = SeededEntropy(0)
        return online_plan(**sizes, noise_multiplier=1.0, delta=1e-5, entropy=entropy)

    rows = torch.randn(USERS, 5)
    nobody = Cohort(plan(), 1).noisy_mean(0 * rows, 2.0)
    for contributions in (rows, iter([rows])):
        assert torch.equal(NoiseAlone(plan(), 1).noisy_mean(contributions, 2.0), nobody)
