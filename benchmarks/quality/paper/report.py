"""Write the paper's tables with ours beside them into benchmarks/results.md.

python -m benchmarks.quality.paper.report

The interquartile mean (IQM) over seeds has the 95% interval of a bootstrap (Agarwal et al. 2021).
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

import research.rows
from benchmarks.machine import RESULTS_PAGE, put
from benchmarks.quality.paper import grids, nulls
from benchmarks.quality.paper.published import PUBLISHED
from benchmarks.quality.paper.rows import Row, read
from primorl.evaluate.summary import Estimate
from primorl.privacy.accounting.rounding import at_most

HEAD = "| log | row | the paper's (ε) | mean ± t | IQM [95%] | ε (PLD) | ε (RDP) | runs | made by |"
TASKS = {
    "pendulum": "pendulum-paper",
    "balance": "cartpole-balance-paper",
    "swingup": "cartpole-swingup-paper",
    "halfcheetah": "halfcheetah-two-policies",
}
"""The tasks of the paper's tables, and the logs of their first rows."""
TABLES = ("table", "regime", "nobody")
"""First words of the grids that the paper's tables consist of."""
RESAMPLES = 5000


def main() -> None:
    """Write the tables into the page."""
    rows = grids.results(read())
    put(RESULTS_PAGE, "paper", tables(rows))
    put(RESULTS_PAGE, "paper frontiers", frontiers(rows))
    put(RESULTS_PAGE, "paper logs", logs(rows))
    put(RESULTS_PAGE, "paper hours", hours(read()))


def tables(rows: Sequence[Row]) -> str:
    """The paper's tables 1 and 6: for each task MOPO, what nobody learned, and each row's runs."""
    pages, learned = [*_head()], mopo()
    for task, dataset in TASKS.items():
        own = [row for row in learned if row["dataset"] == dataset]
        lines = [_line(task, "MOPO", "`research.mopo`", own)] if own else []
        for kind in TABLES:
            lines += _lines(task, f"{kind}-{task}", rows)
        made = "\n".join(lines)
        for case in (each for each in PUBLISHED[task] if f" | {each} | " not in made):
            lines.append(
                f"| – | {case} | {_published(task, case)} | not made | – | – | – | 0 | – |"
            )
        for null in nulls.read_plays(task):
            still = "no action" if null["still"] else "uniform actions"
            value = grids.score({"dataset": dataset, "return_final": null["return"]})
            lines.append(f"| – | {still} | – | {value:.1f} | – | ∞ | ∞ | 30 | `nulls` |")
        pages += lines
    return "\n".join(pages)


def frontiers(rows: Sequence[Row]) -> str:
    """The runs of all other grids."""
    listed = {f"{kind}-{task}" for kind in TABLES for task in TASKS}
    lines = [*_head()]
    for name in grids.names():
        if name not in listed:
            lines += _lines(name.partition("-")[2], name, rows)
    return "\n".join(lines)


def mopo() -> list[Row]:
    """Rows of MOPO, as those of the other runs."""
    none = dict.fromkeys(("epsilon", "epsilon_rdp"))
    return [
        {**none, "variant": "mopo", "status": "finished", **row, "return_final": row["return"]}
        for row in research.rows.read("mopo")
    ]


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


def hours(rows: Sequence[Row]) -> str:
    """A line for each kind of rows: runs, and hours of one core."""
    regime = [row for row in rows if row["case"] in ("No Privacy", "Low", "High")]
    spent: dict[tuple[str, str], list[float]] = {}
    for row in regime:
        task = row["sweep"].partition("-")[2]
        if row["status"] == "finished" and task in TASKS:
            spent.setdefault((task, row["case"]), []).append(row["seconds"])
    kinds = {"PriMORL, all runs": [row["seconds"] for row in rows]}
    five = [5 * float(np.mean(seconds)) for seconds in spent.values()]
    kinds["No Privacy, Low and High of three tasks, if five seeds were made"] = five
    for name in ("mopo", "online", "dptd"):
        kinds[f"`research.{name}`"] = [row["seconds"] for row in research.rows.read(name)]
    lines = ["| rows | hours of a core |", "|---|---|"]
    lines += [f"| {name} | {math.fsum(each) / 3600:.1f} |" for name, each in kinds.items()]
    return "\n".join(lines)


def _head() -> tuple[str, str]:
    return HEAD, "|---" * (HEAD.count("|") - 1) + "|"


def _lines(task: str, name: str, rows: Sequence[Row]) -> list[str]:
    """Lines of a grid, one for each case and ε."""
    groups: dict[tuple[int, str, float], list[Row]] = {}
    for row in rows:
        if row["sweep"] == name:
            groups.setdefault(grids.place(row), []).append(row)
    found = []
    for (_, case, target), same in sorted(groups.items()):
        asked = f", ε {target:g}" if name.startswith("frontier") else ""
        found.append(_line(task, case + asked, f"`{name}`", same))
    return found


def _line(task: str, case: str, made_by: str, rows: Sequence[Row]) -> str:
    scores = [found for row in rows if (found := grids.score(row)) is not None]
    failed = sum(row["status"] == "failed" for row in rows)
    runs = f"{len(rows)} ({failed} failed)" if failed else str(len(rows))
    epsilons = _epsilon(rows, "epsilon"), _epsilon(rows, "epsilon_rdp")
    cells = (
        rows[0]["dataset"],
        case,
        _published(task, case),
        _mean(scores),
        _iqm(scores),
        *epsilons,
        runs,
        made_by,
    )
    return f"| {' | '.join(cells)} |"


def _published(task: str, case: str) -> str:
    known = PUBLISHED.get(task, {}).get(case)
    if known is None:
        return "–"
    spent = "" if known.epsilon is None else f" ({known.epsilon:g})"
    return f"{known.mean:g} ± {known.half:g}{spent}"


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
    return "–" if np.isinf(low) else f"{value:.0f} [{low:.0f}, {high:.0f}]"


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
        return f"{scores[0]:.1f}" if scores else "–"
    found = Estimate.of(np.array(scores))
    return f"{found.mean:.1f} ± {found.high - found.mean:.1f}"


if __name__ == "__main__":
    main()
