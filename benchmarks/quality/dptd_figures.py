"""Figures 1 and 2 of DPTD (Zhao et al. 2023): the objective L(θ, ω) against epochs, with enforced clipping.

python -m benchmarks.quality.dptd_figures [--units 1000] [--epochs 150] [--runs 10]
python -m benchmarks.quality.dptd_figures --pong

CartPole-v1 and Acrobot-v1, logs of Sarsa players. An epoch is one round with a Poisson cohort of 5 trajectories on
average. Ten runs with their own initial weights, cohorts and noise go side by side; ω begins at 0. Values and rewards
are divided by the largest discounted return, and so the objective by its square. All private methods are clipped to the
same norm, and cost the same ε at δ = 1/(10 K). Lines named ``per transition`` protect single transitions (Theorem 5.1),
with cohorts of as many transitions as 5 trajectories have.

Resumable: rows in benchmarks/results/dptd_figures.json are not run again (delete the file to start afresh).
"""

import argparse
import importlib.util
import json
import subprocess
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.machine import RESULTS, machine
from benchmarks.quality import dptd_logs
from primorl.evaluation.private.dptd import Dptd
from primorl.evaluation.private.dptd_baselines import DescentAscent, RecursiveMomentum, langevin_step
from primorl.evaluation.private.estimator import noise_of
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.private.value_network import TdBatch
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler

FILE = RESULTS / "dptd_figures.json"
FIGURES = Path("docs/figures")
ENVIRONMENTS = ("CartPole-v1", "Acrobot-v1")
EPSILONS = (100.0, 10.0, 1.0, 0.1)
COHORT = 5
STEPS = 100  # of a trajectory
CLIPPING_NORM = 0.1
STEP = 1e-2  # of the baselines, or less (`langevin_step`)
INVERSE_TEMPERATURE = 1e4
MOMENTUM = 0.3
EVERY = 5  # epochs between two looks at the objective
JUDGED = 10  # trajectories over which the objective is taken
NAMES = {
    "td": "TD, no privacy",
    "sgd_plain": "SGD, no privacy",
    "dptd": "DPTD",
    "dptd_transition": "DPTD, per transition",
    "sgd": "SGD, private",
    "dpgld": "DPGLD",
    "dpsrm": "DPSRM",
}


@dataclass(frozen=True)
class Case:
    """One line of a figure."""

    environment: str
    method: str
    epsilon: float | None


@dataclass(frozen=True)
class Log:
    """An environment's trajectories and the question."""

    problem: Problem
    batch: TdBatch
    starts: Tensor
    value: float


