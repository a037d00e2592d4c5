"""Online private updates beside a loop over the users.

python -m benchmarks.speed.online

What is timed is one whole update of a cohort: advantages, every user's vector, clip, sum and noise.
The loop (`tests.online.reference`) makes one user's vector after the other: returns and advantages
step by step over Python's numbers, log-probabilities and gradients by autograd, the layers being
its leaves. The mechanism is the same. Both have one thread.
"""

from functools import partial

import torch
from torch import Tensor

from benchmarks.machine import interleaved, row, write
from primorl.online.learning import PARAMETERS, Cohort, Trajectories, Update, online_mechanism
from primorl.online.updates import DPPG
from research.networks import random_network
from research.regression import NaturalGradientByDescent, PolicyGradient, Rebel
from tests.online.reference import Looped

USERS, STEPS, REPEATS = 64, (64, 200), 15
NETWORK = random_network(
    (64, 64), torch.zeros(4), torch.ones(4), torch.zeros(2), torch.ones(2), True
)
UPDATES: tuple[Update, ...] = (
    DPPG(local_learning_rate=1.0, epochs=4, minibatches=1, decay=0.97, clipping_norm=0.5),
    PolicyGradient(learning_rate=1.0, clipping_norm=1.0),
    NaturalGradientByDescent(
        learning_rate=1.0, steps=2, step_size=0.5, ball=0.5, clipping_norm=1.0
    ),
    Rebel(temperature=10.0, steps=2, step_size=0.5, clipping_norm=1.0),
)


def main() -> None:
    """Check that both agree, time them, keep the figures."""
    torch.set_num_threads(1)
    write("online", [measured(update, steps) for steps in STEPS for update in UPDATES])


def measured(update: Update, steps: int) -> dict[str, object]:
    """One update, beside the loop."""
    met, theta = cohort(steps), NETWORK.initial(1.0)
    fast, slow = (made(each, met, theta, 0.0) for each in (update, Looped(update)))
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-5)
    works = partial(made, update, met, theta, 1.0), partial(made, Looped(update), met, theta, 1.0)
    ours, loop = interleaved(works, REPEATS)
    what = f"{update.name}, {USERS} users, {steps} steps, {NETWORK.parameters:,} parameters"
    return row(
        "python -m benchmarks.speed.online",
        what,
        ours,
        loop,
        "a loop over the users",
        loop / ours,
        "s",
    )


def made(update: Update, met: Trajectories, theta: Tensor, z: float) -> Tensor:
    """Parameters after one update."""
    releases = update.releases
    mechanism = online_mechanism(
        users=USERS, cohort=USERS, noise_multiplier=z, releases=releases, delta=1e-5
    )
    return update.apply(NETWORK, {PARAMETERS: theta}, met, Cohort(mechanism), 0)[PARAMETERS]


def cohort(steps: int) -> Trajectories:
    """Users with CartPole's sizes who take all of their steps in one episode."""
    drawn = torch.Generator().manual_seed(0)
    observations = torch.randn(USERS, steps + 1, 4, generator=drawn)
    actions, rewards = (
        torch.randint(2, (USERS, steps), generator=drawn),
        torch.rand(USERS, steps, generator=drawn),
    )
    never = torch.zeros(USERS, steps, dtype=torch.bool)
    ends = never.clone()
    ends[:, -1] = True
    here, there = observations[:, :-1].contiguous(), observations[:, 1:].contiguous()
    return Trajectories(here, actions, rewards, there, never, ends, ~never)


if __name__ == "__main__":
    main()
