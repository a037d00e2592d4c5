"""DP-NPG's other oracles solve the least squares that they say, and one user moves them by no more
than is paid for.
"""

import math

import pytest
import torch

from primorl.online.learning import PARAMETERS, Cohort
from research.natural_gradient import (
    ChoiceCohort,
    ExponentialCohort,
    NaturalGradientByChoice,
    NaturalGradientByStatistics,
    gain,
)
from research.permute_and_flip import ONE, sum_scores
from tests.online.cohorts import (
    OTHERS,
    begun,
    hostile,
    met,
    network,
    plan_of,
    recorded,
    with_user,
)

SHAPE = network()
STATISTICS = NaturalGradientByStatistics(1.0, 0.5, 0.1, 2.0)
CHOICE = NaturalGradientByChoice(1.0, 5, 1.0, 2.0)


def test_statistics_are_least_squares_and_one_user_moves_them_by_at_most_their_bound() -> None:
    exact, data = NaturalGradientByStatistics(1.0, 10.0, 1e-6, 100.0), met(SHAPE)
    quiet = Cohort(plan_of(0.0, exact.releases), exact.releases)
    theta = begun(SHAPE)[PARAMETERS]
    step = exact.apply(SHAPE, begun(SHAPE), data, quiet, 3)[PARAMETERS] - theta
    assert gain(SHAPE, theta, data, exact, step) == pytest.approx(1.0, abs=1e-3)
    assert gain(SHAPE, theta, data, exact, -step) < 0
    without = recorded(STATISTICS, SHAPE, with_user(data, None))
    assert not without.rows[0][1].any()
    for user in (met(SHAPE, users=1, seed=1), *hostile(SHAPE)):
        found = recorded(STATISTICS, SHAPE, with_user(data, user))
        assert torch.equal(found.rows[0][OTHERS], without.rows[0][OTHERS])
        assert torch.linalg.vector_norm(found.sums[0] - without.sums[0]) <= 1 + 1e-9


def test_a_choice_without_noise_has_the_least_loss_and_scores_are_bounded() -> None:
    data, theta = met(SHAPE), SHAPE.initial(3)
    directions = CHOICE.directions(theta, 0)
    gains = torch.tensor([gain(SHAPE, theta, data, CHOICE, each) for each in directions])
    wide = NaturalGradientByChoice(1.0, 5, 1.0, 50.0)  # no loss is cut
    assert wide.scores(SHAPE, theta, data, directions).sum(0).argmax() == gains.argmax()
    users = (None, met(SHAPE, users=1, seed=1), *hostile(SHAPE))
    cohorts = [with_user(data, user) for user in users]
    without, *found = (sum_scores(CHOICE.scores(SHAPE, theta, c, directions)) for c in cohorts)
    assert all(((moved - without >= 0) & (moved - without <= ONE)).all() for moved in found)


def test_choices_of_one_user_share_epsilon_and_have_its_odds() -> None:
    """One user scores one of three candidates: both mechanisms choose it as often as their odds
    say.
    """
    cohort = ChoiceCohort(10, 1.2, choices=2)
    with pytest.raises(ValueError, match="11 users"):
        cohort.chosen(torch.ones(11, 3))
    scores = torch.zeros(1, 3)
    scores[0, 1] = 1.0
    share = sum(cohort.chosen(scores) == 1 for _ in range(2000)) / 2000

    def expected(epsilon: float) -> float:
        """Permute-and-flip: each of the other two is admitted with these odds."""
        odds = math.exp(-epsilon)
        return (1 - odds) ** 2 + odds * (1 - odds) + odds**2 / 3

    assert abs(share - expected(0.6)) < 0.05 < abs(share - expected(1.2))
    papers = ExponentialCohort(10, 1.2, choices=2)
    share = sum(papers.chosen(scores) == 1 for _ in range(2000)) / 2000
    odds, wrong = (1 / (1 + 2 * math.exp(-epsilon)) for epsilon in (0.6, 1.2))
    assert abs(share - odds) < 0.05 < abs(share - wrong)
