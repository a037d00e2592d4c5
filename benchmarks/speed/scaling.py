"""How a private round's time and memory grow with the cohort, the ensemble and the trajectories.

python -m benchmarks.speed.scaling

One thread. Time: median over rounds of all sizes in turn. Memory: what a round adds at its peak to a fresh process that
holds the data. The peer of a size is the time it would take if time grew in proportion from the smallest: with the
number of units, members and transitions, and with the parameters, of which there are some as many as width squared.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

import torch

from benchmarks.machine import RESULTS, interleaved, machine, write
from benchmarks.speed.fixed_round import FixedRound
from primorl.attacks.units import Units

FIGURE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "scaling.png"
BASE = FixedRound(members=3, width=64, transitions=200, cohort=100)
SWEEPS = {
    "cohort": ("cohort qK", [30, 100, 300, 1000, 3000]),
    "members": ("members N", [1, 3, 5, 10]),
    "width": ("width of two hidden layers", [32, 64, 128, 256]),
    "transitions": ("transitions T", [50, 200, 1000]),
}
REPEATS = 5


def main() -> None:
    """Measure, keep the figures, draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-of", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory_of:
        print(growth(FixedRound(*arguments.memory_of)))
        return
    if not arguments.draw:
        write("scaling", [row for what in SWEEPS for row in sweep(what)])
    draw(json.loads((RESULTS / "scaling.json").read_text(encoding="utf-8")))


def sweep(what: str) -> list[dict[str, object]]:
    """Rows of all sizes of one kind."""
    sizes = [replace(BASE, **{what: value}) for value in SWEEPS[what][1]]
    times = interleaved([_round(size) for size in sizes], REPEATS)
    rows: list[dict[str, object]] = []
    for size, seconds in zip(sizes, times, strict=True):
        linear = times[0] * work(size) / work(sizes[0])
        common = {"sweep": what, "value": getattr(size, what), "machine": machine()}
        common["command"] = "python -m benchmarks.speed.scaling"
        rows.append(
            {
                "what": f"private round by {what}: {size.name}",
                "ours": seconds,
                "peer": linear,
                "peer_name": "in proportion from the smallest",
                "ratio": linear / seconds,
                "unit": "s",
                **common,
            }
        )
        rows.append(
            {
                "what": f"memory of a private round by {what}: {size.name}",
                "ours": memory(size),
                "peer": None,
                "ratio": None,
                "unit": "MiB",
                **common,
            }
        )
    return rows


def work(size: FixedRound) -> int:
    """What time should grow with."""
    return size.cohort * size.transitions * size.shape.parameters


def _round(size: FixedRound) -> object:
    source, plan, weights = size.source(), size.plan, size.weights
    rounds = size.rounds(source)
    return lambda: plan.release(rounds.sum(weights, last=True))


def memory(size: FixedRound) -> float:
    """Of a round, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed.scaling", "--memory-of", json.dumps(astuple(size)[:4])]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def growth(size: FixedRound) -> float:
    """MiB that a round adds at its peak to what this process holds (Linux)."""
    source, plan, weights = size.source(), size.plan, size.weights
    few = Units(source.inputs[:1, :32], source.targets[:1, :32])  # libraries take their memory at the first use
    replace(size, cohort=1, transitions=32).rounds(few).sum(weights, last=True)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins anew
    before = _kilobytes("VmRSS")
    plan.release(size.rounds(source).sum(weights, last=True))
    return (_kilobytes("VmHWM") - before) / 1024


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def draw(rows: Sequence[dict[str, object]]) -> None:
    """Time and memory of each sweep, and the lines that are in proportion."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(2, len(SWEEPS), figsize=(12, 5), sharex="col", layout="constrained")
    for (above, below), (what, (label, values)) in zip(axes.T, SWEEPS.items(), strict=True):
        mine = [row for row in rows if row["sweep"] == what]
        times = [row for row in mine if row["unit"] == "s"]
        above.loglog(values, [row["peer"] for row in times], "--", color="0.6", label="in proportion")
        above.loglog(values, [row["ours"] for row in times], "o-", color="tab:blue", label="measured")
        above.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        above.yaxis.set_major_formatter("{x:g}")
        above.yaxis.set_minor_locator(ticker.NullLocator())
        below.semilogx(values, [row["ours"] for row in mine if row["unit"] == "MiB"], "o-", color="tab:orange")
        below.set_xlabel(label)
        below.set_xticks(values, [str(value) for value in values])
        below.minorticks_off()
    most = max(below.get_ylim()[1] for below in axes[1])
    for below in axes[1]:
        below.set_ylim(0, 1.1 * most)
    axes[0, 0].set_ylabel("seconds a round")
    axes[1, 0].set_ylabel("MiB a round adds")
    axes[0, 0].legend(frameon=False)
    figure.suptitle(f"A private round on one thread; elsewhere {BASE.name}", fontsize=10)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=80)


if __name__ == "__main__":
    main()
