"""Groups, profiles and attacks are those of the event by an independent accountant, and of no formula in ε and δ."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from scipy import stats

from primorl.privacy.accounting.epsilon import Training, compose
from primorl.privacy.accounting.figures import FALSE_POSITIVE_RATES, figures, posterior, true_positive_rate
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


def test_without_sampling_a_group_is_a_gaussian_of_k_times_the_shift() -> None:
    for k in (2, 5):
        epsilon = compose([grouped(Training(1.0, 40.0, 50, (30.0,)).event, k)], DELTA).epsilon_pld
        assert 0.97e-5 < gaussian_delta(k * math.sqrt(50 / 40.0**2 + 30.0**-2), epsilon) <= DELTA * (1 + 1e-6)


def test_one_unit_is_the_event_itself_and_groups_compose() -> None:
    run, longer = Training(0.1, 10.0, 20, (30.0,)), Training(0.1, 10.0, 40, (30.0, 30.0))
    assert grouped(run.event, 1) == run.event
    no_guarantee = dp_event.NonPrivateDpEvent()
    assert grouped(no_guarantee, 3) is no_guarantee
    twice, whole = compose([grouped(run.event, 3)] * 2, DELTA), compose([grouped(longer.event, 3)], DELTA)
    assert twice.epsilon_pld == pytest.approx(whole.epsilon_pld, rel=2e-3)
    assert twice.epsilon_pld <= twice.epsilon_rdp
    # Beside a charge of whole people, the group's charge is composed as it is.
    mixed = compose([grouped(run.event, 3), run.event], DELTA).epsilon_pld
    assert compose([grouped(run.event, 3)], DELTA).epsilon_pld < mixed < twice.epsilon_pld


def test_the_probabilities_of_a_mixture_are_whole() -> None:
    """They add up to one, and what is too rare to list counts as the whole group."""
    for k in (2, 9, 301):
        event = grouped(Training(0.01, 2.0, 1).event, k).event
        assert math.fsum(event.sampling_probs) == pytest.approx(1.0, abs=1e-12)
        assert max(event.sensitivities) == k
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


SAMPLED = Training(0.1, 8.763, 150)


def test_profile_and_attacks_are_those_of_the_exact_gaussian() -> None:
    """Never below it, and hardly above. The best attack is Φ(Φ⁻¹(α) + μ) (Dong, Roth and Su 2022)."""
    mu, found = 5 / 20, figures(Training(1.0, 20.0, 25).event, 1e-5)
    epsilons = [epsilon for epsilon, _ in found.profile]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == 0
    assert any(delta == 1e-5 for _, delta in found.profile)
    for epsilon, delta in found.profile:
        exact = float(gaussian_delta(mu, epsilon))
        assert exact * (1 - 1e-6) <= delta <= max(exact * 1.05, 1e-10)
    for rate, power in found.attacks:
        exact = float(stats.norm.cdf(stats.norm.ppf(rate) + mu))
        assert exact <= power <= exact * 1.002


def test_no_attack_on_sampled_rounds_does_better_than_is_stated() -> None:
    """The likelihood ratio test, best by Neyman and Pearson, on simulated rounds; the twin: it comes close."""
    q, z, rounds, trials = 0.1, 8.763, 150, 40_000
    generator = np.random.default_rng(0)

    def losses(joins: float) -> np.ndarray:
        total = np.zeros(trials)
        for _ in range(rounds):
            x = (generator.random(trials) < joins) + z * generator.standard_normal(trials)
            total += np.log1p(q * np.expm1((x - 0.5) / z**2))
        return total

    absent, there = losses(0.0), losses(q)
    for rate, power in figures(SAMPLED.event, 1e-5).attacks[1:]:
        found = float((there > np.quantile(absent, 1 - rate)).mean())
        luck = 4 * math.sqrt(power / trials) + 4 * power * (rate * trials) ** -0.5
        assert 0.93 * power - luck <= found <= power + luck


def test_groups_and_replacement_are_the_accountants() -> None:
    found, one = figures(SAMPLED.event, 1e-5), SAMPLED.spent(1e-5).epsilon_pld
    for units, epsilon in found.groups:
        assert epsilon == pytest.approx(compose([grouped(SAMPLED.event, units)], 1e-5).epsilon_pld)
        assert epsilon > units * one  # kε at the same δ was claimed once
    assert found.epsilon_replace_one == SAMPLED.spent(1e-5, "replace_one").epsilon_pld
    # Where nothing is guaranteed an attack may be certain.
    hopeless = figures(Training(1.0, 0.01, 3).event, 1e-5)
    assert hopeless.profile == ()
    assert hopeless.attacks == tuple((rate, 1.0) for rate in FALSE_POSITIVE_RATES)
    assert true_positive_rate((), 0.3) == 1.0
    assert posterior(0.5, 0.01, 0.03) == pytest.approx(0.75)  # by Bayes
