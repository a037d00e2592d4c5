"""A distinguishing attack through the public `train`: many small runs with and without one unit.

The attacker knows everything but whether the unit is there: the others' rows, every release, the
settings. Each round she computes the unit's update by the slow loop, projects the release on it and
sums up log-likelihood ratios. The share of right answers bounds from below the total variation of
the two laws. The claim bounds it from above: δ(0), by the independent accountant.
"""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from primorl.engine.setup import TrainingSetup
from primorl.engine.training import TrainingState, train
from primorl.model.ensemble import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import Mechanism
from tests.engine import reference
from tests.hostile.fft_accountant import composed, sampled
from tests.hostile.test_round import MOMENTUM, NORM, as_numpy, data, mechanism_of, setup, update_of
from tests.mechanisms import HalfTheNoise, releasing

UNITS, ROWS, Q, Z, ROUNDS, RATE, HIDDEN = 2, 1, 0.9, 1.1, 2, 0.5, (3,)
RUNS, FEW, SURE = 500, 150, 1 - 1e-5
EVERYBODY = data([ROWS] * UNITS, 3)
PUBLIC = data([8] * 4, 4)
CANARY = 0


def refuted(right: int, runs: int) -> bool:
    """By an exact binomial test: one right answer in two is a guess, more is at most half the total
    variation.
    """
    return bool(stats.binom.sf(right - 1, runs, (1 + total_variation()) / 2) < 1 - SURE)


def total_variation() -> float:
    """δ(0) of the claim, rounded up, by the independent accountant; both orders of the neighbours
    have it.
    """
    return composed([sampled(Q, Z, ROUNDS)], step=1e-3, points=1 << 15, up=True).delta(0.0)


def attack(kind: type[Mechanism], runs: int = RUNS) -> int:
    """Guess in every run whether the canary was there; how often that was right."""
    mechanism = mechanism_of(kind, UNITS, 2, q=Q, z=Z, rounds=ROUNDS, members=1)
    run = setup(mechanism, HIDDEN, rate=RATE, batch=ROWS, epochs=1)
    public = (PUBLIC.inputs.flatten(0, 1), PUBLIC.targets.flatten(0, 1))
    coins, right = np.random.default_rng().random(runs) < 0.5, 0
    for there in coins:
        rows = EVERYBODY.rows.clone()
        rows[CANARY] = ROWS if there else 0
        states: list[Any] = []
        trained = train(run, replace(EVERYBODY, rows=rows), public, save_checkpoint=states.append)
        released = {state.done: shaped(run, state) for state in states}
        # Cohorts and noise of rounds are independent.
        pairs = [(released[t], released[t + 1]) for t in range(ROUNDS)]
        evidence = sum(ratio(run, *pair, trained.normaliser) for pair in pairs)
        right += (evidence > 0) == there
    return int(right)


def shaped(run: TrainingSetup, state: TrainingState) -> Any:
    """Return the state with its weights and velocity layer by layer."""
    layers = {name: run.shape(getattr(state, name)) for name in ("weights", "velocity")}
    return SimpleNamespace(**layers)


def ratio(run: TrainingSetup, before: Any, after: Any, maps: Normaliser) -> float:
    """Log-likelihood ratio of one release, "there" to "not", by the mechanism as stated, summed
    over all cohorts.
    """
    theta = as_numpy(before.weights)
    pairs = zip(as_numpy(after.velocity), as_numpy(before.velocity), strict=True)
    step = np.concatenate([(a - MOMENTUM * b).ravel() for a, b in pairs]) * (Q * UNITS)
    updates = []
    for unit in range(UNITS):
        own = update_of(run, theta, EVERYBODY, unit, maps)
        updates.append(np.concatenate([part.ravel() for part in own]))
    cohorts = np.array(np.meshgrid(*[[0, 1]] * UNITS)).reshape(UNITS, -1).T
    distances = ((step - cohorts @ np.array(updates)) ** 2).sum(1)
    logs = (
        -distances / (2 * (Z * NORM) ** 2)
        + cohorts.sum(1) * math.log(Q)
        + (1 - cohorts).sum(1) * math.log(1 - Q)
    )
    absent = cohorts[:, CANARY] == 0
    without = np.logaddexp.reduce(logs[absent]) - math.log(1 - Q)
    return float(np.logaddexp.reduce(logs) - without)


def test_the_attack_stays_below_the_claim_and_works() -> None:
    """Not refuted, and clearly better than guessing: an attack that sees nothing would prove
    nothing.
    """
    right = attack(Mechanism)
    assert not refuted(right, RUNS)
    assert stats.binom.sf(right - 1, RUNS, 0.5) < 1e-3
    assert right / RUNS - 0.5 > 0.4 * total_variation() / 2


def test_a_broken_mechanism_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the noise, none, and updates that are not clipped: the attacker knows the fault and does
    not clip either.
    """
    assert refuted(attack(HalfTheNoise), RUNS)
    assert refuted(attack(releasing(lambda mechanism, noise: 0 * noise), FEW), FEW)
    monkeypatch.setattr(EnsembleClip, "factors", lambda self, squares: torch.ones_like(squares))
    monkeypatch.setattr(reference, "MARGIN", 1e9)
    assert refuted(attack(Mechanism, FEW), FEW)
