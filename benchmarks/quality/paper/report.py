"""Write the paper's tables with ours beside them, and draw all figures, from benchmarks/results/paper/rows.parquet.

python -m benchmarks.quality.paper.report

Tables go between their marks in docs/results.md, figures to docs/figures.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from benchmarks.machine import ROOT, put
from benchmarks.quality.paper import figures, results, sheets
from benchmarks.quality.paper.published import TARGETS, TASKS, Target, Task
from benchmarks.quality.paper.results import MOPO, OURS, PAPER_REGIME, PUBLIC_ALONE, Estimate
from benchmarks.quality.paper.rows import Row, canonical, read
from benchmarks.quality.paper.sheets import TUNING
from primorl.evaluate.statistics import MeanInterval
from primorl.privacy.accounting.rounding import at_most

PAGE = ROOT / "docs" / "results.md"
_NOTHING = "–"
_TABLE = (
    *(
        "task",
        "row",
        "paper: ε (RDP)",
        "paper: mean ± 95%",
        "ε (PLD)",
        "ε (RDP)",
        "final: IQM [95%]",
        "best epoch",
    ),
    *("final: mean ± t", "of our MOPO", "runs", "s a run"),
)
_RUNS = ("runs", "s a run")
_FRONTIER = (
    *("task", "K", "ε", "paper's regime: noise / C", "final: IQM [95%]", "runs"),
    *("ours: noise / C", "final: IQM [95%]", "runs", "ours above"),
)


def main() -> None:
    """Write the tables into the page and draw the figures."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows, tuning = sheets.divided(read())
    put(PAGE, "table", table(rows))
    put(PAGE, "left", f"{left(rows)} {len(tuning)} further rows are of tuning, and in no table.")
    put(PAGE, "targets", targets(rows))
    put(PAGE, "frontier", frontier(rows))
    put(PAGE, "ingredients", ingredients(rows))
    figures.draw(rows)


def table(rows: Sequence[Row]) -> str:
    """The paper's table 1 and table 6: a line for each row of theirs or ours."""
    return _markdown(_TABLE, (line for task in TASKS for line in _of_task(rows, task)))


def _of_task(rows: Sequence[Row], task: Task) -> Iterator[Sequence[str]]:
    own = results.of_table(rows, task.slug)
    sweeps = reversed(sheets.tables(task.slug))  # the paper's regime above ours
    cases = dict.fromkeys(
        [MOPO, *(case for name in sweeps for case in sheets.content(name)["cases"])]
    )
    mopo = results.estimate(results.finals(results.of_table(rows, task.slug, MOPO)))
    for case in cases:
        paper, same = task.published.get(case), [row for row in own if row["case"] == case]
        if not same:
            continue  # `left` names what was not run yet
        final = results.estimate(results.finals(same))
        yield (
            task.name,
            case,
            _NOTHING if paper is None or paper.epsilon is None else f"{paper.epsilon:g}",
            _NOTHING if paper is None else str(paper),
            *(_epsilon(same, name) for name in ("epsilon", "epsilon_rdp")),
            _interval(final),
            _value(results.estimate(results.bests(same))),
            _mean(results.finals(same)),
            _NOTHING
            if final is None or mopo is None or case == MOPO
            else f"{final.value / mopo.value:.1%}",
            *_runs(same),
        )


def left(rows: Sequence[Row]) -> str:
    """List the sweeps with missing runs; tuning and seeds beyond those that a sweep names are left out."""
    done = {(row["sweep"], canonical(json.loads(row["settings"]))) for row in rows}
    missing, named, there = [], 0, 0
    for name in sheets.names():
        if name.startswith(TUNING):
            continue
        planned = [(name, canonical(settings)) for _, settings in sheets.trials(name)]
        found = sum(key in done for key in planned)
        named, there = named + len(planned), there + found
        if found < len(planned):
            missing.append(f"`{name}` {found} of {len(planned)}")
    return f"Of {named} runs that the sweeps name, {there} are there. Missing: {', '.join(missing) or 'none'}."


def targets(rows: Sequence[Row]) -> str:
    """What was to be reached, and what was; beside it what the public split reaches without any private unit."""
    head = (
        "target",
        "ε (PLD)",
        "ours: IQM [95%]",
        "our MOPO",
        "share",
        "runs",
        "reached",
        "public split alone",
    )
    return _markdown(head, (_target(rows, target) for target in TARGETS))


