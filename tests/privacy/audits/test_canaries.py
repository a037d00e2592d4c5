"""The audit stays below what a sound plan claims, and lies some five deviations above what a weaker one claims."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtr, ndtri
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.audits import bounds, canaries
from primorl.privacy.audits.bounds import (
    ASSUMPTIONS,
    Family,
    LowerBound,
    Observations,
    lower_bound,
    privacy_curve,
)
from primorl.privacy.audits.canaries import audit_mechanism, observe
from primorl.privacy.audits.one_run import (
    clopper_pearson,
    epsilon_lower_bound,
    guesses,
    p_value,
    refutes_trade_off,
)
from primorl.privacy.mechanism.clipping import EnsembleClip, L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.plans import HalfTheNoise, ensemble_plan, releasing

SURE = 1 - 1e-7
EVERYONE = {"sampling_probability": 1.0, "noise_multiplier": 4.0, "rounds": 4}  # ε 1.99
SAMPLED = {"sampling_probability": 0.1, "noise_multiplier": 2.0, "rounds": 40}  # ε 1.48


def plan(kind: type[Plan] = Plan, **changes: object) -> Plan:
    settings = {
        "units": 300,
        "unit": "trajectory",
        "clipping_norm": 0.5,
        "delta": 1e-5,
        "members": 3,
        "layers": 3,
    }
    return ensemble_plan(kind, **(settings | changes))  # type: ignore[arg-type]


def audit(p: Plan, runs: int) -> LowerBound:
    return audit_mechanism(p, canaries=256, runs=runs, confidence=SURE)


WithoutLastMember = releasing(
    lambda plan, noise: [torch.cat((layer[:-1], 0 * layer[:1])) for layer in noise]
)
OneDrawForTwoMembers = releasing(lambda plan, noise: [layer[[0, 0, 2]] for layer in noise])


@dataclass(frozen=True)
class Counting(Plan):
    memory: dict[str, Any] = field(default_factory=dict)

    def round_of_run(self) -> int:
        self.memory["round"] = self.memory.get("round", -1) + 1
        return int(self.memory["round"]) % self.rounds


class NoiseReplayed(Counting):
    """The third round's noise is the second's, as a resume from a saved generator would have it."""

    def release(self, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self.round_of_run() != 2:
            self.memory["noise"] = super().release([torch.zeros_like(part) for part in total])
        pairs = zip(total, self.memory["noise"], strict=True)
        return tuple((part / self.expected_cohort + n).float() for part, n in pairs)


class OneCohort(Counting):
    def cohort(self) -> Any:
        if self.round_of_run() == 0:
            self.memory["cohort"] = super().cohort()
        return self.memory["cohort"]


class Shuffled(Counting):
    """Fixed partitions of a shuffled order, each unit once an epoch: accounted as Poisson all the same."""

    def cohort(self) -> Any:
        parts = round(1 / self.sampling_probability)
        part = self.round_of_run() % parts
        if part == 0:
            self.memory["order"] = torch.randperm(self.units)
        return self.memory["order"][part::parts]


class RealisedDenominator(Counting):
    def cohort(self) -> Any:
        self.memory["cohort"] = super().cohort()
        return self.memory["cohort"]

    def release(self, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
        size = max(1, len(self.memory["cohort"]))
        return tuple(part * (self.expected_cohort / size) for part in super().release(total))


def test_a_sound_plan_is_not_refuted() -> None:
    for settings, runs in (
        (EVERYONE, 128),
        (SAMPLED, 32),
        (EVERYONE | {"clipping": "per_layer"}, 64),
    ):
        found = audit(plan(**settings), runs)
        assert not found.refutes_the_claim
        assert found.canaries == runs * 256
        assert settings is not EVERYONE or found.of("gaussian") > 0.25 * found.claimed


def test_a_weaker_mechanism_is_refuted() -> None:
    assert audit(plan(HalfTheNoise, **EVERYONE), 64).refutes_the_claim
    assert audit(plan(OneCohort, **SAMPLED), 96).refutes_the_claim
    for weaker in (WithoutLastMember, OneDrawForTwoMembers, NoiseReplayed):
        assert audit(plan(weaker, **EVERYONE), 8).refutes_the_claim, weaker


def test_members_clipped_to_the_whole_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """C for every member instead of its share of C: the joint update is √N times too long."""
    monkeypatch.setattr(EnsembleClip, "bound", property(lambda self: self.clipping_norm))
    assert audit(plan(**EVERYONE), 128).refutes_the_claim
    monkeypatch.setattr(
        EnsembleClip, "factors", lambda self, squares: torch.ones_like(squares)
    )  # no clip at all
    assert audit(plan(**EVERYONE), 8).refutes_the_claim
    monkeypatch.setattr(EnsembleClip, "finish", lambda self, updates: updates)  # nor of what is NaN
    with pytest.raises(PipelineError, match="a release is not finite"):
        audit(plan(**EVERYONE), 1)


def test_a_claim_too_low_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism is sound and the accountant is told a quarter of the sampling probability."""
    sound = plan(**EVERYONE)
    charged = replace(sound, sampler=PoissonSampler(0.25)).spent()
    monkeypatch.setattr(Plan, "spent", lambda self: charged)
    assert audit(sound, 128).refutes_the_claim


