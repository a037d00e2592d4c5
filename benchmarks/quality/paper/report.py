"""The paper's tables with ours beside them, as Markdown, and all figures, from benchmarks/results/paper/rows.parquet.

python -m benchmarks.quality.paper.report [--write]

--write puts the tables between their marks in docs/results.md and docs/results-rows.md; figures go to docs/figures.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.quality.paper import figures, mechanisms, results, sheets
from benchmarks.quality.paper.published import TARGETS, TASKS, Target, Task
from benchmarks.quality.paper.results import MOPO, OURS, PAPER_REGIME, PUBLIC_ALONE
from benchmarks.quality.paper.rows import Row, read
from benchmarks.quality.paper.sheets import TUNING
from benchmarks.quality.paper.statistics import Estimate, probability_of_improvement
from primorl.evaluation.statistics import MeanInterval
from primorl.privacy.accounting.rounding import at_most

PAGE, ROWS_PAGE = Path("docs/results.md"), Path("docs/results-rows.md")
_NOTHING = "–"
_TABLE = (
    *("task", "row", "paper: ε (RDP)", "paper: mean ± 95%", "ε (PLD)", "ε (RDP)", "final: IQM [95%]", "best epoch"),
    *("final: mean ± t", "of our MOPO", "runs", "s a run"),
)
_RUNS = ("runs", "s a run")
_FRONTIER = (
    *("task", "K", "ε", "regime", "z", "noise / C, each weight", "noise / C, a round", "s", "final: IQM [95%]"),
    *("best epoch", "P(ours > paper's)", "ours above", "runs", "s a run"),
)


def main() -> None:
    """Print the tables and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also put the tables into the pages")
    write = parser.parse_args().write
    found, tuning = sheets.divided(read())
    tables = {
        "table": (PAGE, table(found)),
        "left": (PAGE, left(found)),
        "targets": (PAGE, targets(found)),
        "frontier": (PAGE, frontier(found)),
        "ingredients": (PAGE, ingredients(found)),
        "mechanisms": (PAGE, mechanisms.table(mechanisms.rows())),
        "made": (ROWS_PAGE, made([*found, *tuning])),
        "results": (ROWS_PAGE, each(found)),
        "tuning": (ROWS_PAGE, each(tuning)),
    }
    for name, (page, content) in tables.items():
        print(f"{name}\n\n{content}\n")
        if write:
            put(page, name, content)
    figures.draw(found)


def put(page: Path, name: str, content: str) -> None:
    """Put a table into a page, between its marks."""
    first, last = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, mark, rest = page.read_text(encoding="utf-8").partition(first)
    if not mark or last not in rest:
        raise ValueError(f"{page}: has no marks for {name!r}")
    page.write_text(f"{before}{first}{content}\n{last}{rest.partition(last)[2]}", encoding="utf-8")


def table(rows: Sequence[Row]) -> str:
    """The paper's table 1 and table 6: a line for each row of theirs or ours."""
    return _markdown(_TABLE, (line for task in TASKS for line in _of_task(rows, task)))


def _of_task(rows: Sequence[Row], task: Task) -> Iterator[Sequence[str]]:
    own = results.of_table(rows, task.slug)
    sweeps = reversed(sheets.tables(task.slug))  # the paper's regime above ours
    cases = dict.fromkeys([MOPO, *(case for name in sweeps for case in sheets.content(name)["cases"])])
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
            _NOTHING if final is None or mopo is None or case == MOPO else f"{final.value / mopo.value:.1%}",
            *_runs(same),
        )


def left(rows: Sequence[Row]) -> str:
    """Sweeps whose runs are not all there; tuning left out."""
    done: dict[str, int] = {}
    for row in rows:
        done[row["sweep"]] = done.get(row["sweep"], 0) + 1
    planned = {name: sum(1 for _ in sheets.trials(name)) for name in sheets.names() if not name.startswith(TUNING)}
    missing = [
        f"`{name}` {done.get(name, 0)} of {count}" for name, count in planned.items() if done.get(name, 0) < count
    ]
    return f"Runs that are there, where some are missing: {', '.join(missing)}." if missing else "All runs are there."


def targets(rows: Sequence[Row]) -> str:
    """What was to be reached, and what was; beside it what the public split reaches without any private unit."""
    head = ("target", "ε (PLD)", "ours: IQM [95%]", "our MOPO", "share", "runs", "reached", "public split alone")
    return _markdown(head, (_target(rows, target) for target in TARGETS))


