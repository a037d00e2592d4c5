"""The smallest training that has everything, and a mechanism that shows a test what it drew.

Imports what `train` takes, and the slow loop.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from primorl.engine.setup import TrainingSetup
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
