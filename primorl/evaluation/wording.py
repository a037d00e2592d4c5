"""Privacy statements and private answers in a line each, for tables and cards."""

from collections.abc import Mapping, Sequence
from typing import Any

from primorl.privacy.accounting.rounding import at_most

ADVICE = {
    "trial": "Try the policy in a trial",
    "keep": "Keep today's practice, whose clone is released",
    "more_data": "More data needed: neither the policy nor the clone is recommended",
}
"""What a recommendation says, in a few words."""
WHOSE = {
    "behaviour": "today's practice",
    "clone": "clone of today's practice",
    "policy": "the policy",
    "random": "random actions",
    "zero_action": "zero actions",
    "model": "how wrong the model is",
}
"""Whose an answer is, by `Answer.of`, in the order in which answers are listed."""


def guarantee(summary: Mapping[str, Any]) -> str:
    """One line on privacy from ``metrics/summary.json``, such as "ε = 1.20, δ = 1e-05 per trajectory"."""
    if not summary["private"]:
        return "not private"
    text = f"ε = {at_most(summary['epsilon'])}, δ = {at_most(summary['delta'])} per {summary['unit']}"
    return f"{text} — VOID: {'; '.join(summary['void'])}" if summary["void"] else text


def account(summary: Mapping[str, Any]) -> str:
    """One line on what all runs had spent on the same units, such as "ε = 1.20, δ = 1e-05 in 3 charges when …"."""
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
    """A number with its 95% interval: "-12.31 ± 0.8", or "-12.31 [-13.5, -11.4]" where it is not symmetric.

    What stands behind ± is rounded up, but for what floats add to a difference.
    """
    if ci95 is None:
        return f"{number:.4g}"
    low, high = ci95
    if abs((high - number) - (number - low)) > 0.02 * (high - low):
        return f"{number:.4g} [{low:.4g}, {high:.4g}]"
    return f"{number:.4g} ± {at_most(max(high - number, number - low) * (1 - 1e-9), 2)}"


def worth(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The private units' answer that says what the policy is worth, wherever one has to do.

    Of the charged answers about its mean return it is the one whose interval has the least lower end; an answer without
    an interval counts only where none has one. None: they were not asked.

    Args:
        answers: ``private_evaluation`` of a summary.
    """
    asked = [
        each
        for each in answers
        if each["of"] == "policy" and each["delta"] is not None and each["what"].startswith("mean ")
    ]
    sure = [each for each in asked if each["ci95"] is not None]
    if sure:
        return min(sure, key=lambda each: float(each["ci95"][0]))
    return min(asked, key=lambda each: float(each["value"]), default=None)


def source(answer: Mapping[str, Any]) -> str:
    """Who says an answer and what it cost, such as "lstd (ε 0.2)" or "model (free)"."""
    price = "free" if answer["delta"] is None else f"ε {at_most(answer['epsilon'])}"
    return f"{answer['estimator']} ({price})"


def discounted(discount: float) -> str:
    """What is said of the private units' answers, such as ", discounted by γ = 0.95"; empty where γ is 1."""
    return "" if discount == 1 else f", discounted by γ = {discount:g}"


def plural(unit: str) -> str:
    """Several of a unit, such as "trajectories"."""
    return unit[:-1] + "ies" if unit.endswith("y") else unit + "s"
