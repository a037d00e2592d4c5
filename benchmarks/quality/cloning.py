"""How close a private clone comes to a fit without privacy, on simulated logs: what chose `primorl.setup.clone_work`.

    python -m benchmarks.quality.cloning --project FOLDER --epsilon 0.1 0.25 0.5 [--norm 0.2] [--rate 1]

FOLDER is a project with ``data/partitions`` of simulated data. Its private rows are read freely and nothing is charged:
never point it at people. Of each clone it prints the mean negative log-likelihood on the public split and how far its
action is from the logged one: the mean absolute difference of the mean action (scaled to [-1, 1]), or the share of
steps whose likeliest action is another one. Then the same of the
initial weights, a constant policy, and of a fit of the same network to the pooled private rows.
"""

import argparse
import itertools
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from primorl.config.blocks import FIRST_CLONE, Behaviour
from primorl.dynamics.ensemble import Bounds, Weights
from primorl.privacy.mechanism.plan import Plan
from primorl.setup import clone_work as cloning
from primorl.setup.declared import observation_columns
from primorl.training.cloning import CloningSetup
from primorl.training.cohort import CohortSource
from primorl.training.policy_network import policy_row_losses
from primorl.training.settings import CHUNK_BYTES, Execution
from primorl.training.training import train
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

DELTA = 1e-5
# The network of the table in docs/privacy.md, which is the default.
BEHAVIOUR = Behaviour(target_epsilon=None, hidden=FIRST_CLONE[0], log_variance_bounds=FIRST_CLONE[1])
_POOLED_STEPS, _POOLED_BATCH, _POOLED_RATE = 6000, 512, 3e-3


def main() -> None:
    """Print one line for each ε, setting and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    parser.add_argument("--norm", type=float, nargs="+", default=[None], help="[default: the rule's]")
    parser.add_argument("--rate", type=float, nargs="+", default=[cloning.LOCAL.learning_rate])
    parser.add_argument("--momentum", type=float, nargs="+", default=[cloning.SERVER.server_momentum])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--units", type=int, help="the first so many private units alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    partitions = given.project / "data/partitions"
    manifest = Manifest.load(partitions / "manifest.json")
    private, public = UnitStore.open(partitions / "private"), UnitStore.open(partitions / "public")
    manifest = replace(manifest, private_units=min(given.units or private.units, private.units))
    source = _First(private, manifest.private_units)
    print(f"{manifest.info.dataset}: {manifest.private_units} units")
    shape = cloning.policy_network(BEHAVIOUR, manifest)
    for epsilon in given.epsilon:
        noise = cloning.noise_for(epsilon, DELTA)
        for norm, rate, momentum in itertools.product(given.norm, given.rate, given.momentum):
            for seed in range(given.seeds):
                plan = cloning.clone_plan(shape, manifest, noise, DELTA, norm)
                setup = _setup(manifest, plan, rate, momentum, seed)
                trained = train(setup, setup.source_of(source), setup.public_of(public.flat()))
                loss, error = _figures(setup, trained.weights, public)
                what = (
                    f"ε {epsilon:g}, z {noise:.4g}, C {plan.clipping_norm:g}, η {rate:g}, β {momentum:g}, seed {seed}"
                )
                print(f"{what}: loss {loss:.3f}, error {error:.3f}", flush=True)
    setup = _setup(manifest, cloning.clone_plan(shape, manifest, 0.0, DELTA), 1.0, 0.0, 0)
    print("initial weights: loss {:.3f}, error {:.3f}".format(*_figures(setup, setup.initial_weights(), public)))
    print("not private: loss {:.3f}, error {:.3f}".format(*_figures(setup, _pooled(setup, private, public), public)))


class _First:
    """The first units of a store."""

    def __init__(self, store: UnitStore, units: int) -> None:
        self.units, self.lengths, self.transitions = units, store.lengths, store.transitions


def _setup(manifest: Manifest, plan: Plan, rate: float, momentum: float, seed: int) -> CloningSetup:
    spaces = manifest.info.spaces
    sides = (spaces.observation_low, spaces.observation_high, spaces.action_low, spaces.action_high)
    return CloningSetup(
        plan=plan,
        architecture=cloning.policy_network(BEHAVIOUR, manifest),
        bounds=Bounds(*map(torch.tensor, sides), -1.0, 1.0, discrete_actions=spaces.discrete_actions),
        columns=observation_columns(manifest),
        normaliser="public",
        local=replace(cloning.LOCAL, learning_rate=rate),
        server=replace(cloning.SERVER, server_momentum=momentum),
        seed=seed,
        execution=Execution(torch.device("cpu"), CHUNK_BYTES["cpu"]),
    )


def _figures(setup: CloningSetup, weights: Weights, public: UnitStore) -> tuple[float, float]:
    """Loss and error on the public split."""
    rows = setup.public_of(public.flat())
    inputs = setup.make_normaliser(rows, {}).inputs(rows[0])
    losses, expected = policy_row_losses(setup.architecture, weights, inputs[None], rows[1])
    return float(losses.mean()), _error(setup, expected[0], rows[1])


def _error(setup: CloningSetup, expected: Tensor, action: Tensor) -> float:
    if setup.architecture.discrete_actions:
        return float((expected.argmax(-1) != action.argmax(-1)).float().mean())
    return float((expected - action).abs().mean())


def _pooled(setup: CloningSetup, private: CohortSource, public: UnitStore) -> Weights:
    """The same network, fitted to all private rows by Adam."""
    assert isinstance(private, UnitStore)
    observations, actions = setup.public_of(private.flat())
    inputs = setup.make_normaliser(setup.public_of(public.flat()), {}).inputs(observations)
    weights = tuple(w.clone().requires_grad_() for w in setup.initial_weights())
    optimiser = torch.optim.Adam(weights, lr=_POOLED_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _POOLED_STEPS)
    for _ in range(_POOLED_STEPS):
        chosen = torch.randint(len(inputs), (_POOLED_BATCH,))
        losses, _ = policy_row_losses(setup.architecture, weights, inputs[chosen][None], actions[chosen])
        optimiser.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return tuple(w.detach() for w in weights)


if __name__ == "__main__":
    main()
