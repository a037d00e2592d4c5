"""The profile, the groups and the best attack are those of the event, and of no formula in ε and δ alone."""

import math

import numpy as np
import pytest
from scipy import stats

from primorl.privacy.accounting.epsilon import Training, compose
from primorl.privacy.accounting.figures import FALSE_POSITIVE_RATES, figures, posterior, true_positive_rate
from primorl.privacy.accounting.groups import grouped
from tests.hostile.fft_accountant import gaussian_delta

MU = 0.25
GAUSSIAN = Training(1.0, 20.0, 25).event  # μ = 5 / 20
SAMPLED = Training(0.1, 8.763, 150)


def test_profile_and_attacks_are_those_of_the_exact_gaussian() -> None:
    """Never below it, and hardly above. The best attack is Φ(Φ⁻¹(α) + μ) (Dong, Roth and Su 2022)."""
    found = figures(GAUSSIAN, 1e-5)
    epsilons = [epsilon for epsilon, _ in found.profile]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == 0
    assert any(delta == 1e-5 for _, delta in found.profile)
    for epsilon, delta in found.profile:
        exact = float(gaussian_delta(MU, epsilon))
        assert exact * (1 - 1e-6) <= delta <= max(exact * 1.05, 1e-10)
    for rate, power in found.attacks:
        exact = float(stats.norm.cdf(stats.norm.ppf(rate) + MU))
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


def test_where_nothing_is_guaranteed_an_attack_may_be_certain() -> None:
    hopeless = figures(Training(1.0, 0.01, 3).event, 1e-5)
    assert hopeless.profile == ()
    assert hopeless.attacks == tuple((rate, 1.0) for rate in FALSE_POSITIVE_RATES)
    assert true_positive_rate((), 0.3) == 1.0
    assert posterior(0.5, 0.01, 0.03) == pytest.approx(0.75)  # by Bayes
