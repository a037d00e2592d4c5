"""Two parts of the private policy optimisation paper (He and Zhou) that the pipeline has not, on
CartPole.

python -m research.private_po

- Log-barrier (Appendix B): DP-PG on J(θ) - λ E_x KL(uniform, π_θ(· | x)). In the paper x is uniform
  over a table of states, here over a public box of states. So the gradient of the barrier needs no
  data and no noise.
- Base policy μ (Algorithm 1): user i gives an episode y of μ and an episode y' of the current
  policy π_t. Her advantage is Â = (R(y) - R(y')) / R_max, of discounted returns of whole episodes.
  DP-NPG regresses Â on wᵀ∇ log π_t(y), with ∇ log π_t(y) = Σ_t ∇ log π_t(a_t | s_t). In the
  pipeline μ is π_t, and Â is that of a single decision.

1,000 users in 8 cohorts, a log-linear policy, ten seeds of environments and first weights. The
noise is not seeded. Prints returns of the last policy, mean of 100 episodes with drawn actions.
Rows: research/results/private_po.jsonl.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from primorl.evaluate.statistics import MeanInterval
from primorl.online.learning import PARAMETERS, Cohort, SimulatedUsers, Trajectories, online_plan
from primorl.online.network import PolicyNetwork
from primorl.online.updates import PolicyGradient, Regression, sum_policy_gradients
from primorl.privacy.accounting.solving import solve_noise_multiplier
from research.classic_control import batch
from research.paper_mode import NoiseAlone
from research.rows import Row, completed

USERS, COHORT, STEPS, SEEDS, EPISODES, DELTA = 1000, 125, 500, 10, 100, 1e-5
BOX = torch.tensor([2.4, 2.0, 0.2, 2.0])
"""Half the widths of the box of states."""


def barrier_gradient(network: PolicyNetwork, parameters: Tensor, states: Tensor) -> Tensor:
    """Compute the gradient of -E_x KL(uniform, π(· | x)), x uniform over ``states`` ``[B, S]``:
    ``[d]``.
    """
    own = parameters.clone().requires_grad_()
    logs = torch.log_softmax(network.outputs(own.unsqueeze(0), states.unsqueeze(0)), -1)
    (gradient,) = torch.autograd.grad(logs.mean(), own)
    return gradient


@dataclass(frozen=True, kw_only=True)
class EpisodeRegression(Regression):
    """DP-NPG with a base policy, in noisy descent over a ball: one squared error for each user.

    Attributes:
        learning_rate: η.
        ball: B.
    """

    learning_rate: float
    ball: float

    def step(
        self,
        network: PolicyNetwork,
        theta: Tensor,
        base: Trajectories,
        current: Trajectories,
        cohort: Cohort,
    ) -> Tensor:
        """Compute η w from the users' episodes under the base policy and under the current one."""
        weights = self.discount ** torch.arange(base.steps)
        gained = ((base.rewards - current.rewards) * weights).sum(1) * (1 - self.discount)
        scores = torch.cat(list(sum_policy_gradients(network, theta, base, base.valid.float())))

        def gradients(direction: Tensor) -> Tensor:
            return (gained - scores @ direction).unsqueeze(1) * scores

        return self.learning_rate * self.ascend(
            cohort, torch.zeros_like(theta), gradients, self.ball
        )


GRADIENT = PolicyGradient(learning_rate=2.0, clipping_norm=1.0)
EPISODE = EpisodeRegression(clipping_norm=0.1, steps=2, step_size=0.5, learning_rate=20.0, ball=0.5)


def learned(key: Row, seed: int) -> float:
    """Learn from 1,000 users, and return the mean return of the last policy."""
    cartpole, barrier = batch("CartPole-v1"), key["barrier"]
    low, high = torch.from_numpy(cartpole.action_low), torch.from_numpy(cartpole.action_high)
    network = PolicyNetwork(
        (), torch.zeros(4), torch.tensor([1.0, 1.0, 0.1, 0.5]), low, high, discrete_actions=True
    )
    first = theta = network.initial(seed)
    users, again, judges = (
        SimulatedUsers(cartpole, STEPS, 1, seed + at) for at in (0, 10_000, 20_000)
    )
    states = (2 * torch.rand(1000, 4, generator=torch.Generator().manual_seed(seed)) - 1) * BOX
    releases = GRADIENT.releases if key["base"] == "none" else EPISODE.releases
    z = (
        0.0
        if key["mode"] == "clip alone"
        else solve_noise_multiplier(float(key["epsilon"]), DELTA, 1.0, releases)
    )
    plan = online_plan(
        users=USERS,
        cohort=COHORT,
        noise_multiplier=z,
        releases=releases,
        appearances=1,
        delta=DELTA,
    )
    for number in range(USERS // COHORT):
        numbers = range(number * COHORT, (number + 1) * COHORT)
        cohort = (NoiseAlone if key["mode"] == "noise alone" else Cohort)(plan, releases)
        met = users.meet(numbers, network, first if key["base"] == "first" else theta)
        if key["base"] == "none":
            moved = GRADIENT.apply(network, {PARAMETERS: theta}, met, cohort, number)[PARAMETERS]
            theta = moved + GRADIENT.learning_rate * barrier * barrier_gradient(
                network, theta, states
            )
        else:
            theta = theta + EPISODE.step(
                network, theta, met, again.meet(numbers, network, theta), cohort
            )
    return float(judges.meet(range(EPISODES), network, theta).rewards.sum(1).mean())


def made(key: Row) -> Row:
    """Learn with every seed."""
    return {"returns": [round(learned(key, seed), 1) for seed in range(SEEDS)]}


def main() -> None:
    """Make the rows that are missing and print them: mean ± 95% interval (Student's t)."""
    methods = [("none", 0.0), ("none", 0.01), ("none", 0.1), ("current", 0.0), ("first", 0.0)]
    cases = [
        (*method, "learning", epsilon) for method, epsilon in product(methods, (0.1, 0.25, 1.0))
    ]
    cases += [(*method, "clip alone", 1.0) for method in methods]
    cases += [
        (base, 0.0, "noise alone", epsilon)
        for base, epsilon in product(("none", "current"), (0.1, 1.0))
    ]
    keys = [dict(zip(("base", "barrier", "mode", "epsilon"), case, strict=True)) for case in cases]
    for row in completed("private_po", keys, made):
        found = MeanInterval.of(np.array(row["returns"]))
        named = "DP-PG" if row["base"] == "none" else f"DP-NPG of episodes, base {row['base']}"
        print(f"{named}, λ {row['barrier']:g}, {row['mode']}, ε {row['epsilon']:g}", end="  ")
        print(f"{found.mean:.1f} ± {found.high - found.mean:.1f}")


if __name__ == "__main__":
    main()