def law_pvalue(p: Plan, seen: Observations) -> float:
    """How well single rounds, of canaries in and out, and pairs of rounds, which are independent, fit the plan."""
    q, z = p.sampling_probability, p.noise_multiplier
    inside, outside = seen.by_round[seen.included], seen.by_round[~seen.included]
    noise = stats.norm(scale=z)
    mixture = lambda x: (1 - q) * noise.cdf(x) + q * noise.cdf(x - 1)  # noqa: E731
    values = [
        stats.kstest(inside.ravel(), mixture).pvalue,
        stats.kstest(outside.ravel(), noise.cdf).pvalue,
    ]
    # Averages over canaries of products of rounds are, each, nearly normal.
    centred = (inside - q) / math.sqrt(q * (1 - q) + z * z)
    products = [
        centred[:, a] * centred[:, b] for a, b in itertools.combinations(range(p.rounds), 2)
    ]
    values.append(stats.norm.sf(abs(np.sum(products)) / math.sqrt(np.size(products))) * 2)
    return min(1.0, 3 * min(values))


@pytest.mark.parametrize("kind", [Plan, HalfTheNoise, OneCohort, Shuffled, RealisedDenominator])
def test_what_is_seen_has_the_stated_law(kind: type[Plan]) -> None:
    p = plan(kind, sampling_probability=0.25, noise_multiplier=0.05, rounds=4)
    assert bool(law_pvalue(p, observe(p, canaries=200, runs=40)) > 1e-7) is (kind is Plan)


def test_canaries_reach_the_bound_and_stay_apart() -> None:
    """After the clip each has joint norm C, an equal part in every layer of every member, and no overlap."""
    for clipping in ("flat", "per_layer"):
        p = plan(clipping=clipping, **EVERYONE)
        table = canaries._clipped(p, torch.ones(3, 3))
        cohorts = torch.eye(40 + len(table) - 1, dtype=torch.float64)  # of one unit each
        rows = torch.stack(
            [canaries._sum(table, alone[:40], alone[40:]).flatten() for alone in cohorts]
        )
        gram = (rows @ rows.T).numpy()
        assert np.abs(gram[:40, :40] - 0.25 * np.eye(40)).max() < 1e-4
        assert np.abs(gram[:40, 40:]).max() == 0
        assert gram.diagonal().max() <= 0.25
        parts = rows[:40].view(40, 9, -1).square().sum(-1)
        torch.testing.assert_close(parts, torch.full_like(parts, 0.25 / 9), rtol=2e-4, atol=0)


def test_what_cannot_be_audited_is_refused() -> None:
    for z, size, runs, says in (
        (0.0, 64, 4, "claims no guarantee"),
        (4.0, 300, 4, "found 300 canaries among 300 units, allowed are 2 to 299"),
        (4.0, 1, 400, "found 1 canaries"),
        (4.0, 10, 2, "found 20 canaries in all runs"),
    ):
        with pytest.raises(PipelineError, match=says):
            audit_mechanism(
                plan(**(EVERYONE | {"noise_multiplier": z})),
                canaries=size,
                runs=runs,
                confidence=0.95,
            )


DELTA = 1e-5
NEARLY_SURE = 1 - 1e-6


def claiming(epsilon: float, q: float = 0.1, rounds: int = 150) -> Plan:
    multiplier = solve_noise_multiplier(epsilon, DELTA, q, rounds)
    return Plan(3000, "unit", PoissonSampler(q), L2Clip(1.0), multiplier, rounds, DELTA)


