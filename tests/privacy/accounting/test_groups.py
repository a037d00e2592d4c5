"""k units of one person: the accountant's mixture is what an independent convolution says, and never k ε."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event, rdp

from primorl.privacy.accounting.epsilon import Training, compose
from primorl.privacy.accounting.groups import grouped, mixture_rdp
from tests.hostile import fft_accountant
from tests.hostile.fft_accountant import bracket, gaussian_delta

DELTA = 1e-5


@pytest.mark.parametrize(("q", "z", "rounds", "k"), [(0.1, 8.763, 150, 2), (0.1, 8.763, 150, 4), (0.02, 1.5, 60, 3)])
def test_a_group_is_what_an_independent_accountant_says(q: float, z: float, rounds: int, k: int) -> None:
    """Never below, and above by a per cent at most. The twins: kε at the same δ, and one unit fewer, are far below."""
    run = Training(q, z, rounds)
    stated = compose([grouped(run.event, k)], DELTA).epsilon_pld
    low, high = bracket([fft_accountant.grouped(q, z, rounds, k)], DELTA, guess=stated)
    assert low <= stated <= 1.01 * high < 1.02 * low
    assert k * run.spent(DELTA).epsilon_pld < low
    assert compose([grouped(run.event, k - 1)], DELTA).epsilon_pld < 0.8 * low


@pytest.mark.parametrize("k", [2, 5])
def test_without_sampling_a_group_is_a_gaussian_of_k_times_the_shift(k: int) -> None:
    epsilon = compose([grouped(Training(1.0, 40.0, 50, (30.0,)).event, k)], DELTA).epsilon_pld
    assert 0.97e-5 < gaussian_delta(k * math.sqrt(50 / 40.0**2 + 30.0**-2), epsilon) <= DELTA * (1 + 1e-6)


def test_one_unit_is_the_event_itself_and_groups_compose() -> None:
    run, longer = Training(0.1, 10.0, 20, (30.0,)), Training(0.1, 10.0, 40, (30.0, 30.0))
    assert grouped(run.event, 1) == run.event
    no_guarantee = dp_event.NonPrivateDpEvent()
    assert grouped(no_guarantee, 3) is no_guarantee
    twice = compose([grouped(run.event, 3)] * 2, DELTA)
    whole = compose([grouped(longer.event, 3)], DELTA)
    assert twice.epsilon_pld == pytest.approx(whole.epsilon_pld, rel=2e-3)
    assert twice.epsilon_pld <= twice.epsilon_rdp
    # Beside a charge of whole people, the group's charge is composed as it is.
    mixed = compose([grouped(run.event, 3), run.event], DELTA).epsilon_pld
    assert compose([grouped(run.event, 3)], DELTA).epsilon_pld < mixed < twice.epsilon_pld


@pytest.mark.parametrize("k", [2, 9, 301])
def test_the_probabilities_of_a_mixture_are_whole(k: int) -> None:
    """They add up to one, and what is too rare to list counts as the whole group."""
    event = grouped(Training(0.01, 2.0, 1).event, k).event
    assert math.fsum(event.sampling_probs) == pytest.approx(1.0, abs=1e-12)
    assert max(event.sensitivities) == k


def test_no_group_and_no_mechanism_of_others_is_analysed() -> None:
    with pytest.raises(ValueError, match="a group has at least one unit, found 0"):
        grouped(dp_event.GaussianDpEvent(1.0), 0)
    with pytest.raises(ValueError, match="no group analysis for LaplaceDpEvent"):
        grouped(dp_event.LaplaceDpEvent(1.0), 2)


def test_rdp_of_a_mixture_is_the_closed_form_at_whole_orders() -> None:
    """One unit is the sampled Gaussian that dp-accounting knows. Of k, E ∏ e^(b b'/z²) over the α drawn numbers b."""
    q, z, orders = 0.1, 2.0, [2, 3, 8, 30]
    one = dp_event.MixtureOfGaussiansDpEvent(z, (0.0, 1.0), (1 - q, q))
    sampled = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z))
    known = rdp.RdpAccountant(orders).compose(sampled).get_epsilon(DELTA)
    assert rdp.compute_epsilon(orders, mixture_rdp(one, orders), DELTA)[0] == pytest.approx(known, rel=1e-6)
    assert (np.diff(mixture_rdp(one, [1.1, 1.5, 2.0, 2.5, 3.0])) > 0).all()
    group = grouped(sampled, 3)
    b, p = np.array(group.sensitivities), np.array(group.sampling_probs)
    squared = float((np.outer(p, p) * np.exp(np.outer(b, b) / z**2)).sum())
    assert mixture_rdp(group, [2])[0] == pytest.approx(math.log(squared), rel=1e-8)
    assert mixture_rdp(group, [1e6])[0] == math.inf
