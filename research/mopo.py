"""NOT PRIVATE. The papers' baseline MOPO (Yu et al. 2020) on the trajectories of a simulator.

python -m research.mopo --seeds 0 1 2     # after `dvc repro ingest`; params.yaml names the dataset

An ensemble is trained on all transitions; real ones start the policy's rollouts and are 5% of SAC's
batches. Nothing is charged, so data of people are refused. A row a seed is added to
``research/results/mopo.jsonl``, with the log's own mean return; `benchmarks.quality.paper.report`
writes the tables.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from primorl.base import PipelineError
from primorl.base.files import TRAJECTORIES
from primorl.config.datasets import D4rlDataset, MinariDataset, ReplayDataset
from primorl.config.params import Params, load
from primorl.data.storage.rows import PartReader, UnitStore
from primorl.engine.public import ChosenUnits, train_pooled
from primorl.engine.settings import PooledTraining
from primorl.evaluate.returns import episode_returns
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import PessimisticModel
from primorl.model.termination import LEARNED
from primorl.policy.config import SacConfig
from primorl.policy.replay import ReplayBuffer, Scaling
from primorl.policy.sac import train
from research.rows import Row, complete_rows

REAL = 0.05
"""Share of real transitions in a batch."""
_HELD_OUT = 20  # one trajectory in so many decides when the ensemble stops
_LOOKS, _LOOKED_AT, _JUDGED = 20, 5, 100  # of a run; episodes of a look and of the last policy


@dataclass(frozen=True)
class Task:
    """Settings of a dataset's runs."""

    members: int
    hidden: tuple[int, ...]
    epochs: int
    penalty: float
    uncertainty: str
    sac: SacConfig


def _sac(
    hidden: int, horizon: int, epochs: int, updates: int, rollouts: int, **own: float
) -> SacConfig:
    """Return the papers' SAC with a buffer of a million transitions."""
    return SacConfig(
        hidden=(hidden, hidden),
        learning_rate=3e-4,
        discount=own.get("discount", 0.99),
        target_rate=0.005,
        target_entropy=own.get("target_entropy", -3.0),
        discrete_target_entropy=0.3,
        reward_scale=own.get("reward_scale", 1.0),
        batch_size=256,
        epochs=epochs,
        updates_per_epoch=updates,
        rollout_every=250,
        rollout_batch=rollouts,
        horizon=horizon,
        buffer_size=1_000_000,
    )


_LARGE = 5, (128, 128), 1, 1.0
_CARTPOLE = _sac(128, 20, 24, 2000, 400, discount=0.995, target_entropy=-1.0)
_SWINGUP = Task(*_LARGE, "max_aleatoric", _CARTPOLE)
_BALANCE = Task(*_LARGE, "max_pairwise_difference", _CARTPOLE)
_PENDULUM = Task(
    3, (64, 64), 1, 2.0, "max_pairwise_difference", _sac(64, 30, 25, 500, 256, reward_scale=0.1)
)
_HALFCHEETAH = Task(
    7, (200,) * 4, 10, 1.0, "max_pairwise_difference", _sac(256, 5, 100, 2500, 2000)
)
TASKS = {
    "pendulum-replay": _PENDULUM,
    "pendulum-paper": _PENDULUM,
    "cartpole-swingup": _SWINGUP,
    "cartpole-swingup-paper": _SWINGUP,
    "cartpole-balance": _BALANCE,
    "cartpole-balance-paper": _BALANCE,
    "halfcheetah-mixture": _HALFCHEETAH,
    "halfcheetah-two-policies": _HALFCHEETAH,
}