def main() -> None:
    """Run what is missing, draw the figures, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--pong", action="store_true", help="what Atari Pong, Figure 1 (c), needs")
    arguments = parser.parse_args()
    if arguments.pong:
        pong()
    torch.set_num_threads(1)
    size = {name: getattr(arguments, name) for name in ("units", "epochs", "runs")}
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    logs: dict[str, Log] = {}
    for pair in zip(*map(cases, ENVIRONMENTS), strict=True):
        for case in pair:
            key = vars(case) | size
            if any(row.items() >= key.items() for row in rows):
                continue
            if case.environment not in logs:
                logs[case.environment] = read(case.environment, arguments.units)
            rows.append(key | run(case, logs[case.environment], arguments.epochs, arguments.runs))
            RESULTS.mkdir(exist_ok=True)
            FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(line(rows[-1]), flush=True)
    rows = [row for row in rows if row.items() >= size.items()]
    draw(rows, "dptd_figure1", ("td", "sgd_plain", "dptd", "dpgld", "dpsrm", "sgd"), (1.0,))
    draw(rows, "dptd_figure2", ("dptd", "dptd_transition"), EPSILONS)
    print("\n".join(line(row) for row in rows))


def pong() -> None:
    """Say what is missing, and stop."""
    missing = [name for name in ("ale_py", "cv2") if importlib.util.find_spec(name) is None]
    raise SystemExit(
        "Atari Pong is not run. It needs `pip install ale-py opencv-python-headless`"
        f"{' (missing: ' + ', '.join(missing) + ')' if missing else ''}, the ROMs that come with ale-py under their "
        "own licence, and a DQN player: train `stable_baselines3.DQN('CnnPolicy', 'ALE/Pong-v5')` for 10 million steps "
        "(about half a day on a GPU), or load one, and hand its penultimate layer's 512 features as observations to "
        "`dptd_logs.logs`."
    )


def cases(environment: str) -> list[Case]:
    """All lines of one environment, the ones of Figure 1 first."""
    others = ("dpgld", "dpsrm", "sgd")
    ordered = [(1.0, method) for method in ("dptd", *others)]  # Figure 1
    ordered += [(epsilon, "dptd") for epsilon in EPSILONS if epsilon != 1.0]  # Figure 2
    ordered += [(epsilon, method) for method in others for epsilon in EPSILONS if epsilon != 1.0]
    ordered += [(epsilon, "dptd_transition") for epsilon in EPSILONS]
    return [
        *(Case(environment, method, None) for method in ("td", "sgd_plain")),
        *(Case(environment, method, epsilon) for epsilon, method in ordered),
    ]


def read(environment: str, units: int) -> Log:
    """Play the log; its mean discounted return is the value to be found."""
    episodes, problem = dptd_logs.logs(environment, units, STEPS, seed=0), dptd_logs.problem(environment, units)
    discounts = dptd_logs.DISCOUNT ** episodes.step.double()
    value = float((discounts * episodes.reward * episodes.own).sum(1).mean())
    batch = settings("td", 1, 1, 0.0).batch(problem, episodes)
    return Log(problem, batch, batch.inputs[:, :, 0], value)


def settings(method: str, runs: int, epochs: int, noise: float) -> Dptd:
    """The estimator, ``runs`` members being independent runs."""
    common: dict[str, Any] = {
        "of": "behaviour",
        "privacy_unit": "dataset",
        "hidden": (50, 50),
        "members": runs,
        "rounds": epochs,
        "sampling_probability": 1.0,
        "clipping_norm": CLIPPING_NORM,
        "alpha": 3.0,
        "beta": 3.0,
        "kappa": 2.0,
        "eta": 2.0,
        "output": "average",
        "query_share": 0.1,
    }
    step = langevin_step(INVERSE_TEMPERATURE, noise, STEP) if method == "dpgld" else STEP
    if method in ("td", "dptd", "dptd_transition"):
        return Dptd(**common)
    if method == "dpsrm":
        return RecursiveMomentum(**common | {"kappa": step, "eta": step, "momentum": MOMENTUM})
    return DescentAscent(**common | {"kappa": step, "eta": step})


def run(case: Case, log: Log, epochs: int, runs: int) -> dict[str, Any]:
    """All runs of one line: the objective over the epochs, and the value at the end."""
    started = time.perf_counter()
    batch = _flat(log.batch) if case.method == "dptd_transition" else log.batch
    plan = _plan(case, log.problem, batch.weight.shape[1], epochs)
    estimator = settings(case.method, runs, epochs, noise_of(plan))
    network = estimator.network(log.problem)
    values = estimator.begin(log.problem)
    judged = TdBatch(*(getattr(log.batch, field.name)[:, :JUDGED] for field in fields(TdBatch)))
    objective = [_objective(estimator, log.problem, values, judged)]
    for done in range(epochs):
        released = [
            plan.release((_sum(estimator, log.problem, values, batch, plan, number),))[0] for number in range(runs)
        ]
        values = estimator.stepped(log.problem, values, torch.cat(released), done)
        if (done + 1) % EVERY == 0:
            objective.append(_objective(estimator, log.problem, values, judged))
    scale = log.problem.effective_horizon
    found = scale * network.values(values["theta"], log.starts).mean(1)
    return {
        "noise_multiplier": plan.noise_multiplier,
        "delta": plan.delta,
        "unit": plan.unit,
        "objective": torch.stack(objective).T.tolist(),
        "value": found.tolist(),
        "true_value": log.value,
        "seconds": time.perf_counter() - started,
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout[:12],
        "machine": machine(),
        "command": "python -m benchmarks.quality.dptd_figures",
    }


def _plan(case: Case, problem: Problem, units: int, epochs: int) -> Plan:
    q, delta = COHORT / problem.units, 1 / (10 * units)
    private = case.epsilon is not None
    clip = L2Clip(CLIPPING_NORM if private else float("inf"))
    noise = solve_noise_multiplier(case.epsilon, delta, q, epochs) if case.epsilon is not None else 0.0
    unit = "transition" if case.method == "dptd_transition" else "trajectory"
    return Plan(units, unit, PoissonSampler(q), clip, noise, epochs, delta)


def _sum(
    estimator: Dptd, problem: Problem, values: dict[str, Tensor], batch: TdBatch, plan: Plan, number: int
) -> Tensor:
    """Run ``number``'s sum over a cohort of its own, ``[2d]``."""
    cohort = plan.cohort()
    chosen = TdBatch(*(getattr(batch, field.name)[:, cohort] for field in fields(TdBatch)))
    one = slice(number, number + 1)
    network = estimator.network(problem)
    gradients = network.gradients(values["theta"][one], values["omega"][one], chosen).flatten(1)
    if isinstance(estimator, RecursiveMomentum):
        earlier = network.gradients(values["earlier_theta"][one], values["earlier_omega"][one], chosen).flatten(1)
        gradients = gradients - float(values["kept"]) * earlier
    assert isinstance(plan.clip, L2Clip)
    return plan.clip.finish(gradients.contiguous()).sum(0)


