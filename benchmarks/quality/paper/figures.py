"""Figures 2 to 6 and F.1 of PriMORL and 2, 6 and 8 of DPPG, from kept rows.

python -m benchmarks.quality.paper.figures

Bands are 95% intervals of Student's t over seeds, drawn where there are at least three. PriMORL's
Figure 6 has no rows: it is the accountant's, at ε 1, 10 and 100.
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.quality.paper import grids, report, rows
from benchmarks.quality.paper.rows import Row
from primorl.evaluate.summary import Estimate
from primorl.privacy.accounting.epsilon import Training, gaussian_mean, rdp_epsilon
from research.rows import FIGURES, read

DELTA = 1e-5
TASKS = {"pendulum": "Pendulum", "balance": "Balance", "swingup": "Swingup"}
MEASURES = {"max_aleatoric": "u_MA", "max_pairwise_difference": "u_MPD"}
RATIOS, EPSILONS = (1e-4, 1e-3, 1e-2), (1, 10, 100)
MULTIPLIERS = np.geomspace(0.3, 3.0, 12)
_MOST_ROUNDS = 1 << 17


def learning_curves(found: Sequence[Row]) -> Figure:
    """PriMORL's Figure 2: return after each epoch of the policy, by row of table 1."""
    figure = panels(len(TASKS))
    for axes, (task, title) in zip(figure.subplots(1, len(TASKS)), TASKS.items(), strict=True):
        band(axes, curves_of_mopo(task), "MOPO")
        for case in ("No Privacy", "Low", "High", "Ours"):
            own = [
                row["curve"]
                for row in found
                if row["case"] == case and row["sweep"] in (f"table-{task}", f"regime-{task}")
            ]
            band(axes, own, case)
        finish(axes, title, "share of the policy's training", "return")
    return figure


def curves_of_mopo(task: str) -> list[list[float]]:
    """MOPO's returns on the way, on the log of a task's table."""
    return [row["curve"] for row in report.mopo() if row["dataset"] == report.TASKS[task]]


def uncertainties(found: Sequence[Row]) -> Figure:
    """PriMORL's Figure 3: return under two measures of uncertainty in one model."""
    asked = {
        task: [row for row in found if row["sweep"] == f"uncertainty-{task}"] for task in TASKS
    }
    shown = {task: own for task, own in asked.items() if own}
    figure = panels(len(shown))
    for axes, (task, own) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
        for row in sorted(own, key=lambda row: str(row["settings"])):
            settings = json.loads(row["settings"])
            name = f"{MEASURES[settings['policy.uncertainty']]}, λ {settings['policy.penalty']:g}"
            axes.bar([name], [float(np.mean(row["curve"][-10:]))], color="0.6")
        finish(axes, f"{TASKS[task]}, one model", "", "mean return of the last 10 epochs")
    return figure


def return_by_epsilon(found: Sequence[Row]) -> Figure:
    """PriMORL's Figure 4: return against ε, the paper's regime, ours, and nobody public; bars are
    the lowest and the highest of the runs. Failed runs are not there.
    """
    figure = panels(len(TASKS))
    for axes, (task, title) in zip(figure.subplots(1, len(TASKS)), TASKS.items(), strict=True):
        nobody = "nobody public, networks" if task == "pendulum" else "nobody public"
        shown = {
            "the paper's regime": (f"frontier-{task}", "Paper's regime"),
            "ours, 1% public": (f"frontier-{task}", "Ours"),
            nobody: (f"nobody-{task}", None),
        }
        for label, (sweep, case) in shown.items():
            if task == "pendulum" and case is None:
                sweep = "nobody-pendulum-least"  # the other one has a tenth of the trajectories
            points: dict[float, list[float]] = {}
            for row in found:
                value = grids.score(row)
                named = row["sweep"] == sweep or (case is None and row["sweep"] == f"{sweep}-least")
                if named and value is not None and case in (None, row["case"]):
                    points.setdefault(float(f"{row['epsilon']:.2g}"), []).append(value)
            ends = sorted(points)
            means = np.array([np.mean(points[e]) for e in ends])
            low = means - [min(points[e]) for e in ends]
            high = [max(points[e]) for e in ends] - means
            axes.errorbar(ends, means, (low, high), marker="o", capsize=3, label=label)
        axes.set_xscale("log")
        finish(axes, title, "ε of a trajectory (PLD, δ 1e-5)", "return, or Pendulum's score")
    return figure


def halfcheetah(found: Sequence[Row]) -> Figure:
    """PriMORL's Figure 5: HalfCheetah, return after each epoch."""
    panels_of = {
        "one recorded run, 10% public": ("table-halfcheetah",),
        "two policies in equal parts": ("regime-halfcheetah", "nobody-halfcheetah"),
    }
    figure = panels(len(panels_of))
    for axes, (title, sweeps) in zip(figure.subplots(1, 2), panels_of.items(), strict=True):
        if "regime-halfcheetah" in sweeps:
            band(axes, curves_of_mopo("halfcheetah"), "MOPO")
        curves: dict[str, list[list[float]]] = {}
        for row in found:
            if row["sweep"] in sweeps and row["curve"]:
                spent = "" if row["epsilon"] is None else f", ε {row['epsilon']:.2g}"
                curves.setdefault(f"{row['case']}{spent}", []).append(row["curve"])
        for label, own in curves.items():
            band(axes, own, label)
        finish(axes, title, "share of the policy's training", "return")
    return figure


