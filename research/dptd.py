"""Figures 1 and 2 of DPTD (Zhao et al. 2023): the objective L(θ, ω) against epochs, with enforced clipping.

python -m research.dptd

CartPole-v1 and Acrobot-v1, logs of 1,000 trajectories of Sarsa players. An epoch is one round with a Poisson cohort of
5 trajectories on average. Ten runs with their own initial weights, cohorts and noise go side by side; ω begins at 0.
Values and rewards are divided by the largest discounted return, and so the objective by its square. All private methods
have the same loss, networks, clip and accounting, and cost the same ε at δ = 1/(10 K). Lines named ``per transition``
protect single transitions (Theorem 5.1), with cohorts of as many transitions as 5 trajectories have. Atari Pong,
Figure 1 (c), is not run: it needs a DQN player, about half a day on a GPU.

Rows: research/results/dptd.jsonl. Draws docs/figures/dptd_figure1.png and dptd_figure2.png.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import gymnasium
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from primorl.evaluate.private.dptd import Dptd, TdBatch, projected
from primorl.evaluate.private.estimator import noise_of
from primorl.evaluate.private.problem import Episodes, Problem
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from research.rows import FIGURES, Row, completed

UNITS, EPOCHS, RUNS = 1000, 150, 10
COHORT, CLIPPING_NORM = 5, 0.1
STEP, INVERSE_TEMPERATURE, MOMENTUM = 1e-2, 1e4, 0.3  # of the baselines
EVERY = 5  # epochs between two looks at the objective
JUDGED = 10  # trajectories over which the objective is taken
EPSILONS = (1.0, 100.0, 10.0, 0.1)
NAMES = {
    "td": "TD, no privacy",
    "sgd_plain": "SGD, no privacy",
    "dptd": "DPTD",
    "dpgld": "DPGLD",
    "dpsrm": "DPSRM",
    "sgd": "SGD, private",
    "dptd_transition": "DPTD, per transition",
}


@dataclass(frozen=True)
class Task:
    """An environment: scales of its observations, bounds of its rewards, episodes that the player learns from."""

    scales: tuple[float, ...]
    rewards: tuple[float, float]
    learning: int


TASKS = {
    "CartPole-v1": Task((2.4, 3.0, 0.21, 3.0), (0.0, 1.0), 150),
    "Acrobot-v1": Task((1.0, 1.0, 1.0, 1.0, 12.6, 28.3), (-1.0, 0.0), 40),
}
DISCOUNT = 0.95
_FEATURES = 200


class Sarsa:
    """Semi-gradient Sarsa (Sutton and Barto 2018, section 10.1) with random Fourier features."""

    def __init__(self, environment: str, seed: int) -> None:
        self.env = gymnasium.make(environment)
        self.rng = np.random.default_rng(seed)
        self.scale = np.array(TASKS[environment].scales)
        self.frequencies = self.rng.normal(size=(_FEATURES, len(self.scale)))
        self.phases = self.rng.uniform(0, 2 * np.pi, _FEATURES)
        self.weights = np.zeros((int(self.env.action_space.n), _FEATURES))
        self.env.reset(seed=seed)

    def episode(self, steps: int, exploration: float, rate: float) -> list[tuple[NDArray[np.float64], float, bool]]:
        """Play an episode: (state and next state, reward, whether it ended) of each step; learn at ``rate``."""
        here = np.asarray(self.env.reset()[0], dtype=np.float64)
        features = self._features(here)
        action, rows = self._act(features, exploration), []
        for _ in range(steps):
            following, reward, ended, _, _ = self.env.step(action)
            next_features = self._features(np.asarray(following, dtype=np.float64))
            next_action = self._act(next_features, exploration)
            if rate:
                target = reward + (0 if ended else 0.99 * self.weights[next_action] @ next_features)
                self.weights[action] += rate * (target - self.weights[action] @ features) * features
            rows.append((np.stack((here, following)), float(reward), ended))
            here, features, action = np.asarray(following, dtype=np.float64), next_features, next_action
            if ended:
                break
        return rows

    def _act(self, features: NDArray[np.float64], exploration: float) -> int:
        if self.rng.random() < exploration:
            return int(self.rng.integers(len(self.weights)))
        return int((self.weights @ features).argmax())

    def _features(self, observation: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.cos(self.frequencies @ (observation / self.scale) + self.phases) * np.sqrt(2 / _FEATURES)


def logs(environment: str, units: int) -> Episodes:
    """Log ``units`` trajectories of at most 100 steps of a trained player that explores in 5% of its steps."""
    player = Sarsa(environment, seed=0)
    for _ in range(TASKS[environment].learning):
        player.episode(500, 0.1, 0.1)
    played = [player.episode(100, 0.05, 0.0) for _ in range(units)]
    shape = (units, max(map(len, played)))
    states = torch.zeros(2, *shape, len(player.scale)).double()
    reward, own, ended = torch.zeros(shape).double(), torch.zeros(shape).bool(), torch.zeros(shape).bool()
    for unit, rows in enumerate(played):
        pairs, paid, over = zip(*rows, strict=True)
        states[:, unit, : len(rows)] = torch.from_numpy(np.stack(pairs, 1))
        reward[unit, : len(rows)], ended[unit, : len(rows)] = torch.tensor(paid).double(), torch.tensor(over)
        own[unit, : len(rows)] = True
    place = torch.arange(shape[1]).expand(shape)
    ends = own & (place == own.sum(1, keepdim=True) - 1)
    no_action = torch.zeros(*shape, 1).double()
    return Episodes(states[0], no_action, reward, states[1], ended, place, own & (place == 0), ends, own)


def question(environment: str, units: int) -> Problem:
    """Ask for the discounted value of the player's own states, without a horizon."""
    task = TASKS[environment]
    scale, (low, high) = torch.tensor(task.scales), task.rewards
    return Problem(
        units=units,
        unit="trajectory",
        delta=1 / (10 * units),
        horizon=None,
        discount=DISCOUNT,
        observation_low=-4 * scale,
        observation_high=4 * scale,
        observation_mean=torch.zeros(len(scale)),
        observation_scale=scale,
        action_low=torch.zeros(1),
        action_high=torch.ones(1),
        discrete_actions=False,
        reward_low=low,
        reward_high=high,
        return_low=0.0,
        return_high=0.0,
        policy=lambda observation: torch.zeros(len(observation), 1),  # is not asked for
        ensemble=None,  # type: ignore[arg-type]
        starts=torch.zeros(1, len(scale)),
    ).with_return_bounds(None)


