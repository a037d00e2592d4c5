"""The bounds have power where the project sells (ε 0.5, 1 and 3), and are as often above the truth as they may be.

Observations of a mechanism are drawn from its law, by NumPy, where many are needed; one audit runs the real plan.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtr

from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.audits import bounds
from primorl.privacy.audits.bounds import ASSUMPTIONS, Family, LowerBound, Observations, lower_bound
from primorl.privacy.audits.canaries import audit_mechanism
from primorl.privacy.mechanism.clipping import EnsembleClip, L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.plans import releasing

Q, ROUNDS, DELTA = 0.1, 150, 1e-5
SURE = 1 - 1e-6


def plan(epsilon: float, q: float = Q, rounds: int = ROUNDS) -> Plan:
    multiplier = solve_noise_multiplier(epsilon, DELTA, q, rounds)
    return Plan(3000, "unit", PoissonSampler(q), L2Clip(1.0), multiplier, rounds, DELTA)


def drawn(stated: Plan, canaries: int, multiplier: float, q: float | None = None, seed: int = 0) -> Observations:
    """What the rounds of a mechanism of ``multiplier`` show, in place of those that ``stated`` claims."""
    generator = np.random.default_rng(seed)
    included = generator.random(canaries) < 0.5
    joined = (generator.random((canaries, stated.rounds)) < (q or stated.sampling_probability)) & included[:, None]
    seen = generator.standard_normal((canaries, stated.rounds), dtype=np.float32)
    seen *= np.float32(multiplier)
    seen += joined
    return Observations(included, seen, seen.sum(1, keepdims=True, dtype=np.float64))


def test_three_fifths_of_the_claim_are_proved_and_a_lie_is_refuted() -> None:
    """At 99%, with a fraction of the command's canaries; half the noise is refuted."""
    stated = plan(1.0)
    claimed = stated.spent().epsilon_pld  # type: ignore[union-attr]
    found = lower_bound(stated, drawn(stated, 24_000, stated.noise_multiplier), claimed, 0.99)
    assert 0.6 * claimed < found.of("likelihood") <= claimed
    assert not found.refutes_the_claim
    assert 0 < found.of("one_run_fdp") < found.of("likelihood")
    weaker = drawn(stated, 24_000, stated.noise_multiplier / 2)
    assert lower_bound(stated, weaker, claimed, SURE).refutes_the_claim


def rounds_of_the_default_run(kind: type[Plan]) -> LowerBound:
    """An audit of the real plan: 30 rounds with the q, z, C and K of the default run, claimed as they are."""
    shipped = plan(0.5)
    clip = EnsembleClip(0.35, "flat", 1, 2)
    short = kind(2940, "trajectory", shipped.sampler, clip, shipped.noise_multiplier, 30, DELTA)
    return audit_mechanism(short, canaries=2048, runs=20, confidence=SURE)


def test_the_real_plan_is_audited_and_a_broken_one_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the shipped ε of a round; half the noise might go unnoticed there, a third does not."""
    found = rounds_of_the_default_run(Plan)
    assert not found.refutes_the_claim
    assert found.canaries == 2048 * 20
    assert {bound.name: bound.assumes for bound in found.bounds} == dict(ASSUMPTIONS)
    assert found.epsilon == max(found.of(name) for name in ASSUMPTIONS)
    a_third = releasing(lambda plan, noise: [part / 3 for part in noise])
    assert rounds_of_the_default_run(a_third).refutes_the_claim
    monkeypatch.setattr(EnsembleClip, "factors", lambda self, squares: torch.ones_like(squares))
    assert rounds_of_the_default_run(Plan).refutes_the_claim


def test_a_bound_passes_the_truth_as_often_as_it_may_and_no_more() -> None:
    """Exactly: the least number of right guesses that proves more than the truth has that probability or less."""
    stated, size, error = plan(1.0, q=1.0, rounds=1), 4000, 0.0125
    family = Family.of(stated)
    truth = stated.spent().epsilon_pld  # type: ignore[union-attr]
    accuracy = float(ndtr(0.5 / stated.noise_multiplier))
    assert (1 + family.curve(stated.noise_multiplier).total_variation) / 2 == pytest.approx(accuracy, abs=1e-4)

    def passes(right: int) -> bool:
        included = np.arange(size) % 2 == 0  # half are guessed in, and each swap makes two guesses wrong
        scores = np.where(included, 1.0, -1.0) + np.linspace(0, 1e-3, size)
        wrong = (size - right) // 2
        scores[np.flatnonzero(included)[:wrong]] *= -1
        scores[np.flatnonzero(~included)[:wrong]] *= -1
        return bounds._by_accuracy(family, included, scores, 1 - error) > truth

    low, high = int(accuracy * size) // 2 * 2, size
    while high - low > 2:
        middle = (low + high) // 4 * 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    assert error / 5 < stats.binom.sf(high - 1, size, accuracy) <= error


def test_the_bounds_of_one_report_share_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(bounds, "_by_accuracy", lambda *rest: given.append(rest[-1]) or 0.0)
    monkeypatch.setattr(bounds, "_by_one_run", lambda *rest: given.append(rest[-1]) or 0.0)
    monkeypatch.setattr(bounds, "_by_rates", lambda *rest: given.append(rest[-1]) or ("likelihood", 0.0, 0.0))
    stated = plan(1.0)
    lower_bound(stated, drawn(stated, 256, stated.noise_multiplier), 1.0, 0.96)
    assert given == pytest.approx([0.99] * 3)
