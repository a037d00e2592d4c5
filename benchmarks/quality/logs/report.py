"""Write the tables of benchmarks/results.md about logs with a known truth: ``python -m
benchmarks.quality.logs.report``.

Rows are made by `python -m benchmarks.quality.logs`. Answers are judged as the rule judges them
today, from the kept answers of each run.
"""

from collections import Counter
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from benchmarks.machine import RESULTS_PAGE, put, read
from benchmarks.quality.logs import ADVERSARIAL, LOGS
from primorl.evaluate.private.model_values import judge_chance
from primorl.evaluate.private.results import Answer, PrivateEvaluation, Verdict, Veto
from primorl.evaluate.recommendation import Recommendation, recommend

EPSILON = "privacy.target_epsilon"
DRAWS = {"first": range(1), "later": range(1, 5), "new": range(5, 10**6)}
"""Draws (their seeds) on which constants of the rule were chosen; those that some of them were
changed for; and those that were made when all stood.
"""
NEAR = 0.05
"""A clone is near practice within this share of the range of returns."""
_WORDS = {"trial": "trial", "keep": "keep", "more_data": "more data", None: "failed"}
Row = dict[str, Any]


def main() -> None:
    """Write the tables into the page."""
    for name, text in tables(read("logs")).items():
        put(RESULTS_PAGE, name, text)


def tables(rows: list[Row]) -> dict[str, str]:
    """What became of every log, and how the answers were, by the name of the table."""
    usual, hostile = ([row for row in rows if row["log"] in own] for own in (LOGS, ADVERSARIAL))
    refute = "logs made to refute"
    return {"logs": table(usual), "answers": judged(usual), refute: table(hostile)}


def spread(row: Row) -> float:
    """The range of returns, from doing nothing (or random actions) to the best known policy."""
    return float(row["truth"]["best"] - row["truth"]["worst"])


def gain(row: Row, who: str) -> float | None:
    """A policy's gain over the behaviour as a share of the range of returns."""
    if row[who] is None:
        return None
    return float((row[who]["mean"] - row["truth"]["behaviour"]) / spread(row))


def advice(row: Row) -> Recommendation | None:
    """What the rule recommends by the kept answers; None: the run failed."""
    if row["policy"] is None or not row["answers"]:
        return None
    kept = row["answers"]
    estimates = tuple(Answer(covers="-", bias="-", **each) for each in kept["estimates"])
    bounds = kept.get("return_bounds")  # rows that are older have none
    vetoes = [Veto(**veto) for veto in (kept["verdict"] or {}).get("vetoes", ())]
    others = [veto for veto in vetoes if veto.kind != "random_as_good"]
    sign = judge_chance([each for each in estimates if each.finite])  # as it is judged today
    verdict = Verdict(vetoes=(*others, *([] if sign is None else [sign])))
    about: dict[str, Any] = {"dataset": row["log"], "unit": "person", "units": row["people"]}
    return recommend(
        PrivateEvaluation(
            **about,
            discount=1.0,
            horizon=None,
            estimates=estimates,
            verdict=verdict,
            return_bounds=bounds,
        )
    )


