"""Collect simulated datasets whole, as stage `collect` does: wall time, steps a second, and the returns as a figure.

python -m benchmarks.speed.collect pendulum-paper cartpole-swingup-paper cartpole-balance-paper --work FOLDER

Each dataset is collected into a small project of its own, FOLDER/NAME, and stays there; what is there
already is not collected again. The figure shows returns of single trajectories: the data is simulated, nobody's. The
table goes into docs/datasets/replay.md.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.machine import RESULTS, machine
from primorl.config import params
from primorl.trajectories.sources import source_of
from primorl.trajectories.storage.schema import run_starts

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FIGURES = Path("docs/figures").resolve()
PAGE = Path("docs/datasets/replay.md").resolve()


def main() -> None:
    """Collect what is missing; print, draw and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    file = RESULTS / "collect.json"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for name in arguments.names:
        project = arguments.work / name
        if not (project / "cpu.json").exists():
            collect(name, project)
        row, returns = measured(name, project)
        if len(np.unique(returns)) > 2:  # survival, yes or no, needs no figure
            draw(name, returns)
        rows = [other for other in rows if other["dataset"] != name] + [row]
        print(json.dumps(row, indent=2))
    rows.sort(key=lambda row: str(row["dataset"]))
    file.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    begin, rest = PAGE.read_text(encoding="utf-8").split("<!-- collect -->\n")
    _, end = rest.split("<!-- /collect -->")
    PAGE.write_text(f"{begin}<!-- collect -->\n{table(rows)}<!-- /collect -->{end}", encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> str:
    """What was measured, as Markdown."""
    lines = [
        "| dataset | trajectories, steps | wall time | processor time | returns 5% / 50% / 95% / best |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        returns = " / ".join(f"{row['returns'][share]:g}" for share in ("5%", "50%", "95%", "best"))
        size = row["what"].partition(": ")[2]
        minutes = [f"{seconds / 60:.1f} min" for seconds in (row["ours"], row["cpu_seconds"])]
        lines.append(f"| `{row['dataset']}` | {size} | {minutes[0]} | {minutes[1]} | {returns} |")
    return "\n".join(lines) + "\n"


def collect(name: str, project: Path) -> None:
    """Run the stage in ``project``, and keep how much processor time it took."""
    project.mkdir(parents=True, exist_ok=True)
    text = Path("params.yaml").read_text(encoding="utf-8")
    chosen = params.load(Path("params.yaml")).dataset
    assert text.count(f"\ndataset: {chosen}") == 1
    shutil.copytree("datasets", project / "datasets", dirs_exist_ok=True)
    (project / "params.yaml").write_text(text.replace(f"\ndataset: {chosen}", f"\ndataset: {name}"), encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["nice", "-n", "10", sys.executable, "-m", "pipeline.collect"], cwd=project, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (project / "cpu.json").write_text(json.dumps({"cpu_seconds": round(taken, 1)}) + "\n", encoding="utf-8")


def measured(name: str, project: Path) -> tuple[dict[str, object], npt.NDArray[np.float64]]:
    """What was collected in ``project``, and the return of every trajectory in order."""
    entry = params.load(project / "params.yaml").chosen
    sums, steps = [], 0
    for table in source_of(name, entry).open(project / "data/raw").tables():
        starts = run_starts(table["trajectory_id"])
        sums.append(np.add.reduceat(table["reward"].to_numpy().astype(np.float64), starts))
        steps += table.num_rows
    returns = np.concatenate(sums)
    seconds = json.loads((project / "metrics/seconds/collect.json").read_text(encoding="utf-8"))["seconds"]
    return {
        "dataset": name,
        "what": f"collect {name}: {len(returns)} trajectories, {steps} steps",
        "ours": seconds,
        "peer": None,
        "ratio": None,
        "unit": "s",
        "cpu_seconds": json.loads((project / "cpu.json").read_text(encoding="utf-8"))["cpu_seconds"],
        "returns": {f"{share:.0%}": round(float(np.quantile(returns, share)), 2) for share in QUANTILES}
        | {"mean": round(float(returns.mean()), 2), "best": round(float(returns.max()), 2)},
        "options": params.plain(entry.options),
        "machine": machine(),
        "command": f"python -m benchmarks.speed.collect {name} --work FOLDER",
    }, returns


def draw(name: str, returns: npt.NDArray[np.float64]) -> None:
    """Returns as a histogram, and in the order in which they were collected."""
    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert isinstance(left, Axes)
    assert isinstance(right, Axes)
    left.hist(returns, bins=60, color="tab:blue")
    left.set_xlabel("return of a trajectory")
    left.set_ylabel("trajectories")
    right.plot(np.arange(len(returns)), returns, ",", color="tab:blue", alpha=max(0.05, min(1.0, 3000 / len(returns))))
    right.set_xlabel("trajectory, in the order of the runs")
    right.set_ylabel("return")
    figure.suptitle(f"{name} ({len(returns):,} simulated trajectories)", fontsize="medium")
    figure.savefig(FIGURES / f"returns-{name}.png", dpi=110)


if __name__ == "__main__":
    main()
