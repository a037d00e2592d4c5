"""``primorl check``."""

import typer

from primorl.project.errors import PipelineError

_HELP = """Check params.yaml, datasets and a log's columns before `dvc repro`. Runs nothing and changes nothing.

DVC itself may remove outputs before it finds a mistake in params.yaml; this command finds it first.

\b
Examples:
  primorl check && dvc repro        run the pipeline only if the settings are valid
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("check", help=_HELP)(_run)


def _run() -> None:
    from primorl.config.checking import check_project
    from primorl.config.datasets import TabularDataset

    params = check_project()
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
        from primorl.trajectories.sources.tabular.source import source

        there = source(params.dataset, params.chosen).check_columns()
        named = params.chosen.options.files
        print(f"{named}: {'has the columns of the entry' if there else 'not there yet, so its columns are unchecked'}")