def table(rows: list[Row]) -> str:
    """A line for each log, number of people and ε."""
    lines = [
        "| log | people | ε | runs | behaviour | best | policy | usual actions | "
        "clone, as people draw | persistence | products | recommended |",
        "|---" * 12 + "|",
    ]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["log"], row["people"], row["changes"][EPSILON]), []).append(row)
    for (log, people, epsilon), same in sorted(groups.items()):
        truth = same[0]["truth"]
        said = [advice(row) for row in same]
        answers = Counter(_WORDS[None if each is None else each.answer] for each in said)
        cells = (
            log,
            f"{people:,}",
            f"{epsilon:g}",
            len(same),
            f"{truth['behaviour']:.3g}",
            f"{truth['best']:.3g}",
            _mean(same, "policy"),
            _usual(same),
            _mean(same, "drawn"),
            _asked(same, "persistence"),
            _asked(same, "products"),
            ", ".join(f"{number} {word}" for word, number in answers.items()),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _usual(rows: list[Row]) -> str:
    """Gain of the usual actions, whoever comes: the simplest clone; older rows have none."""
    gains = [
        (row["truth"]["usual"] - row["truth"]["behaviour"]) / spread(row)
        for row in rows
        if "usual" in row["truth"]
    ]
    return f"{gains[0]:+.0%}" if gains else "–"


def _asked(rows: list[Row], name: str) -> str:
    """What a clone's people were asked (`BehaviourConfig`): mean over draws, and the noise of
    one.
    """
    found = [row[name] for row in rows if row.get(name)]
    if not found:
        return "–"
    value, noise = (fmean(each) for each in zip(*found, strict=True))
    return f"{value:.2f} ± {noise:.2f}"


def _mean(rows: list[Row], who: str) -> str:
    """Mean gain and half of its 95% interval over seeds."""
    gains = [own for row in rows if (own := gain(row, who)) is not None]
    if not gains:
        return "–"
    if len(gains) == 1:
        return f"{gains[0]:+.0%}"
    half = float(student.ppf(0.975, len(gains) - 1)) * stdev(gains) / len(gains) ** 0.5
    return f"{fmean(gains):+.0%} ± {half:.0%}"


def judged(rows: list[Row]) -> str:
    """Answers beside the truth, by how much the rule knew of the draws."""
    lines = [
        "| draws | people | ε | runs | truly better | trials | of a worse policy | better ones "
        "offered | interval held | clone within 5% | always trial: worse |",
        "|---" * 11 + "|",
    ]
    for name, draws in DRAWS.items():
        groups: dict[tuple[int, float], list[Row]] = {}
        for row in rows:
            if row["seed"] in draws and advice(row) is not None:
                groups.setdefault((row["people"], row["changes"][EPSILON]), []).append(row)
        for (people, epsilon), same in sorted(groups.items()):
            lines.append(f"| {name} | {people:,} | {epsilon:g} | {' | '.join(_judge(same))} |")
    return "\n".join(lines)


def _judge(rows: list[Row]) -> list[str]:
    gains = {id(row): gain(row, "policy") or 0.0 for row in rows}
    said = {id(row): advice(row) for row in rows}

    def is_better(row: Row) -> bool:
        return gains[id(row)] > 0

    def is_tried(row: Row) -> bool:
        found = said[id(row)]
        return found is not None and found.answer == "trial"

    def is_held(row: Row) -> bool:
        found = said[id(row)]
        assert found is not None
        assert found.interval is not None
        low, high = found.interval
        return low <= gains[id(row)] * spread(row) <= high

    def is_near(row: Row) -> bool:
        return abs(gain(row, "drawn") or 0.0) <= NEAR

    better, tried = [row for row in rows if is_better(row)], [row for row in rows if is_tried(row)]
    known = [row for row in rows if (each := said[id(row)]) is not None and each.interval]
    return [
        str(len(rows)),
        str(len(better)),
        str(len(tried)),
        str(sum(not is_better(row) for row in tried)),
        _count(better, is_tried),
        _count(known, is_held),
        _count(rows, is_near),
        f"{len(rows) - len(better)} of {len(rows)}",
    ]


def _count(rows: list[Row], holds: Callable[[Row], bool]) -> str:
    return f"{sum(map(holds, rows))} of {len(rows)}"


def line(row: Row) -> str:
    """A run in one line."""
    policy = "-" if row["policy"] is None else f"{row['policy']['mean']:.4g}"
    what = f"{row['log']}, {row['people']} people"
    found = advice(row)
    return (
        f"{what}, {row['changes']}, seed {row['seed']}: behaviour {row['truth']['behaviour']:.4g}, "
        f"policy {policy}, {row['error'] or (found and found.answer)}"
    )


if __name__ == "__main__":
    main()
