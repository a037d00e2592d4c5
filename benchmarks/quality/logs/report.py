"""Write the tables of docs/results.md about the zoo from the rows in benchmarks/results.

python -m benchmarks.quality.logs.report

Rows are made by `python -m benchmarks.quality.logs` and `python -m benchmarks.quality.logs.peers`.
"""

from collections import Counter
from operator import itemgetter
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.machine import ROOT, put, read
from primorl.evaluate.private.results import MEAN_RETURN, Verdict
from primorl.evaluate.recommendation import DOWN, UP, interval_of_gain

PAGE = ROOT / "docs" / "results.md"
EPSILON = "privacy.target_epsilon"
_WORDS = {"trial": "trial", "keep": "keep", "more_data": "more data"}
_PUBLIC = ("nobody", "ten", "hash", "biased")
Row = dict[str, Any]


def main() -> None:
    """Write the tables into the page; private runs with other keys than ε are left out."""
    rows = [
        row
        for row in read("logs")
        if row["learner"] != "private" or set(row["changes"]) == {EPSILON}
    ]
    put(PAGE, "zoo", overview(rows))
    put(PAGE, "zoo by log", by_log(rows, read("logs_peers")))
    put(PAGE, "gain intervals", intervals(rows))


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
    return (
        None
        if gain is None
        else (gain, row[who]["error"] / (row["truth"]["best"] - row["truth"]["worst"]))
    )


def worse(row: Row) -> bool:
    """Whether the policy is truly worse than the behaviour."""
    return (relative(row, "policy") or 0.0) < 0


def counts(rows: list[Row]) -> tuple[int, int, int, int, int]:
    """Count runs with a recommendation, with a good one, a better one, a wrong one, and with a good clone.

    Good: within 5% of the range of the behaviour, or better. Better: by more than 1.96 errors. Wrong: a trial of a
    policy that is worse than the behaviour.
    """
    known = [found for row in rows if (found := recommended(row)) is not None]
    good, better = (
        sum(gain >= -0.05 for gain, _ in known),
        sum(gain > 1.96 * error for gain, error in known),
    )
    wrong = sum(worse(row) for row in rows if answer(row) == "trial")
    cloned = [gain for row in rows if (gain := relative(row, "cloned")) is not None]
    return len(known), good, better, wrong, sum(gain >= -0.05 for gain in cloned)