def _target(rows: Sequence[Row], target: Target) -> Sequence[str]:
    same = results.of(rows, target.sweep, OURS)
    final = results.estimate(results.finals(same))
    mopo = results.estimate(results.finals(results.of(rows, target.mopo, MOPO)))
    alone = _interval(
        results.estimate(results.finals(results.of(rows, target.sweep, PUBLIC_ALONE)))
    )
    planned = sum(case == OURS for case, _ in sheets.trials(target.sweep))
    runs = _runs(same)[0]
    if final is None or (mopo is None and target.least is None):
        return (
            target.says,
            _epsilon(same, "epsilon"),
            _interval(final),
            _value(mopo),
            _NOTHING,
            runs,
            _NOTHING,
            alone,
        )
    share = None if mopo is None else final.value / mopo.value
    enough = share is not None and share >= target.share
    enough = enough or (target.least is not None and final.value >= target.least)
    kept = all(row["epsilon"] is not None and row["epsilon"] <= target.epsilon for row in same)
    reached = enough and kept and not results.failures(same)
    said = (
        _epsilon(same, "epsilon"),
        _interval(final),
        _value(mopo),
        _NOTHING if share is None else f"{share:.1%}",
        runs,
    )
    answer = ("yes" if len(same) >= planned else "so far") if reached else "no"
    return (target.says, *said, answer, alone)


def frontier(rows: Sequence[Row]) -> str:
    """Both regimes at every ε that was run, and whether our whole interval is above theirs."""
    return _markdown(_FRONTIER, (line for task in TASKS for line in _frontier_of(rows, task)))


def _frontier_of(rows: Sequence[Row], task: Task) -> Iterator[Sequence[str]]:
    for units, sweep in figures.frontiers(task):
        own = results.of(rows, sweep)
        for epsilon in results.epsilons(own):
            at = [row for row in own if results.target(row) == epsilon]
            sides = [results.of(at, sweep, case) for case in (PAPER_REGIME, OURS)]
            theirs, ours = (results.estimate(results.finals(side)) for side in sides)
            above = ours is not None and (theirs is None or ours.above(theirs))
            cells = [cell for side in sides for cell in _side(side)]
            yield (
                task.name,
                units,
                f"{epsilon:g}",
                *cells,
                "yes" if all(sides) and above else "no",
            )


def _side(rows: Sequence[Row]) -> tuple[str, str, str]:
    noise = results.noise_of(rows)
    coordinate = None if noise is None else noise.coordinate
    return _figure(coordinate), _interval(results.estimate(results.finals(rows))), _runs(rows)[0]


def ingredients(rows: Sequence[Row]) -> str:
    """What each change of the settings makes of the base, at the same ε; the best first."""
    head = (
        "task",
        "changed",
        "ε (PLD)",
        "noise / C, each weight",
        "s",
        "final: IQM [95%]",
        "best epoch",
        *_RUNS,
    )
    return _markdown(head, (line for task in TASKS for line in _ingredients_of(rows, task)))


def _ingredients_of(rows: Sequence[Row], task: Task) -> Iterator[Sequence[str]]:
    own = results.of(rows, f"ingredients-{task.slug}")
    lines = []
    for case in dict.fromkeys(row["case"] for row in own):
        same = [row for row in own if row["case"] == case]
        final = results.estimate(results.finals(same))
        noise = results.noise_of(same)
        amounts = (None, None) if noise is None else (noise.coordinate, noise.share)
        best = _value(results.estimate(results.bests(same)))
        line = (
            task.name,
            case,
            _epsilon(same, "epsilon"),
            *map(_figure, amounts),
            _interval(final),
            best,
        )
        lines.append((-np.inf if final is None else final.value, (*line, *_runs(same))))
    yield from (line for _, line in sorted(lines, reverse=True))


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


def _interval(found: Estimate | None) -> str:
    if found is None:
        return _NOTHING
    return (
        _value(found)
        if np.isinf(found.low)
        else f"{found.value:.0f} [{found.low:.0f}, {found.high:.0f}]"
    )


def _value(found: Estimate | None) -> str:
    return _NOTHING if found is None else f"{found.value:.0f}"


def _mean(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return _NOTHING
    found = MeanInterval.of(np.array(scores))
    return f"{found.mean:.1f} ± {found.high - found.mean:.1f}"


def _epsilon(rows: Sequence[Row], name: str) -> str:
    """The largest of the rows', rounded up."""
    known = [row[name] for row in rows if row[name] is not None]
    if known:
        return at_most(max(known))
    # a failed run has no ε, and a variant only if its settings name one
    without = rows and all(row["variant"] not in (None, "", "private") for row in rows)
    return "∞" if without else _NOTHING


def _figure(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3g}"


def _runs(rows: Sequence[Row]) -> tuple[str, str]:
    """How many, with those that ended with an error, and the median of the others' seconds."""
    if not rows:
        return "0", _NOTHING
    failed = results.failures(rows)
    count = f"{len(rows)} ({failed} failed)" if failed else str(len(rows))
    took = [row["seconds"] for row in rows if row["status"] != "failed"]
    return count, f"{np.median(took):.0f}" if took else _NOTHING


if __name__ == "__main__":
    main()