ESTIMATOR = Dptd(
    of="behaviour",
    hidden=(50, 50),
    members=RUNS,
    rounds=EPOCHS,
    sampling_probability=COHORT / UNITS,
    clipping_norm=CLIPPING_NORM,
    alpha=3.0,
    beta=3.0,
    kappa=2.0,
    eta=2.0,
    query_share=0.1,
)


def langevin_step(inverse_temperature: float, noise: float, most: float) -> float:
    """Find the step η at which noise of standard deviation σ on the gradient is the heat of Langevin dynamics.

    Langevin dynamics adds √(2η/β) N(0, I) to a step of size η. A noisy gradient adds η σ N(0, I). They are equal at
    η = 2 / (β σ²), held below ``most``.
    """
    return most if noise == 0 else min(most, 2 / (inverse_temperature * noise**2))


def descent_ascent(values: dict[str, Tensor], p: Tensor, d: Tensor, step: float) -> dict[str, Tensor]:
    """SGD: θ ← P(θ - η p), ω ← P(ω + η d). With `langevin_step` it is DPGLD (Wang, Chen and Xu 2019)."""
    theta, omega = values["theta"], values["omega"]
    earlier = {"earlier_theta": theta, "earlier_omega": omega, "p": p, "d": d}
    return values | earlier | {"theta": projected(theta - step * p), "omega": projected(omega + step * d)}


@cache
def log_of(environment: str) -> tuple[Problem, TdBatch, float]:
    """The question, the transitions, and the log's mean discounted return, which is the value to be found."""
    episodes, problem = logs(environment, UNITS), question(environment, UNITS)
    value = float((DISCOUNT ** episodes.step.double() * episodes.reward * episodes.own).sum(1).mean())
    return problem, ESTIMATOR.batch(problem, episodes), value