def overview(rows: list[Row]) -> str:
    """Shares of all runs, failed ones too, whose recommendations are good, by who is public, people and ε."""
    lines = [
        "| public | people | ε | runs | verdict | recommended | within 5% of the range, or better "
        "| better by more than 1.96 errors | trial of a worse policy | clone within 5% |",
        "|---" * 10 + "|",
    ]
    private = [row for row in rows if row["learner"] == "private"]
    places = {
        (_PUBLIC.index(row["public"]), row["people"], row["changes"][EPSILON]) for row in private
    }
    for public, people, epsilon in sorted(places):
        place = (_PUBLIC[public], people, epsilon)
        mine = [
            row
            for row in private
            if (row["public"], row["people"], row["changes"][EPSILON]) == place
        ]
        verdicts = Counter(row["can_learn"] for row in mine if row["can_learn"])
        said = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        shares = (f"{number / len(mine):.0%}" for number in counts(mine))
        cells = (_PUBLIC[public], f"{people:,}", f"{epsilon:g}", len(mine), said, *shares)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def by_log(rows: list[Row], peers: list[Row]) -> str:
    """True gains of policies over the behaviour as shares of the range, with 95% intervals, beside the references.

    In brackets, what is recommended, and its mean gain; runs that recommend nothing gain nothing. Bold: the interval
    lies above that of the public people alone.
    """
    private = [row for row in rows if row["learner"] == "private"]
    budgets = sorted({row["changes"][EPSILON] for row in private})
    head = [
        "log",
        "people",
        "public",
        "behaviour",
        "best",
        "public alone",
        *(f"ε {epsilon:g}" for epsilon in budgets),
    ]
    head += ["all, no privacy", "d3rlpy"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for log, people, public in sorted(
        {(row["log"], row["people"], row["public"]) for row in private},
        key=lambda place: (place[0], place[1], _PUBLIC.index(place[2])),
    ):
        same = [row for row in rows if (row["log"], row["people"]) == (log, people)]
        mine = [row for row in same if (row["learner"], row["public"]) == ("private", public)]
        alone = _reference(
            [row for row in same if (row["learner"], row["public"]) == ("alone", public)]
        )
        truth = mine[0]["truth"]
        cells = [
            log,
            f"{people:,}",
            public,
            f"{truth['behaviour']:.3g}",
            f"{truth['best']:.3g}",
            _words(alone),
        ]
        cells += [
            _cell([row for row in mine if row["changes"][EPSILON] == epsilon], alone)
            for epsilon in budgets
        ]
        cells.append(_words(_reference([row for row in same if row["learner"] == "all"])))
        own = [peer for peer in peers if (peer["log"], peer["people"]) == (log, people)]
        own.sort(key=itemgetter("algorithm", "steps"))
        cells.append("; ".join(f"{peer['algorithm']} {peer['gain']:+.0%}" for peer in own) or "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gain_interval(row: Row) -> tuple[float, float] | None:
    """The interval of the gain as a run says it today, from what the run found; None: it gave none."""
    summary = row["summary"] or {}
    found = {
        (each["of"], each["estimator"]): each
        for each in summary.get("private_evaluation") or ()
        if each["what"] == MEAN_RETURN
    }
    people, policy, clone = (
        found.get(key)
        for key in (("behaviour", "behaviour"), ("policy", "model"), ("clone", "model"))
    )
    if not (people and policy and clone and people["ci95"]):
        return None
    half, released = (people["ci95"][1] - people["ci95"][0]) / 2, fmean(clone["members"])
    expected = fmean(policy["members"]) - released
    return interval_of_gain(
        expected, half, released - people["value"], Verdict.of(summary.get("model_verdict"))
    )


def intervals(rows: list[Row]) -> str:
    """How often the interval of the gain held the truth, and what runs whose interval lies above 0 gained in truth.

    `Other logs`: the same with the 5% and 95% quantiles of the other logs' errors in the place of the constants.
    """
    lines = [
        "| public | runs with an interval | logs | the truth is inside | other logs | interval above 0 | of these, "
        "truly worse | trials | of these, truly worse |",
        "|---" * 9 + "|",
    ]
    private = [row for row in rows if row["learner"] == "private" and row["policy"] is not None]
    known = [(row, found, _error(row, found)) for row in private if (found := gain_interval(row))]
    for public in _PUBLIC:
        mine = [each for each in known if each[0]["public"] == public]
        if not mine:
            continue
        inside = [-DOWN[kind] <= error <= UP for _, _, (kind, error) in mine]
        elsewhere = []
        for row, _, (kind, error) in mine:
            others = [e for other, _, (k, e) in known if k == kind and other["log"] != row["log"]]
            low, high = np.quantile(others, (0.05, 0.95)) if others else (np.nan, np.nan)
            elsewhere.append(low <= error <= high)
        above = [row for row, (low, _), _ in mine if low > 0]
        trials = [row for row, _, _ in mine if answer(row) == "trial"]
        counted = (len(above), sum(map(worse, above)), len(trials), sum(map(worse, trials)))
        logs = len({row["log"] for row, _, _ in mine})
        cells = (
            public,
            len(mine),
            logs,
            f"{fmean(inside):.0%}",
            f"{np.mean(elsewhere):.0%}",
            *counted,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _error(row: Row, interval: tuple[float, float]) -> tuple[str, float]:
    """The verdict's kind, and the true gain less the expected one, in units of the interval's scale."""
    kind = row["summary"]["model_verdict"]["check"]["believe"]
    low, high = interval
    scale = (high - low) / (DOWN[kind] + UP)
    return kind, float(
        (row["policy"]["mean"] - row["truth"]["behaviour"] - (high - UP * scale)) / scale
    )


def _interval(rows: list[Row]) -> tuple[float, float] | None:
    """Mean gain of policies and half of its 95% interval: over seeds, or of one seed over episodes."""
    found = [(gain, row) for row in rows if (gain := relative(row, "policy")) is not None]
    if not found:
        return None
    gains = [gain for gain, _ in found]
    if len(gains) > 1:
        return fmean(gains), float(student.ppf(0.975, len(gains) - 1)) * stdev(gains) / len(
            gains
        ) ** 0.5
    row = found[0][1]
    return gains[0], 1.96 * row["policy"]["error"] / (row["truth"]["best"] - row["truth"]["worst"])


def _reference(rows: list[Row]) -> tuple[float, float] | None:
    """The same of the best of the settings that were tried."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row["changes"]), []).append(row)
    return max(
        (found for group in groups.values() if (found := _interval(group)) is not None),
        default=None,
    )


def _words(found: tuple[float, float] | None) -> str:
    return "–" if found is None else f"{found[0]:+.0%} ± {found[1]:.0%}"


def _cell(rows: list[Row], alone: tuple[float, float] | None) -> str:
    if not rows:
        return "–"
    found, said = _interval(rows), Counter(map(_said, rows))
    text = _words(found)
    if found is not None and alone is not None and found[0] - found[1] > sum(alone):
        text = f"**{text}**"
    words = ", ".join(
        word if len(rows) == 1 else f"{number} {word}" for word, number in said.most_common()
    )
    gain = fmean((recommended(row) or (0.0,))[0] for row in rows)
    return f"{text} ({words}: {gain:+.0%})"


def _said(row: Row) -> str:
    said = answer(row)
    if said is None:
        return "no" if "cannot learn" in (row["error"] or "") else "failed"
    return _WORDS[said]


if __name__ == "__main__":
    main()
