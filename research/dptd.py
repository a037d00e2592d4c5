"""The experiments of DPTD (Zhao et al. 2023): values and the objective L(θ, ω), with enforced
clipping.

python -m research.dptd
python -m research.dptd --project 1.0   # in a project: what its people's practice is worth at ε 1

CartPole-v1 and Acrobot-v1, logs of 1,000 trajectories of Sarsa players. Rewards are not scaled, and
the network has one hidden layer of 50 units. An update takes a Poisson cohort of 5 trajectories on
average, and 10 transitions of each, drawn at random. An epoch has 500 updates: the paper's has 5
trajectories of up to 100 transitions, and an update for each of them. Ten runs with their own
initial weights, cohorts and noise go side by side; ω begins at 0. All private methods have the same
loss, network, clip and accounting, and cost the same ε for a trajectory at δ = 1/(10 K). Clip and
cohort were chosen on the logs of other players (seed 1), after first tries on these. Not run: Atari
Pong, which needs a DQN player, about half a day on a GPU.

Rows: research/results/dptd.jsonl, with the mean objective after each epoch.
"""

import argparse
import math
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.machine import RESULTS_PAGE, put
from primorl.privacy.accounting.epsilon import gaussian_mean
from primorl.privacy.accounting.figures import solve_noise_multiplier
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import BoundedSum, GaussianQuery, Mechanism
from research.dptd_network import Dptd, TdBatch, ValueNetwork, project_onto_box
from research.rows import Row, complete_rows

UNITS, UPDATES, RUNS = 1000, 15_000, 10
COHORT, ROWS, CLIPPING_NORM = 5, 10, 0.5
SHARE = 0.1  # of 1/z², for the question how far off values are
CORRECTED = ("offset", "offset noise")
OTHERS = ("sgd_plain", "dpgld", "dpsrm")  # steps that are not DPTD's
STEP, MOMENTUM = 1e-3, 0.3  # of SGD and DPSRM
LARGE_STEP, INVERSE_TEMPERATURE = 1e-2, 1e4  # of DPGLD
EPOCH = 500  # updates; the objective is taken after each
JUDGED = 50  # trajectories over which the objective is taken
NAMES = {
    "td": "TD, no privacy",
    "dptd": "DPTD",
    "clip": "TD, clipped, no noise",
    "noise": "noise alone: gradients 0",
    "offset": "DPTD and its mean error",
    "offset noise": "the mean return alone: gradients 0",
    "sgd_plain": "SGD, no privacy",
    "dpgld": "DPGLD",
    "dpsrm": "DPSRM",
}


@dataclass(frozen=True)
class Task:
    """An environment: scales of its observations, and episodes that the player learns from."""

    scales: tuple[float, ...]
    learning: int


TASKS = {
    "CartPole-v1": Task((2.4, 3.0, 0.21, 3.0), 150),
    "Acrobot-v1": Task((1.0, 1.0, 1.0, 1.0, 12.6, 28.3), 40),
    "CartPole-v1, poor player": Task((2.4, 3.0, 0.21, 3.0), 140),
}
DRAWN = ("CartPole-v1", "Acrobot-v1")
DISCOUNT = 0.95
ERROR = BoundedSum(1, 1 / (1 - DISCOUNT))  # of a value; cut at the most that one can be
_FEATURES = 200


