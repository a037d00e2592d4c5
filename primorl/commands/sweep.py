"""``primorl sweep``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primorl.commands.terminal import flag, given_path, one_line, option, path_option, rendered

if TYPE_CHECKING:
    from primorl.sweeps.file import Sweep
    from primorl.sweeps.trial import Row


def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", parser=given_path, help="The sweep, a YAML file.")
    ],
    plan: Annotated[bool, flag("--plan", "Say what it would charge; run nothing.")] = False,
    rows: Annotated[
        Path | None, path_option("OUT", "Write finished trials to OUT.csv or OUT.parquet.")
    ] = None,
    workers: Annotated[
        int | None, option("N", "Trials at a time.  [default: cores / compute.threads]", min=1)
    ] = None,
) -> None:
    """Run the stages after partition for many settings, each in a folder of its own.

    Examples:
      primorl sweep sweeps/pendulum-epsilon.yaml              run what is missing, then a table
      primorl sweep sweeps/pendulum-epsilon.yaml --plan       what it would charge; runs nothing
      primorl sweep sweeps/pendulum-epsilon.yaml --rows out.csv       write all finished trials; runs nothing
      primorl sweep sweeps/pendulum-epsilon.yaml --workers 4  four trials at a time, which share the cores

    Trials lie in .primorl/sweeps/NAME. The same command goes on after a kill, and runs again what failed. The ledger is
    asked before each trial; what it refuses is not begun. Every trial with new settings of the model is charged.
    """
    from primorl.sweeps import sweeping
    from primorl.sweeps.file import read_sweep

    sweep = read_sweep(file)
    if rows is not None:
        sweeping.check_table_name(rows)
    if plan:
        from primorl.commands.sweep_plan import lines

        for line in lines(sweep):
            print(line)
    if rows is not None:
        print(f"{rows}: {sweeping.write_finished(rows, sweep)} finished trials of {sweep.name}")
    if plan or rows is not None:
        return
    found = sweeping.run_sweep(sweep, workers=workers)
    print(_table(sweep, found))
    if any(not row.finished for row in found):
        raise typer.Exit(1)


def _table(sweep: "Sweep", rows: "list[Row]") -> str:
    """Write a line for every trial: varied settings, result, ε; below, why trials are not finished."""
    from primorl.privacy.accounting.rounding import at_most
    from primorl.sweeps.file import column_heads

    heads, lines = column_heads(sweep.keys), []
    for row in rows:
        varied = [str(row.settings.get(key, "")) for key in sweep.keys]
        found = (row.first("return_mean", "model_value"), row.first("normalized_score"))
        values = ["" if value is None else f"{value:.4g}" for value in found]
        epsilon = at_most(row.summary.get("epsilon"), 4) if row.summary else ""
        lines.append(
            (row.trial, row.case or "", *varied, *values, epsilon, f"{row.seconds:.0f}", row.status)
        )
    columns = ("trial", "case", *heads, "return", "score", "ε", "seconds", "")
    table = rendered(columns, lines, right=columns[2:-1], cut=("trial", "case", *heads))
    unfinished = [f"{row.trial} {row.status}: {one_line(row.error)}" for row in rows if row.error]
    return "\n".join([table, *unfinished])
