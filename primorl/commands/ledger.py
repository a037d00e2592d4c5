"""``primorl ledger``."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.project.errors import PipelineError

if TYPE_CHECKING:
    from primorl.config.params import Params
    from primorl.privacy.ledger.ledger import Charge, Ledger, Version

HELP = "what was spent on private data: show it, check it, hand it on"
EXAMPLES = """examples:
  primorl ledger show                       every charge, and what is spent and left of each dataset version
  primorl ledger show --json --dataset NAME the charges of one dataset, as JSON
  primorl ledger verify                     check hashes, order and members; names the first broken record
  primorl ledger export ledger.jsonl        the raw records, one a line
"""
_EMPTY = "the ledger is empty: nothing was charged yet"
_ROW = "{:>4}  {:<25}  {:<20}  {:<14}  {:<9}  {:>9}  {:>8}  {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    also = argparse.ArgumentParser(
        add_help=False
    )  # so that --debug may stand last; unsaid, it leaves what was said before
    also.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="list the charges, and what is left", parents=[also])
    show.add_argument("--json", action="store_true", help="a JSON list, oldest first, with the running total")
    show.add_argument("--dataset", metavar="NAME", help="only charges of this entry of `datasets`")
    actions.add_parser("verify", help="check that no record was edited, removed, inserted or moved", parents=[also])
    export = actions.add_parser("export", help="write the raw records as JSON lines", parents=[also])
    export.add_argument("file", type=Path, metavar="FILE")


def _verify(ledger: "Ledger") -> None:
    """Check the chain, and what it should know of: the head file, and the charge that paid for the model here."""
    from primorl.project.files import home, read_json

    head, model = home() / ".primorl" / "ledger.head", Path("models/dynamics/privacy.json")
    if ledger.charges() and not head.exists():
        raise PipelineError(
            f"{head}: not there, so nobody can tell whether records were cut off at the end; put it back from its "
            "backup (the next charge begins a new one)"
        )
    records = ledger.verify()
    named = read_json(model).get("charge") if model.exists() else None
    if named is not None and named not in {charge.id for charge in ledger.charges()}:
        raise PipelineError(f"{model}: charge {named} is not in the ledger: records were cut off, or it is another one")
    print(f"the ledger is whole: {records} records")


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit status."""
    from primorl.config.params import load
    from primorl.setup.accounts import begun_ledger

    params = load(Path("params.yaml"))
    ledger = begun_ledger(params)
    if ledger is None:
        print("[]" if arguments.action == "show" and arguments.json else _EMPTY)
        return 0
    with closing(ledger):
        if arguments.action == "verify":
            _verify(ledger)
        elif arguments.action == "export":
            _export(ledger, arguments.file)
        else:
            charges = [c for c in ledger.charges() if arguments.dataset in (None, c.dataset)]
            if arguments.json:
                _print_json(ledger, charges, params)
            else:
                _print_table(ledger, charges, params, arguments.dataset)
    return 0


def _export(ledger: "Ledger", file: Path) -> None:
    import json

    from primorl.project.files import replaced_file

    lines = [json.dumps(record, allow_nan=False) + "\n" for record in ledger.export()]
    with replaced_file(file) as fresh:
        fresh.chmod(0o600)  # it holds identities, commits and times
        fresh.write_text("".join(lines), encoding="utf-8")
    print(f"{file}: {len(lines)} records")


def _print_json(ledger: "Ledger", charges: "Sequence[Charge]", params: "Params") -> None:
    import json

    from primorl.privacy.accounting.epsilon import compose
    from primorl.privacy.accounting.events import event_from_json
    from primorl.project.files import finite

    delta = params.privacy.budget.delta
    entries: list[dict[str, Any]] = []
    for charge in charges:
        events = [event_from_json(other.event) for other in ledger.composing(charge.id)]
        total = finite(compose(events, delta).epsilon_pld)
        entries.append({**asdict(charge), "epsilon_total": total, "delta_total": delta})
    print(json.dumps(entries, indent=2, allow_nan=False))


def _print_table(ledger: "Ledger", charges: "Sequence[Charge]", params: "Params", dataset: str | None) -> None:
    if not charges:
        print(_EMPTY if dataset is None else f"nothing was charged for dataset {dataset!r} yet")
        return
    print(_ROW.format("rec.", "reserved", "dataset", "stage", "state", "ε", "δ", "charge"))
    for charge in charges:
        epsilon = "∞" if charge.epsilon is None else f"{charge.epsilon:.4g}"
        state = (charge.time, charge.dataset, charge.stage, charge.state)
        print(_ROW.format(charge.sequence, *state, epsilon, f"{charge.delta:.3g}", charge.id))
    print()
    names: dict[str, list[str]] = {}  # two entries may name the same rows
    for charge in charges:
        known = names.setdefault(charge.dataset_fingerprint, [])
        known += [] if charge.dataset in known else [charge.dataset]
    for version in ledger.versions():
        if version.fingerprint in names:
            print("\n".join(_summary(ledger, version, ", ".join(names.pop(version.fingerprint)), params)))


def _summary(ledger: "Ledger", version: "Version", dataset: str, params: "Params") -> Iterator[str]:
    """What was spent on a version, and what is left."""
    budget = params.privacy.budget
    spent, count = ledger.spent_on(version, budget.delta), len(ledger.sharing(version))
    yield f"{dataset}, version {version.fingerprint[:12]} ({version.units} units: {version.unit}), {count} charge(s)"
    if spent.epsilon_pld == float("inf"):
        yield "  spent: no finite ε, as a run without a guarantee is among them"
    else:
        yield f"  spent: ε {spent.epsilon_pld:.4g} (RDP {spent.epsilon_rdp:.4g}) at δ {budget.delta:.3g}"
    if budget.epsilon is None:
        yield "  budget: none (privacy.budget.epsilon is null)"
    else:
        left = max(0.0, budget.epsilon - spent.epsilon_pld)
        yield f"  budget: ε {budget.epsilon:.4g}, left {left:.4g}"
