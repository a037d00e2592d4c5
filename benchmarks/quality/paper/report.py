"""Write the paper's tables with ours beside them into benchmarks/results.md.

python -m benchmarks.quality.paper.report

The interquartile mean (IQM) over seeds has the 95% interval of a bootstrap (Agarwal et al. 2021).
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from benchmarks.machine import RESULTS_PAGE, put
from benchmarks.quality.paper import grids
from benchmarks.quality.paper.published import PUBLISHED
from benchmarks.quality.paper.rows import Row, read
from primorl.evaluate.summary import Estimate
from primorl.privacy.accounting.rounding import at_most

HEAD = (
    "| runs of | row | the paper's (ε) | ε (PLD) | ε (RDP) | final: IQM [95%] | mean ± t | runs |"
)
RESAMPLES = 5000


def main() -> None:
    """Write the table into the page."""
    rows = grids.results(read())
    put(RESULTS_PAGE, "paper", table(rows))
    put(RESULTS_PAGE, "paper logs", logs(rows))


def table(rows: Sequence[Row]) -> str:
    """A line for each grid, case and ε."""
    groups: dict[tuple[str, int, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["sweep"], *grids.place(row)), []).append(row)
    lines = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    for (name, _, case, target), same in sorted(groups.items()):
        lines.append(f"| {' | '.join((name, *_cells(name, case, target, same)))} |")
    return "\n".join(lines)


def logs(rows: Sequence[Row]) -> str:
    """A line for each log: the mean return of its public splits, and as a score."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["behaviour"] is not None:
            found.setdefault(row["dataset"], []).append(row)
    lines = ["| log | its own mean return | as the score of the rows above |", "|---|---|---|"]
    for name, same in sorted(found.items()):
        mean = float(np.mean([row["behaviour"] for row in same]))
        value = grids.score(same[0] | {"return_final": mean})
        lines.append(f"| {name} | {mean:.0f} | {value:.0f} |")
    return "\n".join(lines)


def _cells(name: str, case: str, target: float, rows: Sequence[Row]) -> tuple[str, ...]:
    task = name.partition("-")[2]
    known = PUBLISHED.get(task, {}).get(case) if not name.startswith("frontier") else None
    paper = "–"
    if known is not None:
        spent = "" if known.epsilon is None else f" ({known.epsilon:g})"
        paper = f"{known.mean:g} ± {known.half:g}{spent}"
    scores = [found for row in rows if (found := grids.score(row)) is not None]
    failed = sum(row["status"] == "failed" for row in rows)
    runs = f"{len(rows)} ({failed} failed)" if failed else str(len(rows))
    epsilons = (_epsilon(rows, "epsilon"), _epsilon(rows, "epsilon_rdp"))
    asked = f", ε {target:g}" if name.startswith("frontier") else ""
    return (case + asked, paper, *epsilons, _iqm(scores), _mean(scores), runs)


def _epsilon(rows: Sequence[Row], name: str) -> str:
    """The largest of the rows', rounded up; a failed run has none."""
    known = [row[name] for row in rows if row[name] is not None]
    if known:
        return at_most(max(known))
    return "∞" if all(row["variant"] not in (None, "", "private") for row in rows) else "–"


def _iqm(scores: Sequence[float]) -> str:
    if not scores:
        return "–"
    value, low, high = iqm(scores)
    return f"{value:.0f}" if np.isinf(low) else f"{value:.0f} [{low:.0f}, {high:.0f}]"


def iqm(scores: Sequence[float]) -> tuple[float, float, float]:
    """Interquartile mean with its bootstrap interval; a fixed generator keeps pages as they are."""
    value = float(stats.trim_mean(scores, 0.25))
    if len(scores) < 2:
        return value, -np.inf, np.inf
    found = stats.bootstrap(
        (np.asarray(scores, dtype=float),),
        lambda drawn, axis: stats.trim_mean(drawn, 0.25, axis=axis),
        n_resamples=RESAMPLES,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return value, float(found.low), float(found.high)


def _mean(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return "–"
    found = Estimate.of(np.array(scores))
    return f"{found.mean:.1f} ± {found.high - found.mean:.1f}"


if __name__ == "__main__":
    main()
