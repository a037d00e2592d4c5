"""k units of one person: the accountant's mixture is what an independent convolution says, and never k ε."""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from scipy import stats

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.groups import grouped, mixture_rdp


def density(x: Any, q: float, z: float, k: int) -> Any:
    """Σ_i P[Bin(k, q) = i] N(i, z²): what a round releases along the line of k equal contributions."""
    return sum(stats.binom.pmf(i, k, q) * stats.norm.pdf(x, i, z) for i in range(k + 1))


def epsilon_by_convolution(q: float, z: float, rounds: int, k: int, delta: float, h: float) -> float:
    """ε of ``rounds`` rounds from the law of their summed losses, each rounded to the nearest multiple of h."""
    size = 1 << 17
    x = np.linspace(-12 * z - 1, 12 * z + k + 1, 400_001)
    there, absent = density(x, q, z, k), stats.norm.pdf(x, 0, z)
    found = []
    for one, other in ((there, absent), (absent, there)):
        losses = np.rint((np.log(one) - np.log(other)) / h).astype(int)
        law = np.bincount(losses % size, one * (x[1] - x[0]), size)
        summed = np.fft.irfft(np.fft.rfft(law) ** rounds, size)
        loss = h * ((np.arange(size) + size // 2) % size - size // 2)
        low, high = 0.0, float(loss.max())
        for _ in range(40):
            middle = (low + high) / 2
            spent = float((summed * np.maximum(-np.expm1(middle - loss), 0)).sum())
            low, high = (middle, high) if spent > delta else (low, middle)
        found.append(high)
    return max(found)


@pytest.mark.parametrize(
    ("q", "z", "rounds", "k", "h"), [(0.1, 8.763, 150, 2, 2e-4), (0.1, 8.763, 150, 4, 4e-4), (0.02, 1.5, 60, 3, 5e-4)]
)
def test_a_group_is_what_a_convolution_says(q: float, z: float, rounds: int, k: int, h: float) -> None:
    """Never below, and above by less than 1%. The twins: kε at the same δ, and one unit fewer, are far below."""
    event = accounting.training_event(q, z, rounds)
    stated = accounting.spent(grouped(event, k), 1e-5, rounds=rounds).epsilon_pld
    independent = epsilon_by_convolution(q, z, rounds, k, 1e-5, h)
    assert independent * (1 - 1e-3) < stated < independent * 1.01
    assert k * accounting.spent(event, 1e-5, rounds=rounds).epsilon_pld < independent
    assert accounting.spent(grouped(event, k - 1), 1e-5, rounds=rounds).epsilon_pld < 0.8 * independent


@pytest.mark.parametrize("k", [2, 5])
def test_without_sampling_a_group_is_a_gaussian_of_k_times_the_shift(k: int) -> None:
    """q = 1 and queries: δ(ε) has a closed form (Balle and Wang 2018)."""
    run = accounting.Training(1.0, 40.0, 50, (30.0,))
    epsilon = accounting.compose([grouped(run.event, k)], 1e-5).epsilon_pld
    mu = k * math.sqrt(50 / 40.0**2 + 30.0**-2)
    upper, lower = stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.cdf(-mu / 2 - epsilon / mu)
    delta = float(upper - math.exp(epsilon) * lower)
    assert delta == pytest.approx(1e-5, rel=0.03)
    assert delta <= 1e-5 * (1 + 1e-6)


def test_one_unit_is_the_event_itself_and_groups_compose() -> None:
    run = accounting.Training(0.1, 10.0, 20, (30.0,))
    assert grouped(run.event, 1) == run.event
    no_guarantee = dp_event.NonPrivateDpEvent()
    assert grouped(no_guarantee, 3) is no_guarantee
    twice = accounting.compose([grouped(run.event, 3)] * 2, 1e-5)
    longer = accounting.Training(0.1, 10.0, 40, (30.0, 30.0))
    assert twice.epsilon_pld == pytest.approx(
        accounting.compose([grouped(longer.event, 3)], 1e-5).epsilon_pld, rel=2e-3
    )
    assert twice.epsilon_pld <= twice.epsilon_rdp
    # Beside a charge of whole people, the group's charge is composed as it is.
    mixed = accounting.compose([grouped(run.event, 3), run.event], 1e-5).epsilon_pld
    assert accounting.compose([grouped(run.event, 3)], 1e-5).epsilon_pld < mixed < twice.epsilon_pld


@pytest.mark.parametrize("k", [1, 2, 3, 8, 300])
def test_the_probabilities_of_a_mixture_are_whole(k: int) -> None:
    """They add up to one, and what is too rare to list counts as the whole group."""
    event = grouped(accounting.training_event(0.01, 2.0, 1), k + 1).event
    assert math.fsum(event.sampling_probs) == pytest.approx(1.0, abs=1e-12)
    assert max(event.sensitivities) == k + 1


def test_no_group_and_no_mechanism_of_others_is_analysed() -> None:
    with pytest.raises(ValueError, match="a group has at least one unit, found 0"):
        grouped(dp_event.GaussianDpEvent(1.0), 0)
    with pytest.raises(ValueError, match="no group analysis for LaplaceDpEvent"):
        grouped(dp_event.LaplaceDpEvent(1.0), 2)


def test_rdp_of_a_mixture_is_the_closed_form_at_whole_orders() -> None:
    """One unit is the sampled Gaussian that dp-accounting knows. Of k, E ∏ e^(b b'/z²) over the α drawn numbers b."""
    q, z, orders = 0.1, 2.0, [2, 3, 8, 30]
    one = dp_event.MixtureOfGaussiansDpEvent(z, (0.0, 1.0), (1 - q, q))
    known = rdp.RdpAccountant(orders).compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z)))
    found = mixture_rdp(one, orders)
    delta = 1e-5
    assert rdp.compute_epsilon(orders, found, delta)[0] == pytest.approx(known.get_epsilon(delta), rel=1e-6)
    assert (np.diff(mixture_rdp(one, [1.1, 1.5, 2.0, 2.5, 3.0])) > 0).all()

    group = grouped(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z)), 3)
    b, p = np.array(group.sensitivities), np.array(group.sampling_probs)
    squared = float((np.outer(p, p) * np.exp(np.outer(b, b) / z**2)).sum())
    assert mixture_rdp(group, [2])[0] == pytest.approx(math.log(squared), rel=1e-8)
    assert mixture_rdp(group, [1e6])[0] == math.inf
