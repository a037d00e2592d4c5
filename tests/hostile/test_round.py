"""An independent round agrees with the engine's to 5e-7 of C, bytes replayed; each planted fault is
told apart.

It is the smallest training that has everything, with a mechanism that shows what it drew. Imports
what `train` takes, and the slow loop.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from primorl.engine.setup import TrainingSetup
from primorl.engine.training import train
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import Mechanism
from tests.engine.reference import reference_update
from tests.mechanisms import SeededEntropy
from tests.units import Padded, local_training, server_training, training_setup

LOW, HIGH, NORM, MOMENTUM = -4.0, 0.5, 0.5, 0.4


@dataclass(frozen=True)
class Watched(Mechanism):
    """Keeps the bytes of every cohort, and every release with its noise alone: the same bytes on a
    sum of nothing.
    """

    seen: list[dict[str, Any]] = field(default_factory=list)

    def cohort(self) -> Tensor:
        drawn = super().cohort()
        assert isinstance(self.entropy, SeededEntropy)
        self.seen.append({"coins": self.entropy.drawn})
        return drawn

    def release(self, total: Tensor) -> Tensor:
        again = replace(self, entropy=deepcopy(self.entropy))
        noise = Mechanism.release(again, torch.zeros_like(total))
        self.seen[-1] |= {"released": super().release(total), "noise": noise}
        return self.seen[-1]["released"]


def joiners(words: bytes, q: float) -> list[int]:
    """Who joins: unit u whose 64-bit coin lies below q·2^64."""
    coins = np.frombuffer(words, "<u8")
    return [u for u, coin in enumerate(coins) if int(coin) < int(q * 2.0**64) or q >= 1]


def update_of(
    run: TrainingSetup,
    theta: Sequence[NDArray[np.float64]],
    source: Padded,
    unit: int,
    maps: Normaliser,
) -> list[NDArray[np.float64]]:
    """Δ of one unit in float64, by the slow loop on its rows in their order."""
    rows, size = slice(0, int(source.rows[unit])), run.local.batch_size
    x = (source.inputs[unit, rows].double() - maps.input_mean) / maps.input_scale
    y = (source.targets[unit, rows].double() - maps.target_mean) / maps.target_scale
    epoch = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
    start = [torch.from_numpy(part) for part in theta]
    batches, clip = epoch * run.local.local_epochs, run.mechanism.clip
    assert isinstance(clip, EnsembleClip)
    return as_numpy(reference_update(start, batches, run.architecture, run.local, NORM, clip.mode))


def as_numpy(tensors: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    return [tensor.double().numpy() for tensor in tensors]


def setup(
    mechanism: Mechanism, hidden: tuple[int, ...], *, rate: float, batch: int, epochs: int
) -> TrainingSetup:
    assert isinstance(mechanism.clip, EnsembleClip)
    shape = Architecture(2, 1, mechanism.clip.members, hidden, LOW, HIGH)
    local = local_training(rate, batch, local_epochs=epochs)
    return training_setup(
        mechanism, shape, local=local, server=server_training(MOMENTUM, 0.0, 1000)
    )


def mechanism_of(
    kind: type[Mechanism],
    units: int,
    layers: int,
    *,
    q: float,
    z: float,
    rounds: int,
    **changes: Any,
) -> Mechanism:
    clip = EnsembleClip(NORM, changes.pop("mode", "flat"), changes.pop("members", 2), layers)
    return kind(units, "trajectory", q, clip, z, rounds, 1e-5, **changes)


def data(sizes: Sequence[int], seed: int, *, constant: bool = False) -> Padded:
    """Random units of 2 observations and 1 action; ``constant``: all rows of a unit are one."""
    generator = torch.Generator().manual_seed(seed)
    most = max(1, *sizes)
    inputs = torch.randn(len(sizes), 1 if constant else most, 3, generator=generator).expand(
        -1, most, -1
    )
    offsets = torch.randn(len(sizes), 1, 3, generator=generator)
    return Padded(inputs.contiguous(), offsets + inputs.sin(), torch.tensor(sizes))


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
