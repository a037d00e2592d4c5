"""``primorl run``, ``summary``, ``runs`` and ``report``: runs and their results."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from primorl.base.errors import PipelineError
from primorl.base.paths import (
    LATEST_REPORT,
    MODEL,
    ONLINE_METRICS,
    POLICY,
    REPORT,
    SUMMARY,
)
from primorl.commands.terminal import AsJson, flag, format_table, path_option


def run() -> None:
    """Check, say what will be charged, run the stages whose inputs changed, and show the results.

    The stages are run by `dvc repro`. Where nothing changed, nothing is run or charged.

    Examples:
      primorl run                             the run that params.yaml describes
      primorl run && primorl release bundle   and the bundle that may leave
    """
    from primorl.base.dvc import Status, show_dvc
    from primorl.commands.check import check

    # DVC deletes a stage's outputs before it finds a mistake in params.yaml, so that is checked
    # first. DVC takes a second to start meanwhile.
    with Status() as status:
        check()
        changed = status.changed_stages()
    if not changed and SUMMARY.exists():
        print("nothing changed since the last run: nothing is run or charged", file=sys.stderr)
    else:
        from primorl.config.params import load
        from primorl.work.bill import MAKE_DATA, preview

        show_dvc("repro", "--quiet", "plan")
        bill = preview(load(), changed - {*MAKE_DATA, "plan"})
        print(bill, flush=True)
        if bill is not None:
            bill.refuse_beyond_budget()  # before DVC deletes the model that is there
        show_dvc("repro")
    summary(links=True)


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
    from primorl.evaluate.summary import Summary
    from primorl.evaluate.wording import text

    found = Summary.read(SUMMARY)
    if (stale := found.other_files(MODEL, POLICY)) is not None:
        print(f"warning: {SUMMARY}: {stale}", file=sys.stderr)
    content = found.to_json()
    if as_json:
        print(json.dumps(content, indent=2, allow_nan=False))
        return
    print(text(content))
    if ONLINE_METRICS.exists():
        _print_online()
    if links:
        _print_places()


def _print_online() -> None:
    """Print the result of online learning as one more row."""
    from primorl.evaluate.summary import OnlineSummary

    found = OnlineSummary.read(ONLINE_METRICS)
    if found.met:
        low, high = found.return_ci95 or (0.0, 0.0)
        print(
            f"online   return {found.return_before:.4g} before, {found.return_mean:.4g} "
            f"[{low:.4g}, {high:.4g}] after {found.users} {found.unit}s; {found.promise}"
        )


def _print_places() -> None:
    """Print the path of the report, and the address of the newest result in MLflow."""
    from primorl.config.params import load
    from primorl.tracking import link, viewer

    if REPORT.exists():
        print(f"report   {REPORT}")
    params = load()
    if address := link(params):
        command = viewer(params)
        print(f"mlflow   `{command}`, then {address}" if command else f"mlflow   {address}")


def runs(
    max_epsilon: Annotated[
        float | None, typer.Option(help="Only private results with at most this ε, from 0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the results on the dataset of params.yaml, best first.

    Results are those of MLflow: returns that a simulator measured come first. Then come gains over
    today's practice by a model, which do not compare: the newest first. `data` tells versions of
    the data apart; `in all` is what all runs had spent on the same units by then; `set` are
    settings that a person wrote and that differ.

    With --max-epsilon, only results with an ε that compares are listed: of the dataset's unit, at a
    δ of at most privacy.delta.

    Examples:
      primorl runs                      all results
      primorl runs --max-epsilon 1      the best policy at ε ≤ 1 stands first
      primorl runs --json               with MLflow's run ids
    """
    from primorl.config import params
    from primorl.tracking import results

    if max_epsilon is not None and not (math.isfinite(max_epsilon) and max_epsilon >= 0):
        raise PipelineError(
            f"--max-epsilon: found {max_epsilon:g}; allowed is a finite number from 0; give one"
        )
    found = results(params.load(), most_epsilon=max_epsilon)
    if as_json:
        print(json.dumps(found, indent=2, allow_nan=False))
        return
    if not found:
        print("no results")
        return
    keys = dict.fromkeys(key for each in found for key in each["given"])
    told = [key for key in keys if len({str(each["given"].get(key)) for each in found}) > 1]
    rows = [_row(each, told) for each in found]
    print(format_table(tuple(rows[0]), [tuple(row.values()) for row in rows], right=_NUMBERS))


_NUMBERS = ("units", "ε", "δ", "in all", "return or gain")


def _row(each: Mapping[str, Any], told: Sequence[str]) -> dict[str, str]:
    """Return the cells of a result; ``told`` are the settings to show."""
    from primorl.privacy.accounting.rounding import at_most

    epsilon, delta, spent = (
        "–" if each[key] is None else at_most(each[key]) for key in ("epsilon", "delta", "spent")
    )
    known = each["low"] is not None and each["high"] is not None
    digits = "+.3g" if each["by"] == "model" else ".4g"
    return {
        "data": each["data"],
        "units": "–" if each["units"] is None else str(each["units"]),
        "result": each["name"],
        "ε": epsilon,
        "δ": delta,
        "in all": spent,
        "return or gain": "–" if each["value"] is None else f"{each['value']:{digits}}",
        "interval": f"{each['low']:{digits}} to {each['high']:{digits}}" if known else "",
        "by": each["by"],
        "advice": (each["advice"] or "").replace("_", " "),
        "when": each["finished"][5:16].replace("T", " "),
        "set": " ".join(f"{key}={each['given'][key]}" for key in told if key in each["given"]),
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
