"""``primorl select``."""

from pathlib import Path
from typing import Annotated

import typer

from primorl.commands.arguments import given_path
from primorl.project.errors import PipelineError
from primorl.project.paths import PARAMS, POLICY, SELECTION

_HELP = """Choose one of several policies by the private data, for one small charge.

\b
Examples:
  primorl select --epochs                      among the policies at the end of every epoch of models/policy
  primorl select --seeds --epsilon 0.1         among the policies of all seeds in params.yaml
  primorl select out/a out/b models/policy     among folders, each with policy.safetensors, config.json, privacy.json

The charge is reserved in the ledger before a private row is read; it does not grow with the number of policies. Only
the winner is released, in reports/selection.json; no score is. The same choice again costs nothing;
evaluation.private.draw pays for another draw.
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("select", help=_HELP)(_run)


def _run(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR…", parser=given_path, help="Folders of policies.")
    ] = None,
    seeds: Annotated[bool, typer.Option("--seeds", help="The policies of all seeds.")] = False,
    epochs: Annotated[
        bool, typer.Option("--epochs", help="The policies of all epochs, of DIR or of models/policy.")
    ] = False,
    epsilon: Annotated[float, typer.Option(metavar="ε", min=1e-3, max=100.0, help="Of the choice.")] = 0.2,
    estimator: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="model: its value from the units' first states; corrected: and the model's errors on their rows.",
        ),
    ] = "corrected",
    as_json: Annotated[bool, typer.Option("--json", help="Print reports/selection.json.")] = False,
) -> None:
    import json

    from absl import logging

    from primorl import tracking
    from primorl.config import params
    from primorl.evaluation.wording import guarantee
    from primorl.project.records import to_json
    from primorl.setup import selection

    logging.set_verbosity(logging.ERROR)  # the RDP accountant names every order that it leaves out
    given = folders or []
    ways = [bool(given) and not epochs, seeds, epochs]
    if sum(ways) != 1 or (epochs and len(given) > 1):
        raise PipelineError("select: name folders, or give --seeds, or --epochs with at most one folder")
    if estimator not in selection.ESTIMATORS:
        raise PipelineError(f"--estimator: found {estimator!r}, allowed are {', '.join(selection.ESTIMATORS)}")
    checked = params.load(PARAMS)
    if epochs:
        candidates = selection.of_epochs(given[0] if given else POLICY)
    else:
        candidates = selection.of_seeds(checked) if seeds else selection.of_folders(given)
    with tracking.stage_run("select", checked) as run:
        found = selection.select(checked, candidates, epsilon=epsilon, estimator=estimator, run=run)
    if as_json:
        print(json.dumps(to_json(found), indent=2, allow_nan=False))
        return
    print(f"chosen among {len(candidates)}: {found.chosen}")
    print(f"{guarantee(found.privacy.to_json())}\nreport: {SELECTION}")
