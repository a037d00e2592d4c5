"""Results in words: privacy statements and private answers in a line each, and the summary as a
table.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from primorl.base.reporting import in_lines
from primorl.evaluate.private.results import MEAN_RETURN, Verdict
from primorl.privacy.accounting.rounding import at_most

ADVICE = {
    "trial": "Try the policy in a supervised trial",
    "keep": "Keep today's practice, and change nothing",
    "more_data": "Change nothing yet: the data do not tell whether the policy is better",
}
"""Recommendations in a few words."""
GAIN_NOTE = (
    "What the model says that the policy adds to the mean return; above 0 is better. The interval "
    "held the true gain in nine of ten runs on fourteen simulated logs. On logs made to mislead it "
    "it does not hold, and harmful policies were recommended: real data may be like them."
)
WHOSE = {
    "behaviour": "today's practice",
    "clone": "clone of today's practice",
    "policy": "the policy",
    "random": "random actions",
}
"""Names for `Answer.of`, in the order in which answers are listed."""

_NORMAL = NormalDist()
# people of one arm: a mean of fewer is not normal, and no trial has more
_LEAST_ARM, _LARGEST_ARM = 30, 100_000
# how the assumption ends without which the ε of a whole run holds
_FIXED_BEFORE = "; else spent_on_dataset holds"


def guarantee(summary: Mapping[str, Any]) -> str:
    """State a summary's privacy in one line, such as "ε = 1.20, δ = 1e-05 per trajectory"."""
    if not summary["private"]:
        return "not private"
    text = (
        f"ε = {at_most(summary['epsilon'])}, δ = {at_most(summary['delta'])} per {summary['unit']}"
    )
    return f"{text} — VOID: {'; '.join(summary['void'])}" if summary["void"] else text


def account(summary: Mapping[str, Any]) -> str:
    """State the cost of all runs on the same units in one line, such as "ε = 1.20, δ = 1e-05 in 3
    charges".
    """
    spent = summary["spent_on_dataset"]
    charges = f"{spent['charges']} charge{'s' if spent['charges'] != 1 else ''}"
    if spent["epsilon"] is None:
        return f"no guarantee left: a run without one is among {charges}"
    return f"ε = {at_most(spent['epsilon'])}, δ = {at_most(spent['delta'])} in {charges}"


def value(number: float, ci95: Sequence[float] | None) -> str:
    """Format a number with its 95% interval: "-12.31 (-13.11 to -11.51)"."""
    if ci95 is None:
        return f"{number:.4g}"
    return f"{number:.4g} ({ci95[0]:.4g} to {ci95[1]:.4g})"


def gain(advice: Mapping[str, Any]) -> str:
    """State a policy's gain, such as "+2.9 (-0.4 to +6.1)"; "not known" without an interval."""
    if advice.get("interval") is None:
        return "not known"
    low, high = advice["interval"]
    return f"{advice['gain']:+.3g} ({low:+.3g} to {high:+.3g})"


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


def describe_trial(advice: Mapping[str, Any], today: Shown | None, people: int, units: str) -> str:
    """Say when to stop a trial, and how many people one needs; empty where none is recommended, or
    today's interval is unknown.

    Their number is that of a two-sided test of two equal arms at 5% with 80% power. Returns are
    taken to spread as far as today's interval allows, which holds the noise for privacy as well.

    Args:
        advice: see `primorl.evaluate.recommendation.Recommendation`.
        today: mean return of the people.
        people: how many they are.
        units: what they are, in the plural.
    """
    if advice["answer"] != "trial" or today is None or today.ends is None:
        return ""
    low, high = today.ends
    surely = _NORMAL.inv_cdf(0.975) + _NORMAL.inv_cdf(0.8)
    deviation = (high - low) / 2 * math.sqrt(people) / _NORMAL.inv_cdf(0.975)
    sizes = [
        f"{max(_LEAST_ARM, float(f'{count:.2g}')):,.0f} for a gain of {gain:.3g}"
        for gain in (advice["gain"], advice["interval"][0])
        if (count := 2 * (surely * deviation / gain) ** 2) < _LARGEST_ARM
    ]
    needed = " and ".join(sizes) or f"more than {_LARGEST_ARM:,}"
    return (
        f"Agree beforehand after how many {units} to look, and stop the trial if their mean return "
        f"is then below {low:.4g}, the lower end of the interval of today's mean return. A trial "
        f"that finds the gain in four cases of five needs in each of two arms at most about "
        f"{needed}."
    )


