"""``primorl predict``."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from primorl.commands.arguments import given_path
from primorl.project.errors import PipelineError
from primorl.project.paths import POLICY

_HELP = """Write a policy's actions for a table of observations, a row each, in the same order.

\b
Examples:
  primorl predict --observations today.csv --out actions.csv
                                    the actions of models/policy; columns are found by their names
  primorl predict --policy out/v1/policy --observations log.parquet --out actions.parquet --keep patient --keep time
                                    those of a released bundle, beside two columns of the log
  primorl predict --observations log.csv --out actions.csv --trajectory stay --step time
                                    of a policy that observes the time since the row before

A row with a missing value, no number, an undeclared category or a value far outside the public range gets no action:
its column `abstained` is true. A number with another mark than the decimal point, such as 1,234, is an error.
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("predict", help=_HELP)(_run)


def _run(
    observations: Annotated[
        Path, typer.Option(metavar="FILE", parser=given_path, help="Parquet or CSV, one observation a row.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", parser=given_path, help="Parquet or CSV to write.")],
    policy: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=given_path, help="Folder of the policy.  [default: models/policy]"),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column of the observations to carry over; may be repeated."),
    ] = None,
    decimal_point: Annotated[
        Literal[".", ","], typer.Option(help="The decimal mark of a CSV's numbers; thousands have none.")
    ] = ".",
    trajectory: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Which trajectory a row is of; repeat it if several columns tell. With --step."
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="A number or time that ascends within a trajectory, to find the time between rows."
        ),
    ] = None,
) -> None:
    from primorl.policy.loaded import load_policy
    from primorl.setup.prediction import predict
    from primorl.trajectories.sources.tabular.elapsed import RowOrder

    if bool(trajectory) != bool(step):
        raise PipelineError("--trajectory, --step: found one without the other; allowed are both, or neither; add it")
    chosen = load_policy(policy or POLICY)
    by = RowOrder(tuple(trajectory), step) if trajectory and step else None
    rows, abstained = predict(chosen, observations, out, keep=keep or (), decimal_point=decimal_point, by=by)
    print(f"{out}: {rows} rows")
    print(f"abstained: {abstained} of {rows} rows, which have no action", file=sys.stderr)
