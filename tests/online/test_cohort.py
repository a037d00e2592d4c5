"""One cohort's mechanism: its noise, its divisor, and no release that was not paid for."""

import math
from collections.abc import Sequence

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from primorl.online.learning import OnlineState, learn
from primorl.online.mechanism import ChoicePlan, Cohort, online_plan
from primorl.online.network import PolicyNetwork
from primorl.online.policy_optimisation import Rebel
from primorl.online.trajectories import Trajectories
from primorl.privacy.accounting.pure import PureDpEvent
from primorl.privacy.mechanism.plan import Plan
from tests.online.cohorts import network

SIZE, COHORT, NORM, Z = 4000, 10, 0.3, 2.0


def plan(z: float = Z, releases: int = 1, appearances: int = 1) -> Plan:
    return online_plan(
        users=1000, cohort=COHORT, noise_multiplier=z, releases=releases, appearances=appearances, delta=1e-5
    )


def choices(choices: int = 1) -> ChoicePlan:
    return ChoicePlan(1000, "user", 3, 1.2, 1e-5, cohort=COHORT, choices=choices)


def is_noise_of(values: Tensor, standard_deviation: float) -> bool:
    """Whether the sum of squares is within the central 1 - 1e-6 of its law."""
    ratio = float(values.double().square().sum()) / standard_deviation**2
    return bool(chi2.ppf(5e-7, len(values)) < ratio < chi2.ppf(1 - 5e-7, len(values)))


def test_noise_is_z_times_s_over_m() -> None:
    rows = torch.zeros(4, SIZE)  # fewer users than m
    rows[:, 0] = 0.1
    noise = Cohort(plan(), 1).noisy_mean(rows, NORM)
    noise[0] -= 0.4 / COHORT

    assert is_noise_of(noise, Z * NORM / COHORT)
    assert not is_noise_of(noise, Z * NORM / COHORT * 2 / 3)
    assert not is_noise_of(noise, Z * NORM / COHORT * 3 / 2)
    assert not is_noise_of(noise, Z * NORM / len(rows))


def test_the_mean_is_over_the_public_size() -> None:
    twin = Cohort(plan(0.0), 1).noisy_mean(torch.ones(4, 2), NORM)

    torch.testing.assert_close(twin, torch.full((2,), 4 / COHORT))


def test_no_release_is_made_that_was_not_paid_for() -> None:
    cohort = Cohort(plan(releases=2), 2)
    cohort.noisy_mean(torch.ones(3, 2), NORM)
    cohort.noisy_mean(torch.ones(3, 2), NORM)
    with pytest.raises(ValueError, match="used up"):
        cohort.noisy_mean(torch.ones(3, 2), NORM)

    chosen = Cohort(choices(), 1)
    chosen.choose(torch.ones(3, 3))
    with pytest.raises(ValueError, match="used up"):
        chosen.choose(torch.ones(3, 3))


def test_a_plan_pays_for_its_own_kind_only() -> None:
    with pytest.raises(ValueError, match="not for choices"):
        Cohort(plan(), 1).choose(torch.ones(3, 3))
    with pytest.raises(ValueError, match="not for noisy means"):
        Cohort(choices(), 1).noisy_mean(torch.ones(3, 2), NORM)


@pytest.mark.parametrize("cohort", [Cohort(plan(), 1), Cohort(choices(), 1)], ids=["means", "choices"])
def test_more_users_than_the_divisor_are_refused(cohort: Cohort) -> None:
    release = cohort.choose if cohort._plan.__class__ is ChoicePlan else lambda rows: cohort.noisy_mean(rows, NORM)
    with pytest.raises(ValueError, match="11 users"):
        release(torch.ones(COHORT + 1, 3))


def test_all_that_a_user_is_in_is_accounted() -> None:
    assert plan(releases=3, appearances=2).rounds == 6
    single, six = plan().spent(), plan(z=Z * math.sqrt(6), releases=3, appearances=2).spent()
    assert single is not None
    assert six is not None
    assert six.epsilon_pld == pytest.approx(single.epsilon_pld, rel=0.03)  # Gaussians compose to a Gaussian


def test_choices_of_one_user_share_the_stated_epsilon() -> None:
    shared = choices(choices=4)

    assert shared.event == PureDpEvent(1.2)
    assert shared.one_choice.epsilon == pytest.approx(0.3)
    assert shared.one_choice.units == COHORT
    assert shared.statement(dataset_fingerprint="f", public_assumptions=[]).epsilon == pytest.approx(1.2, rel=0.2)


def test_choices_have_the_odds_of_their_epsilon() -> None:
    """Sums 1 apart: the worse one is chosen with probability exp(-ε)/2, at most."""
    scores = torch.zeros(1, 3)
    scores[0, 1] = 1.0
    chosen = torch.tensor([Cohort(choices(choices=2), 1).choose(scores) for _ in range(2000)])
    share = float((chosen == 1).float().mean())

    odds = math.exp(-0.6)  # permute-and-flip: each of the other two is admitted with this probability
    expected = (1 - odds) ** 2 + 2 * odds * (1 - odds) / 2 + odds**2 / 3
    assert abs(share - expected) < 0.05
    whole = math.exp(-1.2)
    assert abs(share - ((1 - whole) ** 2 + whole * (1 - whole) + whole**2 / 3)) > 0.05


@pytest.mark.parametrize(
    ("cohorts", "releases", "message"),
    [
        ([[0, 1], [1, 2]], 1, "a number is in two cohorts"),
        ([[0, 1]], 1, "the state is of 2 cohorts, found 1"),
        ([[0, 1], [2, 3]], 2, "takes 2 releases of a cohort, and the plan pays for 1"),
    ],
)
def test_a_run_that_was_not_paid_for_meets_nobody(cohorts: list[list[int]], releases: int, message: str) -> None:
    update, shape = Rebel(1.0, 0.5, releases, 0.3), network()
    state = OnlineState.begin(update.begin(shape, shape.initial(0)), 2)
    with pytest.raises(ValueError, match=message):
        learn(update, shape, plan(), Nobody(), cohorts, state)


class Nobody:
    def meet(self, numbers: Sequence[int], network: PolicyNetwork, parameters: Tensor) -> Trajectories:
        raise AssertionError("somebody was met")
