"""How well a learned termination is learned inside the noised vector, for several gains of its logit.

python -m benchmarks.quality.termination_gain [--gains 1 10 20] [--seeds 6]

CartPole by players of many skills (an end in 223 rows), 1,000 units, a cohort of 100, clip 0.35, 100 rounds. The figure
is the cross-entropy of the members' mean probability on other people's episodes over the entropy of the flag: 1 is
what a constant gets.
"""

import argparse

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from benchmarks.machine import machine, write
from primorl.dynamics import architecture, ensemble
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training import local_update
from primorl.training.training import train
from tests.policy.cartpole import CartPole, resets
from tests.units import Ragged, local_training, server_training, training_setup

UNITS, STEPS = 1000, 200
SETTINGS = ((0.005, 0.35, 3.0), (0.03, 0.7, 3.0))
"""Local learning rate, clipping norm, noise multiplier."""


def main() -> None:
    """Train with every gain under every setting, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gains", type=float, nargs="+", default=[1, 10, 20])
    parser.add_argument("--seeds", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    private, public, others = players(UNITS, 0), players(60, 1), players(200, 2)
    rows: list[dict[str, object]] = []
    for rate, clip, noise in SETTINGS:
        found = {}
        for gain in arguments.gains:
            figures = [
                judged(private, public, others, rate, clip, noise, gain, seed) for seed in range(arguments.seeds)
            ]
            found[gain] = sum(figures) / len(figures)
            print(f"η {rate:g}, C {clip:g}, z {noise:g}, gain {gain:g}: {found[gain]:.3f}", flush=True)
        for gain in arguments.gains[1:]:
            rows.append(
                {
                    "what": f"cross-entropy over entropy, η {rate:g}, C {clip:g}, z {noise:g}, gain {gain:g}",
                    "ours": found[gain],
                    "peer": found[arguments.gains[0]],
                    "peer_name": f"gain {arguments.gains[0]:g}",
                    "ratio": found[arguments.gains[0]] / found[gain],
                    "unit": "1",
                    "machine": machine(),
                    "command": "python -m benchmarks.quality.termination_gain",
                }
            )
    write("termination_gain", rows)


def players(count: int, seed: int) -> Ragged:
    """Episodes of as many players: each balances the pole with a probability of their own, else plays blindly."""
    generator = torch.Generator().manual_seed(seed)
    observation, alive = resets(count, seed), torch.ones(count, dtype=torch.bool)
    skill = torch.rand(count, generator=generator)
    inputs: list[list[Tensor]] = [[] for _ in range(count)]
    targets: list[list[Tensor]] = [[] for _ in range(count)]
    for _ in range(STEPS):
        balancing = (observation[:, 2] + 0.3 * observation[:, 3] > 0).long()
        blind = torch.randint(2, (count,), generator=generator)
        action = one_hot(torch.where(torch.rand(count, generator=generator) < skill, balancing, blind), 2).float()
        step = CartPole().step(observation, action, SeedGenerators([generator]))
        assert step.terminated is not None
        before = torch.cat((observation, action), dim=1)
        after = torch.cat((step.next_observation - observation, step.reward[:, None], step.terminated[:, None]), dim=1)
        for unit in alive.nonzero()[:, 0].tolist():
            inputs[unit].append(before[unit])
            targets[unit].append(after[unit])
        alive &= ~step.terminated
        observation = step.next_observation
    return Ragged([torch.stack(rows) for rows in inputs], [torch.stack(rows) for rows in targets])


def judged(
    private: Ragged, public: Ragged, others: Ragged, rate: float, clip: float, noise: float, gain: float, seed: int
) -> float:
    """Cross-entropy on other people's episodes over the entropy of the flag."""
    architecture.TERMINATION_GAIN = ensemble.TERMINATION_GAIN = local_update.TERMINATION_GAIN = gain
    shape = Architecture(4, 2, 3, (32, 32), -10.0, 0.5, learned_termination=True)
    seen = torch.cat(list(public.inputs)), torch.cat(list(public.targets))
    setup = training_setup(
        Plan(
            UNITS,
            "trajectory",
            PoissonSampler(0.1),
            EnsembleClip(clip, "flat", shape.members, len(shape.layers)),
            noise,
            100,
            1e-4,
        ),
        shape,
        local=local_training(rate, max_transitions_per_unit=60),
        server=server_training(0.6, 0.9, 100),
        seed=seed,
    )
    trained = train(setup, private, seen)
    normaliser = trained.normaliser
    nothing = torch.zeros(4)
    bounds = Bounds(nothing, nothing, torch.zeros(2), torch.ones(2), 0.0, 1.0, discrete_actions=True)
    model = GaussianEnsemble(shape, trained.weights, normaliser, bounds, "learned")
    rows, ended = torch.cat(list(others.inputs)), torch.cat(list(others.targets))[:, -1] > 0
    _, _, ends = model.predict(rows[:, :4], rows[:, 4:])
    assert ends is not None
    probability = ends.mean(0).clamp(1e-6, 1 - 1e-6)
    rare = ended.float().mean()
    entropy = -(rare * rare.log() + (1 - rare) * (1 - rare).log())
    return float(-torch.where(ended, probability, 1 - probability).log().mean() / entropy)


if __name__ == "__main__":
    main()
