"""The profile, the groups and the best attack are those of the event, and of no formula in ε and δ alone."""

import math

import numpy as np
import pytest
from scipy import stats

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.figures import FALSE_POSITIVE_RATES, figures, posterior, true_positive_rate
from primorl.privacy.accounting.groups import grouped

GAUSSIAN = accounting.training_event(1.0, 20.0, 25)  # μ = 5 / 20
MU = 0.25
SAMPLED = accounting.training_event(0.1, 8.763, 150)


def test_the_profile_is_that_of_the_exact_gaussian() -> None:
    """δ(ε) has a closed form (Balle and Wang 2018): never below it, and hardly above."""
    profile = figures(GAUSSIAN, 1e-5).profile
    assert [epsilon for epsilon, _ in profile] == sorted(epsilon for epsilon, _ in profile)
    assert profile[0][0] == 0
    assert any(delta == 1e-5 for _, delta in profile)
    for epsilon, delta in profile:
        lower, upper = stats.norm.cdf(-MU / 2 - epsilon / MU), stats.norm.cdf(MU / 2 - epsilon / MU)
        exact = float(upper - math.exp(epsilon) * lower)
        assert exact * (1 - 1e-6) <= delta <= max(exact * 1.05, 1e-10)


def test_the_best_attack_is_the_gaussian_trade_off() -> None:
    """True against false positive rate is Φ(Φ⁻¹(α) + μ) (Dong, Roth and Su 2022): never below, and hardly above."""
    for rate, power in figures(GAUSSIAN, 1e-5).attacks:
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
    for rate, power in figures(SAMPLED, 1e-5).attacks[1:]:
        threshold = np.quantile(absent, 1 - rate)
        found, luck = (
            float((there > threshold).mean()),
            4 * math.sqrt(power / trials) + 4 * power * (rate * trials) ** -0.5,
        )
        assert found <= power + luck
        assert found >= 0.93 * power - luck


def test_groups_and_replacement_are_the_accountants() -> None:
    found = figures(SAMPLED, 1e-5)
    one = accounting.spent(SAMPLED, 1e-5, rounds=150).epsilon_pld
    for units, epsilon in found.groups:
        assert epsilon is not None
        assert epsilon == pytest.approx(accounting.compose([grouped(SAMPLED, units)], 1e-5).epsilon_pld)
        assert epsilon > units * one  # kε at the same δ was claimed once
    assert found.epsilon_replace_one == accounting.spent(SAMPLED, 1e-5, rounds=150, relation="replace_one").epsilon_pld


def test_where_nothing_is_guaranteed_an_attack_may_be_certain() -> None:
    hopeless = figures(accounting.training_event(1.0, 0.01, 3), 1e-5)
    assert hopeless.profile == ()
    assert hopeless.attacks == tuple((rate, 1.0) for rate in FALSE_POSITIVE_RATES)
    assert true_positive_rate((), 0.3) == 1.0


def test_beliefs_follow_bayes() -> None:
    assert posterior(0.5, 0.01, 0.01) == pytest.approx(0.5)
    assert posterior(0.5, 0.01, 0.03) == pytest.approx(0.75)
    assert posterior(0.01, 0.1, 0.1) == pytest.approx(0.01)
