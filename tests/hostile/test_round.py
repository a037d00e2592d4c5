"""An independent round agrees with the engine's to 5e-7 of C, bytes replayed; each planted fault is
told apart.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from primorl.engine.training import train
from primorl.privacy.mechanism.clipping import EnsembleClip
from tests.hostile.setting import (
    MOMENTUM,
    NORM,
    Watched,
    as_numpy,
    data,
    joiners,
    mechanism_of,
    setup,
    update_of,
)
from tests.mechanisms import SeededEntropy
from tests.units import Padded

Q, Z, ROUNDS, BATCH, EPOCHS, RATE, HIDDEN = 0.6, 0.1, 4, 8, 3, 0.1, (7, 5)
AGREES = 5e-7


def differences(kind: type[Watched], source: Padded, mode: str) -> tuple[float, float]:
    """Largest distance, in units of C, of a round's sum and of the weights after all rounds."""
    entropy = SeededEntropy(1)
    watched, cohort = (
        mechanism_of(kind, source.units, 3, q=Q, z=Z, rounds=ROUNDS, mode=mode, entropy=entropy),
        Q * source.units,
    )
    states: list[Any] = []
    public = (source.inputs.flatten(0, 1), source.targets.flatten(0, 1))
    run = setup(watched, HIDDEN, rate=RATE, batch=BATCH, epochs=EPOCHS)
    trained = train(run, source, public, save_checkpoint=states.append)
    theta = as_numpy(run.shape(states[0].weights))
    velocity = [np.zeros_like(w) for w in theta]
    worst = 0.0
    assert isinstance(watched, Watched)
    for seen in watched.seen:
        total = [np.zeros_like(w) for w in theta]
        for unit in joiners(seen["coins"], Q):
            own = update_of(run, theta, source, unit, trained.normaliser)
            total = [whole + part for whole, part in zip(total, own, strict=True)]
        noise, released = (as_numpy(run.shape(seen[name])) for name in ("noise", "released"))
        step = [(part + cohort * n) / cohort for part, n in zip(total, noise, strict=True)]
        gap = [(a - b) * cohort for a, b in zip(step, released, strict=True)]
        worst = max(worst, float(np.sqrt(sum((g**2).sum() for g in gap))) / NORM)
        velocity = [MOMENTUM * v + s for v, s in zip(velocity, step, strict=True)]
        theta = [w + v for w, v in zip(theta, velocity, strict=True)]
    end = as_numpy(run.shape(states[-1].weights))
    return worst, max(float(np.abs(a - b).max()) for a, b in zip(theta, end, strict=True)) / NORM


RANDOM = data([3, 8, 1, 5, 0, 7, 2, 4], 1)
# several batches, whose order cannot matter
REPEATED = data([9, 17, 1, 5, 0, 23, 2, 12], 2, constant=True)


@pytest.mark.parametrize("mode", ["flat", "per_layer"])
def test_the_engine_does_what_the_algorithm_says(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in (RANDOM, REPEATED):
        sums, weights = differences(Watched, source, mode)
        assert sums < AGREES
        assert weights < 2 * AGREES
    monkeypatch.setattr(EnsembleClip, "factors", lambda self, squares: torch.ones_like(squares))
    assert differences(Watched, RANDOM, mode)[0] > 1e-3


class RealisedCohort(Watched):
    def cohort(self) -> Tensor:
        drawn = super().cohort()
        self.seen[-1]["size"] = max(1, len(drawn))
        return drawn

    def release(self, total: Tensor) -> Tensor:
        return super().release(total) * (self.expected_cohort / self.seen[-1]["size"])


class CoinsInverted(Watched):
    def cohort(self) -> Tensor:
        joined = set(super().cohort().tolist())
        return torch.tensor(sorted(set(range(self.units)) - joined), dtype=torch.int64)


@pytest.mark.parametrize("kind", [RealisedCohort, CoinsInverted])
def test_a_plan_that_does_something_else_is_told_apart(kind: type[Watched]) -> None:
    assert differences(kind, RANDOM, "flat")[1] > 1e-3


def test_the_noise_has_the_stated_deviation() -> None:
    """30,000 numbers: two thirds and three halves of the noise are rejected."""
    for factor in (1.0, 2 / 3, 3 / 2):
        watched = mechanism_of(Watched, 8, 3, q=Q, z=Z * factor, rounds=1, entropy=SeededEntropy(2))
        watched.cohort()
        noise = (
            watched.release(torch.zeros(2, 120, 125, dtype=torch.float64)).double().numpy()
            * Q
            * 8
            / NORM
        )
        assert (abs(float(np.sqrt((noise**2).mean())) / Z - 1) < 0.03) is (factor == 1)
        assert abs(float(noise.mean())) < 0.05
