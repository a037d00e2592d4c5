"""A run's summary in words: a table for the terminal, today's return, and what a trial takes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from primorl.base.reporting import in_lines
from primorl.evaluate.private.results import MEAN_RETURN, Answer, Verdict, find_answer
from primorl.evaluate.recommendation import Recommendation
from primorl.evaluate.summary import PolicyResult, Summary
from primorl.evaluate.wording import (
    ADVICE,
    account,
    describe_signs,
    guarantee,
    singular,
    source,
    value,
)

_NORMAL = NormalDist()
# people of one arm: a mean of fewer is not normal, and no trial has more
_LEAST_ARM, _LARGEST_ARM = 30, 100_000


def gain(advice: Recommendation) -> str:
    """State a policy's gain, such as "+2.9 (-0.4 to +6.1)"; "not known" without an interval."""
    if advice.interval is None:
        return "not known"
    low, high = advice.interval
    return f"{advice.gain:+.3g} ({low:+.3g} to {high:+.3g})"


@dataclass(frozen=True)
class Shown:
    """Today's mean return.

    Attributes:
        source: who says so.
        value: mean return.
        ends: 95% interval; None: unknown.
        note: what the interval covers, and what it does not, of people who were asked.
    """

    source: str
    value: float
    ends: Sequence[float] | None
    note: str = ""


def describe_trial(
    advice: Recommendation | None, today: Shown | None, people: int, units: str
) -> str:
    """Say when to stop a trial, and how many people one needs; empty where none is recommended, or
    today's interval is unknown.

    Their number is that of a two-sided test of two equal arms at 5% with 80% power. Returns are
    taken to spread as far as today's interval allows, which holds the noise for privacy as well.

    Args:
        advice: None: there is none.
        today: mean return of the people.
        people: how many they are.
        units: what they are, in the plural.
    """
    if advice is None or advice.gain is None or advice.interval is None:
        return ""
    if advice.answer != "trial" or today is None or today.ends is None:
        return ""
    low, high = today.ends
    surely = _NORMAL.inv_cdf(0.975) + _NORMAL.inv_cdf(0.8)
    deviation = (high - low) / 2 * math.sqrt(people) / _NORMAL.inv_cdf(0.975)
    sizes = [
        f"{max(_LEAST_ARM, float(f'{count:.2g}')):,.0f} for a gain of {gain:.3g}"
        for gain in (advice.gain, advice.interval[0])
        if (count := 2 * (surely * deviation / gain) ** 2) < _LARGEST_ARM
    ]
    needed = " and ".join(sizes) or f"more than {_LARGEST_ARM:,}"
    return (
        f"Agree beforehand after how many {units} to look, and stop the trial if their mean return "
        f"is then below {low:.4g}, the lower end of the interval of today's mean return. A trial "
        f"that finds the gain in four cases of five needs in each of two arms at most about "
        f"{needed}."
    )


def find_today(result: PolicyResult, answers: Iterable[Answer], units: str) -> Shown | None:
    """Find the return of today's practice, by the private units or else the public ones; None:
    there is none.

    Args:
        result: has the public trajectories' return.
        answers: of the private units.
        units: what they are, in the plural.
    """
    today = find_answer(answers, "behaviour", MEAN_RETURN)
    if today is not None:
        source = f"counted over the {units}, with noise for their privacy"
        note = f"It covers {today.covers}. {today.bias}"
        return Shown(source, today.value, today.ci95, note)
    if result.public_return_mean is None:
        return None
    source = f"{result.public_trajectories} public trajectories"
    return Shown(source, result.public_return_mean, result.public_return_ci95)


def text(summary: Summary) -> str:
    """Format a summary as a short table of plain text."""
    advice, seeds = summary.recommendation, summary.seeds or (summary.seed,)
    run = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    promise = guarantee(summary.epsilon, summary.delta, singular(summary.unit), summary.void)
    size = f"{summary.units} private units"
    rows = [
        ("dataset", f"{summary.dataset} ({summary.env_id or 'no simulator'}), {size}"),
        ("variant", f"{summary.variant}, {run}"),
        ("privacy", f"{'of the policy: ' if summary.private else ''}{promise}"),
        ("spent", f"in all, up to this run: {account(summary.spent_on_dataset)}"),
        *_describe_answers(summary),
        *_describe_value(summary, f" over {len(seeds)} seeds" if len(seeds) > 1 else ""),
    ]
    if advice is not None:
        rows.append(("gain", f"{gain(advice)} over today's practice"))
        rows.append(("advice", f"{ADVICE[advice.answer]}."))
        rows += [("", part) for part in in_lines(advice.reason)]
    if summary.normalized_score is not None:
        rows.append(("score", f"{summary.normalized_score:.1f}"))
    stages = ", ".join(f"{name} {took:.0f}" for name, took in summary.seconds.items())
    rows.append(("time", f"{sum(summary.seconds.values()):.0f} s: {stages}"))
    return "\n".join(f"{name:<8} {said}" for name, said in rows)


def _describe_answers(summary: Summary) -> list[tuple[str, str]]:
    """Describe today's return, and what speaks against the model; empty where nothing was asked."""
    answers = summary.private_evaluation or ()
    today, rows = find_answer(answers, "behaviour", MEAN_RETURN), []
    if today is not None:
        rows.append(("today", f"{value(today.value, today.ci95)} by {source(today)}"))
    if against := describe_signs(summary.model_verdict or Verdict()):
        rows.append(("model", against))
    return rows


def _describe_value(summary: Summary, over: str) -> list[tuple[str, str]]:
    """Describe the return in the environment, or else the value in the model; ``over`` names the
    seeds.
    """
    if summary.return_mean is not None:
        assert summary.return_ci95 is not None, "it has a mean"
        low, high = summary.return_ci95
        mean = f"{summary.return_mean:.4g}  95% interval [{low:.4g}, {high:.4g}]"
        each = " each" if over else ""
        return [("return", f"{mean}{over}, {summary.episodes} episodes{each}")]
    rows = [("return", "not measured: there is no simulator")]
    if not summary.private_evaluation:  # else the gain says it
        assert summary.model_value_range is not None, "nothing was measured"
        low, high = summary.model_value_range
        spread = f"[{low:.4g}, {high:.4g}] over the {summary.model_value_members} members{over}"
        said = f"{summary.model_value:.4g}  {spread}: {summary.model_value_note}"
        rows.append(("value", said))
    return rows
