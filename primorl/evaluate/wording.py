"""Results in words: privacy statements and private answers in a line each, and the summary as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from primorl.evaluate.private.results import BELIEVE
from primorl.privacy.accounting.rounding import at_most

ADVICE = {
    "trial": "Try the policy in a trial",
    "keep": "Keep today's practice, whose clone is released",
    "more_data": "More data needed: neither the policy nor the clone is recommended",
}
"""Recommendations in a few words."""
GAIN_NOTE = (
    "what the model says that the policy adds to today's mean return of a trajectory, the sum over its steps (higher "
    "is better). The interval was fitted to hold in nine of ten runs on simulated logs; on others it may hold less"
    " often"
)
UNKNOWN_GAIN = "the people in the data say not to believe the model, or were not asked"
UNBELIEVED = "values in the model are not shown: the people in the data say not to believe it"
WHOSE = {
    "behaviour": "today's practice",
    "clone": "clone of today's practice",
    "policy": "the policy",
    "random": "random actions",
    "zero_action": "zero actions",
    "model": "how wrong the model is",
}
"""Names for `Answer.of`, in the order in which answers are listed."""
_WHOSE = {  # of eight characters at most: the column is no wider
    "behaviour": "today",
    "clone": "clone",
    "policy": "policy",
    "random": "random",
    "zero_action": "zeros",
    "model": "model",
}


def guarantee(summary: Mapping[str, Any]) -> str:
    """State a summary's privacy in one line, such as "ε = 1.20, δ = 1e-05 per trajectory"."""
    if not summary["private"]:
        return "not private"
    text = f"ε = {at_most(summary['epsilon'])}, δ = {at_most(summary['delta'])} per {summary['unit']}"
    return f"{text} — VOID: {'; '.join(summary['void'])}" if summary["void"] else text


def account(summary: Mapping[str, Any]) -> str:
    """State the cost of all runs on the same units in one line, such as "ε = 1.20, δ = 1e-05 in 3 charges when …"."""
    spent = summary["spent_on_dataset"]
    when = "when the model was made" if summary.get("private_evaluation") is None else "with the private evaluation"
    charges = f"{spent['charges']} charge{'s' if spent['charges'] != 1 else ''}"
    if spent["epsilon"] is None:
        return f"no guarantee left: a run without one is among {charges}"
    text = f"ε = {at_most(spent['epsilon'])}, δ = {at_most(spent['delta'])} in {charges} {when}"
    fixed = spent["epsilon_fixed"]
    if spent["charges"] == 1 or fixed is None:  # nothing was there to be looked at
        return text
    return f"{text} (ε = {at_most(fixed)} if all settings were fixed beforehand)"


def value(number: float, ci95: Sequence[float] | None) -> str:
    """Format a number with its 95% interval: "-12.31 ± 0.8", or "-12.31 [-13.5, -11.4]" where it is not symmetric.

    The number behind ± is rounded up, except for the rounding errors of the difference.
    """
    if ci95 is None:
        return f"{number:.4g}"
    low, high = ci95
    if abs((high - number) - (number - low)) > 0.02 * (high - low):
        return f"{number:.4g} [{low:.4g}, {high:.4g}]"
    return f"{number:.4g} ± {at_most(max(high - number, number - low) * (1 - 1e-9), 2)}"


def gain(advice: Mapping[str, Any]) -> str:
    """State a policy's gain, such as "2.9, between -0.4 and 6.1"; "not known" without an interval."""
    if advice.get("interval") is None:
        return "not known"
    low, high = advice["interval"]
    return f"{advice['expected']:+.3g}, between {low:+.3g} and {high:+.3g}"


def gain_note(advice: Mapping[str, Any]) -> str:
    """Explain the figure that `gain` states."""
    return UNKNOWN_GAIN if advice.get("interval") is None else GAIN_NOTE


def believed(summary: Mapping[str, Any]) -> bool:
    """Tell whether values in the model may be shown: the private units did not say not to believe it."""
    return not (summary.get("model_verdict") or "").startswith(BELIEVE["no"])


