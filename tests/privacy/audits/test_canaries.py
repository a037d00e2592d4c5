"""The audit stays below what a sound plan claims and passes what a planted weaker one claims.

Every bound is asked to hold with probability 1 - 1e-7. The bounds on the twins lie some five of their standard
deviations above the claim.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtr
from torch import Tensor

from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.audits import bounds, canaries
from primorl.privacy.audits.bounds import ASSUMPTIONS, Family, LowerBound, Observations, lower_bound
from primorl.privacy.audits.canaries import audit_mechanism, observe
from primorl.privacy.mechanism.clipping import EnsembleClip, L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from tests.plans import HalfTheNoise, ensemble_plan, releasing

SURE = 1 - 1e-7
EVERYONE = {"sampling_probability": 1.0, "noise_multiplier": 4.0, "rounds": 4}  # ε 1.99
SAMPLED = {"sampling_probability": 0.1, "noise_multiplier": 2.0, "rounds": 40}  # ε 1.48


def plan(kind: type[Plan] = Plan, **changes: object) -> Plan:
    settings = {"units": 300, "unit": "trajectory", "clipping_norm": 0.5, "delta": 1e-5, "members": 3, "layers": 3}
    return ensemble_plan(kind, **(settings | changes))  # type: ignore[arg-type]


def audit(p: Plan, runs: int) -> LowerBound:
    return audit_mechanism(p, canaries=256, runs=runs, confidence=SURE)


def without_last_member(plan: Plan, noise: list[Tensor]) -> list[Tensor]:
    return [torch.cat((layer[:-1], torch.zeros_like(layer[:1]))) for layer in noise]


def one_draw_for_two_members(plan: Plan, noise: list[Tensor]) -> list[Tensor]:
    return [torch.cat((layer[:1], layer[:1], layer[2:])) for layer in noise]


class Counting(Plan):
    """Remembers rounds and whatever a twin wants to use again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "memory", {"round": 0})

    def round_of_run(self) -> int:
        memory = self.memory  # type: ignore[attr-defined]
        memory["round"] += 1
        return (memory["round"] - 1) % self.rounds


