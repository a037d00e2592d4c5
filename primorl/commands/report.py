"""``primorl report``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primorl.commands.arguments import given_path
from primorl.project.paths import LATEST_REPORT

if TYPE_CHECKING:
    from primorl.config.params import Params
    from primorl.report.facts import Spending

_HELP = """Write the report of the last run, with what was spent since and the other results.

\b
`dvc repro` writes reports/report.html from the files of the run. This command adds the ledger's history and the other
results that MLflow knows of, as they are now. The page needs no network.

\b
Examples:
  primorl report                       reports/latest.html
  primorl report --out for-the-board.html
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("report", help=_HELP)(_run)


def _run(
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=given_path, help="The page to write.  [default: reports/latest.html]"),
    ] = None,
) -> None:
    from primorl.config import params
    from primorl.project.errors import PipelineError
    from primorl.project.files import replaced_file
    from primorl.report.facts import read_facts
    from primorl.report.page import page
    from primorl.tracking.search import results

    chosen, target = params.load(), out or LATEST_REPORT
    if target.suffix != ".html":
        raise PipelineError(f"--out: found {str(target)!r}; allowed is a name that ends in .html")
    try:
        found = results(chosen, most_epsilon=None, sweeps=True)
    except PipelineError as missing:  # the files may have come from a remote
        print(f"note: without other results: {missing}", file=sys.stderr)
        found = []
    others = [(each.name, each.epsilon, each.value, each.by) for each in found]
    facts = read_facts(chosen, spending=spending(chosen), others=others, mlflow=_where(chosen))
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(target) as fresh:
        fresh.write_text(page(facts), encoding="utf-8")
    print(target)


def _where(chosen: "Params") -> str:
    """Say where the runs are found, without credentials."""
    from urllib.parse import urlsplit

    from primorl.tracking.store import without_credentials

    uri = chosen.tracking.uri or "sqlite:///mlflow.db"
    name = without_credentials(uri)
    if urlsplit(uri).hostname is not None:
        return f"MLflow's store is {name}."
    if Path("Makefile").exists():
        return "`make ui` shows MLflow."
    if uri.startswith("sqlite"):
        return f"`mlflow ui --backend-store-uri {name}` shows MLflow."
    return "MLflow's store is the one that tracking.uri in params.yaml names."


def spending(chosen: "Params") -> "Spending | None":
    """The ledger's history of the units that are here; None: nothing was charged to them."""
    from contextlib import closing

    from primorl.project.paths import MANIFEST, PARTITIONS
    from primorl.report.facts import Spending
    from primorl.setup.accounts import begun_ledger, budget, dataset_version
    from primorl.trajectories.storage.manifest import Manifest

    opened = begun_ledger(chosen)
    if opened is None:
        return None
    manifest = Manifest.load(MANIFEST)
    with closing(opened) as ledger:
        account = ledger.account(dataset_version(manifest, PARTITIONS))
    if not account.entries:
        return None
    limit, delta = budget(chosen, manifest.private_units), chosen.privacy.budget.delta
    charges = tuple((charge.stage, charge.time[:10], total) for charge, total in account.running(delta))
    costs = {entry.charge.id: entry.cost for entry in account.entries}
    return Spending(charges, None if limit is None else limit.epsilon, delta, costs)
