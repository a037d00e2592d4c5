"""What moves the frontier, and is no setting: each change of `benchmarks.quality.paper.changes`, alone.

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
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import yaml

from benchmarks.machine import RESULTS, command, machine
from benchmarks.quality.paper import sheets
from benchmarks.quality.paper.changes import (
    ENVIRONMENT,
    Adam,
    PessimisticSac,
    Shrinking,
    Step,
    TruncatedRollouts,
    autograd_sum,
    averaged,
    layer_normed,
    other_physics,
    plain,
)
from benchmarks.quality.paper.statistics import interquartile_mean
from primorl.config.params import Params, parse
from primorl.dynamics import ensemble as ensemble_module
from primorl.dynamics.ensemble import GaussianEnsemble, Weights
from primorl.dynamics.pessimism import PessimisticModel
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.evaluation.returns import episode_returns
from primorl.policy import sac
from primorl.policy.replay import ReplayBuffer
from primorl.project.paths import MANIFEST, PRIVATE, PUBLIC
from primorl.setup.model_work import training_setup
from primorl.simulators.environments import reset_states
from primorl.sweeps.file import read_sweep, with_settings
from primorl.sweeps.sweeping import check_partition
from primorl.training import cuda_graph
from primorl.training.rounds import Rounds
from primorl.training.setup import TrainingSetup
from primorl.training.state import TrainingState
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

FILE = RESULTS / "paper" / "mechanisms.json"
_POLICIES = 5


def noise_variance(setup: TrainingSetup) -> float:
    """Of each weight of a release."""
    plan = setup.plan
    return float((plan.noise_multiplier * plan.clipping_norm / plan.expected_cohort) ** 2)


CASES = (
    "base",
    "shrinking steps",
    "server Adam, 0.003",
    "server Adam, 0.01",
    "server Adam less noise, 0.001",
    "server Adam less noise, 0.003",
    "other physics first",
    "layer norm",
    "layer norm, horizon 60",
    "horizon 60",
    "truncated rollouts",
    "pessimistic critics",
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
    sweep = read_sweep(sheets.SWEEPS / "ingredients-pendulum.yaml")
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    params = parse(with_settings(raw, sweep.content.settings | sweep.content.cases["Base"] | {"seed": seed}))
    check_partition(sweep, params)
    return params


def measured(case: str, seed: int) -> dict[str, Any]:
    """Train a model and a policy, and play 100 episodes."""
    begun = time.perf_counter()
    params, public, private = base(seed), UnitStore.open(PUBLIC), UnitStore.open(PRIVATE)
    setup = training_setup(params, Manifest.load(MANIFEST), public)
    if case == "other physics first":
        setup = replace(setup, start=other_physics(setup, public))
    config = replace(params.policy, horizon=60) if case.endswith("horizon 60") else params.policy
    with ExitStack() as patched:
        if case.startswith("layer norm"):
            patched.enter_context(patch.object(ensemble_module, "outputs", layer_normed))
            patched.enter_context(patch.object(cuda_graph, "sum_of_updates", autograd_sum(layer_normed)))
        weights = _trained(setup, private, public, _server(case, setup))
        normaliser = setup.make_normaliser(public.flat(), {})
        ensemble = GaussianEnsemble(setup.ensemble, weights, normaliser, setup.bounds)
        model = PessimisticModel(ensemble, uncertainty=config.uncertainty, penalty=config.penalty)
        if case == "truncated rollouts":
            most = public_uncertainty(model, public)
            patched.enter_context(patch.object(sac, "Rollouts", partial(TruncatedRollouts, most=most)))
        if case == "pessimistic critics":
            patched.enter_context(patch.object(sac, "Sac", PessimisticSac))
        seeds = tuple(range(seed, seed + _POLICIES)) if case == "five policies averaged" else (seed,)
        starts = reset_states(ENVIRONMENT, 4096, seed)
        *_, last = sac.train(model, starts, config, ReplayBuffer.batches, seeds=seeds)
    returns = episode_returns(ENVIRONMENT, averaged(last.policies), 100, 1000)
    return {
        "epsilon": params.privacy.target_epsilon,
        "score": float(1000 * (returns.mean() + 1500) / 1500),
        "seconds": time.perf_counter() - begun,
    }


def public_uncertainty(model: PessimisticModel, public: UnitStore) -> float:
    """What the uncertainty on the public split's transitions is above in one of twenty."""
    (inputs, _), S = public.flat(), model.observation_size
    step = model.step(inputs[:, :S], inputs[:, S:], SeedGenerators.of((0,), torch.device("cpu")))
    return float(step.uncertainty.quantile(0.95))


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