def made(key: Row) -> Row:
    """Run one line of a figure: the objective over the epochs, and the value at the end."""
    (problem, whole, true_value), method, epsilon = log_of(key["environment"]), key["method"], key["epsilon"]
    batch = flat(whole) if method == "dptd_transition" else whole
    units, q = batch.weight.shape[1], COHORT / UNITS
    noise = 0.0 if epsilon is None else solve_noise_multiplier(epsilon, 1 / (10 * units), q, EPOCHS)
    unit = "transition" if method == "dptd_transition" else "trajectory"
    clip = L2Clip(float("inf") if epsilon is None else CLIPPING_NORM)
    plan = Plan(units, unit, PoissonSampler(q), clip, noise, EPOCHS, 1 / (10 * units))
    step = langevin_step(INVERSE_TEMPERATURE, noise_of(plan), STEP) if method == "dpgld" else STEP
    network, values = ESTIMATOR.network(problem), ESTIMATOR.begin(problem)
    judged = part(whole, slice(JUDGED))
    objective = []
    for done in range(EPOCHS + 1):
        if done % EVERY == 0:
            losses = network.losses(values["theta"], values["omega"], judged)
            objective.append((losses * judged.weight).sum((1, 2)) / JUDGED)
        if done == EPOCHS:
            break
        kept = 1 - MOMENTUM if method == "dpsrm" and done else 0.0
        released = torch.stack([round_of(plan, batch, values, run, problem, kept) for run in range(RUNS)])
        if method in ("td", "dptd", "dptd_transition"):
            values = ESTIMATOR.stepped(problem, values, released.flatten(), done)
        else:
            p, d = released.double().view(RUNS, 2, -1).unbind(1)
            values = descent_ascent(values, kept * values["p"] + p, kept * values["d"] + d, step)
    found = problem.effective_horizon * network.values(values["theta"], whole.inputs[:, :, 0]).mean(1)
    return {
        "noise_multiplier": noise,
        "delta": plan.delta,
        "unit": unit,
        "objective": torch.stack(objective).T.tolist(),
        "value": found.tolist(),
        "true_value": true_value,
    }


def round_of(plan: Plan, batch: TdBatch, values: dict[str, Tensor], run: int, problem: Problem, kept: float) -> Tensor:
    """Release one run's gradients on a cohort of its own, ``[2d]``.

    With ``kept`` (DPSRM, stochastic recursive momentum; Wang, Jayaraman, Evans and Gu 2019) a unit contributes
    g(θ_t) - kept g(θ_{t-1}), and the difference is clipped.
    """
    chosen, network, one = part(batch, plan.cohort()), ESTIMATOR.network(problem), slice(run, run + 1)
    gradients = network.gradients(values["theta"][one], values["omega"][one], chosen).flatten(1)
    if kept:
        earlier = network.gradients(values["earlier_theta"][one], values["earlier_omega"][one], chosen)
        gradients = gradients - kept * earlier.flatten(1)
    assert isinstance(plan.clip, L2Clip)
    return plan.release((plan.clip.finish(gradients.contiguous()).sum(0),))[0]


def part(batch: TdBatch, units: slice | Tensor) -> TdBatch:
    """Take some of the units."""
    return TdBatch(*(each[:, units] for each in batch))


def flat(batch: TdBatch) -> TdBatch:
    """Make every transition, and every place of padding, a unit of its own."""
    *parts, weight = (each.flatten(1, 2)[:, :, None] for each in batch)
    return TdBatch(*parts, weight=(weight > 0).double())


def draw(path: Path, rows: list[Row]) -> None:
    """Draw the mean over runs and one standard deviation, a panel for each environment."""
    figure = Figure(figsize=(10, 4.5), dpi=120, layout="constrained")
    for axes, environment in zip(figure.subplots(1, len(TASKS)), TASKS, strict=True):
        for row in [row for row in rows if row["environment"] == environment]:
            curves = torch.tensor(row["objective"])
            epochs = [EVERY * point for point in range(curves.shape[1])]
            label = NAMES[row["method"]] + ("" if row["epsilon"] is None else f", ε = {row['epsilon']:g}")
            (line,) = axes.plot(epochs, curves.mean(0), "--" if "transition" in label else "-", label=label)
            low, high = curves.mean(0) - curves.std(0), curves.mean(0) + curves.std(0)
            axes.fill_between(epochs, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set(title=environment, xlabel="epoch (5 trajectories)", ylabel="L(θ, ω)")
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path)


def main() -> None:
    """Make the rows that are missing, print the table and draw the figures."""
    private = [(method, epsilon) for method, epsilon in product(list(NAMES)[2:], EPSILONS)]
    cases = [("td", None), ("sgd_plain", None), *private]
    size = {"units": UNITS, "epochs": EPOCHS, "runs": RUNS}
    keys = [
        {"environment": environment, "method": method, "epsilon": epsilon} | size
        for (method, epsilon), environment in product(cases, TASKS)
    ]
    rows = completed("dptd", keys, made)
    for row in rows:
        last, error = torch.tensor(row["objective"])[:, -1].abs(), torch.tensor(row["value"]) - row["true_value"]
        print(f"{row['environment']:12} {NAMES[row['method']]:21} ε {row['epsilon']}", end="  ")
        print(f"|L| {float(last.mean()):.2e} ± {float(last.std()):.1e}  value error {float(error.abs().mean()):.2f}")
    draw(FIGURES / "dptd_figure1.png", [r for r in rows if r["epsilon"] in (None, 1.0) and "tran" not in r["method"]])
    draw(FIGURES / "dptd_figure2.png", [r for r in rows if "dptd" in r["method"]])


if __name__ == "__main__":
    main()
