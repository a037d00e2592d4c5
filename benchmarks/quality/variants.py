"""Variants and ε side by side over seeds, each a `dvc exp run`; tables of README and docs are printed from the result.

python -m benchmarks.quality.variants --seeds 0 1 2 --epsilons 1.2 0.5 0.25
python -m benchmarks.quality.variants --dataset cartpole-swingup --epsilons 1

Where the dataset measures no score, returns stand in its place. The behaviour's return is the public split's.

Resumable: rows that are already in benchmarks/results/variants.json for this dataset are not run again
(delete the file to start afresh). The workspace is left at the last run: `git checkout params.yaml` and
`dvc repro` bring back its own results, from the cache.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.machine import commit, keep, machine, read
from primorl.config import params
from primorl.data.description import describe
from primorl.evaluate.statistics import MeanInterval
from primorl.privacy.accounting.rounding import at_most

FIGURE = Path("docs/figures/variants.png")
# Pendulum in PriMORL's table 1, K = 30,000: the mean over at least 5 seeds and half its 95% interval.
PAPER = {
    "MOPO": (795.9, 6.5),
    "no privacy": (810.4, 27.5),
    "ε = 22.3": (817.4, 21.7),
    "ε = 5.1": (778.9, 53.5),
}
PENDULUM = "pendulum-replay"
_SPREAD = 0.25  # of the seeds, across their line, so that none hides another


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.2, 0.5, 0.25])
    parser.add_argument("--variants", nargs="+", default=["no_privacy", "private"])
    parser.add_argument(
        "--dataset", help="a file in datasets/; by default the one that params.yaml chooses"
    )
    arguments = parser.parse_args()
    wanted = [(variant, None) for variant in arguments.variants if variant != "private"]
    wanted += [("private", e) for e in arguments.epsilons if "private" in arguments.variants]
    rows = read("variants")
    dataset = arguments.dataset or params.load(Path("params.yaml")).dataset
    for variant, epsilon in wanted:
        for seed in arguments.seeds:
            key = {"dataset": dataset, "variant": variant, "target_epsilon": epsilon, "seed": seed}
            if any(row.items() >= key.items() for row in rows):
                continue
            rows.append(key | run(dataset, variant, epsilon, seed))
            keep("variants", rows)
    of_dataset = [row for row in rows if row["dataset"] == dataset]
    print(table(of_dataset))
    if dataset == PENDULUM:
        draw(of_dataset)


def run(dataset: str, variant: str, epsilon: float | None, seed: int) -> dict[str, Any]:
    """One experiment; what its summary says of it."""
    settings = [f"dataset={dataset}", f"dynamics.variant={variant}", f"seed={seed}"]
    settings += [] if epsilon is None else [f"privacy.target_epsilon={epsilon}"]
    command = [
        "dvc",
        "exp",
        "run",
        "--quiet",
        *(word for setting in settings for word in ("-S", setting)),
    ]
    print("+", *command, flush=True)
    made_by = commit()
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, env=os.environ | {"PATH": binaries})
    summary = json.loads(Path("metrics/summary.json").read_text(encoding="utf-8"))
    kept = (
        "epsilon",
        "epsilon_rdp",
        "delta",
        "units",
        "return_mean",
        "return_ci95",
        "normalized_score",
        "seconds",
    )
    public = describe(Path("data/partitions"))[0]["public"]
    return {name: summary[name] for name in kept} | {
        "behaviour_return": None if public is None else public["return"]["mean"],
        "machine": machine(),
        "commit": made_by,
        "command": " ".join(command),
    }


def _score(row: dict[str, Any]) -> float:
    score: float = (
        row["return_mean"] if row["normalized_score"] is None else row["normalized_score"]
    )
    return score


def grouped(rows: list[dict[str, Any]]) -> dict[tuple[str, float | None], list[dict[str, Any]]]:
    """Rows by variant and target ε."""
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["variant"], row["target_epsilon"]), []).append(row)
    return groups


def draw(rows: list[dict[str, Any]]) -> None:
    """A line for each variant and ε: every seed, and the mean with its 95% interval; the paper's are below ours."""
    groups = grouped(rows)
    names = [
        variant if epsilon is None else f"{variant}, ε = {epsilon:g}" for variant, epsilon in groups
    ]
    figure = Figure(
        figsize=(7, 0.9 + 0.36 * (len(groups) + len(PAPER))), dpi=120, layout="constrained"
    )
    axes = figure.subplots()
    for place, members in enumerate(groups.values()):
        scores = np.array([_score(row) for row in members])
        axes.plot(
            scores,
            place + _SPREAD * np.linspace(-1, 1, len(scores)),
            ".",
            color="C0",
            alpha=0.5,
            label="seed",
        )
        interval = MeanInterval.of(scores)
        _mean(
            axes,
            place,
            interval.mean,
            interval.high - interval.mean,
            color="C0",
            label="mean, 95% interval",
        )
    for place, (score, half) in enumerate(PAPER.values(), len(groups)):
        _mean(axes, place, score, half, color="0.4", label="PriMORL's table 1")
    axes.axhline(len(groups) - 0.5, color="0.8", linewidth=1)
    axes.set_yticks(
        range(len(groups) + len(PAPER)), [*names, *(f"PriMORL, {name}" for name in PAPER)]
    )
    axes.invert_yaxis()
    axes.set(xlabel="normalised score, final policy (δ = 1e-5, per trajectory)")
    axes.grid(axis="x", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(),
        unique.keys(),
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    axes.spines[["top", "right"]].set_visible(False)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Software": None})


def _mean(axes: Axes, place: int, mean: float, half: float, *, color: str, label: str) -> None:
    """One mean with its interval, on the line of its variant."""
    axes.errorbar(
        [mean], [place], xerr=half, fmt="D", color=color, markersize=4, capsize=3, label=label
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for every variant and ε, the seeds' scores and their mean with a 95% interval."""
    lines = [
        "| variant | ε (PLD) | ε (RDP) | score, mean over seeds | each seed |",
        "|---|---|---|---|---|",
    ]
    for (variant, _), members in grouped(rows).items():
        scores = [_score(row) for row in members]
        interval = MeanInterval.of(np.array(scores))
        pld, rdp = (
            "∞" if members[0][k] is None else at_most(members[0][k])
            for k in ("epsilon", "epsilon_rdp")
        )
        digits = 3 if abs(interval.mean) < 10 else 1 if abs(interval.mean) < 100 else 0
        spread = f"{interval.mean:.{digits}f} ± {interval.high - interval.mean:.{digits}f}"
        each = ", ".join(f"{score:.{digits}f}" for score in scores)
        lines.append(f"| `{variant}` | {pld} | {rdp} | {spread} | {each} |")
    if rows[0].get("behaviour_return") is not None:
        lines.append(
            f"| behaviour, in the public split | | | {rows[0]['behaviour_return']:.3g} | |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
