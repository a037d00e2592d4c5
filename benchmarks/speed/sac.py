"""SAC updates a second beside stable-baselines3 and plain PyTorch, and five seeds together beside
five in turn.

python -m benchmarks.speed.sac

Replay buffers are filled beforehand, so that the update and the drawing of its batch alone are
timed; whole training has rollouts in an ensemble of the default sizes. Peers take turns with ours
in one process, at as many threads.
"""

import argparse
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from benchmarks.machine import interleaved, row, write
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import PessimisticModel
from primorl.policy.config import SacConfig
from primorl.policy.replay import ReplayBuffer, ReplayColumns
from primorl.policy.sac import Sac, train

_COMMAND = "python -m benchmarks.speed.sac"
BATCH, HELD, SEEDS, REPEATS = 256, 20_000, (0, 1, 2, 3, 4), 7
SIZES = {"HalfCheetah's": (17, 6), "Pendulum's": (3, 1)}
CPU = torch.device("cpu")
Work = Callable[[int], object]
"""Makes so many updates."""


def config(hidden: int, actions: int = 1) -> SacConfig:
    """The default run's choices; the buffer holds what is put into it."""
    return SacConfig(
        hidden=(hidden, hidden),
        learning_rate=3e-4,
        discount=0.99,
        target_rate=0.005,
        target_entropy=-float(actions),
        discrete_target_entropy=0.3,
        reward_scale=0.1,
        batch_size=BATCH,
        epochs=1,
        updates_per_epoch=500,
        rollout_every=250,
        rollout_batch=256,
        horizon=30,
        buffer_size=HELD,
    )


def ours(
    observations: int,
    actions: int,
    hidden: int,
    seeds: tuple[int, ...] = (0,),
    device: torch.device = CPU,
) -> Work:
    """This project's, on a filled buffer."""
    columns, generators = ReplayColumns(observations, actions), SeedGenerators.of(seeds, device)
    sac = Sac(config(hidden, actions), columns, generators, None)
    buffer = ReplayBuffer(HELD, columns.width, device, len(seeds))
    rows = torch.randn(len(seeds), HELD, columns.width, device=device)
    rows[..., columns.action] = rows[..., columns.action].tanh()
    rows[..., columns.continues] = 1.0
    buffer.extend(rows)

    def work(updates: int) -> None:
        for batch in buffer.batches(updates, BATCH, generators):
            sac.update(batch)
        sac.pop_figures()

    return work


def network(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers of ReLU."""
    layers = (
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )
    return nn.Sequential(*layers)


def drawn(actor: nn.Module, observation: Tensor) -> tuple[Tensor, Tensor]:
    """``[B, S]`` to actions ``[B, A]`` of a squashed normal policy and log-densities ``[B, 1]``, as
    CleanRL does.
    """
    mean, log_std = actor(observation).chunk(2, dim=1)
    log_std = -5 + 0.5 * (2 + 5) * (torch.tanh(log_std) + 1)
    normal = Normal(mean, log_std.exp())
    x = normal.rsample()
    action = torch.tanh(x)
    log_density = normal.log_prob(x) - torch.log(1 - action.pow(2) + 1e-6)
    return action, log_density.sum(1, keepdim=True)


def plain_pytorch(observations: int, actions: int, hidden: int) -> Work:
    """The usual single file: two critics, ``torch.optim.Adam``, autograd; the log-density of the
    actor's step for α.
    """
    actor = network(observations, hidden, 2 * actions)
    critics = [network(observations + actions, hidden, 1) for _ in range(2)]
    targets = [network(observations + actions, hidden, 1) for _ in range(2)]
    for target, critic in zip(targets, critics, strict=True):
        target.load_state_dict(critic.state_dict())
    critic_adam = torch.optim.Adam([p for critic in critics for p in critic.parameters()], 3e-4)
    actor_adam = torch.optim.Adam(actor.parameters(), 3e-4)
    log_alpha = torch.zeros(1, requires_grad=True)
    alpha_adam = torch.optim.Adam([log_alpha], 3e-4)
    observation, following = torch.randn(HELD, observations), torch.randn(HELD, observations)
    action, reward, done = (
        torch.randn(HELD, actions).tanh(),
        torch.randn(HELD, 1),
        torch.zeros(HELD, 1),
    )

    def work(updates: int) -> None:
        for _ in range(updates):
            chosen = torch.randint(HELD, (BATCH,))
            s, a, r, after, d = (
                part[chosen] for part in (observation, action, reward, following, done)
            )
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                next_action, next_density = drawn(actor, after)
                following_pair = torch.cat((after, next_action), 1)
                least = torch.min(targets[0](following_pair), targets[1](following_pair))
                wanted = r + (1 - d) * 0.99 * (least - alpha * next_density)
            pair = torch.cat((s, a), 1)
            losses = [nn.functional.mse_loss(critic(pair), wanted) for critic in critics]
            critic_adam.zero_grad()
            (losses[0] + losses[1]).backward()
            critic_adam.step()

            own, density = drawn(actor, s)
            own_pair = torch.cat((s, own), 1)
            actor_loss = (
                alpha * density - torch.min(critics[0](own_pair), critics[1](own_pair))
            ).mean()
            actor_adam.zero_grad()
            actor_loss.backward()
            actor_adam.step()

            alpha_loss = (-log_alpha.exp() * (density.detach() - actions)).mean()
            alpha_adam.zero_grad()
            alpha_loss.backward()
            alpha_adam.step()
            for target, critic in zip(targets, critics, strict=True):
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.data.copy_(0.005 * new.data + (1 - 0.005) * old.data)

    return work


class Nowhere(gymnasium.Env):
    """Spaces of the asked sizes, for stable-baselines3 to build its networks by."""

    def __init__(self, observations: int, actions: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-10.0, 10.0, (observations,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (actions,), np.float32)


def stable_baselines3(observations: int, actions: int, hidden: int) -> Work:
    """Its ``train`` alone, on a filled buffer."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

    model = SAC(
        "MlpPolicy",
        Nowhere(observations, actions),
        policy_kwargs={"net_arch": [hidden, hidden]},
        batch_size=BATCH,
        buffer_size=HELD,
        device="cpu",
        seed=0,
    )
    model.set_logger(Logger(None, []))
    random = np.random.default_rng(0)
    buffer = model.replay_buffer
    assert buffer is not None
    for part in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        part[:] = random.normal(size=part.shape)
    np.tanh(buffer.actions, out=buffer.actions)
    buffer.full = True
    return lambda updates: model.train(updates, BATCH)


def whole_training(seeds: tuple[int, ...]) -> Callable[[], object]:
    """One epoch of the default run: 500 updates, 15,360 model transitions, for each seed."""
    shape = Architecture(3, 1, 3, (64, 64), -10.0, 0.5)
    bounds = Bounds(
        torch.tensor([-1.0, -1.0, -8.0]),
        torch.tensor([1.0, 1.0, 8.0]),
        torch.tensor([-2.0]),
        torch.tensor([2.0]),
        -16.3,
        0.0,
    )
    normaliser = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), 0.1 * torch.ones(4))
    ensemble = GaussianEnsemble(shape, shape.initial_weights(0), normaliser, bounds)
    model = PessimisticModel(ensemble, uncertainty="max_pairwise_difference", penalty=0.5)
    return lambda: list(
        train(model, torch.randn(512, 3), config(64), ReplayBuffer.batches, seeds=seeds)
    )