def _target(rows: Sequence[Row], target: Target) -> Sequence[str]:
    same = results.of(rows, target.sweep, OURS)
    final = results.estimate(results.finals(same))
    mopo = results.estimate(results.finals(results.of(rows, target.mopo, MOPO)))
    alone = _interval(results.estimate(results.finals(results.of(rows, target.sweep, PUBLIC_ALONE))))
    planned = sum(case == OURS for case, _ in sheets.trials(target.sweep))
    runs = f"{_runs(same)[0]} of {planned}"
    if final is None or (mopo is None and target.least is None):
        return (target.says, _epsilon(same, "epsilon"), _interval(final), _value(mopo), _NOTHING, runs, _NOTHING, alone)
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
            sides = {
                case: [row for row in results.of(own, sweep, case) if results.target(row) == epsilon]
                for case in (PAPER_REGIME, OURS)
            }
            found = [results.estimate(results.finals(side)) for side in sides.values()]
            against = ("", "")
            if all(sides.values()):
                better = probability_of_improvement(
                    [results.ranked(sides[OURS])], [results.ranked(sides[PAPER_REGIME])]
                )
                above = found[1] is not None and (found[0] is None or found[1].above(found[0]))
                against = (_share(better), "yes" if above else "no")
            for (case, side), final in zip(sides.items(), found, strict=True):
                if not side:
                    continue
                noise = results.noise_of(side)
                amounts = (noise.multiplier, noise.coordinate, noise.norm, noise.share) if noise else (None,) * 4
                yield (
                    *(task.name, units, f"{epsilon:g}", case),
                    *map(_figure, amounts),
                    _interval(final),
                    _value(results.estimate(results.bests(side))),
                    *(against if case == OURS else ("", "")),
                    *_runs(side),
                )


def ingredients(rows: Sequence[Row]) -> str:
    """What each change of the settings makes of the base, at the same ε; the best first."""
    head = ("task", "changed", "ε (PLD)", "noise / C, each weight", "s", "final: IQM [95%]", "best epoch", *_RUNS)
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
        line = (task.name, case, _epsilon(same, "epsilon"), *map(_figure, amounts), _interval(final), best)
        lines.append((-np.inf if final is None else final.value, (*line, *_runs(same))))
    yield from (line for _, line in sorted(lines, reverse=True))


def made(rows: Iterable[Row]) -> str:
    """Which machine and commit made how many rows of a sweep, and the command."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] or "" for name in ("sweep", "machine", "commit", "command")), []).append(row)
    lines = (
        (sweep, str(len(own)), f"{sum(row['seconds'] for row in own) / 3600:.1f}", machine, commit[:10], f"`{command}`")
        for (sweep, machine, commit, command), own in sorted(groups.items())
    )
    return _markdown(("sweep", "runs", "hours", "machine", "commit", "command"), lines)


def each(rows: Sequence[Row]) -> str:
    """A line for every row: the settings that differ within its sweep, and what came out."""
    head = ("sweep", "case", "settings", "ε (PLD)", "final", "best epoch", "s", "trial")
    lines: list[Sequence[str]] = []
    for sweep in sorted({row["sweep"] for row in rows}):
        own = results.of(rows, sweep)
        varying = _varying(own)
        for row in own:
            here = results.settings(row)
            said = ", ".join(f"{key} {json.dumps(here[key])}" for key in varying if key in here)
            scores = [*results.finals([row]), *results.bests([row])]
            outcome = [f"{value:.0f}" for value in scores] if len(scores) == 2 else [row["status"], _NOTHING]
            lines.append(
                (
                    sweep,
                    row["case"] or _NOTHING,
                    said,
                    _epsilon([row], "epsilon"),
                    *outcome,
                    f"{row['seconds']:.0f}",
                    row["trial"][:8],
                )
            )
    return _markdown(head, lines)


def _varying(rows: Sequence[Row]) -> list[str]:
    """Keys whose values differ between rows of one case."""
    found: dict[str, None] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [results.settings(row) for row in rows if row["case"] == case]
        for key in sorted({key for settings in own for key in settings}):
            if len({json.dumps(settings.get(key)) for settings in own}) > 1:
                found[key] = None
    return list(found)


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


def _interval(found: Estimate | None) -> str:
    if found is None:
        return _NOTHING
    return _value(found) if np.isinf(found.low) else f"{found.value:.0f} [{found.low:.0f}, {found.high:.0f}]"


def _value(found: Estimate | None) -> str:
    return _NOTHING if found is None else f"{found.value:.0f}"


def _share(found: Estimate) -> str:
    ends = "" if np.isinf(found.low) else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{ends}"


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
    count = f"{len(rows)} ({failed} diverged or failed)" if failed else str(len(rows))
    took = [row["seconds"] for row in rows if row["status"] != "failed"]
    return count, f"{np.median(took):.0f}" if took else _NOTHING


if __name__ == "__main__":
    main()
