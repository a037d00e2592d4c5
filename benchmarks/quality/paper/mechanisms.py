"""What moves the frontier, and is no setting: servers, shrinking steps, other physics first, averaged policies.

    python -m benchmarks.quality.paper.mechanisms --project FOLDER [--seeds 3]

FOLDER is a project whose partitions hold `pendulum-replay`, split as `ingredients-pendulum` says. Settings are those of
its `Base`: ε 0.15, random weights. Training has the real plan and noise, but nothing is charged and nothing is
released: only simulated data may be measured like this. Each model is trained anew, and a policy in it; rows are kept
in ``benchmarks/results/paper/mechanisms.json``, and those that are there are not made again.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml
from torch import Tensor

from benchmarks.machine import RESULTS, command, machine
from benchmarks.quality.paper import sheets
from benchmarks.quality.paper.statistics import interquartile_mean
from primorl.config.params import Params, parse
from primorl.dynamics.ensemble import GaussianEnsemble, Weights
from primorl.dynamics.pessimism import PessimisticModel
from primorl.evaluation.returns import episode_returns
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer
from primorl.policy.sac import train as train_policies
from primorl.project.paths import MANIFEST, PRIVATE, PUBLIC
from primorl.setup.training import training_setup
from primorl.simulators.environments import reset_states
from primorl.sweeps.file import read_sweep
from primorl.sweeps.sweeping import check_partition
from primorl.training.pooled import train_pooled
from primorl.training.rounds import Rounds
from primorl.training.settings import PooledTraining
from primorl.training.setup import TrainingSetup
from primorl.training.state import TrainingState
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

FILE = RESULTS / "paper" / "mechanisms.json"
ENVIRONMENT = "Pendulum-v1"
_SWEEP = sheets.SWEEPS / "ingredients-pendulum.yaml"
_FIRST, _SECOND, _TINY = 0.9, 0.99, 1e-8  # Adam's decay rates
_OTHER = {"g": 12.0, "m": 1.3, "l": 0.8}  # Pendulum-v1 has 10, 1 and 1
_EPISODES, _STEPS = 100, 200
_POLICIES = 5

Step = Callable[[TrainingState, Weights], Weights]
"""From the state and what a round released to what the server moves by."""


def plain(state: TrainingState, released: Weights) -> Weights:
    """The server of `Base`."""
    del state
    return released


class Shrinking:
    """Steps that shrink linearly to nothing, with the same sum as constant ones."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def __call__(self, state: TrainingState, released: Weights) -> Weights:
        """Scale ``released``."""
        share = 2 * (1 - state.done / self._rounds)  # of the first round 2
        return tuple(share * part for part in released)


class Adam:
    """Server Adam (Reddi et al. 2021); with ``variance``, that of the noise is taken out of its second moment.

    The noise's variance is known: (z C / (q K))² in each weight. What is left is held above a tenth of it.

    Args:
        rate: length of a step in each weight.
        variance: of the noise; 0: the plain one.
    """

    def __init__(self, rate: float, variance: float) -> None:
        self._rate, self._variance = rate, variance
        self._first: Weights | None = None
        self._second: Weights | None = None

    def __call__(self, state: TrainingState, released: Weights) -> Weights:
        """Adam's step along ``released``."""
        zeros = tuple(torch.zeros_like(part) for part in released)
        first, second, t = self._first or zeros, self._second or zeros, state.done + 1
        self._first = tuple(_FIRST * m + (1 - _FIRST) * part for m, part in zip(first, released, strict=True))
        self._second = tuple(
            _SECOND * v + (1 - _SECOND) * part.square() for v, part in zip(second, released, strict=True)
        )
        return tuple(
            self._rate * m / (1 - _FIRST**t) / self._size(v / (1 - _SECOND**t))
            for m, v in zip(self._first, self._second, strict=True)
        )

    def _size(self, second: Tensor) -> Tensor:
        return (second - self._variance).clamp(min=max(_TINY**2, 0.1 * self._variance)).sqrt()


def noise_variance(setup: TrainingSetup) -> float:
    """Of each weight of a release."""
    plan = setup.plan
    return float((plan.noise_multiplier * plan.clipping_norm / (plan.sampling_probability * plan.units)) ** 2)


def other_physics(setup: TrainingSetup, public: UnitStore) -> Weights:
    """Weights that random torques on another pendulum make: public, and of no recorded trajectory."""
    environment, generator = gymnasium.make(ENVIRONMENT).unwrapped, np.random.default_rng(0)
    for name, value in _OTHER.items():
        setattr(environment, name, value)
    inputs, targets = [], []
    for episode in range(_EPISODES):
        observation, _ = environment.reset(seed=episode)
        for _ in range(_STEPS):
            action = generator.uniform(-2, 2, 1).astype(np.float32)
            following, reward, *_ = environment.step(action)
            inputs.append(np.concatenate((observation, action)))
            targets.append(np.append(following - observation, float(reward)))
            observation = following
    rows = tuple(torch.tensor(np.array(part), dtype=torch.float32) for part in (inputs, targets))
    return train_pooled(
        setup.architecture,
        (rows[0], rows[1]),
        None,
        normaliser=setup.make_normaliser(public.flat(), {}),
        pooled=PooledTraining(batch_size=256, learning_rate=2e-3, weight_decay=1e-3, max_epochs=30, patience=10),
        seed=setup.seed,
        device=torch.device("cpu"),
        on_epoch=lambda evaluation: None,
    ).weights