def _objective(estimator: Dptd, problem: Problem, values: dict[str, Tensor], judged: TdBatch) -> Tensor:
    losses = estimator.network(problem).losses(values["theta"], values["omega"], judged)
    return (losses * judged.weight).sum((1, 2)) / JUDGED


def _flat(batch: TdBatch) -> TdBatch:
    """Every transition, and every place of padding, as a unit of its own."""
    parts = {f.name: getattr(batch, f.name).flatten(1, 2)[:, :, None] for f in fields(TdBatch)}
    flat = TdBatch(**parts)
    return replace(flat, weight=(flat.weight > 0).double())


def draw(rows: list[dict[str, Any]], name: str, methods: tuple[str, ...], epsilons: tuple[float, ...]) -> None:
    """The mean over runs and one standard deviation, a panel for each environment."""
    figure = Figure(figsize=(10, 4.5), dpi=120, layout="constrained")
    for axes, environment in zip(figure.subplots(1, len(ENVIRONMENTS)), ENVIRONMENTS, strict=True):
        shown = [
            row
            for row in rows
            if row["environment"] == environment
            and row["method"] in methods
            and (row["epsilon"] is None or row["epsilon"] in epsilons)
        ]
        for color, row in enumerate(shown):
            epsilon, method = row["epsilon"], row["method"]
            curves = torch.tensor(row["objective"])
            mean, deviation = curves.mean(0), curves.std(0)
            label = NAMES[method] + ("" if epsilon is None else f", ε = {epsilon:g}")
            dashed = "--" if method == "dptd_transition" else "-"
            epochs = [EVERY * point for point in range(len(mean))]
            (drawn,) = axes.plot(epochs, mean, dashed, label=label, color=f"C{color}", linewidth=1.2)
            low, high = mean - deviation, mean + deviation
            axes.fill_between(epochs, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
        axes.set(title=environment, xlabel="epoch (5 trajectories)")
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.axes[0].set_ylabel("L(θ, ω)")
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"{name}.png", metadata={"Software": None})


def line(row: dict[str, Any]) -> str:
    """One row in words: the size of the objective at the end, and the error of the value at first states."""
    last = torch.tensor(row["objective"])[:, -1].abs()
    error = (torch.tensor(row["value"]) - row["true_value"]).abs()
    epsilon = "-" if row["epsilon"] is None else f"{row['epsilon']:g}"
    return (
        f"{row['environment']:12} {NAMES[row['method']]:22} ε {epsilon:>4} z {row['noise_multiplier']:7.3f} "
        f"|L| {float(last.mean()):9.2e} ± {float(last.std()):8.1e}  value error {float(error.mean()):6.2f} "
        f"(value {row['true_value']:.2f})  {row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
