"""The tables of online learning as Markdown, and its figures, from benchmarks/results/online.json.

python -m benchmarks.quality.online.report

Figures are means over seeds with their 95% intervals by Student's t; the final policy counts, never the best one on the
way. Draws docs/figures/online-return-by-epsilon.png and docs/figures/online-learning-curves.png.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy import stats

from benchmarks.quality.online.__main__ import read
from benchmarks.quality.online.cases import CASES
from benchmarks.quality.online.runs import Row

FIGURES, DOCUMENT = Path("docs/figures"), Path("docs/online-results.md")
TICKS = (0.1, 0.2, 0.5, 1, 2, 5)
FEWEST = 5
"""Seeds that a point of a figure has at least."""
PUBLISHED = {
    ("A", "CartPole", "PG", "–"): "334.4 ± 25.3",
    ("A", "CartPole", "DP-PG", "ε 3"): "143.9 ± 22.9",
    ("A", "CartPole", "DP-PG", "ε 5"): "190.3 ± 52.9",
    ("A", "CartPole", "NPG", "–"): "492.9 ± 10.0",
    ("A", "CartPole", "DP-NPG", "ε 3"): "400.9 ± 65.4",
    ("A", "CartPole", "DP-NPG", "ε 5"): "478.7 ± 28.1",
    ("B", "CartPole", "DPPG", "z 1"): "496.4 ± 6.6",
    ("B", "CartPole", "DPPG", "z 3"): "375.5 ± 86.7",
    ("B", "Acrobot", "DPPG", "z 1"): "-83.0 ± 4.4",
    ("B", "Acrobot", "DPPG", "z 3"): "-89.8 ± 7.6",
    ("B", "HalfCheetah", "DPPG", "z 0.05"): "1548.9 ± 399.1",
    ("B", "HalfCheetah", "DPPG", "z 0.1"): "1328.4 ± 306.5",
    ("B", "Hopper", "DPPG", "z 0.05"): "645.0 ± 176.4",
    ("B", "Hopper", "DPPG", "z 0.1"): "808.9 ± 321.7",
    ("B", "Dosing-0", "DPPG", "z 0.1"): "109.9 ± 4.8",
    ("B", "Dosing-0", "DPPG", "z 0.5"): "17.2 ± 57.6",
    ("B", "Dosing-1", "DPPG", "z 0.1"): "20.7 ± 53.4",
    ("B", "Dosing-1", "DPPG", "z 0.5"): "-24.9 ± 58.8",
}
"""The papers' means and standard deviations over seeds; private policy optimisation, Table 1, and DPPG, Table 1."""
_HEAD = (
    *("task", "method", "budget", "the paper's", "our `paper` mode", "strict, drawn", "strict, greedy"),
    *("ε (PLD)", "users", "non-private twin", "PPO", "A2C"),
)


def put(name: str, content: str) -> None:
    """Put a table into the page, between its marks."""
    page = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = page.partition(f"<!-- {name} -->\n")
    after = rest.partition(f"<!-- /{name} -->")[2]
    DOCUMENT.write_text(f"{before}<!-- {name} -->\n{content}\n<!-- /{name} -->{after}", encoding="utf-8")


