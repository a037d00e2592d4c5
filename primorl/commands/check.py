"""``primorl check``."""

import typer

_HELP = """Check params.yaml and the datasets before `dvc repro`. Runs nothing and changes nothing.

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

    check_project()
    print("params.yaml and the datasets are valid")
