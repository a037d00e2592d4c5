"""``primorl summary``."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primorl.project.paths import MODEL, MOPO, ONLINE_METRICS, POLICY, SUMMARY

if TYPE_CHECKING:
    from primorl.evaluation.summary import Summary

_WHOSE = {
    "behaviour": "today",
    "clone": "clone",
    "policy": "policy",
    "random": "random",
    "zero_action": "zeros",
    "model": "model",
}
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

    found = Summary.read(SUMMARY)
    summary, stale = found.to_json(), other_files(found)
    if stale is not None:
        print(f"warning: {SUMMARY}: {stale}", file=sys.stderr)
    print(json.dumps(summary, indent=2, allow_nan=False) if as_json else text(summary) + online_row())


def online_row() -> str:
    """What users who came after training brought, as one more row of the table; empty where nobody was met."""
    from primorl.evaluation.online_results import OnlineSummary

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


def text(summary: dict[str, Any]) -> str:
    """The content of ``metrics/summary.json`` as a short table.

    Raises:
        KeyError: an entry is missing.
    """
    from primorl.evaluation.wording import account, guarantee

    score, seconds = summary["normalized_score"], summary["seconds"]
    rows = [
        ("dataset", f"{summary['dataset']} ({summary['env_id'] or 'no simulator'}), {summary['units']} private units"),
        ("variant", f"{summary['variant']}, {_seeds(summary)}"),
        ("privacy", f"{'of the policy: ' if summary['private'] else ''}{guarantee(summary)}"),
        ("spent", f"{'' if summary['spent_on_dataset']['epsilon'] is None else 'in all: '}{account(summary)}"),
        *_private_answers(summary),
        *_value(summary).items(),
        *_recommendation(summary),
        ("score", ("none declared" if summary["env_id"] else "not measured") if score is None else f"{score:.1f}"),
        (
            "time",
            f"{sum(seconds.values()):.0f} s: " + ", ".join(f"{name} {took:.0f}" for name, took in seconds.items()),
        ),
    ]
    return "\n".join(f"{name:<8} {value}" for name, value in rows)


def _private_answers(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What the private units get today, and would get; empty where nothing was asked."""
    from primorl.evaluation.wording import source, value

    answers = sorted(summary.get("private_evaluation", ()), key=lambda answer: list(_WHOSE).index(answer["of"]))
    said = [f"{value(each['value'], each['ci95'])} by {source(each)}" for each in answers]
    note = {"clone": ", as it would be released"}  # drawn actions in a box may be worth something else
    rows = [(_WHOSE[each["of"]], one + note.get(each["of"], "")) for one, each in zip(said, answers, strict=True)]
    return [*rows, *([("model", summary["model_verdict"])] if "model_verdict" in summary else [])]


def _recommendation(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What to do with the policy; empty where an environment measured it."""
    from primorl.evaluation.wording import ADVICE

    found = summary.get("recommendation")
    return [] if found is None else [("advice", f"{ADVICE[found['answer']]}. {found['reason']}")]


def _value(summary: dict[str, Any]) -> dict[str, str]:
    """The return in the environment; without one, the value in the model."""
    if summary["return_mean"] is None:
        low, high = summary["model_value_range"]
        spread = f"[{low:.4g}, {high:.4g}] over the {summary['model_value_members']} members{_over_seeds(summary)}"
        return {
            "return": "not measured: there is no simulator",
            "value": f"{summary['model_value']:.4g}  {spread}: {summary['model_value_note']}",
        }
    low, high = summary["return_ci95"]
    over = _over_seeds(summary)
    mean = f"{summary['return_mean']:.4g}  95% interval [{low:.4g}, {high:.4g}]"
    return {"return": f"{mean}{over}, {summary['episodes']} episodes{' each' if over else ''}"}


def _over_seeds(summary: dict[str, Any]) -> str:
    return f" over {len(summary['seeds'])} seeds" if len(summary.get("seeds", ())) > 1 else ""


def _seeds(summary: dict[str, Any]) -> str:
    seeds = summary.get("seeds", [summary["seed"]])
    return f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"


def main() -> int:
    """``python -m primorl.commands.summary``: the same as ``primorl summary``."""
    from primorl.commands.main import main as primorl

    return primorl(["summary"])


if __name__ == "__main__":
    raise SystemExit(main())
