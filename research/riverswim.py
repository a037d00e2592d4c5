"""Cumulative regret on Riverswim: DPPG-KL, DPPG-L2 and UCB-VI, as Figures 1 and 5 of the DPPG paper have it.

python -m research.riverswim

Each of 1,000 users acts for one episode of 20 steps. DPPG learns with noise of ε at δ = 1e-5 by the exact accountant;
UCB-VI is of pure ε. ε inf is the non-private twin: without clip and noise. Regret is the optimal value, by dynamic
programming, less the rewards of each user. Settings:

- paper: those of the DPPG paper, Appendix C: one user for each update, η from 12, divided by 5 every 50 users, at least
  0.06, α 3.5, 1 - β 0.6, γ 0.99, 25 public episodes for the Fisher matrix and its regulariser 0.001. The paper's
  features are one-hot(state) beside the action; those of the state cancel in the softmax, so the policy is the same in
  all states. Here that is a scale of the observations that is infinite. UCB-VI: the bonus of its proof.
- own: five users for each update, η 1, and for DPPG-KL α 30; chosen in a few trials at ε 1, p 0.6. UCB-VI:
  0.03 times the bonus.

Unlike in the paper, no baseline is carried from user to user. Rows: research/results/riverswim.json. Draws
docs/figures/riverswim.png.

Riverswim is a chain of six states, in which the large reward is up the river (Strehl and Littman 2008). Transitions are
those of Osband, Van Roy and Russo (2013, "(More) efficient reinforcement learning via posterior sampling", Figure 1).
Action 0 swims left and always succeeds; at the left bank it brings 5/1000. Action 1 swims right: from the left bank it
succeeds with probability 0.6; between the banks it succeeds with 0.35, stays with 0.6 and drifts left with 0.05; at the
right bank it stays there with probability p, which brings 1, and drifts left otherwise. Osband et al. have p = 0.6; Rio
et al. (DPPG, Section 6) also have p = 0.9.
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from primorl.online.learning import PARAMETERS, Cohort, Trajectories, online_plan
from primorl.online.network import PolicyNetwork, drawn
from primorl.privacy.accounting.solving import solve_noise_multiplier
from research.rows import FIGURES, Row, completed
from research.trust_region import Schedule, TrustRegion
from research.ucbvi import UCBVI, Learner, backward_induction

S, A, H = 6, 2, 20  # states, actions, horizon
USERS, SEEDS, EVERY, DELTA, PUBLIC = 1000, 10, 20, 1e-5, 25
EPSILONS, PROBABILITIES = (1.0, 5.0, math.inf), (0.6, 0.9)
ALGORITHMS = {"dppg-kl": "DPPG-KL", "dppg-l2": "DPPG-L2", "ucb-vi": "UCB-VI"}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """Settings that differ between the two."""

    rate: Schedule
    cohort: int
    regions: dict[str, float]
    optimism: float


SETTINGS = {
    "paper": Settings(Schedule(12.0, 5.0, 50, 0.06), 1, {"dppg-l2": 3.5, "dppg-kl": 3.5}, optimism=1.0),
    "own": Settings(Schedule(1.0, 1.0, 1, 0.0), 5, {"dppg-l2": 3.5, "dppg-kl": 30.0}, optimism=0.03),
}


class Riverswim:
    """n rivers that step together; everybody begins at the left bank.

    Args:
        p: probability of the large reward at the right bank.
        count: n.
        seed: of the transitions.
    """

    def __init__(self, p: float, count: int, seed: int):
        self._cumulated = transition_probabilities(p).cumsum(-1)[..., :-1]
        self._random = np.random.default_rng(seed)
        self.states = np.zeros(count, np.int64)

    def step(self, actions: NDArray[np.int64]) -> Floats:
        """Move all, and return their rewards."""
        uniform = self._random.random((len(actions), 1))
        after = (uniform >= self._cumulated[self.states, actions]).sum(1)
        found: Floats = rewards()[self.states, actions, after]
        self.states = after
        return found


def transition_probabilities(p: float) -> Floats:
    """Tabulate the probability of each next state, ``[S, A, S]``."""
    found = np.zeros((S, A, S))
    for state in range(S):
        found[state, 0, max(state - 1, 0)] = 1
        if 0 < state < S - 1:
            found[state, 1, state - 1 : state + 2] = 0.05, 0.6, 0.35
    found[0, 1, :2] = 0.4, 0.6
    found[-1, 1, -2:] = 1 - p, p
    return found


def rewards() -> Floats:
    """Tabulate the reward of each transition, ``[S, A, S]``."""
    found = np.zeros((S, A, S))
    found[0, 0, 0] = 5 / 1000
    found[-1, 1, -1] = 1.0
    return found


def optimal_value(p: float) -> float:
    """Compute the best mean reward of an episode."""
    moves = transition_probabilities(p)
    table = np.broadcast_to((moves * rewards()).sum(-1), (H, S, A)), np.broadcast_to(moves, (H, S, A, S))
    return float(backward_induction(*table, np.random.default_rng(0))[0][0, 0])


def ucbvi(p: float, epsilon: float, optimism: float, seed: int) -> Floats:
    """Run one seed of UCB-VI: rewards of each user, ``[USERS]``."""
    learner = Learner(UCBVI(S, A, H, USERS, epsilon, failure=0.1, optimism=optimism, seed=seed))
    totals = np.zeros(USERS)
    for user, own in enumerate(np.random.SeedSequence(seed).generate_state(USERS).tolist()):
        river = Riverswim(p, 1, own)
        states, actions, paid = np.zeros(H + 1, np.int64), np.zeros(H, np.int64), np.zeros(H)
        for step in range(H):
            action = learner.policy[step, river.states]
            actions[step], paid[step] = action[0], river.step(action)[0]
            states[step + 1] = river.states[0]
        learner.learn(states, actions, paid)
        totals[user] = paid.sum()
    return totals


def dppg(algorithm: str, p: float, epsilon: float, settings: Settings) -> Floats:
    """Run all seeds of DPPG, which act at once, each under its own policy: rewards ``[USERS, SEEDS]``."""
    scale = torch.full((S,), math.inf)
    network = PolicyNetwork((), torch.zeros(S), scale, torch.zeros(A), torch.ones(A), discrete_actions=True)
    m = settings.cohort
    z = solve_noise_multiplier(epsilon, DELTA, 1.0, 1) if math.isfinite(epsilon) else 0.0
    plan = online_plan(users=USERS, cohort=m, noise_multiplier=z, releases=1, appearances=1, delta=DELTA)
    update = TrustRegion(settings.rate, settings.regions[algorithm], failure=0.4, discount=0.99)
    theta = torch.zeros(SEEDS, network.parameters)
    generator, totals = torch.Generator().manual_seed(0), []
    for number in range(USERS // m):
        met = episodes(p, network, theta, m, generator)
        totals.append(met.rewards.sum(1).reshape(SEEDS, m).T.numpy())
        public = episodes(p, network, theta, PUBLIC, generator) if algorithm == "dppg-kl" and z else None
        updated = []
        for seed in range(SEEDS):
            shown = None if public is None else public.of(slice(seed * PUBLIC, (seed + 1) * PUBLIC))
            own, mine = replace(update, public=shown), met.of(slice(seed * m, (seed + 1) * m))
            values = {PARAMETERS: theta[seed]}
            updated.append(own.updated(network, values, mine, Cohort(plan, own.releases), number)[PARAMETERS])
        theta = torch.stack(updated)
    return np.concatenate(totals).astype(np.float64)


def episodes(p: float, network: PolicyNetwork, theta: Tensor, each: int, generator: torch.Generator) -> Trajectories:
    """Play ``each`` episodes under each of the policies ``[P, d]``, those of one policy side by side."""
    count = len(theta) * each
    river, eye = Riverswim(p, count, int(torch.randint(2**62, (), generator=generator))), torch.eye(S)
    never, ones = torch.zeros(count, dtype=torch.bool), torch.ones(count, dtype=torch.bool)
    kept = []
    for step in range(H):
        seen = eye[torch.from_numpy(river.states)]
        outputs = network.outputs(theta, seen.view(len(theta), each, S)).reshape(count, A)
        actions = drawn(outputs, generator)
        paid = torch.from_numpy(river.step(actions.numpy())).float()
        after = eye[torch.from_numpy(river.states)]
        kept.append((seen, actions, paid, after, never, ones if step == H - 1 else never, ones))
    return Trajectories(*(torch.stack(values, 1) for values in zip(*kept, strict=True)))


def made(key: Row) -> Row:
    """Run the algorithm of a row: its regret at the end and on the way, with standard errors over the seeds."""
    settings, epsilon, p = SETTINGS[key["settings"]], float(key["epsilon"]), key["p"]
    if key["algorithm"] == "ucb-vi":
        returns = np.stack([ucbvi(p, epsilon, settings.optimism, seed) for seed in range(SEEDS)], 1)
    else:
        returns = dppg(key["algorithm"], p, epsilon, settings)
    best = optimal_value(p)
    curves = (best - returns).cumsum(0)[EVERY - 1 :: EVERY]
    errors = curves.std(1, ddof=1) / math.sqrt(SEEDS)
    return {
        "users": USERS,
        "seeds": SEEDS,
        "regret": float(curves[-1].mean()),
        "error": float(errors[-1]),
        "regrets": curves[-1].round(1).tolist(),
        "last": float(returns[-USERS // 10 :].mean()),
        "optimal": best,
        "every": EVERY,
        "curve": curves.mean(1).round(1).tolist(),
        "errors": errors.round(1).tolist(),
    }


def draw(path: Path, rows: list[Row]) -> None:
    """Draw cumulative regrets with their standard errors: p side by side, settings below each other."""
    figure = Figure(figsize=(10, 7.5), dpi=120, layout="constrained")
    axes = figure.subplots(len(SETTINGS), len(PROBABILITIES), sharex=True, squeeze=False)
    styles = {"1.0": ("--", "o", 2, "ε 1"), "5.0": ("-", "s", 7, "ε 5"), "inf": (":", "x", 12, "no noise")}
    for row in rows:
        here = axes[list(SETTINGS).index(row["settings"]), PROBABILITIES.index(row["p"])]
        style, mark, first, what = styles[row["epsilon"]]  # marks at other users each: lines may lie on each other
        algorithm = row["algorithm"]
        name = "DPPG" if row["epsilon"] == "inf" and algorithm != "ucb-vi" else ALGORITHMS[algorithm]
        users = np.arange(1, len(row["curve"]) + 1) * row["every"]
        curve, errors = np.array(row["curve"]), np.array(row["errors"])
        color = f"C{list(ALGORITHMS).index(algorithm)}"
        here.plot(users, curve, style, color=color, label=f"{name}, {what}", marker=mark, markevery=(first, 15))
        here.fill_between(users, curve - errors, curve + errors, color=color, alpha=0.12, linewidth=0)
        here.set(title=f"p = {row['p']}, {row['settings']} settings", xlabel="users", ylabel="cumulative regret")
    lines, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)


def main() -> None:
    """Make the rows that are missing, print the table and draw the figure."""
    keys = [
        {"algorithm": algorithm, "settings": settings, "epsilon": str(epsilon), "p": p}
        for settings, algorithm, epsilon, p in product(SETTINGS, ALGORITHMS, EPSILONS, PROBABILITIES)
        if (algorithm, epsilon) != ("dppg-kl", math.inf)  # without a clip it is DPPG-L2
    ]
    rows = completed("riverswim", keys, made)
    for row in rows:
        print(f"{row['settings']:5} {row['algorithm']:8} ε {row['epsilon']:3} p {row['p']}", end="  ")
        print(f"regret {row['regret']:.0f} ± {row['error']:.0f}")
    draw(FIGURES / "riverswim.png", rows)


if __name__ == "__main__":
    main()