def worth(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Choose the private units' answer that stands for the policy's value, wherever one has to do.

    Of the charged answers about its mean return it is the one with the least lower end of its interval; an answer
    without an interval counts only where none has one. None: they were not asked.

    Args:
        answers: ``private_evaluation`` of a summary.
    """
    charged = (each for each in answers if each["of"] == "policy" and each["delta"] is not None)
    asked = [each for each in charged if each["what"].startswith("mean ")]
    sure = [each for each in asked if each["ci95"] is not None]
    if sure:
        return min(sure, key=lambda each: float(each["ci95"][0]))
    return min(asked, key=lambda each: float(each["value"]), default=None)


def source(answer: Mapping[str, Any]) -> str:
    """Name an answer's estimator and its cost, such as "lstd (ε 0.2)" or "model (free)"."""
    price = "free" if answer["delta"] is None else f"ε {at_most(answer['epsilon'])}"
    return f"{answer['estimator']} ({price})"


def discounted(discount: float) -> str:
    """Name the discount of the private units' answers, ", discounted by γ = 0.95"; empty where γ is 1."""
    return "" if discount == 1 else f", discounted by γ = {discount:g}"


def plural(unit: str) -> str:
    """Make the plural of a unit, such as "trajectories"."""
    return unit[:-1] + "ies" if unit.endswith("y") else unit + "s"


def text(summary: dict[str, Any]) -> str:
    """Format the content of ``metrics/summary.json`` as a short table of plain text.

    Raises:
        KeyError: an entry is missing.
    """
    score, seconds, seeds = summary["normalized_score"], summary["seconds"], summary.get("seeds", [summary["seed"]])
    advice = summary.get("recommendation")
    several = len(seeds) > 1
    rows = [
        ("dataset", f"{summary['dataset']} ({summary['env_id'] or 'no simulator'}), {summary['units']} private units"),
        ("variant", f"{summary['variant']}, " + (f"{len(seeds)} seeds" if several else f"seed {seeds[0]}")),
        ("privacy", f"{'of the policy: ' if summary['private'] else ''}{guarantee(summary)}"),
        ("spent", f"{'' if summary['spent_on_dataset']['epsilon'] is None else 'in all: '}{account(summary)}"),
    ]
    rows += _private_answers(summary)
    rows += _value(summary, f" over {len(seeds)} seeds" if several else "")
    if advice is not None:
        rows.append(("gain", f"{gain(advice)}: {gain_note(advice)}"))
        rows.append(("advice", f"{ADVICE[advice['answer']]}. {advice['reason']}"))
    if score is not None:
        rows.append(("score", f"{score:.1f}"))
    else:
        rows.append(("score", "none declared" if summary["env_id"] else "not measured"))
    stages = ", ".join(f"{name} {took:.0f}" for name, took in seconds.items())
    rows.append(("time", f"{sum(seconds.values()):.0f} s: {stages}"))
    return "\n".join(f"{name:<8} {value}" for name, value in rows)


def _private_answers(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the return of the private units today and under the policy; empty where nothing was asked."""
    rows = []
    hidden = () if believed(summary) else ("model",)
    shown = [each for each in summary.get("private_evaluation", ()) if each["estimator"] not in hidden]
    for each in sorted(shown, key=lambda answer: list(_WHOSE).index(answer["of"])):
        note = ", as it would be released" if each["of"] == "clone" else ""  # drawn actions may be worth something else
        rows.append((_WHOSE[each["of"]], f"{value(each['value'], each['ci95'])} by {source(each)}{note}"))
    if "model_verdict" in summary:
        rows.append(("model", summary["model_verdict"]))
    return rows


def _value(summary: dict[str, Any], over: str) -> list[tuple[str, str]]:
    """Make the rows of the return in the environment, or else of the value in the model; ``over`` names the seeds."""
    if summary["return_mean"] is None and not believed(summary):
        return [("return", "not measured: there is no simulator"), ("value", UNBELIEVED)]
    if summary["return_mean"] is None:
        low, high = summary["model_value_range"]
        spread = f"[{low:.4g}, {high:.4g}] over the {summary['model_value_members']} members{over}"
        answers = [(each["of"], each["estimator"]) for each in summary.get("private_evaluation", ())]
        if ("policy", "model") in answers:
            spread += ", in other rollouts than those of `policy` above"
        return [
            ("return", "not measured: there is no simulator"),
            ("value", f"{summary['model_value']:.4g}  {spread}: {summary['model_value_note']}"),
        ]
    low, high = summary["return_ci95"]
    mean = f"{summary['return_mean']:.4g}  95% interval [{low:.4g}, {high:.4g}]"
    rows = [("return", f"{mean}{over}, {summary['episodes']} episodes{' each' if over else ''}")]
    if over:
        each = (f"{own['seed']}: {value(own['return_mean'], own['return_ci95'])}" for own in summary["by_seed"])
        rows.append(("seeds", "; ".join(each) + " over episodes"))
    return rows
