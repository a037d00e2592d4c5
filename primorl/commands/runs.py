"""``primorl runs``."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from primorl.tracking.search import Result

_HELP = """List the results on the dataset of params.yaml, best first.

\b
Results are those of MLflow: what a simulator measured comes first, then what the private units say, then values in the
model. `in all` is what all runs had spent on the same units by then.

With --max-epsilon, only results with an ε that compares are listed: of the dataset's unit, at a δ of at most
privacy.budget.delta.

\b
Examples:
  primorl runs                      all results
  primorl runs --max-epsilon 1      the best policy at ε ≤ 1 stands first
  primorl runs --sweeps             trials of sweeps as well
  primorl runs --json               with MLflow's run ids
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("runs", help=_HELP)(_run)


def _run(
    max_epsilon: Annotated[
        float | None, typer.Option("--max-epsilon", help="Only private results with at most this ε, from 0.")
    ] = None,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="List the trials of sweeps as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    import json
    import math
    from dataclasses import asdict

    from primorl.config import params
    from primorl.project.errors import PipelineError
    from primorl.tracking.search import results

    if max_epsilon is not None and not (math.isfinite(max_epsilon) and max_epsilon >= 0):
        raise PipelineError(f"--max-epsilon: found {max_epsilon:g}; allowed is a finite number from 0; give one")
    found = results(params.load(), most_epsilon=max_epsilon, sweeps=sweeps)
    if as_json:
        rows = [asdict(each) | {"finished": each.finished.isoformat(timespec="seconds")} for each in found]
        print(json.dumps(rows, indent=2, allow_nan=False))
    else:
        print(table(found) if found else "no results")


def table(found: "list[Result]") -> str:
    """A line a result."""
    from primorl.commands.printing import rendered
    from primorl.privacy.accounting.rounding import at_most

    def upper(value: float | None) -> str:
        return "–" if value is None else at_most(value)

    def interval(low: float | None, high: float | None) -> str:
        return "" if low is None or high is None else f"[{low:.4g}, {high:.4g}]"

    headers = ("result", "ε", "δ", "in all", "value", "95% interval", "by", "when")
    rows = [
        (
            each.name,
            upper(each.epsilon),
            upper(each.delta),
            upper(each.spent),
            "–" if each.value is None else f"{each.value:.4g}",
            interval(each.low, each.high),
            each.by,
            f"{each.finished:%m-%d %H:%M}",
        )
        for each in found
    ]
    return rendered(headers, rows, right=("ε", "δ", "in all", "value"), cut=("result",))
