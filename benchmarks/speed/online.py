"""Users a second of online learning beside stable-baselines3's PPO, and updates beside a loop over users.

python -m benchmarks.speed.online [--parts rate updates sizes]

One thread. CartPole-v1, policies with two hidden layers of 64 units, users of 64 steps, DPPG's local updates of 8
epochs over 2 minibatches. stable-baselines3 has its default settings and as many environment steps; a user of it is
64 steps. The loop makes the same updates user after user, as plain PyTorch does it: a module, autograd and
``torch.optim.Adam``.
"""

import argparse
import json
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.machine import RESULTS, interleaved, row, write
from primorl.online.dppg import DPPG
from primorl.online.learning import PARAMETERS, OnlineState, Update, learn
from primorl.online.mechanism import Cohort, online_plan
from primorl.online.network import PolicyNetwork
from primorl.online.policy_optimisation import PolicyGradient
from primorl.online.trajectories import Trajectories
from primorl.setup.simulated_users import SimulatedUsers
from primorl.simulators import environments
from primorl.simulators.batches import batch

_COMMAND = "python -m benchmarks.speed.online"
ENVIRONMENT, STEPS, HIDDEN, TOTAL = "CartPole-v1", 64, (64, 64), 16_384
SIZES = (1, 8, 64, 512, 4096)
REPEATS = 3
LOCAL = DPPG(clipping_norm=0.05, local_learning_rate=7.26e-4, epochs=8, minibatches=2, decay=0.85)
GRADIENT = PolicyGradient(learning_rate=1.0, clipping_norm=1.0)


def network(hidden: tuple[int, ...] = HIDDEN) -> PolicyNetwork:
    """The policy's shape; without hidden layers it is log-linear."""
    environment = batch(ENVIRONMENT)
    return PolicyNetwork(
        hidden=hidden,
        observation_mean=torch.zeros(environment.observation_size),
        observation_scale=torch.tensor([2.4, 2.0, 0.21, 1.0]),
        action_low=torch.from_numpy(environment.action_low),
        action_high=torch.from_numpy(environment.action_high),
        discrete_actions=environment.discrete_actions,
    )


def ours(update: Update, cohort: int, cohorts: int) -> Callable[[], object]:
    """A whole private run: users act, one update a cohort."""
    shape, users = network(), SimulatedUsers(batch(ENVIRONMENT), STEPS, None, seed=0)
    plan = online_plan(
        users=cohort * cohorts, cohort=cohort, noise_multiplier=1.0, releases=1, appearances=1, delta=1e-5
    )
    numbers = [range(at * cohort, (at + 1) * cohort) for at in range(cohorts)]

    def work() -> None:
        learn(update, shape, plan, users, numbers, OnlineState(update.begin(shape, shape.initial(0)), cohorts))

    return work


def stable_baselines3() -> Callable[[], object]:
    """PPO's whole training."""
    import primorl.simulators.gym_notice  # noqa: F401, I001  before stable-baselines3, which imports Gym
    from stable_baselines3 import PPO

    def work() -> None:
        PPO("MlpPolicy", environments.make(ENVIRONMENT), seed=0, device="cpu").learn(TOTAL)

    return work