CASES = (
    "base",
    "shrinking steps",
    "server Adam, 0.003",
    "server Adam, 0.01",
    "server Adam less noise, 0.001",
    "server Adam less noise, 0.003",
    "other physics first",
    "five policies averaged",
)


def main() -> None:
    """Make the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    made = rows()
    same = {
        "machine": machine(),
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
        "command": command("benchmarks.quality.paper.mechanisms"),
    }
    os.chdir(given.project)
    for seed in range(given.seeds):
        for case in given.cases:
            key = {"case": case, "seed": seed}
            if not any(row.items() >= key.items() for row in made):
                made.append(key | measured(case, seed) | same)
                print(made[-1], flush=True)
                FILE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(table(made))


def rows() -> list[dict[str, Any]]:
    """What was measured so far."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    return found


def base(seed: int) -> Params:
    """`Base` of ingredients-pendulum on the project's partitions."""
    sweep = yaml.safe_load(_SWEEP.read_text(encoding="utf-8"))
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    for key, value in (sweep["settings"] | sweep["cases"]["Base"] | {"seed": seed}).items():
        *blocks, last = key.split(".")
        place = raw
        for block in blocks:
            place = place[block]
        place[last] = value
    return parse(raw)


def measured(case: str, seed: int) -> dict[str, Any]:
    """Train a model and a policy, and play 100 episodes."""
    begun = time.perf_counter()
    params, public, private = base(seed), UnitStore.open(PUBLIC), UnitStore.open(PRIVATE)
    check_partition(read_sweep(_SWEEP), params)
    setup = training_setup(params, Manifest.load(MANIFEST), public)
    if case == "other physics first":
        setup = replace(setup, start=other_physics(setup, public))
    weights = _trained(setup, private, public, _server(case, setup))
    normaliser = setup.make_normaliser(public.flat(), {})
    ensemble = GaussianEnsemble(setup.ensemble, weights, normaliser, setup.bounds)
    model = PessimisticModel(ensemble, uncertainty=params.policy.uncertainty, penalty=params.policy.penalty)
    seeds = tuple(range(seed, seed + _POLICIES)) if case == "five policies averaged" else (seed,)
    epochs = train_policies(
        model, reset_states(ENVIRONMENT, 4096, seed), params.policy, ReplayBuffer.batches, seeds=seeds
    )
    *_, last = epochs
    policy = averaged(last.policies)
    returns = episode_returns(ENVIRONMENT, policy, 100, 1000)
    return {
        "epsilon": params.privacy.target_epsilon,
        "score": float(1000 * (returns.mean() + 1500) / 1500),
        "seconds": time.perf_counter() - begun,
    }


def _server(case: str, setup: TrainingSetup) -> Step:
    if case == "shrinking steps":
        return Shrinking(setup.plan.rounds)
    name, _, rate = case.partition(", ")
    if name.startswith("server Adam"):
        return Adam(float(rate), noise_variance(setup) if name.endswith("noise") else 0.0)
    return plain


def _trained(setup: TrainingSetup, private: UnitStore, public: UnitStore, server: Step) -> Weights:
    """The averaged weights after all rounds; a server of its own kind has no momentum beside its own."""
    normaliser = setup.make_normaliser(public.flat(), {})
    own = replace(setup.server, server_momentum=0.0) if isinstance(server, Adam) else setup.server
    state = TrainingState.begin(setup.first_weights())
    with Rounds(setup, private, normaliser) as rounds:
        for number in range(1, setup.plan.rounds + 1):
            released = setup.plan.release(rounds.sum(state.weights, last=number == setup.plan.rounds))
            state = state.stepped(server(state, released), own)
    return state.averaged()


def averaged(policies: DeterministicPolicy) -> DeterministicPolicy:
    """P policies as one network of P times the width, whose output before tanh is their mean."""
    P = policies.policies
    if P == 1:
        return policies
    *hidden, weight, bias = policies.layers
    layers: list[Tensor] = []
    for number, (w, b) in enumerate(zip(hidden[::2], hidden[1::2], strict=True)):
        wide = torch.cat(tuple(w), 0) if number == 0 else torch.block_diag(*w)
        layers += [wide[None], b.reshape(1, 1, -1)]
    layers += [torch.cat(tuple(weight), 1)[None] / P, bias.mean(0, keepdim=True)]
    return replace(policies, layers=tuple(layers))


def table(made: list[dict[str, Any]]) -> str:
    """Markdown: a line for each case, best first."""
    scores = {case: [row["score"] for row in made if row["case"] == case] for case in CASES}
    lines = ["| changed | final: IQM | each seed | s a run |", "|---|---|---|---|"]
    found = [(interquartile_mean([own]).value, case, own) for case, own in scores.items() if own]
    for middle, case, own in sorted(found, reverse=True):
        seconds = np.mean([row["seconds"] for row in made if row["case"] == case])
        each = ", ".join(f"{score:.0f}" for score in own)
        lines.append(f"| {case} | {middle:.0f} | {each} | {seconds:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
