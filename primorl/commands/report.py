"""``primorl report``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")] = LATEST_REPORT,
) -> None:
    from primorl.config import params
    from primorl.project.errors import PipelineError
    from primorl.project.files import replaced_file
    from primorl.report.facts import read_facts
    from primorl.report.page import page
    from primorl.tracking.search import results
    from primorl.tracking.store import store_uri

    chosen = params.load()
    if out.suffix != ".html":
        raise PipelineError(f"{out}: found the ending {out.suffix!r}; allowed is .html")
    try:
        found = results(chosen, most_epsilon=None, sweeps=True)
    except PipelineError as missing:  # the files may have come from a remote
        print(f"note: without other results: {missing}", file=sys.stderr)
        found = []
    others = [(each.name, each.epsilon, each.value, each.by) for each in found]
    uri = store_uri(chosen)
    shown = "make ui" if Path("Makefile").exists() else "mlflow ui --backend-store-uri sqlite:///mlflow.db"
    where = uri.partition("@")[2] or uri.partition("://")[2] if uri.startswith("http") else f"`{shown}` shows MLflow"
    facts = read_facts(
        uncertainty=chosen.policy.uncertainty,
        penalty=chosen.policy.penalty,
        spending=spending(chosen),
        others=others,
        mlflow=f"{where}.",
        declared=chosen.chosen.card.stated,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(out) as fresh:
        fresh.write_text(page(facts), encoding="utf-8")
    print(out)


def spending(chosen: "Params") -> "Spending | None":
    """The ledger's history of the units that are here; None: nothing was charged."""
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
    limit, delta = budget(chosen, manifest.private_units), chosen.privacy.budget.delta
    charges = tuple((charge.stage, charge.time[:10], total) for charge, total in account.running(delta))
    return Spending(charges, None if limit is None else limit.epsilon, delta)
