"""``primorl ledger``."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from primorl.base.files import MANIFEST
from primorl.commands.terminal import add_command, flag, format_table

if TYPE_CHECKING:
    from primorl.config.params import Params
    from primorl.privacy.ledger.account import Account
    from primorl.privacy.ledger.history import Charge, Registered
    from primorl.privacy.ledger.ledger import Ledger

_EXAMPLES = """Examples:
  primorl ledger show                        every charge; what is spent and left of a dataset
  primorl ledger show --json                 the same as JSON
  primorl ledger verify                      check the records; names the first broken one
  primorl ledger publish WORD                let people become public who were private before
  primorl ledger move URL                    from a SQLite file to another database
"""
_EMPTY = "the ledger is empty: nothing was charged yet"
_COLUMNS = ("rec.", "reserved", "dataset", "stage", "state", "ε", "δ", "charge")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    about = "Show or check what was spent on private data."
    group = typer.Typer(help=f"{about}\n\n\b\n{_EXAMPLES}")
    for function in (_show, _verify, _publish, _move):
        add_command(group, function.__name__.strip("_"), function, _EXAMPLES)
    app.add_typer(group, name="ledger")


def _show(
    as_json: Annotated[
        bool, flag("--json", "Print a JSON list, oldest first, with the running total.")
    ] = False,
) -> None:
    """List the charges, and what is spent and left of each dataset."""
    with _open() as (params, ledger):
        if ledger is None:
            print("[]" if as_json else _EMPTY)
        elif as_json:
            _print_json(ledger, params)
        else:
            _print_table(ledger, params)


def _verify() -> None:
    """Check that no record was edited, removed, inserted or moved."""
    with _open() as (_, ledger):
        records = None if ledger is None else ledger.verify()
    print(_EMPTY if records is None else f"the ledger is whole: {records} records")


def _publish(
    word: Annotated[str, typer.Argument(help="That the refusal of the stage `partition` gave.")],
) -> None:
    """Let people become public who were private before and never charged for; for ever."""
    from primorl.config.params import load
    from primorl.stages.splitting import confirm

    units = confirm(load(), word).public_units
    print(f"{units} units may be public now; `dvc repro plan` makes them so")


def _move(
    url: Annotated[str, typer.Argument(help="Of an empty database, as ledger.url names it.")],
) -> None:
    """Move the records from a SQLite file to another database; the file keeps a copy that counts
    no more.
    """
    from primorl.privacy.ledger.store import Store

    with _open() as (params, ledger):
        if ledger is None:
            print(_EMPTY)
            return
        ledger.verify()
    target = Store(url)
    Store(params.ledger.url).move(target)
    print(
        f"moved to {target.shown}; now write that URL as ledger.url into params.yaml, here and in "
        "every clone; back .primorl up anew, and delete older backups, which would grant again"
    )


@contextmanager
def _open() -> "Iterator[tuple[Params, Ledger | None]]":
    """Open the ledger with the settings, None where nothing was charged yet; after the block,
    check it against this project.

    Raises:
        PipelineError: the ledger lacks its head or a charge that a file of the project names, or
            the partitions were made under another secret.
    """
    from primorl.config.params import load
    from primorl.data.storage.schema import Manifest
    from primorl.work.data import check_secret, read_ledger, refuse_missing_charges

    params = load()
    ledger = read_ledger(params)
    if ledger is None:
        refuse_missing_charges(None)
    yield params, ledger
    if ledger is not None:
        refuse_missing_charges(ledger)
        if MANIFEST.exists():
            check_secret(Manifest.load(MANIFEST))


def _print_json(ledger: "Ledger", params: "Params") -> None:
    from primorl.base.files import finite

    delta = params.privacy.delta
    totals: dict[str, float] = {}
    for _, account in ledger.accounts().values():
        for charge, epsilon in account.running(delta):
            # of all versions that it was charged to
            totals[charge.id] = max(epsilon, totals.get(charge.id, 0.0))
    rows = [
        asdict(one) | {"epsilon_total": finite(totals[one.id]), "delta_total": delta}
        for one in ledger.charges()
    ]
    print(json.dumps(rows, indent=2, allow_nan=False))


def _print_table(ledger: "Ledger", params: "Params") -> None:
    from primorl.privacy.accounting.rounding import at_most

    charges = ledger.charges()
    if not charges:
        print(_EMPTY)
        return
    rows = []
    for each in charges:
        spent = at_most(each.epsilon), at_most(each.delta)
        what = each.time, each.dataset, each.stage, each.state
        rows.append((str(each.sequence), *what, *spent, each.id))
    print(format_table(_COLUMNS, rows, right=("rec.", "ε", "δ")) + "\n")
    for record, (version, account) in ledger.accounts().items():
        own = [charge for charge in charges if charge.version == record]
        if not own:  # two datasets may name the same rows
            continue
        print("\n".join(_summary(record, version, account, own, params)))


def _summary(
    record: int,
    version: "Registered",
    account: "Account",
    own: "list[Charge]",
    params: "Params",
) -> Iterator[str]:
    from primorl.privacy.accounting.rounding import at_most, rest_of
    from primorl.privacy.ledger.history import Budget, list_budget_changes

    budget, delta = params.privacy.budget, params.privacy.delta
    spent = account.epsilon(delta)
    dataset = ", ".join(dict.fromkeys(charge.dataset for charge in own))
    # Versions of one fingerprint differ in their units, which were declared or split otherwise.
    when = f"record {record}, first charged {own[0].time[:10]}"
    count = f"{len(own)} charge(s)"
    if others := len(account.entries) - len(own):
        count += f", and {others} on other versions, whose people are also in this one"
    yield (
        f"{dataset}, version {version.fingerprint[:12]} ({when}; {version.units} units: "
        f"{version.unit}), {count}"
    )
    if spent == float("inf"):
        yield "  spent: no finite ε: a run without a guarantee, or on another unit, is among them"
    else:
        yield f"  spent: ε {at_most(spent)} at δ {at_most(delta)}"
    if budget.epsilon is None:
        yield "  budget: none (privacy.budget.epsilon is empty)"
    else:
        yield f"  budget: ε {at_most(budget.epsilon, 6)}, {rest_of(budget.epsilon, spent)}"
    limit = None if budget.epsilon is None else Budget(budget.epsilon, delta)
    for change, by in list_budget_changes(account.charges, limit):
        yield f"  budget {change}" + (f" by {by}" if by else "")
