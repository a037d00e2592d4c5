"""Draw the figures of docs/results.md: the frontier, and the paper's figures 2, 3 and 6."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from benchmarks.quality.paper import budgets, results, sheets
from benchmarks.quality.paper.published import TASKS, Task
from benchmarks.quality.paper.results import MOPO, OURS, PAPER_REGIME, Estimate
from benchmarks.quality.paper.rows import Row
from primorl.privacy.accounting.rounding import at_most

FIGURES = Path("docs/figures")
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_RETURN = {
    "Pendulum": "normalised score",
    "Balance": "return",
    "Swingup": "return",
    "HalfCheetah": "return",
}
_COLOURS = {PAPER_REGIME: "C1", OURS: "C0"}
_CASES = {
    MOPO: ("MOPO", "black"),
    "No Clip": ("paper's regime, no clip", "C4"),
    "No Privacy": ("paper's regime, no noise", "C2"),
    "Low": ("paper's regime, Low", "C1"),
    "High": ("paper's regime, High", "C3"),
    OURS: ("ours, at the target", "C0"),
}
"""Lines of figure 2: their words and colours."""
_FAILED = "runs that failed"
_UNCERTAINTIES = {"max_aleatoric": "u_MA", "max_pairwise_difference": "u_MPD"}


def draw(rows: Sequence[Row]) -> None:
    """Draw every figure that has something to show."""
    for name, figure in (
        ("frontier", frontier(rows)),
        ("learning-curves", learning_curves(rows)),
        ("uncertainty", uncertainty(rows)),
        ("budgets", round_budgets()),
    ):
        if figure is not None:
            FIGURES.mkdir(parents=True, exist_ok=True)
            figure.savefig(FIGURES / f"paper-{name}.png", metadata={"Software": None})


def frontiers(task: Task) -> Iterator[tuple[str, str]]:
    """K, as it is written, and the name of the sweep of each frontier of a task."""
    for place, units in enumerate(task.datasets):
        yield units, f"frontier-{task.slug}" + ("" if place == 0 else f"-{units.replace(',', '')}")


def frontier(rows: Sequence[Row]) -> Figure | None:
    """Return against ε, both regimes at both sizes, with what does not depend on ε as lines and the paper's points."""
    tasks = [task for task in TASKS if any(results.of(rows, sweep) for _, sweep in frontiers(task))]
    if not tasks:
        return None
    figure, panels = _panels(len(tasks), columns=2, height=4.4)
    sizes = _sizes(rows, tasks)
    for task, axes in zip(tasks, panels, strict=True):
        for place, (_, sweep) in enumerate(frontiers(task)):
            for case, colour in _COLOURS.items():
                style = ("-", "o") if place == 0 else ("--", "s")
                _line(
                    axes,
                    results.of(rows, sweep, case),
                    f"{case.lower()}, {sizes[place]}",
                    colour,
                    style,
                )
        _constants(axes, rows, task)
        for name, point in task.published.items():
            if point.epsilon is not None:
                place = (point.epsilon, point.mean)
                label = "PriMORL, table 1 (ε by RDP)"
                axes.errorbar(
                    *place, point.half, fmt="D", color="0.35", capsize=3, markersize=5, label=label
                )
                axes.annotate(
                    name,
                    place,
                    xytext=(5, -13),
                    textcoords="offset points",
                    color="0.35",
                    fontsize=9,
                )
        _epsilon_axis(axes)
        axes.set(
            title=task.name, xlabel="ε of a trajectory (PLD, δ = 1e-5)", ylabel=_RETURN[task.name]
        )
    _legend(figure, panels)
    return figure


def _sizes(rows: Sequence[Row], tasks: Sequence[Task]) -> list[str]:
    """K of the solid and of the dashed lines, with the tasks that have another one in brackets."""
    drawn: list[dict[str, list[str]]] = [{}, {}]
    for task in tasks:
        for place, (units, sweep) in enumerate(frontiers(task)):
            if results.of(rows, sweep):
                drawn[place].setdefault(units, []).append(task.name)
    return [_size(by_units) for by_units in drawn]


def _size(by_units: dict[str, list[str]]) -> str:
    usual = max(by_units, key=lambda units: len(by_units[units]), default="")
    others = [
        f"{' and '.join(names)} {units}" for units, names in by_units.items() if units != usual
    ]
    return f"K = {usual}" + (f" ({', '.join(others)})" if others else "")


def _line(axes: Axes, rows: Sequence[Row], label: str, colour: str, style: tuple[str, str]) -> None:
    """IQM at every ε, its interval as a band."""
    points: dict[float, Estimate] = {}
    failed = [
        epsilon
        for row in rows
        if row["status"] == "failed" and (epsilon := results.target(row)) is not None
    ]
    if failed:
        foot = axes.get_xaxis_transform()
        axes.plot(
            failed,
            [0.02] * len(failed),
            "x",
            color=colour,
            transform=foot,
            clip_on=False,
            label=_FAILED,
        )
    for epsilon in results.epsilons(rows):
        scores = results.finals(row for row in rows if results.target(row) == epsilon)
        if scores:
            points[epsilon] = results.iqm(scores)
    if not points:
        return
    across, found = list(points), list(points.values())
    axes.plot(
        across,
        [own.value for own in found],
        style[0],
        marker=style[1],
        markersize=4,
        color=colour,
        label=label,
    )
    several = [
        (x, own.low, own.high) for x, own in points.items() if np.isfinite(own.low)
    ]  # one run has no interval
    if several:
        axes.fill_between(*zip(*several, strict=True), color=colour, alpha=0.15, linewidth=0)
        axes.vlines(*zip(*several, strict=True), color=colour, linewidth=1.5)


