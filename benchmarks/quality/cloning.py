"""How close a private clone comes to one without privacy, on simulated logs: what chose `primorl.setup.cloning`.

    python -m benchmarks.quality.cloning --project FOLDER --epsilon 0.1 0.25 0.5 [--norm 0.2 --rate 0.1]

FOLDER is a project with ``data/partitions`` of simulated data: its private rows are read freely and nothing is charged.
Of each clone it prints the mean negative log-likelihood on the public split, beside those of a constant policy and of a
fit of the same network to the pooled private rows, and how far its action is from the logged one: the mean absolute
difference of the mean action (scaled to [-1, 1]), or the share of steps whose likeliest action is another one.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Bounds, Weights
from primorl.setup import cloning
from primorl.setup.declared import observation_columns
from primorl.training.cloning import CloningSetup
from primorl.training.policy_network import policy_row_losses
from primorl.training.settings import CHUNK_BYTES, Execution
from primorl.training.training import train
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

_POOLED_STEPS, _POOLED_BATCH = 6000, 512


def main() -> None:
    """Print one line for each ε, seed and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    parser.add_argument("--norm", type=float, nargs="+", default=[cloning.CLIPPING_NORM])
    parser.add_argument("--rate", type=float, nargs="+", default=[cloning.LOCAL.learning_rate])
    parser.add_argument("--momentum", type=float, nargs="+", default=[cloning.SERVER.server_momentum])
    parser.add_argument("--rounds", type=int, nargs="+", default=[cloning.ROUNDS])
    parser.add_argument("--batch", type=int, default=cloning.LOCAL.batch_size)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--units", type=int, help="the first so many private units alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    partitions = given.project / "data/partitions"
    manifest = Manifest.load(partitions / "manifest.json")
    private, public = UnitStore.open(partitions / "private"), UnitStore.open(partitions / "public")
    units = min(given.units or private.units, private.units)
    first = replace(manifest, private_units=units)
    for epsilon in given.epsilon:
        for rounds in given.rounds:
            plan = cloning.clone_plan(first, epsilon, 1e-5, rounds=rounds)
            for norm in given.norm:
                for rate in given.rate:
                    for momentum in given.momentum:
                        for seed in range(given.seeds):
                            setup = _setup(manifest, public, plan_norm(plan, norm), rate, momentum, seed, given.batch)
                            loss, error = _clone(setup, _First(private, units), public)
                            print(
                                f"ε {epsilon:g} T {rounds} z {plan.noise_multiplier:.4g} C {norm:g} η {rate:g} "
                                f"β {momentum:g} seed {seed}: loss {loss:.3f}, error {error:.3f}",
                                flush=True,
                            )
    setup = _setup(manifest, public, plan, cloning.LOCAL.learning_rate, cloning.SERVER.server_momentum, 0, given.batch)
    _print_references(setup, private, public)


def plan_norm(plan, norm):
    return replace(plan, clip=replace(plan.clip, clipping_norm=norm))


class _First:
    """The first units of a store."""

    def __init__(self, store: UnitStore, units: int) -> None:
        self.units, self.lengths, self.transitions = units, store.lengths, store.transitions


def _setup(manifest, public, plan, rate, momentum, seed, batch) -> CloningSetup:
    spaces = manifest.info.spaces
    actions = (torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    low, high = torch.tensor(spaces.observation_low), torch.tensor(spaces.observation_high)
    return CloningSetup(
        plan=plan,
        architecture=cloning.policy_network(manifest),
        bounds=Bounds(low, high, *actions, -1.0, 1.0, discrete_actions=spaces.discrete_actions),
        columns=observation_columns(manifest),
        normaliser="public",
        local=replace(cloning.LOCAL, learning_rate=rate, batch_size=batch),
        server=replace(cloning.SERVER, server_momentum=momentum),
        seed=seed,
        execution=Execution(torch.device("cpu"), CHUNK_BYTES["cpu"]),
    )


def _clone(setup: CloningSetup, private, public: UnitStore) -> tuple[float, float]:
    trained = train(setup, setup.source_of(private), setup.public_of(public.flat()))
    return _figures(setup, trained.weights, public)


def _figures(setup: CloningSetup, weights: Weights, public: UnitStore) -> tuple[float, float]:
    rows = setup.public_of(public.flat())
    maps = setup.make_normaliser(rows, {})
    losses, expected = policy_row_losses(setup.architecture, weights, maps.inputs(rows[0])[None], rows[1])
    return float(losses.mean()), _error(setup, expected[0], rows[1])


def _error(setup: CloningSetup, expected: Tensor, action: Tensor) -> float:
    if setup.architecture.discrete_actions:
        return float((expected.argmax(-1) != action.argmax(-1)).float().mean())
    return float((expected - action).abs().mean())


def _print_references(setup: CloningSetup, private: UnitStore, public: UnitStore) -> None:
    observations, actions = setup.public_of(private.flat())
    rows = setup.public_of(public.flat())
    inputs = setup.make_normaliser(rows, {}).inputs(observations)
    weights = [w.clone().requires_grad_() for w in setup.initial_weights()]
    optimiser = torch.optim.Adam(weights, lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _POOLED_STEPS)
    for _ in range(_POOLED_STEPS):
        chosen = torch.randint(len(inputs), (_POOLED_BATCH,))
        losses, _ = policy_row_losses(setup.architecture, tuple(weights), inputs[chosen][None], actions[chosen])
        optimiser.zero_grad()
        losses.mean().backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        loss, error = _figures(setup, tuple(weights), public)
        zero = _figures(setup, setup.initial_weights(), public)
    print(f"not private: loss {loss:.3f}, error {error:.3f}; initial {zero[0]:.3f}, {zero[1]:.3f}")


if __name__ == "__main__":
    main()
