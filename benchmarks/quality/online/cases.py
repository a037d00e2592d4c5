"""All cells of the tables, with the settings of every method."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

from benchmarks.quality.online.peers import Peer
from benchmarks.quality.online.runs import DELTA, Case, Learning
from primorl.online.dppg import DPPG
from primorl.online.reinforce import PolicyGradient
from primorl.privacy.accounting.solving import solve_noise_multiplier

TABLE_EPSILONS = (1.0, 3.0, 5.0)
FIGURE_EPSILONS = (0.1, 0.25, 0.5, 2.0)


@cache
def exact(epsilon: float, releases: int = 1) -> float:
    """The z at which one user pays ε, by the exact mechanism."""
    return solve_noise_multiplier(epsilon, DELTA, 1.0, releases)


def classical(epsilon: float, releases: int = 1) -> float:
    """The z of the papers' formula, which is proved for ε < 1 only, and of their composition of several releases."""
    return math.sqrt(2 * math.log(1.25 * releases / DELTA)) * releases / epsilon


def table_a() -> list[Case]:
    """CartPole, 1,000 users of one episode each."""
    cases: list[Case] = [
        Peer("A", "CartPole", "PPO", episodes=1000, steps=50_000),
        Peer("A", "CartPole", "A2C", episodes=1000, steps=100_000),
    ]
    place: dict[str, Any] = {"table": "A", "task": "CartPole", "steps": 500, "episodes": 1}
    strict = {**place, "cohort": 125, "cohorts": 8}
    paper = {**place, "cohort": 10, "cohorts": 100, "hidden": (64,), "column": "paper"}
    gradient = PolicyGradient(learning_rate=2.0, clipping_norm=1.0)
    cases.append(
        Learning(
            **strict,
            method="PG",
            budget="–",
            column="twin",
            update=replace(gradient, learning_rate=0.2),
            noise_multiplier=0.0,
        )
    )
    for epsilon in (*TABLE_EPSILONS, *FIGURE_EPSILONS):
        where = {"method": "DP-PG", "budget": f"ε {epsilon:g}"}
        cases.append(Learning(**strict, **where, column="strict", update=gradient, noise_multiplier=exact(epsilon)))
    for epsilon in TABLE_EPSILONS:
        where = {"method": "DP-PG", "budget": f"ε {epsilon:g}"}
        update = replace(gradient, learning_rate=0.5, guarantee="paper")
        cases.append(Learning(**paper, **where, update=update, noise_multiplier=classical(epsilon)))
    return cases


def table_b() -> list[Case]:
    """DPPG on all tasks."""
    local = DPPG(
        clipping_norm=0.1,
        local_learning_rate=1.0,
        epochs=4,
        minibatches=1,
        decay=0.97,
        learning_rate=20.0,
        local_steps="gradient",
    )
    cases = _rows(
        {"table": "B", "task": "CartPole", "method": "DPPG", "steps": 500, "episodes": 1, "cohort": 125, "cohorts": 8},
        local,
        (1.0, 3.0),
        (1.0, *FIGURE_EPSILONS),
    )
    return cases


def _rows(
    place: dict[str, Any], update: DPPG, multipliers: tuple[float, ...], epsilons: tuple[float, ...]
) -> list[Case]:
    """Strict rows at the paper's z and at targets of ε, and the twin."""
    budgets = {f"z {z:g}": z for z in multipliers} | {f"ε {epsilon:g}": exact(epsilon) for epsilon in epsilons}
    rows: list[Case] = [
        Learning(**place, budget=budget, column="strict", update=update, noise_multiplier=z)
        for budget, z in budgets.items()
    ]
    return [*rows, Learning(**place, budget="–", column="twin", update=update, noise_multiplier=0.0)]


CASES: tuple[Case, ...] = (*table_a(), *table_b())