def _constants(axes: Axes, rows: Sequence[Row], task: Task) -> None:
    """MOPO and the behaviour on the larger dataset, as lines."""
    mopo = results.finals(results.of_table(rows, task.slug, MOPO))
    if mopo:
        axes.axhline(
            results.iqm(mopo).value, color="black", linestyle=":", label="our MOPO, not private"
        )
    dataset = next(iter(task.datasets.values()))
    known = [
        row["behaviour"]
        for row in rows
        if row["dataset"] == dataset and row["behaviour"] is not None
    ]
    if known:
        label = "behaviour, mean of the public split"
        axes.axhline(sheets.score(dataset, known[0]), color="0.6", linestyle="-.", label=label)


def learning_curves(rows: Sequence[Row]) -> Figure | None:
    """The paper's figure 2: score after each epoch, a line for each case."""
    tasks = [task for task in TASKS if results.curves(results.of_table(rows, task.slug))]
    if not tasks:
        return None
    figure, panels = _panels(len(tasks), columns=2, height=4.0)
    for task, axes in zip(tasks, panels, strict=True):
        for case, (label, colour) in _CASES.items():
            found = results.curves(results.of_table(rows, task.slug, case))
            if not found:
                continue
            by_epoch = [results.iqm(column) for column in zip(*found, strict=True)]
            epochs = np.arange(1, len(by_epoch) + 1)
            axes.plot(epochs, [own.value for own in by_epoch], color=colour, label=label)
            if len(found) > 1:
                low, high = [own.low for own in by_epoch], [own.high for own in by_epoch]
                axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        own = results.of_table(rows, task.slug, OURS)
        begins = ": ours begins as the private clone" if own and all(map(_from_clone, own)) else ""
        axes.set(title=f"{task.name}{begins}", xlabel="epoch of SAC", ylabel=_RETURN[task.name])
    _legend(figure, panels)
    return figure


def _from_clone(row: Row) -> bool:
    """Whether the run's policy began with the weights of a clone, which has to be of its size."""
    chosen = results.settings(row)
    sizes = chosen.get("behaviour.hidden"), chosen.get("policy.hidden")
    return (
        chosen.get("behaviour.target_epsilon") is not None
        and sizes[0] is not None
        and sizes[0] == sizes[1]
    )


def uncertainty(rows: Sequence[Row]) -> Figure | None:
    """The paper's figure 3: u_MA against u_MPD in one fixed model, each policy and the IQM."""
    tasks = [task for task in TASKS if results.of(rows, f"uncertainty-{task.slug}")]
    if not tasks:
        return None
    figure, panels = _panels(len(tasks), columns=3, height=3.8)
    for task, axes in zip(tasks, panels, strict=True):
        labels: list[str] = []
        own = results.of(rows, f"uncertainty-{task.slug}")
        for row in sorted(own, key=_choice):
            penalty, name = _choice(row)
            scores = results.finals(
                [row | {"return_final": value} for value in row["returns_by_seed"]]
            )
            if not scores:
                continue
            found, place = results.iqm(scores), len(labels)
            colour = "C0" if name == "u_MA" else "C1"
            axes.plot([place] * len(scores), scores, "o", color=colour, alpha=0.35, markersize=5)
            if np.isfinite(found.low):
                axes.plot([place, place], [found.low, found.high], color=colour, linewidth=2)
            axes.plot([place], [found.value], "D", color=colour, markersize=8)
            labels.append(f"{name}\nλ = {penalty:g}")
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.set(title=f"{task.name}, ε {_spent(own)}", ylabel=_RETURN[task.name])
    return figure


def _choice(row: Row) -> tuple[float, str]:
    settings = results.settings(row)
    return float(settings["policy.penalty"]), _UNCERTAINTIES[settings["policy.uncertainty"]]


def _spent(rows: Sequence[Row]) -> str:
    known = [row["epsilon"] for row in rows if row["epsilon"] is not None]
    return at_most(max(known)) if known else "∞"


def round_budgets() -> Figure | None:
    """The paper's figure 6: the largest T within an ε against z, a line for each q."""
    points = budgets.read()
    if not points:
        return None
    figure, panels = _panels(len(budgets.EPSILONS), columns=3, height=3.8)
    for axes, epsilon in zip(panels, budgets.EPSILONS, strict=True):
        for place, probability in enumerate(budgets.PROBABILITIES):
            line = [
                (point["noise_multiplier"], point["rounds"])
                for point in points
                if (point["epsilon"], point["sampling_probability"]) == (epsilon, probability)
            ]
            if line:
                axes.plot(
                    *zip(*line, strict=True),
                    "o-",
                    markersize=4,
                    color=f"C{place}",
                    label=f"q = {probability:g}",
                )
        axes.set(
            xscale="log",
            yscale="log",
            title=f"ε ≤ {epsilon:g}",
            xlabel="noise multiplier z",
            ylabel="largest T",
        )
        axes.set_ylim(0.7, 2 * budgets.MOST)
        _plain_ticks(axes, [2.0**power for power in range(-1, 7)])
    _legend(figure, panels)
    return figure


def _panels(count: int, *, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = Figure(
        figsize=({1: 8, 2: 12.5, 3: 13.5}[columns], height * lines), dpi=110, layout="constrained"
    )
    every = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in every[count:]:
        axes.remove()
    for axes in every[:count]:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, every[:count]


def _epsilon_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xlim(TICKS[0] / 1.25, TICKS[-1] * 1.25)
    _plain_ticks(axes, TICKS)


def _plain_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    axes.xaxis.set(major_locator=FixedLocator(list(ticks)), minor_locator=NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One for all panels, below them."""
    lines = {
        label: line
        for axes in panels
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = 4 if figure.get_figwidth() > 12 else 2
    figure.legend(
        lines.values(),
        lines.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
    )
