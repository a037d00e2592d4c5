"""All cells of the tables, with the settings of every method."""

import math
from functools import cache

from benchmarks.quality.online.peers import Peer
from benchmarks.quality.online.runs import DELTA, Case, Learning
from primorl.online.reinforce import PolicyGradient
from primorl.privacy.accounting.solving import solve_noise_multiplier

TABLE_EPSILONS = (1.0, 3.0, 5.0)
FIGURE_EPSILONS = (0.25, 0.5, 2.0)


@cache
def exact(epsilon: float, releases: int = 1) -> float:
    """The z at which one user pays ε, by the exact mechanism."""
    return solve_noise_multiplier(epsilon, DELTA, 1.0, releases)


def classical(epsilon: float) -> float:
    """The z of the papers' formula, which is proved for ε < 1 only."""
    return math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


def table_a() -> list[Case]:
    """CartPole, 1,000 users of one episode each."""
    cases: list[Case] = [Peer("A", "CartPole", name, episodes=1000, steps=100_000) for name in ("PPO", "A2C")]
    place = {"table": "A", "task": "CartPole", "steps": 500, "episodes": 1}
    strict = {**place, "cohort": 125, "cohorts": 8}
    paper = {**place, "cohort": 10, "cohorts": 100, "hidden": (64,)}
    for epsilon in (*TABLE_EPSILONS, *FIGURE_EPSILONS):
        update = PolicyGradient(learning_rate=2.0, clipping_norm=1.0)
        where = {"method": "DP-PG", "budget": f"ε {epsilon:g}", "column": "strict"}
        cases.append(Learning(**strict, **where, update=update, noise_multiplier=exact(epsilon)))
    for epsilon in TABLE_EPSILONS:
        update = PolicyGradient(learning_rate=1.0, clipping_norm=1.0, guarantee="paper")
        where = {"method": "DP-PG", "budget": f"ε {epsilon:g}", "column": "paper"}
        cases.append(Learning(**paper, **where, update=update, noise_multiplier=classical(epsilon)))
    return cases


CASES: tuple[Case, ...] = (*table_a(),)