def drawn(stated: Plan, canaries: int, multiplier: float) -> Observations:
    """What the rounds of a mechanism of ``multiplier`` show, in place of those that ``stated`` claims."""
    generator = np.random.default_rng(0)
    included = generator.random(canaries) < 0.5
    joined = (generator.random((canaries, stated.rounds)) < stated.sampling_probability) & included[
        :, None
    ]
    seen = generator.standard_normal((canaries, stated.rounds), dtype=np.float32)
    seen *= np.float32(multiplier)
    seen += joined
    return Observations(included, seen, seen.sum(1, keepdims=True, dtype=np.float64))


def test_three_fifths_of_the_claim_are_proved_and_a_lie_is_refuted() -> None:
    stated = claiming(1.0)
    claimed = stated.spent().epsilon_pld  # type: ignore[union-attr]
    found = lower_bound(stated, drawn(stated, 24_000, stated.noise_multiplier), claimed, 0.99)
    assert 0.6 * claimed < found.of("likelihood") <= claimed
    assert not found.refutes_the_claim
    assert 0 < found.of("one_run_fdp") < found.of("likelihood")
    weaker = drawn(stated, 24_000, stated.noise_multiplier / 2)
    assert lower_bound(stated, weaker, claimed, NEARLY_SURE).refutes_the_claim


def rounds_of_the_default_run(kind: type[Plan]) -> LowerBound:
    """An audit of the real plan: 30 rounds with the q, z, C and K of the default run, claimed as they are."""
    shipped = claiming(0.5)
    clip = EnsembleClip(0.35, "flat", 1, 2)
    short = kind(2940, "trajectory", shipped.sampler, clip, shipped.noise_multiplier, 30, DELTA)
    return audit_mechanism(short, canaries=2048, runs=20, confidence=NEARLY_SURE)


def test_the_real_plan_is_audited_and_a_broken_one_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    stated, size, error = claiming(1.0, q=1.0, rounds=1), 4000, 0.0125
    family = Family.of(stated)
    truth = stated.spent().epsilon_pld  # type: ignore[union-attr]
    accuracy = float(ndtr(0.5 / stated.noise_multiplier))
    assert (
        1 + privacy_curve(family, stated.noise_multiplier).total_variation
    ) / 2 == pytest.approx(accuracy, abs=1e-4)

    def passes(right: int) -> bool:
        included = (
            np.arange(size) % 2 == 0
        )  # half are guessed in, and each swap makes two guesses wrong
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
    monkeypatch.setattr(
        bounds, "_by_rates", lambda *rest: given.append(rest[-1]) or ("likelihood", 0.0, 0.0)
    )
    stated = claiming(1.0)
    lower_bound(stated, drawn(stated, 256, stated.noise_multiplier), 1.0, 0.96)
    assert given == pytest.approx([0.99] * 3)


def test_the_p_value_is_the_binomial_tail_plus_the_correction() -> None:
    """By hand for two canaries, one guess, right: W ~ Bernoulli(p), so β = p and the slope is P[W = 0] = 1 - p."""
    p = 1 / (1 + math.exp(-0.7))
    assert p_value(2, 1, 1, 0.7, 0.0) == pytest.approx(p)
    assert p_value(2, 1, 1, 0.7, 0.01) == pytest.approx(p + 2 * 2 * 0.01 * (1 - p))
    assert p_value(2, 1, 0, 0.7, 0.01) == 1.0


def test_an_intervals_coverage_is_exact_and_the_normal_approximation_is_told_apart() -> None:
    """Summed over all outcomes, no end fails more often than it may. The twin: Wald's interval does."""
    trials, counts = 50, np.arange(51)
    low, high = clopper_pearson(counts, trials, 0.95)
    share = counts / trials
    half = 1.96 * np.sqrt(share * (1 - share) / trials)
    for probability in (0.01, 0.3, 0.9):
        weights = stats.binom.pmf(counts, trials, probability)
        assert max(weights[low > probability].sum(), weights[high < probability].sum()) <= 0.025
        assert weights[np.abs(share - probability) > half].sum() > 0.05


TRIALS, CANARIES = 4000, 400


def bounds_of(correct: np.ndarray, made: int, delta: float, confidence: float) -> np.ndarray:
    distinct, back = np.unique(correct, return_inverse=True)
    return np.array(
        [epsilon_lower_bound(CANARIES, made, int(v), delta, confidence) for v in distinct]
    )[back]


