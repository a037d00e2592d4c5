"""What holds policies back on simulated sepsis patients: exact figures from the tables of the MDP.

python -m benchmarks.quality.icu_sepsis [--seeds 5] [--steps 600] [--rounds 200]

Nothing is simulated to judge a policy: its survival is the solution of a linear system on the shipped tables. Data are
98,000 patients simulated as for the dataset ``icu-sepsis``, a fresh draw for each seed. Every figure compares with the
behaviour that made them. See docs/datasets/icu-sepsis.md.
"""

import argparse
import json
from collections.abc import Callable

import numpy as np
import torch
from scipy.cluster.vq import kmeans2

from benchmarks.machine import RESULTS, command, machine
from benchmarks.quality.icu_sepsis_heads import CONTINUED, DELTA, by_adam, by_rounds
from benchmarks.quality.icu_sepsis_world import (
    ACTIONS,
    PATIENTS,
    STATES,
    Floats,
    World,
    data,
    greedy,
    optimal,
    scaled,
    world,
)
from primorl.evaluation.statistics import MeanInterval
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.simulators.icu_sepsis import DEATH, SURVIVAL

EPSILON = 1.0
PRIOR = 300.0
"""Visits that a state's mean counts for in each of its actions."""
COUNTS, SURVIVED, CLIP = 0.2, 0.4, 1.2
"""Weights of visits and of survival in a stay's table beside a death's 1, and the bound on its norm."""
LENGTH, SPREAD = 0.02, 1e-4  # of the kernel over centres: share of the median distance squared, and variance


def counted(seed: int, prior: float) -> Floats:
    """Certainty equivalence: the best policy of the tables as counted, each action drawn to its state's mean."""
    rows = data(seed)
    by_cell = np.zeros((STATES * ACTIONS, SURVIVAL + 1))
    np.add.at(by_cell, (rows.cells, rows.after), 1)
    counts = by_cell.reshape(STATES, ACTIONS, -1)
    visits = counts.sum(2, keepdims=True)
    mean = counts.sum(1, keepdims=True) / np.maximum(visits.sum(1, keepdims=True), 1)
    shares = np.where(visits + prior > 0, (counts + prior * mean) / np.maximum(visits + prior, 1e-9), mean)
    return greedy(optimal(shares[:, :, :STATES], shares[:, :, SURVIVAL]))


def least_squares(mdp: World, targets: Floats, visits: Floats, ridge: float) -> Floats:
    """Values linear in the centre for each action, fitted to sums ``targets [S, A]`` over ``visits [S, A]``."""
    x = np.hstack([mdp.standardised, np.ones((STATES, 1))])
    actions: Floats = np.einsum("sd,ab->sadb", x, np.eye(ACTIONS)).reshape(STATES * ACTIONS, -1)
    features = np.hstack([np.repeat(x, ACTIONS, axis=0), actions])
    penalty = np.diag(np.r_[np.full(x.shape[1], 1e-3), np.full(actions.shape[1], ridge)])
    gram = features.T @ (features * visits.reshape(-1, 1)) + penalty
    fitted: Floats = (features @ np.linalg.solve(gram, features.T @ targets.ravel())).reshape(STATES, ACTIONS)
    return fitted


def private_tables(mdp: World, seed: int, epsilon: float | None) -> Floats:
    """One Gaussian query: each stay adds its visits and how it ended to a table, of joint norm `CLIP` at most.

    Advantages over the state's mean are smoothed over the centres by a Gaussian process with the known variance.
    """
    rows, cells = data(seed), STATES * ACTIONS
    ended = np.where(rows.after == SURVIVAL, SURVIVED, np.where(rows.after == DEATH, -1.0, 0.0))
    visited, times = np.unique(rows.stay * cells + rows.cells, return_counts=True)
    squares = COUNTS**2 * np.bincount(visited // cells, times.astype(float) ** 2) + np.bincount(rows.stay, ended**2)
    factor = np.minimum(1.0, CLIP / np.sqrt(squares))[rows.stay]
    visits, outcomes = rows.table(factor), rows.table(ended * factor)
    noise = 0.0 if epsilon is None else CLIP * solve_noise_multiplier(epsilon, DELTA, 1.0, 1)
    draw = np.random.default_rng(seed).normal(size=(2, STATES, ACTIONS))  # of a benchmark: a release draws from the OS
    visits, outcomes = visits + noise / COUNTS * draw[0], outcomes + noise * draw[1]
    mean = outcomes.sum() / visits.sum()
    of_state = (outcomes.sum(1) + PRIOR * mean) / (np.maximum(visits.sum(1), 50) + PRIOR)
    excess, visits = outcomes - of_state[:, None] * visits, np.maximum(visits, 5.0)
    variance = visits * 0.045 * (1 + SURVIVED**2) + noise**2 * (1 + (mean / COUNTS) ** 2)
    points = mdp.centres / mdp.centres.std(0)
    distance = ((points[:, None] - points) ** 2).sum(-1)
    kernel = SPREAD * np.exp(-distance / (2 * LENGTH * np.median(distance)))
    smoothed = [
        kernel @ np.linalg.solve(kernel + np.diag(variance[:, a] / visits[:, a] ** 2), excess[:, a] / visits[:, a])
        for a in range(ACTIONS)
    ]
    return greedy(np.stack(smoothed, axis=1))


def best_of_class(mdp: World, features: Floats, steps: int = 200) -> float:
    """Survival under softmax policies linear in ``features [S, d]``, by exact gradient ascent, made greedy."""
    onward, survived, first = (torch.tensor(part) for part in (mdp.onward, mdp.survived, mdp.first))
    x = torch.tensor(features)
    weights = torch.zeros(x.shape[1], ACTIONS, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weights], lr=0.1)
    for _ in range(steps):
        policy = (x @ weights).softmax(-1)
        moves = torch.einsum("sa,sat->st", policy, onward)
        values = torch.linalg.solve(torch.eye(STATES, dtype=torch.float64) - moves, (policy * survived).sum(1))
        adam.zero_grad()
        (-first @ values).backward()
        adam.step()
    return mdp.survival(greedy((x @ weights).detach().numpy()))


