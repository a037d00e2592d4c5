"""``primorl summary``, ``runs`` and ``report``: results of runs."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primorl.base.errors import PipelineError
from primorl.base.paths import (
    LATEST_REPORT,
    MODEL,
    ONLINE_METRICS,
    PARAMS,
    POLICY,
    REPORT,
    SUMMARY,
)
from primorl.commands.terminal import AsJson, flag, path_option, rendered

if TYPE_CHECKING:
    from primorl.evaluate.summary import Summary
    from primorl.tracking.store import Result


def summary(
    as_json: AsJson = False,
    links: Annotated[bool, flag("--links", "Tell where report and MLflow's run are.")] = False,
) -> None:
    """Show the results of the last run.

    Examples:
      primorl summary                   a short table
      primorl summary --links           and where the report and the run in MLflow are
      primorl summary --json            metrics/summary.json itself
    """
    from primorl.base.dvc import changed_params
    from primorl.evaluate.summary import Summary
    from primorl.evaluate.wording import text

    found = Summary.read(SUMMARY)
    stale = other_files(found)
    if stale is not None:
        print(f"warning: {SUMMARY}: {stale}", file=sys.stderr)
    if changed := changed_params():
        after = "`dvc repro` makes it again, and `primorl check --charges` says what that charges"
        print(f"note: changed since this run: {'; '.join(changed)}; {after}", file=sys.stderr)
    content = found.to_json()
    if as_json:
        print(json.dumps(content, indent=2, allow_nan=False))
        return
    print(text(content) + _online_row())
    if links:
        _print_places()


def _print_places() -> None:
    """Print the path of the report, and the address of the newest result in MLflow's view of
    trainings.
    """
    from primorl.config.params import load
    from primorl.tracking.store import link, viewer

    if REPORT.exists():
        print(f"report   {REPORT}")
    params = load(PARAMS)
    if address := link(params):
        command = viewer(params)
        print(f"mlflow   `{command}`, then {address}" if command else f"mlflow   {address}")


def _online_row() -> str:
    """Write the result of online learning as one more row; empty where no users were met."""
    from primorl.evaluate.summary import OnlineSummary

    found = (
        OnlineSummary.read(ONLINE_METRICS) if ONLINE_METRICS.exists() else OnlineSummary(met=False)
    )
    if not found.met:
        return ""
    low, high = found.return_ci95 or (0.0, 0.0)
    return (
        f"\n{'online':<8} return {found.return_before:.4g} before, {found.return_mean:.4g} "
        f"[{low:.4g}, {high:.4g}] after {found.users} {found.unit}s; {found.promise}"
    )


def other_files(summary: "Summary") -> str | None:
    """Say in a line why the results are not of the files in ``models/``; None: they are."""
    return summary.other_files(MODEL, POLICY)


def runs(
    max_epsilon: Annotated[
        float | None, typer.Option(help="Only private results with at most this ε, from 0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the results on the dataset of params.yaml, best first.

    Results are those of MLflow: what a simulator measured comes first. Values in a
    model do not compare: the newest comes first. `in all` is what all runs had spent on the same
    units by then, `changed` the settings that are not the same in all results that are listed.

    With --max-epsilon, only results with an ε that compares are listed: of the dataset's unit, at a
    δ of at most privacy.budget.delta.

    Examples:
      primorl runs                      all results
      primorl runs --max-epsilon 1      the best policy at ε ≤ 1 stands first
      primorl runs --json               with MLflow's run ids
    """
    from primorl.config import params
    from primorl.tracking.store import results

    if max_epsilon is not None and not (math.isfinite(max_epsilon) and max_epsilon >= 0):
        raise PipelineError(
            f"--max-epsilon: found {max_epsilon:g}; allowed is a finite number from 0; give one"
        )
    found = results(params.load(), most_epsilon=max_epsilon)
    if as_json:
        rows = [
            asdict(each) | {"finished": each.finished.isoformat(timespec="seconds")}
            for each in found
        ]
        print(json.dumps(rows, indent=2, allow_nan=False))
    else:
        print(_table(found) if found else "no results")


def _table(found: "list[Result]") -> str:
    from primorl.privacy.accounting.rounding import at_most

    deltas, short = {each.delta for each in found}, _short_names(found)
    columns: dict[str, list[str]] = {"result": [each.name for each in found]}
    columns["ε"] = ["–" if each.epsilon is None else at_most(each.epsilon) for each in found]
    if len(deltas) > 1:
        columns["δ"] = ["–" if each.delta is None else at_most(each.delta) for each in found]
    columns["in all"] = ["–" if each.spent is None else at_most(each.spent) for each in found]
    columns["value"] = ["–" if each.value is None else f"{each.value:.4g}" for each in found]
    columns["95% interval"] = [
        "" if each.low is None or each.high is None else f"{each.low:.4g} to {each.high:.4g}"
        for each in found
    ]
    columns["by"] = [each.by for each in found]
    columns["advice"] = [(each.advice or "").replace("_", " ") for each in found]
    columns["when"] = [f"{each.finished:%m-%d %H:%M}" for each in found]
    columns["changed"] = [
        ", ".join(f"{short[key]}={value}" for key, value in each.settings.items()) for each in found
    ]
    shown = {header: cells for header, cells in columns.items() if any(cells)}
    rows = list(zip(*shown.values(), strict=True))
    return rendered(
        tuple(shown), rows, right=("ε", "δ", "in all", "value"), cut=("result", "changed")
    )


def _short_names(found: "list[Result]") -> dict[str, str]:
    """Name settings by the last part of their keys, or by the whole key where two end alike."""
    keys = {key for each in found for key in each.settings}
    ends = [key.rpartition(".")[2] for key in keys]
    return {
        key: end if ends.count(end) == 1 else key for key in keys if (end := key.rpartition(".")[2])
    }


def report(
    out: Annotated[
        Path | None, path_option("FILE", "The page to write.  [default: reports/latest.html]")
    ] = None,
) -> None:
    """Write the report of the last run, with what was spent since.

    `dvc repro` writes reports/report.html from the files of the run. This command adds the ledger's
    history as it is now. The page needs no network.

    Examples:
      primorl report                       reports/latest.html
      primorl report --out for-the-board.html
    """
    from primorl.config import params
    from primorl.project import write_report

    target = out or LATEST_REPORT
    write_report(params.load(), target)
    print(target)