def returns_of_logs() -> Figure:
    """PriMORL's Figure F.1: returns of the logs' trajectories; boxes are quartiles, whiskers 5% and
    95%.
    """
    own = [row for row in read("nulls") if "log" in row]
    figure = panels(len(own))
    for axes, row in zip(figure.subplots(1, len(own)), own, strict=True):
        low, first, median, third, high = row["quantiles"]
        box = {"whislo": low, "q1": first, "med": median, "q3": third, "whishi": high}
        axes.bxp([box], showfliers=False)
        axes.set_xticks([])
        finish(axes, row["log"], "", "return of a trajectory")
    return figure


def most_rounds() -> Figure:
    """PriMORL's Figure 6: the most rounds within ε against z, by q."""
    figure = panels(len(EPSILONS))
    for axes, epsilon in zip(figure.subplots(1, len(EPSILONS)), EPSILONS, strict=True):
        for q in RATIOS:
            most = [rounds_within(epsilon, q, float(z)) for z in MULTIPLIERS]
            axes.plot(MULTIPLIERS, most, label=f"q {q:g}")
        axes.set(xscale="log", yscale="log")
        finish(axes, f"ε {epsilon} (RDP)", "noise multiplier z", "most rounds T")
    return figure


def rounds_within(epsilon: float, q: float, z: float) -> float:
    """Find the most rounds within ε by the paper's accountant, up to 131,072; NaN: not one."""
    low, high = 0, _MOST_ROUNDS
    while low < high:
        middle = (low + high + 1) // 2
        inside = rdp_epsilon(Training(q, z, middle).event, DELTA)[0] <= epsilon
        low, high = (middle, high) if inside else (low, middle - 1)
    return low or math.nan


def online_returns(found: Sequence[dict[str, Any]], against: str) -> Figure:
    """DPPG's Figures 2 and 6: return of the last policy against ε or z, beside its nulls."""
    tasks = ("CartPole", "Acrobot")
    figure = panels(len(tasks))
    for axes, task in zip(figure.subplots(1, len(tasks)), tasks, strict=True):
        own = [row for row in found if (row["task"], row["method"]) == (task, "DPPG")]
        points: dict[float, list[float]] = {}
        for row in own:
            if row["row"] == "strict":
                z = 1 / gaussian_mean(row["epsilon"], DELTA)
                place = row["epsilon"] if against == "ε" else round(z, 2)
                points.setdefault(place, []).append(row["drawn"])
        ends = sorted(points)
        means = [np.mean(points[end]) for end in ends]
        spread = [np.std(points[end], ddof=1) for end in ends]
        axes.errorbar(ends, means, spread, marker="o", capsize=3, label="mean, standard deviation")
        for kind, style in (("no noise", ":"), ("noise alone", "--")):
            level = np.mean([row["drawn"] for row in own if row["row"] == kind])
            axes.axhline(level, color="0.4", linestyle=style, label=kind)
        axes.set_xscale("log")
        axes.set_xticks(ends, [f"{end:.2g}" for end in ends])
        axes.xaxis.set_minor_locator(NullLocator())
        name = "ε of a user (δ 1e-5)" if against == "ε" else "noise multiplier z"
        finish(axes, task, name, "return of the last policy")
    return figure


def online_curves(found: Sequence[dict[str, Any]]) -> Figure:
    """DPPG's Figure 8: return against users, on all environments."""
    tasks = ("CartPole", "Acrobot", "HalfCheetah", "Hopper", "Dosing-0", "Dosing-1")
    figure = Figure(figsize=(12, 7), dpi=100, layout="constrained")
    for axes, task in zip(figure.subplots(2, 3).flat, tasks, strict=True):
        own = [
            row
            for row in found
            if row["task"] == task and row["method"] == "DPPG" and row["row"] == "strict"
        ]
        for budget in dict.fromkeys(row["budget"] for row in own):
            curves = [row["curve"] for row in own if row["budget"] == budget and row["curve"]]
            band(axes, [[value for _, value in curve] for curve in curves], budget)
        finish(axes, task, "share of the users", "return")
    return figure


def panels(count: int) -> Figure:
    """Make an empty figure for so many panels side by side."""
    return Figure(figsize=(1 + 4 * count, 4), dpi=100, layout="constrained")


def band(axes: Axes, curves: Iterable[Sequence[float]], label: str) -> None:
    """Draw the mean of curves of one length and its 95% interval; nothing where there is none."""
    kept = [list(curve) for curve in curves if curve]
    if not kept:
        return
    length = max(map(len, kept))
    values = np.array([curve for curve in kept if len(curve) == length])
    share = np.arange(1, length + 1) / length
    (line,) = axes.plot(share, values.mean(0), label=f"{label} ({len(values)})")
    if len(values) >= 3:
        found = [Estimate.of(column) for column in values.T]
        axes.fill_between(
            share,
            [each.low for each in found],
            [each.high for each in found],
            color=line.get_color(),
            alpha=0.15,
            linewidth=0,
        )


def finish(axes: Axes, title: str, x: str, y: str) -> None:
    """Name a panel and its axes."""
    axes.set(title=title, xlabel=x, ylabel=y)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def main() -> None:
    """Draw all."""
    kept = [row for row in grids.results(rows.read()) if row["status"] == "finished"]
    online = read("online")
    drawn = {
        "primorl_figure2": learning_curves(kept),
        "primorl_figure3": uncertainties(kept),
        "primorl_figure4": return_by_epsilon(kept),
        "primorl_figure5": halfcheetah(kept),
        "primorl_figure6": most_rounds(),
        "primorl_returns": returns_of_logs(),
        "dppg_figure2": online_returns(online, "ε"),
        "dppg_figure6": online_returns(online, "z"),
        "dppg_figure8": online_curves(online),
    }
    for name, figure in drawn.items():
        figure.savefig(FIGURES / f"{name}.png")


if __name__ == "__main__":
    main()
