"""Write the table of benchmarks/results.md about logs with a known truth: ``python -m
benchmarks.quality.logs.report``.

Rows are made by `python -m benchmarks.quality.logs`.
"""

from collections import Counter
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from benchmarks.machine import RESULTS_PAGE, put, read
from primorl.evaluate.private.results import MEAN_RETURN, Verdict
from primorl.evaluate.recommendation import interval_of_gain

EPSILON = "privacy.target_epsilon"
_WORDS = {"trial": "trial", "keep": "keep", "more_data": "more data", None: "failed"}
Row = dict[str, Any]


def main() -> None:
    """Write the table, and how often the interval of the gain held, into the page."""
    rows = read("logs")
    put(RESULTS_PAGE, "logs", table(rows))
    put(RESULTS_PAGE, "interval of the gain", held(rows))


def gain(row: Row, who: str) -> float | None:
    """A policy's gain over the behaviour as a share of the range from doing nothing (or random) to
    the best known.
    """
    if row[who] is None:
        return None
    said = row["truth"]
    return float((row[who]["mean"] - said["behaviour"]) / (said["best"] - said["worst"]))


def answer(row: Row) -> str | None:
    """What the run recommended; None: it failed, or nobody was asked."""
    found: str | None = (row["summary"].get("recommendation") or {}).get("answer")
    return found


def table(rows: list[Row]) -> str:
    """A line for each log, who is public, number of people and ε."""
    lines = [
        "| log | people | public | ε | runs | behaviour | best | policy | released clone | "
        "recommended |",
        "|---" * 10 + "|",
    ]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        epsilon = row["changes"].get(EPSILON, 0.0)
        groups.setdefault((row["log"], row["people"], row["public"], epsilon), []).append(row)
    for (log, people, public, epsilon), same in sorted(groups.items()):
        truth = same[0]["truth"]
        alone = same[0]["learner"] == "alone"
        answers = Counter(_WORDS[answer(row)] for row in same)
        cells = (
            log,
            f"{people:,}",
            public,
            "public alone" if alone else f"{epsilon:g}",
            len(same),
            f"{truth['behaviour']:.3g}",
            f"{truth['best']:.3g}",
            _mean(same, "policy"),
            _mean(same, "cloned"),
            "–" if alone else ", ".join(f"{number} {word}" for word, number in answers.items()),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _mean(rows: list[Row], who: str) -> str:
    """Mean gain and half of its 95% interval: over seeds, or of one seed over simulated
    episodes.
    """
    found = [(own, row) for row in rows if (own := gain(row, who)) is not None]
    if not found:
        return "–"
    gains = [own for own, _ in found]
    if len(gains) > 1:
        half = float(student.ppf(0.975, len(gains) - 1)) * stdev(gains) / len(gains) ** 0.5
    else:
        row = found[0][1]
        half = 1.96 * row[who]["error"] / (row["truth"]["best"] - row["truth"]["worst"])
    return f"{fmean(gains):+.0%} ± {half:.0%}"


def held(rows: list[Row]) -> str:
    """Say how often the interval of the gain, as it is computed today, held the true gain."""
    known = [(row, found) for row in rows if (found := _interval(row)) is not None]
    inside = 0
    for row, (low, high) in known:
        inside += low <= row["policy"]["mean"] - row["truth"]["behaviour"] <= high
    logs = len({row["log"] for row, _ in known})
    return (
        f"The interval held the true gain in {inside} of {len(known)} kept runs that have one "
        f"({logs} logs)."
    )


def _interval(row: Row) -> tuple[float, float] | None:
    summary = row["summary"]
    found = {
        (each["of"], each["estimator"]): each
        for each in summary.get("private_evaluation") or ()
        if each["what"] == MEAN_RETURN
    }
    keys = ("behaviour", "behaviour"), ("policy", "model"), ("clone", "model")
    people, policy, clone = (found.get(key) for key in keys)
    if row["policy"] is None or not (people and policy and clone and people["ci95"]):
        return None
    low, high = people["ci95"]
    released = fmean(clone["members"])
    expected = fmean(policy["members"]) - released
    verdict = Verdict.of(summary.get("model_verdict"))
    return interval_of_gain(expected, (high - low) / 2, released - people["value"], verdict)


def line(row: Row) -> str:
    """A run in one line."""
    policy = "-" if row["policy"] is None else f"{row['policy']['mean']:.4g}"
    what = f"{row['log']}, {row['people']} people, {row['public']} public, {row['learner']}"
    behaviour = f"{row['truth']['behaviour']:.4g}"
    said = row["error"] or answer(row)
    return (
        f"{what}, {row['changes']}, seed {row['seed']}: behaviour {behaviour}, policy {policy}, "
        f"{said}"
    )


if __name__ == "__main__":
    main()