def label(name: str, labels: Mapping[str, str]) -> str:
    """Name a column or an action in declared words; in ``meal=snack`` and the like, the column.

    Columns and categories may have commas and equals signs in their names.
    """
    for given in (name, name.removeprefix("action ")):
        if given in labels:
            return labels[given]
    columns = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
    found = rf"(^|, )({columns})(?==)"
    return re.sub(found, lambda each: each[1] + labels[each[2]], name) if labels else name


def list_explained(model: Mapping[str, Any], labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """List the share of each column's variance that a model explains, the reward first, by the
    content of its ``config.json``; empty where nobody was asked.
    """
    found = model.get("explained") or ()
    names = model.get("observation_names") or [f"observation_{i}" for i in range(len(found) - 1)]
    rows = []
    for name, each in zip((*names, "reward"), found, strict=False):
        share = "not known: it hardly varies, or the noise of this question is too large"
        if each is not None:
            share = f"{each['share']:.0%} ± {at_most(100 * each['error'], 2)}%"
        rows.append((label(name, labels), share))
    return [*rows[-1:], *rows[:-1]]


def todays_answer(summary: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the people's own mean return; None: they were not asked."""
    of_mean = "behaviour", MEAN_RETURN
    answers = summary.get("private_evaluation") or ()
    return next((each for each in answers if (each["of"], each["what"]) == of_mean), None)


def find_today(summary: Mapping[str, Any]) -> Shown | None:
    """Find the return of today's practice, by the private units or else the public ones, in the
    content of ``metrics/summary.json``; None: there is none.
    """
    today = todays_answer(summary)
    if today is not None:
        source = f"counted over the {plural(summary['unit'])}, with noise for their privacy"
        note = f"It covers {today['covers']}. {today['bias']}"
        return Shown(source, today["value"], today["ci95"], note)
    if summary.get("public_return_mean") is None:
        return None
    source = f"{summary['public_trajectories']} public trajectories"
    return Shown(source, summary["public_return_mean"], summary["public_return_ci95"])


def describe_signs(verdict: Verdict) -> str:
    """Say what speaks against the model; empty: nothing does, or nothing was asked."""
    signs = (veto.reason for veto in verdict.vetoes)
    return sentences(*(() if verdict.believed else ("do not believe the model",)), *signs)


def sentences(*clauses: str) -> str:
    """Make a sentence of each clause: with a capital letter, unless a file's name comes first."""
    made = []
    for clause in clauses:
        named = "/" in clause.partition(" ")[0]
        made.append(f"{clause}." if named else f"{clause[:1].upper()}{clause[1:]}.")
    return " ".join(made)


def describe_public(statement: Mapping[str, Any]) -> str:
    """Say how many people are public; empty where a statement does not tell."""
    count, unit = statement.get("public_units"), statement["unit"]
    if count is None:
        return ""
    if count == 0:
        return f"No {unit} is public."
    many = f"{count:,} {plural(unit)} are" if count > 1 else f"1 {unit} is"
    return f"{many} public and not protected."


def public_facts(statement: Mapping[str, Any]) -> list[str]:
    """List what a statement takes as public, but for what the ε of a whole run does without."""
    return [line for line in statement["public_assumptions"] if not line.endswith(_FIXED_BEFORE)]


def source(answer: Mapping[str, Any]) -> str:
    """Name an answer's estimator and its cost, such as "behaviour (ε 0.2)" or "model (free)"."""
    price = "free" if answer["delta"] is None else f"ε {at_most(answer['epsilon'])}"
    return f"{answer['estimator']} ({price})"


_NO_WORDS = ("", "id", "pid", "sid", "uid", "mrn", "ssn", "subjid", "usubjid")
_ID = r"(?i:(case|client|patient|person|stay|subject|user)ids?$)|(?<=[a-z])I[dD]s?$"
_ID += r"|[\s_.-]+(?i:ids?|no|nr|number|key|code|uuid)$"


def singular(unit: str, labels: Mapping[str, str] | None = None) -> str:
    """Name a unit in plain words, which the column of its ids may not have: those declared for the
    column, else the column's without what marks an id. MEDS' subject is a patient.
    """
    if labels and unit in labels and unit != "trajectory":
        return labels[unit]
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[\s_.-]+", " ", re.sub(_ID, r"\1", unit)).strip().lower()
    return "patient" if unit == "subject_id" else "person" if plain in _NO_WORDS else plain


def plural(noun: str) -> str:
    """Make the plural of a unit in plain words, such as "trajectories"."""
    for one, several in {"person": "people", "child": "children"}.items():
        if noun.endswith(one):
            return noun.removesuffix(one) + several
    if noun.endswith("y") and noun[-2:-1] not in set("aeou"):
        return noun[:-1] + "ies"
    return noun if noun.endswith("s") else noun + "s"


def name_people(content: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a file with its unit in plain words; see `singular`."""
    units = {key: singular(content[key], labels) for key in ("unit",) if key in content}
    return {**content, **units}


def text(summary: Mapping[str, Any]) -> str:
    """Format the content of ``metrics/summary.json`` as a short table of plain text.

    Raises:
        KeyError: an entry is missing.
    """
    summary = name_people(summary, {})
    seconds, advice = summary["seconds"], summary.get("recommendation")
    seeds = summary.get("seeds") or [summary["seed"]]
    run = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    place = summary["env_id"] or "no simulator"
    rows = [
        ("dataset", f"{summary['dataset']} ({place}), {summary['units']} private units"),
        ("variant", f"{summary['variant']}, {run}"),
        ("privacy", f"{'of the policy: ' if summary['private'] else ''}{guarantee(summary)}"),
        ("spent", f"in all, up to this run: {account(summary)}"),
        *_describe_answers(summary),
        *_describe_value(summary, f" over {len(seeds)} seeds" if len(seeds) > 1 else ""),
    ]
    if advice is not None:
        rows.append(("gain", f"{gain(advice)} over today's practice"))
        rows.append(("advice", f"{ADVICE[advice['answer']]}."))
        rows += [("", part) for part in in_lines(advice["reason"])]
    if summary["normalized_score"] is not None:
        rows.append(("score", f"{summary['normalized_score']:.1f}"))
    stages = ", ".join(f"{name} {took:.0f}" for name, took in seconds.items())
    rows.append(("time", f"{sum(seconds.values()):.0f} s: {stages}"))
    return "\n".join(f"{name:<8} {value}" for name, value in rows)


def _describe_answers(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe today's return, and what speaks against the model; empty where nothing was asked."""
    today = todays_answer(summary)
    rows = []
    if today is not None:
        rows.append(("today", f"{value(today['value'], today['ci95'])} by {source(today)}"))
    against = describe_signs(Verdict.of(summary.get("model_verdict")))
    if against:
        rows.append(("model", against))
    return rows


def _describe_value(summary: Mapping[str, Any], over: str) -> list[tuple[str, str]]:
    """Describe the return in the environment, or else the value in the model; ``over`` names the
    seeds.
    """
    if summary["return_mean"] is not None:
        low, high = summary["return_ci95"]
        mean = f"{summary['return_mean']:.4g}  95% interval [{low:.4g}, {high:.4g}]"
        each = " each" if over else ""
        return [("return", f"{mean}{over}, {summary['episodes']} episodes{each}")]
    rows = [("return", "not measured: there is no simulator")]
    if not summary.get("private_evaluation"):  # else the gain says it
        low, high = summary["model_value_range"]
        spread = f"[{low:.4g}, {high:.4g}] over the {summary['model_value_members']} members{over}"
        said = f"{summary['model_value']:.4g}  {spread}: {summary['model_value_note']}"
        rows.append(("value", said))
    return rows
