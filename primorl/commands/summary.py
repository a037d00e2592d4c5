"""``python -m primorl.commands.summary``: what the last run came to, on one screen."""

import sys
from pathlib import Path
from typing import Any

from primorl.evaluation.figure import account, guarantee
from primorl.evaluation.summary import Summary
from primorl.project.errors import PipelineError


def text(summary: dict[str, Any]) -> str:
    """The content of ``metrics/summary.json`` as a short table."""
    score, seconds = summary["normalized_score"], summary["seconds"]
    rows = {
        "dataset": f"{summary['dataset']} ({summary['env_id'] or 'no simulator'}), {summary['units']} private units",
        "variant": f"{summary['variant']}, {_seeds(summary)}",
        "privacy": guarantee(summary),
        "spent": account(summary),
        **_worth(summary),
        "score": ("none declared" if summary["env_id"] else "not measured") if score is None else f"{score:.1f}",
        "time": f"{sum(seconds.values()):.0f} s: " + ", ".join(f"{name} {took:.0f}" for name, took in seconds.items()),
    }
    return "\n".join(f"{name:<8} {value}" for name, value in rows.items())


def _worth(summary: dict[str, Any]) -> dict[str, str]:
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
    """Print the summary; return the exit status."""
    try:
        print(text(Summary.read(Path("metrics/summary.json")).to_json()))
    except PipelineError as missing:
        print(f"error: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
