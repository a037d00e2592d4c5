"""Write the tables of docs/results.md about the zoo from the rows in benchmarks/results.

python -m benchmarks.quality.logs.report

Rows are made by `python -m benchmarks.quality.logs` and `python -m benchmarks.quality.logs.peers`.
"""

from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from benchmarks.machine import ROOT, put, read

PAGE = ROOT / "docs" / "results.md"
EPSILON, VARIANT = "privacy.target_epsilon", "dynamics.variant"
_WORDS = {"trial": "trial", "keep": "keep", "more_data": "more data"}
Row = dict[str, Any]


def main() -> None:
    """Write both tables into the page."""
    rows, peers = read("logs"), read("logs_peers")
    private = [row for row in rows if VARIANT not in row["changes"]]
    pooled = [row for row in rows if row["changes"].get(VARIANT) == "mopo"]
    put(PAGE, "zoo", overview(private))
    put(PAGE, "zoo by log", by_log(private, pooled, peers))


def relative(row: Row, who: str) -> float | None:
    """A policy's gain over the behaviour as a share of the range from doing nothing (or random) to the best known."""
    if row[who] is None:
        return None
    said = row["truth"]
    return float((row[who]["mean"] - said["behaviour"]) / (said["best"] - said["worst"]))


def answer(row: Row) -> str | None:
    """What the run recommended; None: it failed."""
    found: str | None = (row["summary"].get("recommendation") or {}).get("answer")
    return found


def recommended(row: Row) -> tuple[float, float] | None:
    """The relative gain of what is recommended, and its standard error; None: nothing is."""
    who = {"trial": "policy", "keep": "cloned"}.get(answer(row) or "", "")
    gain = relative(row, who) if who else None
    return None if gain is None else (gain, row[who]["error"] / (row["truth"]["best"] - row["truth"]["worst"]))


def worse(row: Row) -> bool:
    """Whether the policy is truly worse than the behaviour."""
    return (relative(row, "policy") or 0.0) < 0


def counts(rows: list[Row]) -> tuple[int, int, int, int, int]:
    """How many recommendations there are, are within 5% or better, are better, are trials, and are wrong trials.

    Within 5% of the range; better by more than 1.96 errors; wrong where the policy is worse than the behaviour.
    """
    known = [found for row in rows if (found := recommended(row)) is not None]
    trials = [row for row in rows if answer(row) == "trial"]
    good, better = (sum(gain >= -0.05 for gain, _ in known), sum(gain > 1.96 * error for gain, error in known))
    return len(known), good, better, len(trials), sum(map(worse, trials))


def overview(rows: list[Row]) -> str:
    """How often recommendations are good, for each number of people and ε."""
    lines = [
        "| people | ε | runs | verdict | recommended | within 5% of the range, or better "
        "| better by more than 1.96 errors | trials | of these of a worse policy | worse policies in all |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for people, epsilon in sorted({(row["people"], row["changes"][EPSILON]) for row in rows}):
        mine = [row for row in rows if row["people"] == people and row["changes"][EPSILON] == epsilon]
        verdicts = Counter(row["can_learn"] for row in mine if row["can_learn"])
        said = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        cells = (f"{people:,}", f"{epsilon:g}", len(mine), said, *counts(mine), sum(map(worse, mine)))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def by_log(rows: list[Row], pooled: list[Row], peers: list[Row]) -> str:
    """True gains over the behaviour as shares of the range: recommended at each ε, and of the peers."""
    shown = sorted({(row["people"], row["changes"][EPSILON]) for row in rows})
    head = [f"{people:,}, ε {epsilon:g}" for people, epsilon in shown]
    beside = sorted({row["people"] for row in pooled})
    head += [*(f"MOPO, {people:,}" for people in beside), "d3rlpy, 10,000"]
    lines = ["| log | behaviour | best | " + " | ".join(head) + " |", "|---" * (3 + len(head)) + "|"]
    for log in sorted({row["log"] for row in rows}):
        mine = [row for row in rows if row["log"] == log]
        cells = [
            "; ".join(_cell(row) for row in mine if (row["people"], row["changes"][EPSILON]) == place) or "–"
            for place in shown
        ]
        for people in beside:
            own = [row for row in pooled if row["log"] == log and row["people"] == people]
            cells.append(_gains(relative(row, "policy") for row in own))
        own = [peer for peer in peers if peer["log"] == log and peer["people"] == 10_000]
        own.sort(key=itemgetter("algorithm", "steps"))
        cells.append("; ".join(f"{peer['algorithm']} {peer['gain']:+.0%}" for peer in own) or "–")
        truth = mine[0]["truth"]
        lines.append(f"| {log} | {truth['behaviour']:.3g} | {truth['best']:.3g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    said, found = answer(row), recommended(row)
    if said is None:
        return "no" if "cannot learn" in (row["error"] or "") else "failed"
    return _WORDS[said] if found is None else f"{_WORDS[said]} {found[0]:+.0%}"


def _gains(gains: Iterable[float | None]) -> str:
    return "; ".join(f"{gain:+.0%}" for gain in gains if gain is not None) or "–"


if __name__ == "__main__":
    main()
