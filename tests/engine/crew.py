"""A real second process for the tests of several: this file, run as a module, does what the first one asks."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from primorl.engine import distributed
from primorl.engine.distributed import Group, ProcessLostError, _told, check_coverage, serve
from primorl.engine.rounds import Rounds
from primorl.engine.settings import Execution
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser
from primorl.paid import compute
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.noise import discrete_gaussian
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.units import Ragged, local_training, make_units, training_setup

CPU = torch.device("cpu")
SHAPE = Architecture(3, 1, 2, (8,), -10.0, 0.5)
LOCAL = local_training(learning_rate=0.05, batch_size=64)
LENGTHS = [30, 17, 45, 9, 22, 38, 5]
END, SUMS, COINS, NOTHING, NOISE, TWICE, HANG = range(7)


def units() -> Ragged:
    return make_units(SHAPE, LENGTHS)


def normaliser() -> Normaliser:
    zeros, ones = torch.zeros, torch.ones
    return Normaliser(
        zeros(SHAPE.inputs), ones(SHAPE.inputs), zeros(SHAPE.targets), ones(SHAPE.targets)
    )


def plan(
    noise_multiplier: float = 0.0, sampling_probability: float = 1.0, units: int = len(LENGTHS)
) -> Plan:
    clip = EnsembleClip(0.5, "flat", SHAPE.members, len(SHAPE.layers))
    return Plan(
        units, "trajectory", PoissonSampler(sampling_probability), clip, noise_multiplier, 6, 1e-3
    )


def held(of: Plan) -> Ragged:
    """The units of a process."""
    own = units()
    return Ragged([own.inputs[k] for k in of.local_units], [own.targets[k] for k in of.local_units])


def rounds(of: Plan, maps: Normaliser) -> Rounds:
    return Rounds(training_setup(of, SHAPE, local=LOCAL), held(of), maps)


@dataclass(frozen=True)
class Queried:
    """A setup with two queries: the sum of the units' numbers, and ones."""

    plan: Plan
    architecture: Architecture
    execution: Execution = field(default_factory=lambda: Execution(CPU, 1 << 20))

    def queries(self, answers: Any) -> dict[str, Any]:
        numbers = torch.tensor(self.plan.local_units)
        return {
            "numbers": SimpleNamespace(total=lambda source: numbers.sum().view(1)),
            "ones": SimpleNamespace(total=lambda source: torch.ones(2, 3, dtype=torch.int64)),
        }


class Coins(nullcontext[Any]):
    """Rounds whose sum says who joined: ``[K]``."""

    def __init__(self, of: Plan) -> None:
        super().__init__(self)
        self._plan = of

    def sum(self, weights: Any) -> list[Tensor]:
        joined = torch.zeros(self._plan.units, dtype=torch.float64)
        joined[torch.tensor(self._plan.local_units)[self._plan.cohort()]] = 1
        return [joined]


class Still(Coins):
    """Rounds in which nobody moves; with ``noisy``, the bug: this process adds noise of its own."""

    def __init__(self, of: Plan, noisy: bool = False) -> None:
        super().__init__(of)
        self._scale = of.noise_multiplier * of.clip.sensitivity if noisy else 0.0

    def sum(self, weights: Any) -> list[Tensor]:
        shapes = [w.shape for w in SHAPE.initial_weights(0)]
        drawn = [
            discrete_gaussian(self._plan.entropy, shape.numel(), 2.0**27).view(shape)
            for shape in shapes
        ]
        return [self._scale / 2**27 * part for part in drawn]


COIN_UNITS, COIN_Q = 80, 0.3
NOISY = {"noise_multiplier": 2.0, "sampling_probability": 0.5}


def work(group: Group, scenario: int) -> None:
    """The worker's side of a scenario."""

    def shared(make: Callable[[Plan, Normaliser], Any], **changes: Any) -> None:
        own = plan(**changes).of_process(group.process, group.processes)
        distributed.Rounds = lambda setup, source, maps: make(own, maps)  # type: ignore[assignment, misc]
        serve(group, Queried(own, SHAPE), None)  # type: ignore[arg-type]

    if scenario == SUMS:
        shared(rounds)
    elif scenario == COINS:
        shared(lambda own, maps: Coins(own), units=COIN_UNITS, sampling_probability=COIN_Q)
    elif scenario in (NOTHING, NOISE):
        shared(lambda own, maps: Still(own, noisy=scenario == NOISE), **NOISY)
    elif scenario == TWICE:
        check_coverage(group, 7, torch.tensor([1, 3, 5]))
        check_coverage(group, 7, torch.tensor([1, 3, 5, 6]))
        check_coverage(group, 7, torch.tensor([1, 3]))
    else:
        group.settle()
        time.sleep(600)


if __name__ == "__main__":
    compute.begin_worker()
    torch.set_num_threads(1)
    try:
        with Group() as group:
            while (scenario := _told(group)[0]) != END:
                work(group, scenario)
    except ProcessLostError:
        compute.end_worker(1)
