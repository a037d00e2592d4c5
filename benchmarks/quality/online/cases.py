"""All cells of the tables, with the settings of every method."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

from benchmarks.quality.online.peers import Peer
from benchmarks.quality.online.runs import DELTA, Case, Learning
from primorl.online.dppg import DPPG
from primorl.online.learning import Update
from primorl.online.policy_optimisation import NaturalGradientByDescent, PolicyGradient, Rebel
from primorl.privacy.accounting.solving import solve_noise_multiplier
from research.paper_mode import loose

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
    place: dict[str, Any] = {"table": "A", "task": "CartPole", "steps": 500, "episodes": 1}
    strict = {**place, "cohort": 125, "cohorts": 8, "column": "strict"}
    paper = {**place, "cohort": 10, "cohorts": 100, "hidden": (64,), "column": "paper"}
    gradient = PolicyGradient(learning_rate=2.0, clipping_norm=1.0)
    natural = NaturalGradientByDescent(learning_rate=20.0, clipping_norm=0.1, steps=2, step_size=0.5, ball=0.5)
    regression = Rebel(temperature=10.0, step_size=10.0, steps=2, clipping_norm=0.1)
    methods: tuple[tuple[str, Update, Update, Update], ...] = (
        # Where nothing clips, gradients are longer or shorter: the twins have steps of their own.
        ("PG", gradient, replace(gradient, learning_rate=0.2), replace(gradient, learning_rate=0.03)),
        ("NPG", natural, replace(natural, learning_rate=10.0, ball=1.0), replace(natural, learning_rate=0.5)),
        ("REBEL", regression, replace(regression, temperature=3.0, step_size=3.0), replace(regression, step_size=1.0)),
    )
    cases: list[Case] = [
        Peer("A", "CartPole", "PPO", episodes=1000, steps=50_000),
        Peer("A", "CartPole", "A2C", episodes=1000, steps=100_000),
    ]
    for name, private, plain, published in methods:
        twin = {**strict, "method": name, "budget": "–", "column": "twin"}
        cases.append(Learning(**twin, update=plain, noise_multiplier=0.0))
        releases = private.releases
        for epsilon in (*TABLE_EPSILONS, *(FIGURE_EPSILONS if name == "PG" else ())):
            where: dict[str, Any] = {"method": f"DP-{name}", "budget": f"ε {epsilon:g}"}
            cases.append(Learning(**strict, **where, update=private, noise_multiplier=exact(epsilon, releases)))
        for epsilon in TABLE_EPSILONS:
            where = {"method": f"DP-{name}", "budget": f"ε {epsilon:g}"}
            cases.append(Learning(**paper, **where, update=loose(published), noise_multiplier=classical(epsilon, releases)))
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
    control = DPPG(0.05, 7.26e-4, epochs=8, minibatches=2, entropy_coefficient=0.36, decay=0.85, moments="released")
    mujoco = DPPG(1.8, 2.04e-4, epochs=8, minibatches=64, entropy_coefficient=0.02, decay=0.91, moments="released")
    dosing = DPPG(0.08, 9.25e-4, epochs=4, minibatches=2, entropy_coefficient=0.01, decay=0.97, moments="released")
    wide: dict[str, Any] = {"table": "B", "method": "DPPG", "hidden": (64, 64), "cohort": 8}
    episode: dict[str, Any] = {"table": "B", "method": "DPPG", "episodes": 1}
    pole = {**episode, "task": "CartPole", "steps": 500, "cohort": 125, "cohorts": 8}
    cases = _rows(pole, local, (1.0, 3.0), (1.0, *FIGURE_EPSILONS))
    cases += _loose({**wide, "task": "CartPole", "steps": 64, "episodes": None, "cohorts": 976}, control, (1.0, 3.0))

    swing = {**episode, "task": "Acrobot", "steps": 500, "cohort": 650, "cohorts": 12}
    far = replace(local, learning_rate=40.0, epochs=1)
    cases += _rows(swing, far, (1.0, 3.0), (1.0,))
    # In 64 steps from its start no policy swings it up: a user has 500.
    cases += _loose({**wide, "task": "Acrobot", "steps": 500, "episodes": None, "cohorts": 122}, control, (1.0, 3.0))
    high = {**swing, "method": "DPPG, height in the reward", "cohort": 500, "cohorts": 10, "bonus": 0.4}
    cases += _rows(high, replace(far, decay=0.9), (), (1.0, *FIGURE_EPSILONS))
    cases += [Peer("B", "Acrobot", name, episodes=None, steps=300_000) for name in ("PPO", "A2C")]

    for varied in (0, 1):
        day = {"task": f"Dosing-{varied}", "steps": 96, "episodes": 1}
        rate = {**episode, **day, "cohort": 250, "cohorts": 24, "standard_deviation": 0.7}
        cases += _rows(rate, replace(local, epochs=1, decay=1.0, learning_rate=8.0), (0.1, 0.5), (1.0,))
        cases += _loose({**wide, **day, "cohorts": 250}, dosing, (0.1, 0.5))
        cases += [Peer("B", f"Dosing-{varied}", name, episodes=None, steps=100_000) for name in ("PPO", "A2C")]
    for task in ("HalfCheetah", "Hopper"):
        long = {**wide, "task": task, "steps": 2048, "episodes": None, "cohorts": 30}
        cases += _rows(long, replace(mujoco, moments="zero"), (0.05, 0.1), ())
        cases += _loose(long, mujoco, (0.05, 0.1))
        cases += [Peer("B", task, name, episodes=None, steps=30 * 8 * 2048) for name in ("PPO", "A2C")]
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


def _loose(place: dict[str, Any], update: DPPG, multipliers: tuple[float, ...]) -> list[Case]:
    """The paper's mode, with the settings of its Table 3."""
    own = loose(update)
    return [Learning(**place, budget=f"z {z:g}", column="paper", update=own, noise_multiplier=z) for z in multipliers]


CASES: tuple[Case, ...] = (*table_a(), *table_b())