def run(params: Params, task: Task, seed: int) -> Row:
    """Train an ensemble and a policy on ``data/trajectories``; measure policies on the way and the
    last one.

    Raises:
        PipelineError: the data may be people's, or are of another dataset.
    """
    environment = params.chosen.environment
    simulated = isinstance(params.chosen, ReplayDataset | MinariDataset | D4rlDataset)
    if environment is None or params.chosen.unit != "trajectory" or not simulated:
        raise PipelineError("params.yaml: dataset: allowed are trajectories of a simulator")
    reader = PartReader(Path(TRAJECTORIES), made_by="ingest")
    if reader.info.dataset != params.dataset:
        raise PipelineError(f"{TRAJECTORIES}: found {reader.info.dataset}; run `dvc repro ingest`")
    store = UnitStore(reader, lambda table: None)
    ensemble, losses = _ensemble(store, task, seed)
    model = PessimisticModel(ensemble, uncertainty=task.uncertainty, penalty=task.penalty)
    real = _real_rows(store, Scaling.of(model, task.sac.reward_scale))
    (inputs, targets), S = store.flat(), store.observation_size
    value = partial(episode_returns, environment, seed=1000, limit=params.chosen.horizon)
    curve, every = [], max(1, task.sac.epochs // _LOOKS)
    sampler = partial(_with_real, real)
    for epoch in train(model, inputs[:, :S], task.sac, sampler, seeds=(seed,)):
        if epoch.number % every == 0:
            curve.append(round(float(value(epoch.policies, _LOOKED_AT).mean()), 1))
    return {
        "private": False,
        "return": float(value(epoch.policies, _JUDGED).mean()),
        "curve": curve,
        "held_out": [round(loss, 3) for loss in losses],
        "log": float(targets[:, S].sum(dtype=torch.float64) / store.units),
    }


def _ensemble(store: UnitStore, task: Task, seed: int) -> tuple[GaussianEnsemble, list[float]]:
    """Train by maximum likelihood on every transition; all bounds are those of the data.

    Returns:
        The ensemble, and its loss on held-out trajectories after each epoch.
    """
    (inputs, targets), spaces, S = store.flat(), store.info.spaces, store.observation_size
    learned = store.info.termination == LEARNED
    shape = Architecture(
        observation_size=S,
        action_size=store.action_size,
        members=task.members,
        hidden=task.hidden,
        log_variance_low=-10.0,
        log_variance_high=0.5,
        learned_termination=learned,
    )
    order = torch.arange(store.units)
    held_out = ChosenUnits(store, order[::_HELD_OUT]).rows(2**16)
    normaliser = Normaliser.from_public(inputs, targets, flag=targets.shape[1] > S + 1)
    pooled = PooledTraining(
        batch_size=256, learning_rate=1e-3, weight_decay=1e-5, max_epochs=task.epochs, patience=5
    )
    weights, judged = train_pooled(shape, (inputs, targets), held_out, normaliser, pooled, seed)
    seen = torch.cat((inputs[:, :S], inputs[:, :S] + targets[:, :S]))
    bounds = Bounds(
        seen.amin(0),
        seen.amax(0),
        torch.tensor(spaces.action_low),
        torch.tensor(spaces.action_high),
        float(targets[:, S].min()),
        float(targets[:, S].max()),
        discrete_actions=spaces.discrete_actions,
    )
    ensemble = GaussianEnsemble(shape, weights, normaliser, bounds, store.info.termination)
    return ensemble, [each.loss for each in judged]


def _real_rows(store: UnitStore, scaling: Scaling) -> ReplayBuffer:
    """Return the real transitions on SAC's scales."""
    (inputs, targets), S = store.flat(), store.observation_size
    observation, action = inputs[:, :S], inputs[:, S:]
    after = observation + targets[:, :S]
    rows = scaling.rows(observation, action, targets[:, S], after, targets[:, S + 1])
    buffer = ReplayBuffer(len(rows), scaling.columns.width, inputs.device)
    buffer.extend(rows.unsqueeze(0))
    return buffer


def _with_real(
    real: ReplayBuffer,
    generated: ReplayBuffer,
    updates: int,
    batch_size: int,
    generators: SeedGenerators,
) -> Iterator[Tensor]:
    """Yield batches, `REAL` of whose rows are real."""
    count = max(1, round(REAL * batch_size))
    of_model = generated.batches(updates, batch_size - count, generators)
    of_data = real.batches(updates, count, generators)
    for parts in zip(of_model, of_data, strict=True):
        yield torch.cat(parts, dim=1)


def main() -> None:
    """Make the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments, params = parser.parse_args(), load()
    if params.dataset not in TASKS:
        parser.error(f"params.yaml: dataset: found {params.dataset}, allowed are {[*TASKS]}")

    keys = [{"dataset": params.dataset, "seed": seed} for seed in arguments.seeds]
    complete_rows("mopo", keys, lambda key: run(params, TASKS[key["dataset"]], key["seed"]))


if __name__ == "__main__":
    main()
