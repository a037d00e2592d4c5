"""One cohort's mechanism: its noise, its divisor, and no release that was not paid for."""

import math

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from primorl.online.learning import (
    PARAMETERS,
    Cohort,
    OnlineState,
    Trajectories,
    learn,
    online_mechanism,
)
from primorl.privacy.mechanism.mechanism import Mechanism
from research.regression import Rebel
from tests.online.cohorts import network

SIZE, COHORT, NORM, Z = 4000, 10, 0.3, 2.0


def mechanism(z: float = Z, releases: int = 1) -> Mechanism:
    sizes = {"users": 1000, "cohort": COHORT, "releases": releases}
    return online_mechanism(**sizes, noise_multiplier=z, delta=1e-5)


def is_noise_of(values: Tensor, standard_deviation: float) -> bool:
    """Whether the sum of squares is within the central 1 - 1e-6 of its law."""
    ratio = float(values.double().square().sum()) / standard_deviation**2
    return bool(chi2.ppf(5e-7, len(values)) < ratio < chi2.ppf(1 - 5e-7, len(values)))


def test_noise_is_z_times_s_over_m() -> None:
    rows = torch.zeros(4, SIZE)  # fewer users than m
    rows[:, 0] = 0.1
    noise = Cohort(mechanism(), 1).noisy_mean(rows, NORM)
    noise[0] -= 0.4 / COHORT
    assert is_noise_of(noise, Z * NORM / COHORT)
    for wrong in (2 / 3, 3 / 2, COHORT / len(rows)):
        assert not is_noise_of(noise, Z * NORM / COHORT * wrong)
    twin = Cohort(mechanism(0.0), 1).noisy_mean(torch.tensor([[9.0, 0.0]] * 4), NORM)
    torch.testing.assert_close(twin, torch.tensor([4 * NORM / COHORT, 0.0]))


def test_no_release_is_made_that_was_not_paid_for() -> None:
    cohort = Cohort(mechanism(releases=2), 2)
    for _ in range(2):
        cohort.noisy_mean(torch.ones(3, 2), NORM)
    with pytest.raises(ValueError, match="used up"):
        cohort.noisy_mean(torch.ones(3, 2), NORM)
    for rows, says in (
        (torch.ones(COHORT + 1, 3), "11 users"),
        (iter([torch.ones(6, 3), torch.ones(5, 3)]), "11 users"),
        (iter([]), "no contributions"),
    ):
        with pytest.raises(ValueError, match=says):
            Cohort(mechanism(), 1).noisy_mean(rows, NORM)


def test_all_that_a_user_is_in_is_accounted() -> None:
    assert mechanism(releases=3).rounds == 3
    single, six = (
        mechanism().spent(),
        mechanism(z=Z * math.sqrt(3), releases=3).spent(),
    )
    assert single is not None
    assert six is not None
    assert six.epsilon_pld == pytest.approx(single.epsilon_pld, rel=0.03)  # sum to a Gaussian


@pytest.mark.parametrize(
    ("cohorts", "releases", "message"),
    [
        ([[0, 1], [1, 2]], 1, "two cohorts"),
        ([[0, 1]], 1, "found 1"),
        ([[0, 1], [2, 3]], 2, "takes 2 releases"),
    ],
)
def test_a_run_that_was_not_paid_for_meets_nobody(
    cohorts: list[list[int]], releases: int, message: str
) -> None:
    update = Rebel(temperature=1.0, step_size=0.5, steps=releases, clipping_norm=0.3)
    shape = network()
    state = OnlineState.begin({PARAMETERS: shape.initial(0)}, 2)
    with pytest.raises(ValueError, match=message):
        learn(update, shape, mechanism(), Nobody(), cohorts, state)


class Nobody:
    def meet(self, *_: object) -> Trajectories:
        raise AssertionError("somebody was met")