class Sarsa:
    """Semi-gradient Sarsa (Sutton and Barto 2018, section 10.1) with random Fourier features."""

    def __init__(self, task: str, seed: int) -> None:
        self.env = gymnasium.make(task.split(",")[0])
        self.rng = np.random.default_rng(seed)
        self.scale = np.array(TASKS[task].scales)
        self.frequencies = self.rng.normal(size=(_FEATURES, len(self.scale)))
        self.phases = self.rng.uniform(0, 2 * np.pi, _FEATURES)
        self.weights = np.zeros((int(gymnasium.spaces.flatdim(self.env.action_space)), _FEATURES))
        self.env.reset(seed=seed)

    def episode(
        self, steps: int, exploration: float, rate: float
    ) -> list[tuple[NDArray[np.float64], float, bool]]:
        """Play an episode: (state and next state, reward, whether it ended) of each step; learn at
        ``rate``.
        """
        here = np.asarray(self.env.reset()[0], dtype=np.float64)
        features = self._features(here)
        action, rows = self._act(features, exploration), []
        for _ in range(steps):
            following, reward, ended, _, _ = self.env.step(action)
            after = np.asarray(following, dtype=np.float64)
            next_features = self._features(after)
            next_action = self._act(next_features, exploration)
            if rate:
                target = float(reward) + (
                    0 if ended else 0.99 * self.weights[next_action] @ next_features
                )
                self.weights[action] += rate * (target - self.weights[action] @ features) * features
            rows.append((np.stack((here, after)), float(reward), ended))
            here, features, action = after, next_features, next_action
            if ended:
                break
        return rows

    def _act(self, features: NDArray[np.float64], exploration: float) -> int:
        if self.rng.random() < exploration:
            return int(self.rng.integers(len(self.weights)))
        return int((self.weights @ features).argmax())

    def _features(self, observation: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.cos(self.frequencies @ (observation / self.scale) + self.phases) * np.sqrt(
            2 / _FEATURES
        )


class Log(NamedTuple):
    """R transitions of U units, one after the other. Sensitive.

    Attributes:
        inputs: scaled observations, ``[R, S]``.
        next_inputs: ``[R, S]``.
        reward: ``[R]``.
        next_factor: γ, or 0 after a terminal step, ``[R]``.
        starts: first transition of each unit, int64 ``[U]``.
        lengths: transitions of each unit, int64 ``[U]``.
    """

    inputs: Tensor
    next_inputs: Tensor
    reward: Tensor
    next_factor: Tensor
    starts: Tensor
    lengths: Tensor

    def batch(self, rows: Tensor, weight: Tensor) -> TdBatch:
        """Take transitions ``[P, U, M]``."""
        states = self.inputs[rows], self.next_inputs[rows]
        return TdBatch(*states, self.reward[rows], self.next_factor[rows], weight)


ALGORITHM = Dptd(hidden=(50,), members=RUNS, alpha=3.0, beta=3.0, kappa=2.0, eta=2.0)


def langevin_step(inverse_temperature: float, noise: float, most: float) -> float:
    """Find the step η at which noise of standard deviation σ on the gradient is the heat of
    Langevin dynamics.

    Langevin dynamics adds √(2η/β) N(0, I) to a step of size η. A noisy gradient adds η σ N(0, I).
    They are equal at η = 2 / (β σ²), held below ``most``.
    """
    return most if noise == 0 else min(most, 2 / (inverse_temperature * noise**2))


def descent_ascent(
    values: dict[str, Tensor], p: Tensor, d: Tensor, step: float
) -> dict[str, Tensor]:
    """SGD: θ ← P(θ - η p), ω ← P(ω + η d).

    With `langevin_step` it is DPGLD (Wang, Chen and Xu 2019).
    """
    theta, omega = values["theta"], values["omega"]
    earlier = {"earlier_theta": theta, "earlier_omega": omega, "p": p, "d": d}
    return (
        values
        | earlier
        | {"theta": project_onto_box(theta - step * p), "omega": project_onto_box(omega + step * d)}
    )


@cache
def log_of(task: str, units: int) -> tuple[Log, float]:
    """Log ``units`` trajectories of at most 100 steps of a trained player that explores in 5% of
    its steps; return their mean discounted return, too.
    """
    player = Sarsa(task, seed=0)
    for _ in range(TASKS[task].learning):
        player.episode(500, 0.1, 0.1)
    played = [player.episode(100, 0.05, 0.0) for _ in range(units)]
    lengths = torch.tensor([len(rows) for rows in played])
    pairs, paid, over = zip(*(step for rows in played for step in rows), strict=True)
    states = torch.from_numpy(np.stack(pairs, 1)) / torch.tensor(TASKS[task].scales)
    here, following = states.clamp(-4, 4).float()
    starts, factor = lengths.cumsum(0) - lengths, DISCOUNT * ~torch.tensor(over)
    log = Log(here, following, torch.tensor(paid), factor, starts, lengths)
    return log, float(returns(log).mean())


def mechanism_of(
    units: int, unit: str, delta: float, method: str, epsilon: float | None
) -> Mechanism:
    """Make the rounds of a line and, if it is corrected, the question how far off values are."""
    queries: tuple[GaussianQuery, ...] = ()
    if method in CORRECTED and epsilon is not None:
        z = 1 / (math.sqrt(SHARE) * gaussian_mean(epsilon, delta))
        queries = (GaussianQuery("mean_error", ERROR.sensitivity, z),)
    q, noise = min(1.0, COHORT / units), 0.0
    if epsilon is not None:
        multipliers = tuple(query.noise_multiplier for query in queries)
        noise = solve_noise_multiplier(epsilon, delta, q, UPDATES, multipliers)
    clip = L2Clip(float("inf") if method in ("td", "sgd_plain") else CLIPPING_NORM)
    return Mechanism(units, unit, q, clip, noise, UPDATES, delta, queries)


def ask_offset(mechanism: Mechanism, log: Log, network: ValueNetwork, theta: Tensor) -> Tensor:
    """Ask by how much returns exceed the values of first states on average, ``[N]``; 0 where there
    is no question.

    The clip of the rounds takes most from the last transitions, whose errors are large and rare.
    """
    if not mechanism.queries:
        return torch.zeros(len(theta))
    values = network.values(theta.float(), log.inputs[log.starts][None])
    errors = returns(log) - values.double()
    totals = [ERROR.total(each.unsqueeze(1)) for each in errors]
    return torch.stack([mechanism.answer(mechanism.queries[0], each)[0] for each in totals])


def returns(log: Log) -> Tensor:
    """Sum the discounted rewards of each unit, float64 ``[U]``. Sensitive."""
    units = torch.arange(len(log.lengths)).repeat_interleave(log.lengths)
    discounts = DISCOUNT ** (torch.arange(len(units)) - log.starts[units]).double()
    return discounts.new_zeros(len(log.lengths)).index_add(0, units, discounts * log.reward)


def make_row(key: Row) -> Row:
    """Run one line: the objective over the epochs, and the value at the end."""
    method, units = key["method"], key["units"]
    log, true_value = log_of(key["task"], units)
    mechanism = mechanism_of(units, "trajectory", 1 / (10 * units), method, key["epsilon"])
    step = STEP
    if method == "dpgld":
        deviation = (
            mechanism.noise_multiplier * mechanism.clip.sensitivity / mechanism.expected_cohort
        )
        step = langevin_step(INVERSE_TEMPERATURE, deviation, LARGE_STEP)
    network = ValueNetwork(log.inputs.shape[-1], ALGORITHM.hidden)
    values = ALGORITHM.begin(network)
    first = log.lengths[:JUDGED]
    weight = (1 / first).repeat_interleave(first) / len(first)
    judged = log.batch(torch.arange(int(first.sum()))[None, None], weight[None, None])
    objective = []
    for done in range(UPDATES + 1):
        if done % EPOCH == 0:
            losses = network.losses(values["theta"].float(), values["omega"].float(), judged)
            objective.append((losses * judged.weight).sum((1, 2)))
        if done == UPDATES:
            break
        kept = 1 - MOMENTUM if method == "dpsrm" and done else 0.0
        total = torch.zeros(2 * values["theta"].numel(), dtype=torch.float64)
        if not method.endswith("noise"):
            total = sum_gradients(mechanism, network, values, log, kept)
        released = mechanism.release(total)
        if method not in OTHERS:
            values = ALGORITHM.step(values, released, done)
        else:
            p, d = released.double().view(RUNS, 2, -1).unbind(1)
            values = descent_ascent(values, kept * values["p"] + p, kept * values["d"] + d, step)
    curves = torch.stack(objective)
    theta = values["theta"]
    found = network.values(theta.float(), log.inputs[log.starts][None]).mean(1)
    found = found + ask_offset(mechanism, log, network, theta)
    metric = [] if method in OTHERS else measure(network, values, judged).tolist()
    return {
        "metric": [float(f"{number:.3g}") for number in metric],
        "noise_multiplier": mechanism.noise_multiplier,
        "delta": mechanism.delta,
        "objective_mean": [float(f"{number:.3g}") for number in curves.mean(1).tolist()],
        "objective": [float(f"{number:.3g}") for number in curves[-1].tolist()],
        "value": [round(number, 2) for number in found.tolist()],
        "true_value": round(true_value, 2),
    }


def measure(network: ValueNetwork, values: dict[str, Tensor], judged: TdBatch) -> Tensor:
    """Compute the paper's 𝔐 of each run, ``[N]``, with ‖∇_ω F‖ for L_F ‖ω - ω*(θ)‖, which it is at
    most.

    𝔐 = ‖θ - P(θ - κ p)‖ / κ + ‖∇_θ F - p‖ + L_F ‖ω - ω*(θ)‖, of which all are 0 where both sides
    stand still.
    """
    theta, omega, p = values["theta"], values["omega"], values["p"]
    gradients = network.gradients(theta.float(), omega.float(), judged)[0].double()
    of_theta, of_omega = gradients.unbind(1)
    step = (theta - project_onto_box(theta - ALGORITHM.kappa * p)) / ALGORITHM.kappa
    return sum((part.norm(dim=1) for part in (step, of_theta - p, of_omega)), torch.zeros(()))


def sum_gradients(
    mechanism: Mechanism,
    network: ValueNetwork,
    values: dict[str, Tensor],
    log: Log,
    kept: float = 0.0,
) -> Tensor:
    """Sum the clipped gradients of each run's own cohort, ``[N 2d]``. Sensitive.

    A unit contributes the mean over ``ROWS`` of its transitions. With ``kept`` (DPSRM, stochastic
    recursive momentum; Wang, Jayaraman, Evans and Gu 2019) it contributes g(θ_t) - kept g(θ_{t-1}),
    and the difference is clipped.
    """
    cohorts = [mechanism.cohort() for _ in values["theta"]]
    units = pad_sequence(cohorts, batch_first=True, padding_value=-1)[..., None]
    rows = log.starts[units] + (torch.rand(*units.shape[:2], ROWS) * log.lengths[units]).long()
    batch = log.batch(rows, ((units >= 0) / ROWS).expand(rows.shape))

    def gradients(theta: Tensor, omega: Tensor) -> Tensor:
        found = network.gradients(theta.float(), omega.float(), batch)
        return found.transpose(0, 1).flatten(0, 1).flatten(1).double()

    found = gradients(values["theta"], values["omega"])
    if kept:
        found = found - kept * gradients(values["earlier_theta"], values["earlier_omega"])
    assert isinstance(mechanism.clip, L2Clip)
    return mechanism.clip.finish(found.contiguous()).unflatten(0, units.shape[:2]).sum(1).flatten()


def table(rows: list[Row]) -> str:
    """Write the value of the first states, its error, |L| and 𝔐 at the end, a column a log."""
    lines = [f"| line | {' | '.join(TASKS)} |", "|---" * (len(TASKS) + 1) + "|"]
    truths = [next(row["true_value"] for row in rows if row["task"] == task) for task in TASKS]
    lines.append(f"| truth | {' | '.join(map(str, truths))} |")
    guesses = [math.copysign(1 / (1 - DISCOUNT), truth) for truth in truths]
    errors = [f"{g:.0f} ({g / truth - 1:.0%})" for g, truth in zip(guesses, truths, strict=True)]
    lines.append(f"| V = ± 1/(1 - γ), a guess | {' | '.join(errors)} |")
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        name = NAMES[row["method"]]
        name += f", ε {row['epsilon']:g}" if row["epsilon"] not in (None, 1.0) else ""
        name += f", K {row['units']:,}" if row["units"] != UNITS else ""
        values, last = np.array(row["value"]), np.abs(row["objective"])
        error = np.abs(values / row["true_value"] - 1).mean()
        cells.setdefault(name, {})[row["task"]] = (
            f"{values.mean():.1f} ± {values.std(ddof=1):.1f} ({error:.0%}), "
            f"{last.mean():.2g} ± {last.std(ddof=1):.1g}"
        )
        if row.get("metric"):
            cells[name][row["task"]] += f", 𝔐 {np.mean(row['metric']):.2g}"
    for name, found in cells.items():
        lines.append(f"| {name} | {' | '.join(found.get(task, '–') for task in TASKS)} |")
    return "\n".join(lines)


def main() -> None:
    """Evaluate a project, or make the rows that are missing and write their table."""
    parser = argparse.ArgumentParser(description="DPTD (Zhao et al. 2023)")
    parser.add_argument(
        "--project",
        type=float,
        metavar="EPSILON",
        help="charge so much and evaluate what people did in data/partitions, on models/dynamics",
    )
    if (epsilon := parser.parse_args().project) is not None:
        from research.dptd_project import evaluate

        return evaluate(epsilon)
    cases: list[tuple[str, float | None]] = [("td", None), ("dptd", 1.0)]
    cases += [(method, 1.0) for method in CORRECTED]
    others: list[tuple[str, float | None]] = [
        *((method, None if method == "sgd_plain" else 1.0) for method in OTHERS),
        *(("dptd", epsilon) for epsilon in (0.1, 10.0, 100.0)),
        ("clip", None),
        ("noise", 1.0),
    ]
    asked = [*product(cases, TASKS), *product(others, DRAWN)]
    size = {"units": UNITS, "updates": UPDATES, "runs": RUNS}
    keys: list[Row] = [
        {"task": task, "method": name, "epsilon": epsilon} | size for (name, epsilon), task in asked
    ]
    keys.append({"task": "Acrobot-v1", "method": "dptd", "epsilon": 1.0} | size | {"units": 4000})
    rows = complete_rows("dptd", keys, make_row)
    put(RESULTS_PAGE, "dptd", table(rows))


if __name__ == "__main__":
    main()
