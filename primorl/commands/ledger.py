"""``primorl ledger``."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primorl.commands.folders import given_path
from primorl.project.errors import PipelineError
from primorl.project.paths import LEDGER_HEAD, MODEL

if TYPE_CHECKING:
    from primorl.config.params import Reading
    from primorl.privacy.ledger.account import Account
    from primorl.privacy.ledger.history import Registered
    from primorl.privacy.ledger.ledger import Charge, Ledger

_EXAMPLES = """\b
Examples:
  primorl ledger show                       every charge, and what is spent and left of each dataset version
  primorl ledger show --json --dataset NAME the charges of one dataset, as JSON
  primorl ledger verify                     check hashes, order and members; names the first broken record
  primorl ledger export ledger.jsonl        the raw records, one a line
"""
_EMPTY = "the ledger is empty: nothing was charged yet"
_COLUMNS = ("rec.", "reserved", "dataset", "stage", "state", "ε", "δ", "charge")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    about = "Show, check or export what was spent on private data."
    actions = typer.Typer(help=f"{about}\n\n{_EXAMPLES}")
    actions.command("show", help=f"List the charges, and what is spent and left of each dataset.\n\n{_EXAMPLES}")(_show)
    actions.command("verify", help=f"Check that no record was edited, removed, inserted or moved.\n\n{_EXAMPLES}")(
        _verify
    )
    actions.command("export", help=f"Write the raw records as JSON lines.\n\n{_EXAMPLES}")(_export)
    app.add_typer(actions, name="ledger")


def _show(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list, oldest first, with the running total.")
    ] = False,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Show only the charges of this dataset.")] = None,
) -> None:
    params, ledger = _opened()
    if ledger is None:
        print("[]" if as_json else _EMPTY)
        return
    with closing(ledger):
        charges = [charge for charge in ledger.charges() if dataset in (None, charge.dataset)]
        if as_json:
            _print_json(ledger, charges, params)
        else:
            _print_table(ledger, charges, params, dataset)


def _verify() -> None:
    """Check the chain, its head file, and that it has the charge that paid for the model in this project."""
    from primorl.project.files import home, read_json

    _, opened = _opened()
    if opened is None:
        print(_EMPTY)
        return
    head, model = home() / LEDGER_HEAD, MODEL / "privacy.json"
    with closing(opened) as ledger:
        known = {charge.id for charge in ledger.charges()}
        if known and not head.exists():
            raise PipelineError(
                f"{head}: not there, so nobody can tell whether records were cut off at the end; put it back from its "
                "backup (the next charge begins a new one)"
            )
        records = ledger.verify()
    named = read_json(model).get("charge") if model.exists() else None
    if named is not None and named not in known:
        raise PipelineError(f"{model}: charge {named} is not in the ledger: records were cut off, or it is another one")
    print(f"the ledger is whole: {records} records")


def _export(
    file: Annotated[Path, typer.Argument(metavar="FILE", parser=given_path, help="The file to write.")],
) -> None:
    import json

    from primorl.project.files import replaced_file

    _, opened = _opened()
    if opened is None:
        print(_EMPTY)
        return
    with closing(opened) as ledger:
        lines = [json.dumps(record, allow_nan=False) + "\n" for record in ledger.export()]
    with replaced_file(file) as fresh:
        fresh.chmod(0o600)  # it holds identities, commits and times
        fresh.write_text("".join(lines), encoding="utf-8")
    print(f"{file}: {len(lines)} records")


def _opened() -> "tuple[Reading, Ledger | None]":
    """The settings that reading needs, and the ledger; None where nothing was charged yet."""
    from primorl.config.params import load_reading
    from primorl.setup.accounts import begun_ledger

    params = load_reading()
    return params, begun_ledger(params)


def _print_json(ledger: "Ledger", charges: "Sequence[Charge]", params: "Reading") -> None:
    import json

    from primorl.project.files import finite

    delta = params.privacy.budget.delta
    totals: dict[str, float] = {}
    for _, account in ledger.accounts().values():
        for charge, epsilon in account.running(delta):
            totals[charge.id] = max(epsilon, totals.get(charge.id, 0.0))  # of all versions that it was charged to
    entries = [
        {**asdict(charge), "epsilon_total": finite(totals[charge.id]), "delta_total": delta} for charge in charges
    ]
    print(json.dumps(entries, indent=2, allow_nan=False))


def _print_table(ledger: "Ledger", charges: "Sequence[Charge]", params: "Reading", dataset: str | None) -> None:
    from primorl.commands.printing import rendered
    from primorl.privacy.accounting.rounding import at_most

    if not charges:
        print(_EMPTY if dataset is None else f"nothing was charged for dataset {dataset!r} yet")
        return
    rows = [
        (
            *(str(charge.sequence), charge.time, charge.dataset, charge.stage, charge.state),
            *(at_most(charge.epsilon, 4), at_most(charge.delta), charge.id),
        )
        for charge in charges
    ]
    print(rendered(_COLUMNS, rows, right=("rec.", "ε", "δ")) + "\n")
    names: dict[str, list[str]] = {}  # two datasets may name the same rows
    for charge in charges:
        known = names.setdefault(charge.dataset_fingerprint, [])
        known += [] if charge.dataset in known else [charge.dataset]
    for sequence, (version, account) in ledger.accounts().items():
        if version.fingerprint in names:
            name = f"{', '.join(names[version.fingerprint])}, version {version.fingerprint[:12]} (record {sequence})"
            print("\n".join(_summary(version, account, name, params)))


def _summary(version: "Registered", account: "Account", name: str, params: "Reading") -> Iterator[str]:
    """What was spent on a version, and what is left."""
    from primorl.privacy.accounting.rounding import at_most, left_of

    budget = params.privacy.budget
    total = account.total(budget.delta)
    yield f"{name}: {version.units} units ({version.unit}), {total.charges} charge(s)"
    if total.epsilon == float("inf"):
        yield "  spent: no finite ε, as a run without a guarantee is among them"
    else:
        yield (
            f"  spent: ε {at_most(total.epsilon, 4)} at δ {at_most(budget.delta)} "
            f"({at_most(total.epsilon_fixed, 4)} if all settings were fixed beforehand)"
        )
    if budget.epsilon is None:
        yield "  budget: none (privacy.budget.epsilon is null)"
    else:
        yield f"  budget: ε {at_most(budget.epsilon, 6)}, left {left_of(budget.epsilon, total.epsilon)}"