def exact_rows(mdp: World) -> dict[str, float]:
    """Figures of the tables alone."""
    uniform = np.full((STATES, ACTIONS), 1 / ACTIONS)
    best = optimal(mdp.onward, mdp.survived)
    of_behaviour, visits = mdp.action_values(mdp.behaviour), mdp.visits(mdp.behaviour)
    weights = visits[:, None] * mdp.behaviour
    spread = of_behaviour - mdp.values(mdp.behaviour)[:, None]
    lost = mdp.survival(mdp.behaviour)
    standing = mdp.survived + (1 - mdp.survived - mdp.died) * CONTINUED
    found = {
        "random": mdp.survival(uniform),
        "clinicians": mdp.survival(mdp.expert),
        "behaviour": mdp.survival(mdp.behaviour),
        "best": mdp.survival(greedy(best)),
        "greedy for the behaviour's values": mdp.survival(greedy(of_behaviour)),
        "greedy for true reward and end, all else alike": mdp.survival(greedy(standing)),
        "linear in centre and action, fitted to the behaviour's true values": mdp.survival(
            greedy(least_squares(mdp, visits[:, None] * of_behaviour, visits[:, None] * np.ones(ACTIONS), 1e-6))
        ),
        "share of the outcome's variance that an action decides": float(
            (weights * spread**2).sum() / weights.sum() / (lost * (1 - lost))
        ),
        "class: one action for all": max(
            mdp.survival(np.eye(ACTIONS)[np.full(STATES, action)]) for action in range(ACTIONS)
        ),
        "class: an action on either side of a SOFA score": max(
            best_of_class(mdp, np.eye(2)[(mdp.sofa > np.quantile(mdp.sofa, cut)).astype(int)], 100)
            for cut in (0.2, 0.4, 0.6, 0.8)
        ),
    }
    for groups in (2, 5, 10, 20, 100):
        _, group = kmeans2(mdp.standardised, groups, minit="++", rng=np.random.default_rng(0))
        found[f"class: an action for each of {groups} groups of centres"] = best_of_class(mdp, np.eye(groups)[group])
    found["class: linear in the centre"] = best_of_class(mdp, np.hstack([mdp.standardised, np.ones((STATES, 1))]))
    return found


def learners(mdp: World, steps: int, rounds: int) -> dict[str, Callable[[int], float]]:
    """What is learned from 98,000 patients, by name; each takes a seed."""
    numbers = scaled(np.eye(STATES), mdp.visits(mdp.behaviour))

    def linear(seed: int) -> Floats:
        rows = data(seed)
        standing = np.where(rows.after == SURVIVAL, 1.0, np.where(rows.after == DEATH, 0.0, CONTINUED))
        return greedy(least_squares(mdp, rows.table(standing), rows.table(np.ones(len(standing))), 1000.0))

    def judged(policy: Callable[[int], Floats]) -> Callable[[int], float]:
        return lambda seed: mdp.survival(policy(seed))

    policies: dict[str, Callable[[int], Floats]] = {
        "not private: tables as counted": lambda seed: counted(seed, 0.0),
        "not private: tables, drawn to the state's mean": lambda seed: counted(seed, PRIOR),
        "ε 1: tables by one Gaussian query": lambda seed: private_tables(mdp, seed, EPSILON),
        "not private: tables by the same query without noise": lambda seed: private_tables(mdp, seed, None),
        "not private: linear in centre and action": linear,
        "not private: network on centres, by Adam": lambda seed: by_adam(mdp, seed, steps),
        "not private: network on centres, by rounds": lambda s: by_rounds(mdp.standardised, s, rounds, None, 0.005),
        "ε 1: network on centres, by rounds": lambda s: by_rounds(mdp.standardised, s, rounds, EPSILON, 0.005),
        "not private: network on numbers of states, by rounds": lambda s: by_rounds(numbers, s, rounds, None, 0.003),
        "ε 1: network on numbers of states, by rounds": lambda s: by_rounds(numbers, s, rounds, EPSILON, 0.003),
    }
    return {name: judged(policy) for name, policy in policies.items()} | {
        "share of rows that end a stay, all rows alike": lambda seed: PATIENTS / len(data(seed).states),
        "share of rows that end a stay, all stays alike": lambda seed: float((1 / np.bincount(data(seed).stay)).mean()),
    }


def main() -> None:
    """Make all figures, print and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600, help="of Adam")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    mdp = world()
    made = {"machine": machine(), "command": command("benchmarks.quality.icu_sepsis")}
    rows: list[dict[str, object]] = []
    for what, figure in exact_rows(mdp).items():
        rows.append({"what": what, "mean": figure, "interval": None, "each": None} | made)
    named = learners(mdp, arguments.steps, arguments.rounds)
    each: dict[str, list[float]] = {what: [] for what in named}
    for seed in range(arguments.seeds):
        for what, learner in named.items():
            each[what].append(learner(seed))
            print(f"seed {seed}, {what}: {each[what][-1]:.4f}", flush=True)
    for what, figures in each.items():
        found = MeanInterval.of(np.array(figures))
        rows.append({"what": what, "mean": found.mean, "interval": found.high - found.mean, "each": figures} | made)
    for row in rows:
        print(f"{row['what']}: {row['mean']:.4f} {row['interval'] or ''}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "icu_sepsis.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
