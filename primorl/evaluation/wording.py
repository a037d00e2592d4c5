"""The privacy statement in one line, for tables and cards."""

from collections.abc import Mapping
from typing import Any

from primorl.privacy.accounting.rounding import at_most


def guarantee(summary: Mapping[str, Any]) -> str:
    """One line on privacy from ``metrics/summary.json``, such as "ε = 1.20, δ = 1e-05 per trajectory"."""
    if not summary["private"]:
        return "not private"
    text = f"ε = {at_most(summary['epsilon'])}, δ = {at_most(summary['delta'])} per {summary['unit']}"
    return f"{text} — VOID: {'; '.join(summary['void'])}" if summary["void"] else text


def account(summary: Mapping[str, Any]) -> str:
    """One line on what all runs had spent on the same units, such as "ε = 1.20, δ = 1e-05 in 3 charges when …"."""
    spent = summary["spent_on_dataset"]
    charges = f"{spent['charges']} charge{'s' if spent['charges'] != 1 else ''}"
    if spent["epsilon"] is None:
        return f"no guarantee left: a run without one is among {charges}"
    text = f"ε = {at_most(spent['epsilon'])}, δ = {at_most(spent['delta'])} in {charges} when the model was made"
    fixed = spent["epsilon_fixed"]
    if spent["charges"] == 1 or fixed is None:  # nothing was there to be looked at
        return text
    return f"{text} (ε = {at_most(fixed)} if all settings were fixed beforehand)"