def rate() -> list[dict[str, object]]:
    """Users a second."""
    works = {f"{update.name}, {m} users an update": ours(update, m, TOTAL // STEPS // m)
             for m in (8, 64, 256) for update in (LOCAL, GRADIENT)}  # fmt: skip
    *seconds, peer = interleaved([*works.values(), stable_baselines3()], REPEATS)
    users = TOTAL // STEPS
    return [
        row(
            _COMMAND, f"learning, {what}", users / took, users / peer, "stable-baselines3's PPO", peer / took, "users/s"
        )
        for what, took in zip(works, seconds, strict=True)
    ]


class Module(nn.Sequential):
    """The policy of one user."""

    def __init__(self, sizes: tuple[int, ...], parameters: Tensor):
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
        super().__init__(*(part for layer in layers for part in (layer, nn.ReLU())))
        del self[-1]
        nn.utils.vector_to_parameters(parameters, self.parameters())

    def vector(self) -> Tensor:
        """All parameters, ``[d]``."""
        return nn.utils.parameters_to_vector(self.parameters()).detach()

    def logs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities of a user's actions."""
        return torch.distributions.Categorical(logits=self(observations)).log_prob(actions)


def loop_local(shape: PolicyNetwork, parameters: Tensor, met: Trajectories, advantages: Tensor) -> Tensor:
    """Every user's local update in turn, ``[U, d]``."""
    observations = (met.observations - shape.observation_mean) / shape.observation_scale
    deltas = []
    for user in range(met.users):
        module = Module(shape.sizes, parameters)
        adam = torch.optim.Adam(module.parameters(), LOCAL.local_learning_rate)
        with torch.no_grad():
            old = module.logs(observations[user], met.actions[user])
        for _ in range(LOCAL.epochs):
            for steps in torch.randperm(met.steps).tensor_split(LOCAL.minibatches):
                ratio = (module.logs(observations[user, steps], met.actions[user, steps]) - old[steps]).exp()
                adam.zero_grad()
                (-(ratio * advantages[user, steps]).mean()).backward()
                adam.step()
                delta = module.vector() - parameters
                delta *= (LOCAL.clipping_norm / delta.norm()).clamp(max=1.0)
                nn.utils.vector_to_parameters(parameters + delta, module.parameters())
        deltas.append(delta)
    return torch.stack(deltas)


def loop_gradients(shape: PolicyNetwork, parameters: Tensor, met: Trajectories, advantages: Tensor) -> Tensor:
    """Every user's policy gradient in turn, ``[U, d]``."""
    observations = (met.observations - shape.observation_mean) / shape.observation_scale
    module, gradients = Module(shape.sizes, parameters), []
    for user in range(met.users):
        module.zero_grad()
        (module.logs(observations[user], met.actions[user]) * advantages[user]).sum().backward()
        gradients.append(torch.cat([own.grad.flatten() for own in module.parameters() if own.grad is not None]))
    return torch.stack(gradients)


def updates(users: int, hidden: tuple[int, ...]) -> list[dict[str, object]]:
    """The update alone, of users whose trajectories are there, beside the loop."""
    shape = network(hidden)
    parameters = shape.initial(0)
    met = SimulatedUsers(batch(ENVIRONMENT), STEPS, None, seed=0).meet(range(users), shape, parameters)
    advantages = torch.randn(users, STEPS)
    plan = online_plan(users=users, cohort=users, noise_multiplier=1.0, releases=1, appearances=1, delta=1e-5)
    rows = []
    for update, loop in ((LOCAL, loop_local), (GRADIENT, loop_gradients)):

        def whole(update: Update = update) -> object:
            return update.updated(shape, update.begin(shape, parameters), met, Cohort(plan, 1), 0)[PARAMETERS]

        def peer(loop: Callable[..., Tensor] = loop) -> object:
            return loop(shape, parameters, met, advantages)

        took, beside = interleaved([whole, peer], REPEATS)
        what = f"update alone, {update.name}, {users} users, {shape.parameters:,} parameters"
        rows.append(row(_COMMAND, what, users / took, users / beside, "a loop over users", beside / took, "users/s"))
    return rows


def against_m() -> list[dict[str, object]]:
    """Seconds of one cohort, users' steps included."""
    rows = []
    for update in (LOCAL, GRADIENT):
        for users in SIZES:
            (took,) = interleaved([ours(update, users, 1)], REPEATS)
            made = row(_COMMAND, f"one cohort, {update.name}, {users:,} users", took, 0.0, "", 0.0, "s")
            rows.append(made | dict.fromkeys(("peer", "peer_name", "ratio")))
    return rows


_PARTS: dict[str, tuple[str, Callable[[], list[dict[str, object]]]]] = {
    "rate": ("learning", rate),
    "updates": ("update alone", lambda: [*updates(64, HIDDEN), *updates(64, ()), *updates(512, ())]),
    "sizes": ("one cohort", against_m),
}
"""What is measured, and how the names of its rows begin."""


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS), help="others stay as they are")
    parts = parser.parse_args().parts
    torch.set_num_threads(1)
    file = RESULTS / "online_speed.json"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for name in parts:
        start, measure = _PARTS[name]
        rows = [row for row in rows if not row["what"].startswith(start)] + measure()
    write("online_speed", rows)


if __name__ == "__main__":
    main()
