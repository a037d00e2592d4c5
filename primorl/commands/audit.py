"""``primorl audit``."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primorl.base.paths import AUDIT_RECORDS, PARAMS
from primorl.commands.terminal import add_group, flag, number, option, rendered
from primorl.privacy.accounting.rounding import at_least, at_most

if TYPE_CHECKING:
    from primorl.config.params import Params
    from primorl.engine.one_run_audit import OneRun
    from primorl.privacy.audits.bounds import LowerBound
    from primorl.tracking import StageRun

_EXAMPLES = """Examples:
  primorl audit mechanism                        2,048 canary updates through sampler, clip and noise; reads no data
  primorl audit one-run --canaries 400           canary trajectories through the whole training, on the public split

Reports go to reports/audit/ and to MLflow. No private data is read, so nothing is charged. A lower bound above the
claimed ε ends with an error and status 1.
"""
_Json = Annotated[bool, flag("--json", "Print the report as JSON instead of a table.")]
_COUNT = number(int, lambda count: count >= 1, "1 and more")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    add_group(app, "audit", "Try to refute the claimed ε.", _EXAMPLES, _mechanism, _one_run)


@contextmanager
def _logged() -> "Iterator[tuple[Params, StageRun]]":
    from absl import logging

    from primorl import tracking
    from primorl.config import params

    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    checked = params.load(PARAMS)
    with tracking.stage_run("audit", checked) as log:
        yield checked, log


def _mechanism(
    canaries: Annotated[
        int | None, option("M", "Canaries in one run.  [default: 2048]", parser=_COUNT)
    ] = None,
    runs: Annotated[
        int | None,
        option(
            "N", "Runs of all rounds.  [default: as many as see 131,072 canaries]", parser=_COUNT
        ),
    ] = None,
    as_json: _Json = False,
) -> None:
    """White box: look at every round's release, with canaries in directions of their own."""
    from primorl.paid import audits

    with _logged() as (params, log):
        found = audits.of_mechanism(
            params, canaries or audits.MECHANISM_CANARIES, runs, audits.CONFIDENCE
        )
        audits.log_bounds(log, found)
        table = _bounds(found) + f"\n{found.canaries} canaries were seen"
        _finish("mechanism", audits.report(found), table, as_json, log)
        audits.refuse(found)


def _one_run(
    canaries: Annotated[
        int | None, option("M", "Canary trajectories.  [default: 200]", parser=_COUNT)
    ] = None,
    as_json: _Json = False,
) -> None:
    """Train once with canary trajectories in the data."""
    from primorl.paid import audits

    with _logged() as (params, log):
        found = audits.of_one_run(params, canaries or audits.ONE_RUN_CANARIES, audits.CONFIDENCE)
        audits.log_bounds(log, found)
        table = _bounds(found)
        for name, view in (
            ("every round's release", found.rounds),
            ("the released model", found.model),
        ):
            table += f"\n{name}: {view.correct} of {view.guesses} guesses right"
        table += f"\ntrained on {found.units} public units and {found.canaries} canaries; the model was dropped"
        _finish("one-run", audits.report(found), table, as_json, log)
        audits.refuse(found)


def _finish(name: str, report: dict[str, Any], table: str, as_json: bool, log: "StageRun") -> None:
    """Write the report, log it, and print it or the table."""
    from primorl.base.files import write_json

    path = AUDIT_RECORDS / f"{name}.json"
    write_json(path, report)
    log.artifact(path)
    print(json.dumps(report, indent=2, allow_nan=False) if as_json else f"{table}\nreport: {path}")


def _bounds(found: "LowerBound | OneRun") -> str:
    claimed = found.claimed
    cells = [("claimed", "none" if claimed is None else at_most(claimed), "", "")]
    for bound in found.bounds:
        share = f"{math.floor(100 * bound.epsilon / claimed)}%" if claimed else ""
        cells.append((f"lower bound: {bound.name}", at_least(bound.epsilon), share, bound.assumes))
    header = (f"ε at δ = {at_most(found.delta)}", "", "of the claim", "assumes")
    table = rendered(header, cells, right=("", "of the claim"))
    each = (1 - found.confidence) / len(found.bounds)
    return (
        f"{table}\nall {len(found.bounds)} bounds are below the true ε with {100 * found.confidence:.6g}% confidence "
        f"(Bonferroni: error {each:.3g} each)"
    )
