"""Cumulative regret on Riverswim: DPPG-KL, DPPG-L2 and UCB-VI, as Figures 1 and 5 of the DPPG paper have it.

python -m benchmarks.quality.online.riverswim

Each of 1,000 users acts for one episode of 20 steps. DPPG learns with noise of ε at δ = 1e-5 by the exact accountant;
UCB-VI is of pure ε. ε inf is the non-private twin: without clip and noise. Regret is the optimal value, by dynamic
programming, less the rewards of each user. Settings:

- paper: those of the DPPG paper, Appendix C: one user for each update, η from 12, divided by 5 every 50 users, at least
  0.06, α 3.5, 1 - β 0.6, γ 0.99, 25 public episodes for the Fisher matrix and its regulariser 0.001. The paper's
  features are one-hot(state) beside the action; those of the state cancel in the softmax, so the policy is the same in
  all states. Here that is a scale of the observations that is infinite. UCB-VI: the bonus of its proof.
- own: five users for each update, η 1, and for DPPG-KL α 30; chosen in a few trials at ε 1, p 0.6. UCB-VI:
  0.03 times the bonus.

Unlike in the paper, no baseline is carried from user to user. Resumable: a row of
benchmarks/results/online_riverswim.json that has all its keys is not made again. Draws docs/figures/riverswim.png.
"""

import json
import math
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.machine import RESULTS, command, machine
from primorl.online.learning import PARAMETERS
from primorl.online.mechanism import Cohort, online_plan
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories
from primorl.online.trust_region import Schedule, TrustRegionKL, TrustRegionL2
from primorl.online.ucbvi import UCBVI, backward_induction
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.simulators import riverswim

FILE = RESULTS / "online_riverswim.json"
FIGURE = RESULTS.parent.parent / "docs" / "figures" / "riverswim.png"
USERS, SEEDS, EVERY, DELTA = 1000, 10, 20, 1e-5
EPSILONS, PROBABILITIES = (1.0, 5.0, math.inf), (0.6, 0.9)
ALGORITHMS = ("dppg-kl", "dppg-l2", "ucb-vi")
S, A, H = riverswim.STATES, riverswim.ACTIONS, riverswim.HORIZON
Row = dict[str, Any]
Returns = NDArray[np.float64]
"""``[USERS, SEEDS]``."""


@dataclass(frozen=True)
class Settings:
    """What differs between the columns."""

    rate: Schedule
    cohort: int
    regions: dict[str, float]
    optimism: float


SETTINGS = {
    "paper": Settings(Schedule(12.0, 5.0, 50, 0.06), 1, {"dppg-l2": 3.5, "dppg-kl": 3.5}, optimism=1.0),
    "own": Settings(Schedule(1.0, 1.0, 1, 0.0), 5, {"dppg-l2": 3.5, "dppg-kl": 30.0}, optimism=0.03),
}


@dataclass
class Prepared:
    """Public episodes of the current policy, which were made for all seeds at once."""

    episodes: Trajectories

    def meet(self, numbers: Sequence[int], network: PolicyNetwork, parameters: Tensor) -> Trajectories:
        """See `primorl.online.trajectories.Users.meet`."""
        return self.episodes


def main() -> None:
    """Make the rows that are missing, and draw the figure."""
    torch.set_num_threads(1)
    rows: list[Row] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    for settings, algorithm, epsilon, p in product(SETTINGS, ALGORITHMS, EPSILONS, PROBABILITIES):
        key = {"algorithm": algorithm, "settings": settings, "epsilon": str(epsilon), "p": p}
        twice = (algorithm, epsilon) == ("dppg-kl", math.inf)  # without a clip it is DPPG-L2
        if twice or any(row.items() >= key.items() for row in rows):
            continue
        started = time.perf_counter()
        if algorithm == "ucb-vi":
            returns = np.stack([ucbvi(p, epsilon, SETTINGS[settings].optimism, seed) for seed in range(SEEDS)], 1)
        else:
            returns = dppg(algorithm, p, epsilon, SETTINGS[settings])
        seconds = time.perf_counter() - started
        rows.append(key | measured(returns, p) | {"seconds": round(seconds, 1), "machine": machine()})
        rows[-1] |= {"commit": commit, "command": command("benchmarks.quality.online.riverswim")}
        FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(key, f"regret {rows[-1]['regret']:.0f} ± {rows[-1]['error']:.0f}, {seconds:.0f} s", flush=True)
    draw(FIGURE, rows)


def measured(returns: Returns, p: float) -> Row:
    """Regret at the end and on the way, with standard errors over the seeds."""
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


def optimal_value(p: float) -> float:
    """The best mean reward of an episode."""
    moves = riverswim.transition_probabilities(p)
    rewards = (moves * riverswim.rewards()).sum(-1)
    repeated = np.broadcast_to(rewards, (H, S, A)), np.broadcast_to(moves, (H, S, A, S))
    return float(backward_induction(*repeated, np.random.default_rng(0))[0][0, 0])