@pytest.mark.parametrize(("epsilon", "weaker"), [(0.5, 1.0), (2.0, 3.0)])
def test_randomised_response_keeps_its_bound_and_a_weaker_one_does_not(
    epsilon: float, weaker: float
) -> None:
    """At 95% the bound passes the truth in about one run of twenty: no more, and (it is tight here) not far fewer."""
    generator = np.random.default_rng(1)
    failures = {}
    for truth in (epsilon, weaker):
        right = generator.binomial(CANARIES, 1 / (1 + math.exp(-truth)), TRIALS)
        failures[truth] = int((bounds_of(right, CANARIES, 0.0, 0.95) > epsilon).sum())
    assert stats.binom.sf(failures[epsilon] - 1, TRIALS, 0.05) > 1e-9
    assert failures[epsilon] > 0.02 * TRIALS
    assert failures[weaker] > 0.9 * TRIALS


def test_delta_that_tells_one_canary_now_and_then_is_covered() -> None:
    """With probability δ a canary's coin is given away. The twin forgets δ: its bound is passed too often."""
    generator = np.random.default_rng(2)
    epsilon, delta = 0.5, 1 / (2 * CANARIES)
    given_away = generator.binomial(CANARIES, delta, TRIALS)
    noisy = generator.binomial(CANARIES - given_away, 1 / (1 + math.exp(-epsilon)))
    whole = bounds_of(given_away + noisy, CANARIES, delta, 0.95)
    assert (whole > epsilon).mean() < 0.05 + 5 * math.sqrt(0.05 * 0.95 / TRIALS)
    # One guess, on a canary given away if there is one.
    lucky = (given_away > 0) | (generator.random(TRIALS) < 1 / (1 + math.exp(-epsilon)))
    assert (bounds_of(lucky.astype(int), 1, delta, 0.3) > epsilon).mean() < 0.7
    assert (bounds_of(lucky.astype(int), 1, 0.0, 0.3) > epsilon).mean() > 0.7


def test_guesses_are_the_extremes() -> None:
    scores = np.array([0.9, -3.0, 0.1, 5.0, -1.0, 0.2])
    included = np.array([True, False, False, True, True, False])
    assert guesses(scores, included, 2, 2) == (4, 3)  # 5.0 and 0.9 are in; -3.0 is out, -1.0 is not
    assert guesses(scores, included, 0, 1) == (1, 1)
    assert guesses(scores, included, 0, 0) == (0, 0)
    assert guesses(scores, included, 6, 0) == (6, 3)
    assert epsilon_lower_bound(1000, 500, 500, 1e-5, 0.95) > 1.5


WRONG: list[Any] = [
    (p_value, 10, 11, 5, 1.0, 0.0),
    (p_value, 10, 5, 5, 1.0, 0.06),
    (clopper_pearson, 5, 4, 0.9),
]
WRONG += [(guesses, np.zeros(4), np.zeros(4) > 0, 3, 2), (clopper_pearson, 1, 4, 1.0)]
WRONG += [
    (guesses, np.array([math.nan, 0.0]), np.zeros(2) > 0, 1, 1),
    (epsilon_lower_bound, 10, 5, 5, 0.0, 1.0),
]


def test_what_makes_no_sense_is_refused() -> None:
    for function, *arguments in (*WRONG, (refutes_trade_off, lambda power: power, 10, 11, 5, 0.05)):
        with pytest.raises(ValueError, match="allowed"):
            function(*arguments)


def gaussian(mu: float) -> Callable[[float], float]:
    """The inverse of 1 - f of a μ-GDP mechanism (Dong et al. 2022)."""
    return lambda power: float(ndtr(ndtri(power) - mu))


@pytest.mark.parametrize(("mu", "share"), [(0.5, 1.0), (0.5, 0.2), (2.0, 0.5)])
def test_f_dp_is_refuted_no_more_often_than_it_may_and_a_weaker_mechanism_is(
    mu: float, share: float
) -> None:
    """Independent Gaussian canaries, guessed from both ends: simulated for what is true, and for four times the μ."""
    canaries, side = 4000, int(share * 2000)

    def refuted(true_mu: float, seed: int) -> bool:
        generator = np.random.default_rng(seed)
        included = generator.random(canaries) < 0.5
        scores = generator.standard_normal(canaries) + true_mu * included
        made, right = guesses(scores, included, side, side)
        return refutes_trade_off(gaussian(mu), canaries, made, right, 0.05)

    assert sum(refuted(mu, seed) for seed in range(40)) <= 8  # of two expected at most
    assert all(refuted(4 * mu, seed) for seed in range(5))
    # By hand, one guess about one canary: refuted where it is more probable than the curve allows, α > 1 - least(α).
    assert refutes_trade_off(gaussian(0.1), 1, 1, 1, 0.54)
    assert not refutes_trade_off(gaussian(0.1), 1, 1, 1, 0.50)