def updates_per_second(threads: int, count: int = 40) -> list[dict[str, object]]:
    """256×256, batch 256, of one seed."""
    torch.set_num_threads(threads)
    rows = []
    for name, (observations, actions) in SIZES.items():
        works = [
            made(observations, actions, 256) for made in (ours, stable_baselines3, plain_pytorch)
        ]
        taken, *others = interleaved([lambda work=work: work(count) for work in works], REPEATS)  # type: ignore[misc]
        what = (
            f"SAC updates, 256x256, batch 256, {name} sizes ({observations} + {actions}), "
            f"{threads} thread(s)"
        )
        for peer, other in zip(("stable-baselines3", "plain PyTorch"), others, strict=True):
            rows.append(
                row(_COMMAND, what, count / taken, count / other, peer, other / taken, "1/s")
            )
    return rows


def together_and_in_turn(count: int = 60) -> list[dict[str, object]]:
    """Five seeds at 64×64, batch 256: two threads together, one thread each in turn, as the stage
    chooses.
    """

    def on(threads: int, works: Sequence[Callable[[], object]]) -> Callable[[], None]:
        def run() -> None:
            torch.set_num_threads(threads)
            for work in works:
                work()

        return run

    def updates(made: Sequence[Work]) -> list[Callable[[], object]]:
        return [lambda work=work: work(count) for work in made]  # type: ignore[misc]

    peers = {
        "this program": [ours(3, 1, 64, (seed,)) for seed in SEEDS],
        "plain PyTorch": [plain_pytorch(3, 1, 64) for _ in SEEDS],
        "stable-baselines3": [stable_baselines3(3, 1, 64) for _ in SEEDS],
    }
    in_turn = [on(1, updates(made)) for made in peers.values()]
    taken, *others = interleaved([on(2, updates([ours(3, 1, 64, SEEDS)])), *in_turn], REPEATS)
    what, turn = "five seeds' updates, 64x64, batch 256", "five in turn, one thread"
    rows = [
        row(_COMMAND, what, taken, other, f"{name}, {turn}", other / taken, "s")
        for name, other in zip(peers, others, strict=True)
    ]
    each = [whole_training((seed,)) for seed in SEEDS]
    taken, other = interleaved([on(2, [whole_training(SEEDS)]), on(1, each)], REPEATS)
    what = "an epoch of training of five seeds, rollouts included, 64x64, batch 256"
    return [*rows, row(_COMMAND, what, taken, other, f"this program, {turn}", other / taken, "s")]


def main() -> None:
    """Measure, print, keep."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows = [row for threads in (1, 2) for row in updates_per_second(threads)]
    write("sac", [*rows, *together_and_in_turn()])


if __name__ == "__main__":
    main()