def main() -> None:
    """Print the tables and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also put the tables into docs/online-results.md")
    write, rows = parser.parse_args().write, current(read())
    for name in ("A", "B"):
        print(f"Table {name}\n\n{table(rows, name)}\n")
        if write:
            put(name, table(rows, name))
    print(f"Settings\n\n{settings(rows)}")
    by_epsilon(rows, FIGURES / "online-return-by-epsilon.png")
    curves(rows, FIGURES / "online-learning-curves.png")


def current(rows: list[Row]) -> list[Row]:
    """Rows that were made with today's settings, in the order of the cases."""
    return [row for case in CASES for row in rows if row.items() >= case.key.items()]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95% interval; infinite of one value."""
    if len(values) < 2:
        return float(np.mean(values)), float("inf")
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return float(np.mean(values)), float(half)


def table(rows: list[Row], name: str) -> str:
    """Markdown of one table: a line for each task, method and budget."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|---" * len(_HEAD) + "|"]
    ours = [row for row in rows if row["column"] != "stable-baselines3" and row["table"] == name]
    for place in dict.fromkeys(_place(row) for row in ours):
        own = [row for row in ours if _place(row) == place]
        strict, twin = ([row for row in own if row["column"] == column] for column in ("strict", "twin"))
        peers = [row for row in rows if row["column"] == "stable-baselines3" and row["task"] == place[1]]
        # The twin has no budget: it stands beside every budget of its method, DP-PG's under the name PG.
        names = place[2], place[2].removeprefix("DP-")
        twin = twin or [
            row for row in ours if row["column"] == "twin" and row["task"] == place[1] and row["method"] in names
        ]
        cells: tuple[str, ...] = (
            *(place[1], place[2], place[3], PUBLISHED.get(place, "–")),
            _cell([row for row in own if row["column"] == "paper"], "drawn"),
            _cell(strict, "drawn"),
            _cell(strict, "greedy"),
            f"{strict[0]['epsilon']:.3g}" if strict else "–",
            f"{(strict or own)[0]['users']:,}",
            _cell(twin, "drawn"),
            *(_cell([row for row in peers if row["method"] == peer], "drawn") for peer in ("PPO", "A2C")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def settings(rows: list[Row]) -> str:
    """Markdown: what every method was run with."""
    lines = ["| table | task | method | column | setting | seeds | seconds a run |", "|---" * 7 + "|"]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        setting = {name: value for name, value in row["setting"].items() if name != "noise_multiplier"}
        names = (row["table"], row["task"], row["method"], row["column"], _said(setting))
        groups.setdefault(names, []).append(row)
    for names, own in groups.items():
        seconds = np.median([row["seconds"] for row in own])
        lines.append(f"| {' | '.join(names)} | {len({row['seed'] for row in own})} | {seconds:.1f} |")
    return "\n".join(lines)


def _said(setting: Row) -> str:
    update = {name: value for name, value in setting.get("update", {}).items() if name not in {"name", "guarantee"}}
    users = {name: value for name, value in setting.items() if name != "update"}
    parts = [
        ", ".join(f"{name} {value}" for name, value in part.items() if value is not None) for part in (users, update)
    ]
    return "; update: ".join(part for part in parts if part)


def _place(row: Row) -> tuple[str, str, str, str]:
    return row["table"], row["task"], row["method"], row["budget"]


def _cell(rows: list[Row], how: str) -> str:
    if not rows:
        return "–"
    mean, half = interval([row[how]["mean"] for row in rows])
    return f"{mean:.1f} ± {half:.1f} ({len(rows)})" if len(rows) > 1 else f"{mean:.1f} (1)"


def by_epsilon(rows: list[Row], file: Path) -> None:
    """Return against ε of the strict runs, a panel for each task."""
    figure, panels = _panels("ε of a user (δ 1e-5)", "return of the final policy")
    for task, panel in panels.items():
        own = [row for row in rows if row["task"] == task and row["column"] == "strict"]
        for method in sorted({row["method"] for row in own}):
            points = {}
            for budget in {row["budget"] for row in own if row["method"] == method}:
                same = [row for row in own if (row["method"], row["budget"]) == (method, budget)]
                if len(same) >= FEWEST:
                    points[same[0]["epsilon"]] = interval([row["drawn"]["mean"] for row in same])
            if not points:
                continue
            shown = sorted(points)
            means, halves = (np.array([points[epsilon][part] for epsilon in shown]) for part in (0, 1))
            panel.errorbar(shown, means, halves, marker="o", capsize=3, label=method)
        for name in ("PPO", "A2C"):
            peers = [row["drawn"]["mean"] for row in rows if row["task"] == task and row["method"] == name]
            if peers:
                style, color = ("-.", "grey") if name == "A2C" else (":", "black")
                level = float(np.mean(peers))
                panel.axhline(level, linestyle=style, color=color, label=f"{name}, not private")
        panel.set_xscale("log")
        panel.xaxis.set(major_locator=FixedLocator(TICKS), minor_locator=NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _saved(figure, panels, file)


def curves(rows: list[Row], file: Path) -> None:
    """Return against users so far of the runs at ε 1, a panel for each task."""
    figure, panels = _panels("users so far", "return, drawn actions")
    for task, panel in panels.items():
        own = [row for row in rows if row["task"] == task and row["budget"] == "ε 1" and row["column"] == "strict"]
        for method in sorted({row["method"] for row in own}):
            same = [np.array(row["curve"]) for row in own if row["method"] == method]
            if len(same) < FEWEST:
                continue
            found = [interval(list(column)) for column in np.stack([curve[:, 1] for curve in same], 1)]
            means, halves = np.array(found).T
            panel.plot(same[0][:, 0], means, label=f"{method}, strict, ε 1")
            panel.fill_between(same[0][:, 0], means - halves, means + halves, alpha=0.2)
    _saved(figure, panels, file)


def _saved(figure: Figure, panels: dict[str, Axes], file: Path) -> None:
    for panel in panels.values():
        if panel.get_legend_handles_labels()[0]:
            # below the axes: no corner is free of data in every panel
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize=9)
    figure.savefig(file, dpi=120)


def _panels(across: str, up: str) -> tuple[Figure, dict[str, Axes]]:
    figure = Figure(figsize=(11, 5.0), layout="constrained")
    panels: dict[str, Axes] = dict(zip(("CartPole", "Acrobot"), figure.subplots(1, 2), strict=True))
    for task, panel in panels.items():
        panel.set(title=task, xlabel=across, ylabel=up)
        panel.grid(alpha=0.3)
    return figure, panels


if __name__ == "__main__":
    main()