def ucbvi(p: float, epsilon: float, optimism: float, seed: int) -> NDArray[np.float64]:
    """Rewards of each user ``[USERS]``, one seed."""
    learner = UCBVI(S, A, H, USERS, epsilon, failure=0.1, optimism=optimism, seed=seed).learner()
    river, totals = riverswim.RiverswimBatch(p), np.zeros(USERS)
    seeds = np.random.SeedSequence(seed).generate_state(USERS).tolist()
    for user in range(USERS):
        state = river.reset(1, seeds[user]).argmax(1)
        states, actions, rewards = np.zeros(H + 1, np.int64), np.zeros(H, np.int64), np.zeros(H)
        for step in range(H):
            action = learner.policy[step, state]
            seen, reward, _, _ = river.step(action)
            state = seen.argmax(1)
            states[step + 1], actions[step], rewards[step] = state[0], action[0], reward[0]
        learner.learn(states, actions, rewards)
        totals[user] = rewards.sum()
    return totals


def dppg(algorithm: str, p: float, epsilon: float, settings: Settings) -> Returns:
    """Rewards of each user. All seeds act at once, each under its own policy, and are updated one after the other."""
    scale = torch.full((S,), math.inf)
    network = PolicyNetwork((), torch.zeros(S), scale, torch.zeros(A), torch.ones(A), discrete_actions=True)
    m, episodes = settings.cohort, 25
    z = solve_noise_multiplier(epsilon, DELTA, 1.0, 1) if math.isfinite(epsilon) else 0.0
    plan = online_plan(users=USERS, cohort=m, noise_multiplier=z, releases=1, appearances=1, delta=DELTA)
    update = TrustRegionL2(settings.rate, settings.regions[algorithm], failure=0.4, discount=0.99)
    theta = torch.zeros(SEEDS, network.parameters)
    river, generator, totals = riverswim.RiverswimBatch(p), torch.Generator().manual_seed(0), []
    for number in range(USERS // m):
        met = together(river, network, theta, m, generator)
        totals.append(met.rewards.sum(1).reshape(SEEDS, m).T.numpy())
        public = together(river, network, theta, episodes, generator) if algorithm == "dppg-kl" and z else None
        updated = []
        for seed in range(SEEDS):
            own = update
            if public is not None:
                prepared = Prepared(part(public, seed, episodes))
                own = TrustRegionKL(**vars(update), public=prepared, episodes=episodes, regulariser=1e-3)
            values, cohort = {PARAMETERS: theta[seed]}, Cohort(plan, own.releases)
            updated.append(own.updated(network, values, part(met, seed, m), cohort, number)[PARAMETERS])
        theta = torch.stack(updated)
    return np.concatenate(totals).astype(np.float64)


def together(
    river: riverswim.RiverswimBatch, network: PolicyNetwork, theta: Tensor, each: int, generator: torch.Generator
) -> Trajectories:
    """``each`` episodes under each of the policies ``[P, d]``, those of one policy side by side."""
    count = len(theta) * each
    seen = torch.from_numpy(river.reset(count, int(torch.randint(2**62, (), generator=generator))))
    kept = []
    for _ in range(H):
        outputs = network.outputs(theta, seen.view(len(theta), each, S)).reshape(count, A)
        gumbel = -(-torch.rand(outputs.shape, generator=generator).clamp_min(1e-38).log()).log()
        actions = (outputs + gumbel).argmax(-1)
        after, rewards, terminated, truncated = map(torch.from_numpy, river.step(actions.numpy()))
        kept.append((seen, actions, rewards, after, terminated, truncated, torch.ones_like(truncated)))
        seen = after
    return Trajectories(*(torch.stack(values, 1) for values in zip(*kept, strict=True)))


def part(met: Trajectories, seed: int, each: int) -> Trajectories:
    """The episodes of one policy."""
    return replace(met, **{name: value[seed * each : (seed + 1) * each] for name, value in vars(met).items()})


def draw(path: Path, rows: list[Row]) -> None:
    """Draw cumulative regrets with their standard errors: p side by side, settings below each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.5), dpi=120, layout="constrained")
    axes = figure.subplots(len(SETTINGS), len(PROBABILITIES), sharex=True, squeeze=False)
    styles = {"1.0": ("--", "ε 1"), "5.0": ("-", "ε 5"), "inf": (":", "no noise")}
    marks = {"1.0": ("o", 2), "5.0": ("s", 7), "inf": ("x", 12)}  # at other users each: lines may lie on each other
    names = {"dppg-kl": "DPPG-KL", "dppg-l2": "DPPG-L2", "ucb-vi": "UCB-VI"}
    for (at, settings), (beside, p) in product(enumerate(SETTINGS), enumerate(PROBABILITIES)):
        here = axes[at, beside]
        for row in rows:
            if row["settings"] != settings or row["p"] != p:
                continue
            style, what = styles[row["epsilon"]]
            users = np.arange(1, len(row["curve"]) + 1) * row["every"]
            curve, errors = np.array(row["curve"]), np.array(row["errors"])
            color = f"C{ALGORITHMS.index(row['algorithm'])}"
            label = f"{'DPPG' if row['epsilon'] == 'inf' and color != 'C2' else names[row['algorithm']]}, {what}"
            mark, first = marks[row["epsilon"]]
            here.plot(users, curve, style, color=color, label=label, marker=mark, markersize=5, markevery=(first, 15))
            here.fill_between(users, curve - errors, curve + errors, color=color, alpha=0.12, linewidth=0)
        here.set_title(f"p = {p}, {settings} settings")
        here.set_xlabel("users")
        here.set_ylabel("cumulative regret")
    lines, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
