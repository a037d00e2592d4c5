"""The audit of the mechanism: canaries in every release of a plan stay below its claim, and above a
weaker one's.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from primorl.privacy.accounting.epsilon import RELATION, accountant_near
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.plans import HalfTheNoise

CANARIES, RUNS, DELTA, SURE = 2048, 10, 1e-5, 1e-6
Q, Z, ROUNDS, NORM = 0.1, 2.0, 40, 0.5


@dataclass(frozen=True)
class OneCohort(Plan):
    """All rounds of a run draw the same cohort."""

    kept: list[Tensor] = field(default_factory=list)

    def cohort(self) -> Tensor:
        if not self.kept:
            self.kept.append(super().cohort())
        return self.kept[0]


def refuted(kind: type[Plan], clip: L2Clip | None = None) -> bool:
    """Let a fair coin include each canary, in a direction of its own, and guess from all releases
    of many runs.

    The score is the log-likelihood ratio by the plan as stated. Two tests: right guesses above the
    median, of which at most a share of (1 + δ(0)) / 2 is expected, and rates above a high
    threshold, hit ≤ e^ε alarm + δ.
    """
    stated: Any = (PoissonSampler(Q), L2Clip(NORM), Z, ROUNDS, DELTA)
    scores, coins = [], []
    for _ in range(RUNS):
        plan = kind(CANARIES, "unit", *stated)
        included = torch.rand(CANARIES) < 0.5
        updates = 10 * NORM * included.unsqueeze(1)  # of each, its own coordinate alone
        ratio = np.zeros(CANARIES)
        for _ in range(plan.rounds):
            cohort, total = plan.cohort(), torch.zeros(CANARIES)
            total[cohort] = (clip or plan.clip).finish(updates[cohort])[:, 0]
            (released,) = plan.release([total])
            x = released.double().numpy() * plan.expected_cohort / NORM
            ratio += np.logaddexp(math.log1p(-Q), math.log(Q) + (2 * x - 1) / (2 * Z**2))
        scores.append(ratio)
        coins.append(included.numpy())
    score, there = np.concatenate(scores), np.concatenate(coins)
    accountant = accountant_near(plan.event, 1.5, RELATION)
    variation, epsilon = accountant.get_delta(0.0), accountant.get_epsilon(DELTA)
    right = int(((score > np.median(score)) == there).sum())
    if stats.binom.sf(right - 1, len(score), (1 + variation) / 2) < SURE:
        return True
    sure = score > 1.1
    hits = stats.binomtest(int((sure & there).sum()), int(there.sum())).proportion_ci(1 - SURE)
    alarms = stats.binomtest(int((sure & ~there).sum()), int((~there).sum()))
    return bool(hits.low > math.exp(epsilon) * alarms.proportion_ci(1 - SURE).high + DELTA)


def test_a_sound_plan_is_not_refuted() -> None:
    assert not refuted(Plan)


def test_half_the_noise_one_cohort_and_no_clip_are_refuted() -> None:
    for kind, clip in ((HalfTheNoise, None), (OneCohort, None), (Plan, L2Clip(math.inf))):
        assert refuted(kind, clip), (kind, clip)
