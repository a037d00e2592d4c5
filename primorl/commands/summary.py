"""``primorl summary``."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from primorl.project.paths import MODEL, MOPO, ONLINE_METRICS, POLICY, SUMMARY

if TYPE_CHECKING:
    from primorl.evaluation.summary import Summary

_HELP = """Show the results of the last run.

\b
Examples:
  primorl summary                   a short table
  primorl summary --json            metrics/summary.json itself
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("summary", help=_HELP)(_run)


def _run(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    import json

    from primorl.evaluation.summary import Summary
    from primorl.evaluation.wording import text

    found = Summary.read(SUMMARY)
    summary, stale = found.to_json(), other_files(found)
    if stale is not None:
        print(f"warning: {SUMMARY}: {stale}", file=sys.stderr)
    print(json.dumps(summary, indent=2, allow_nan=False) if as_json else text(summary) + online_row())


def online_row() -> str:
    """What users who came after training brought, as one more row of the table; empty where nobody was met."""
    from primorl.evaluation.summary import OnlineSummary

    found = OnlineSummary.read(ONLINE_METRICS) if ONLINE_METRICS.exists() else OnlineSummary(met=False)
    if not found.met:
        return ""
    low, high = found.return_ci95 or (0.0, 0.0)
    return (
        f"\n{'online':<8} return {found.return_before:.4g} before, {found.return_mean:.4g} [{low:.4g}, {high:.4g}] "
        f"after {found.users} {found.unit}s; {found.promise}"
    )


def other_files(summary: "Summary") -> str | None:
    """Why the results are not of what ``models/`` holds, in a line; None: they are."""
    return summary.other_files(MODEL, MOPO if summary.variant == "mopo" else POLICY)