class NoiseReplayed(Counting):
    """The third round's noise is the second's, as a resume from a saved generator would have it."""

    def release(self, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self.round_of_run() != 2:
            self.memory["noise"] = super().release([torch.zeros_like(part) for part in total])  # type: ignore[attr-defined]
        noise = self.memory["noise"]  # type: ignore[attr-defined]
        return tuple((part / self.expected_cohort + n).float() for part, n in zip(total, noise, strict=True))


class OneCohort(Counting):
    def cohort(self) -> Tensor:
        if self.round_of_run() == 0:
            self.memory["cohort"] = super().cohort()  # type: ignore[attr-defined]
        return self.memory["cohort"]  # type: ignore[attr-defined, no-any-return]


class Shuffled(Counting):
    """Fixed partitions of a shuffled order, each unit once an epoch: accounted as Poisson all the same."""

    def cohort(self) -> Tensor:
        parts = round(1 / self.sampling_probability)
        part = self.round_of_run() % parts
        if part == 0:
            self.memory["order"] = torch.randperm(self.units)
        return self.memory["order"][part::parts]  # type: ignore[attr-defined, no-any-return]


class RealisedDenominator(Counting):
    def cohort(self) -> Tensor:
        self.memory["cohort"] = super().cohort()  # type: ignore[attr-defined]
        return self.memory["cohort"]  # type: ignore[attr-defined, no-any-return]

    def release(self, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
        size = max(1, len(self.memory["cohort"]))  # type: ignore[attr-defined]
        return tuple(part * (self.expected_cohort / size) for part in super().release(total))


@pytest.mark.parametrize(
    ("settings", "runs"), [(EVERYONE, 128), (SAMPLED, 32), (EVERYONE | {"clipping": "per_layer"}, 64)]
)
def test_a_sound_plan_is_not_refuted(settings: dict[str, object], runs: int) -> None:
    """Both bounds stay below the claim; where all join, the tighter one finds a good part of it."""
    found = audit(plan(**settings), runs)
    assert not found.refutes_the_claim
    assert found.canaries == runs * 256
    if settings is EVERYONE:
        assert found.of("gaussian") > 0.25 * found.claimed


@pytest.mark.parametrize(
    ("weaker", "settings", "runs"),
    [
        (HalfTheNoise, EVERYONE, 64),
        (releasing(without_last_member), EVERYONE, 8),
        (releasing(one_draw_for_two_members), EVERYONE, 8),
        (NoiseReplayed, EVERYONE, 8),
        (OneCohort, SAMPLED, 96),
    ],
)
def test_a_weaker_mechanism_is_refuted(weaker: type[Plan], settings: dict[str, object], runs: int) -> None:
    """Each twin claims what the sound plan does, and less is kept."""
    assert audit(plan(weaker, **settings), runs).refutes_the_claim


def test_members_clipped_to_the_whole_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """C for every member instead of its share of C: the joint update is √N times too long."""
    monkeypatch.setattr(EnsembleClip, "bound", property(lambda self: self.clipping_norm))
    assert audit(plan(**EVERYONE), 128).refutes_the_claim
    monkeypatch.setattr(EnsembleClip, "factors", lambda self, squares: torch.ones_like(squares))  # no clip at all
    assert audit(plan(**EVERYONE), 8).refutes_the_claim


def test_a_unit_that_is_nan_and_passes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnsembleClip, "finish", lambda self, updates: updates)
    with pytest.raises(PipelineError, match="a release is not finite"):
        audit(plan(**EVERYONE), 1)


def test_a_claim_too_low_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism is sound and the accountant is told a quarter of the sampling probability."""
    sound = plan(**EVERYONE)
    charged = dataclasses.replace(sound, sampler=PoissonSampler(0.25)).spent()
    monkeypatch.setattr(Plan, "spent", lambda self: charged)
    assert audit(sound, 128).refutes_the_claim


def law_pvalue(p: Plan, seen: Observations) -> float:
    """How well single rounds, of canaries in and out, and pairs of rounds, which are independent, fit the plan."""
    q, z = p.sampling_probability, p.noise_multiplier
    inside, outside = seen.by_round[seen.included], seen.by_round[~seen.included]
    noise = stats.norm(scale=z)
    mixture = lambda x: (1 - q) * noise.cdf(x) + q * noise.cdf(x - 1)  # noqa: E731
    values = [stats.kstest(inside.ravel(), mixture).pvalue, stats.kstest(outside.ravel(), noise.cdf).pvalue]
    # Averages over canaries of products of rounds are, each, nearly normal.
    centred = (inside - q) / math.sqrt(q * (1 - q) + z * z)
    products = [centred[:, a] * centred[:, b] for a, b in itertools.combinations(range(p.rounds), 2)]
    values.append(stats.norm.sf(abs(np.sum(products)) / math.sqrt(np.size(products))) * 2)
    return min(1.0, 3 * min(values))


@pytest.mark.parametrize("kind", [Plan, HalfTheNoise, OneCohort, Shuffled, RealisedDenominator])
def test_what_is_seen_has_the_stated_law(kind: type[Plan]) -> None:
    """With little noise single coins show: what hardly moves ε is told apart."""
    p = plan(kind, sampling_probability=0.25, noise_multiplier=0.05, rounds=4)
    assert bool(law_pvalue(p, observe(p, canaries=200, runs=40)) > 1e-7) is (kind is Plan)


def test_canaries_reach_the_bound_and_stay_apart() -> None:
    """After the clip each has joint norm C, an equal part in every layer of every member, and no overlap."""
    for clipping in ("flat", "per_layer"):
        p = plan(clipping=clipping, **EVERYONE)
        table = canaries._clipped(p, torch.ones(3, 3))
        cohorts = torch.eye(40 + len(table) - 1, dtype=torch.float64)  # of one unit each
        rows = torch.stack([canaries._sum(table, alone[:40], alone[40:]).flatten() for alone in cohorts])
        gram = (rows @ rows.T).numpy()
        assert np.abs(gram[:40, :40] - 0.25 * np.eye(40)).max() < 1e-4
        assert np.abs(gram[:40, 40:]).max() == 0
        assert gram.diagonal().max() <= 0.25
        parts = rows[:40].view(40, 9, -1).square().sum(-1)
        torch.testing.assert_close(parts, torch.full_like(parts, 0.25 / 9), rtol=2e-4, atol=0)


@pytest.mark.parametrize(
    ("changes", "sizes", "says"),
    [
        ({"noise_multiplier": 0.0}, (64, 4), "claims no guarantee"),
        ({}, (300, 4), "found 300 canaries among 300 units, allowed are 2 to 299"),
        ({}, (1, 400), "found 1 canaries"),
        ({}, (10, 2), "found 20 canaries in all runs"),
    ],
)
def test_what_cannot_be_audited_is_refused(changes: dict[str, object], sizes: tuple[int, int], says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        audit_mechanism(plan(**(EVERYONE | changes)), canaries=sizes[0], runs=sizes[1], confidence=0.95)


Q, ROUNDS, DELTA = 0.1, 150, 1e-5
NEARLY_SURE = 1 - 1e-6


def claiming(epsilon: float, q: float = Q, rounds: int = ROUNDS) -> Plan:
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
    stated, size, error = claiming(1.0, q=1.0, rounds=1), 4000, 0.0125
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
    stated = claiming(1.0)
    lower_bound(stated, drawn(stated, 256, stated.noise_multiplier), 1.0, 0.96)
    assert given == pytest.approx([0.99] * 3)
