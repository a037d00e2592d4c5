"""``primorl check``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import primorl
from primorl.project.errors import PipelineError

if TYPE_CHECKING:
    from primorl.config.params import Params

_HELP = """Check params.yaml, datasets and a log's columns before `dvc repro`. Runs nothing and changes nothing.

DVC itself may remove outputs before it finds a mistake in params.yaml; this command finds it first.

\b
Examples:
  primorl check && dvc repro            run the pipeline only if the settings are valid
  primorl check --charges && dvc repro  say first what it charges, and ask where a budget is nearly used up
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("check", help=_HELP)(_run)


def _run(
    charges: Annotated[
        bool,
        typer.Option("--charges", help="Say what `dvc repro` would charge; on a terminal, ask where a budget is near."),
    ] = False,
) -> None:
    from primorl.config.datasets import TabularDataset
    from primorl.config.params import load
    from primorl.project.template import check_version

    check_version(Path(), primorl.__version__)
    params = load()
    if params.online.asked:
        from primorl.setup.arrivals import Arrivals

        if params.chosen.environment is None:
            raise PipelineError(
                f"params.yaml: online.users and online.arrivals: found users, and datasets/{params.dataset}.yaml names "
                "no environment that could simulate them; set both to null"
            )
        Arrivals.of(params)
    print("params.yaml and the datasets are valid")
    if isinstance(params.chosen, TabularDataset):
        from primorl.trajectories.sources.tabular.source import Tabular

        there = Tabular(params.dataset, params.chosen).check_columns()
        named = params.chosen.options.files
        print(f"{named}: {'has the columns of the entry' if there else 'not there yet, so its columns are unchecked'}")
    if charges:
        _say_charges(params)


def _say_charges(params: "Params") -> None:
    """Print what the next run charges; on a terminal, ask whether to go on where a budget is nearly used up."""
    from primorl.setup.next_charges import UNKNOWN, preview

    found = preview(params)
    if found is None:
        print(UNKNOWN)
        return
    print(found.line)
    if found.near and sys.stdin.isatty() and sys.stdout.isatty() and not typer.confirm("Go on?"):
        raise PipelineError("stopped as asked: nothing was run, nothing was charged")
