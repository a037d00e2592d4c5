"""``primorl ledger repair``: list lost charges, record again those that can be, and begin a new head."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from primorl.base.errors import PipelineError
from primorl.base.files import home
from primorl.base.paths import LEDGER_HEAD, MANIFEST, PARTITIONS
from primorl.config.params import Params, Reading
from primorl.data.storage.schema import Manifest
from primorl.paid.accounts import begun, check_secret, dataset_version, open_ledger
from primorl.paid.missing_charges import MissingCharge, missing_charges
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.history import Request, Version
from primorl.privacy.ledger.ledger import BrokenLedger, Ledger

_ASK = (
    "nothing was changed: put back what was lost from its backup (.primorl, or the database of ledger.url); if there "
    "is none, run `primorl ledger repair --accept-loss`, and keep by hand what the lines above say was spent"
)


def repair(params: Params | Reading, *, accept_loss: bool) -> Iterator[str]:
    """Repair the project's ledger, and say every step in a line. Only a new head and new records are written.

    A charge that a model or an answer names, and that the ledger lacks, is recorded again as spent on the units of
    ``data/partitions``: at once if the fingerprint agrees, else only with ``accept_loss`` and if unit and number of
    units agree. Charges that cannot be recorded again stay in the record of the repair.

    Args:
        params: names the ledger's place.
        accept_loss: go on although something is lost that cannot be recorded again.

    Raises:
        PipelineError: the records are broken, something is lost and ``accept_loss`` is false, or the ledger would
            refuse a charge that is to be recorded again; nothing was written.
    """
    head, wrong, known = home() / LEDGER_HEAD, None, Counter[str]()
    found = begun(params, BrokenLedger)
    if found is None:
        yield "no ledger was begun here"
        missing = missing_charges(None)
    else:
        with closing(found) as ledger:
            yield ledger.describe()
            wrong, missing = ledger.disagreement(), missing_charges(ledger)
            known.update(charge.dataset_fingerprint for charge in ledger.charges())
    if wrong is not None:
        yield f"{head}: {wrong.says}: records that were cut off at the end would go unnoticed"
    if wrong is None and not missing:
        yield "nothing to repair: the head fits the records, and they have every charge that a file names"
        return
    present, delta = _present(missing), params.privacy.budget.delta
    again: dict[str, Request] = {}
    for loss in missing:
        request = _again(loss, present, delta, by_number=accept_loss)
        if request is not None:
            again[loss.charge] = request
        yield f"{loss.says}{_spent(loss.statement)}"
        if request is not None:
            yield f"  it can be recorded again, as spent on the units of {PARTITIONS}"
        elif _again(loss, present, delta, by_number=True) is not None:
            yield (
                f"  it is of other data than those in {PARTITIONS}, or of the same under another secret; with "
                "--accept-loss it is counted on them, as the number of units agrees"
            )
        else:
            yield f"  it cannot be recorded again: no event is known, or it is of other data than those in {PARTITIONS}"
    lost = [loss for loss in missing if loss.charge not in again]
    more = _unnamed(missing, known)
    if more:
        yield f"the same statements count {more} more charge(s) on the same units, which no file names"
    if not accept_loss and (lost or more or (wrong is not None and wrong.records_lost)):
        raise PipelineError(f"ledger: {_ASK}")
    with closing(open_ledger(params, BrokenLedger, read_only=False)) as ledger:
        for request in again.values():
            ledger.dry_run(request, None)  # before anything is written
        if wrong is not None:
            kept = ledger.renew_head()
            yield f"{head}: begun anew" + (
                "" if kept is None else f"; the previous one is kept as {kept.name}"
            )
        ledger.record_repair(
            {
                "head": None if wrong is None else wrong.says,
                "lost": [_recorded(loss) for loss in lost],
                "again": list(again),
            }
        )
        yield f"recorded: this repair{f', and {len(lost)} charge(s) as lost' if lost else ''}"
    with closing(open_ledger(params, Ledger, read_only=False)) as ledger:
        for charge, request in again.items():
            ledger.reserve(request, None, charge)
            yield f"recorded again: charge {charge}"
        yield f"repaired: {ledger.verify()} records, and {head} knows the last of them"


def _present(missing: Sequence[MissingCharge]) -> tuple[Manifest, Version] | None:
    """The partitioned data, if they are there.

    Raises:
        PipelineError: they are of another secret. Made anew first, they show the units that a lost charge can be
            counted on.
    """
    if not missing or not MANIFEST.exists():
        return None
    manifest = Manifest.load(MANIFEST)
    check_secret(manifest, PARTITIONS)
    return manifest, dataset_version(manifest, PARTITIONS)


def _again(
    loss: MissingCharge, present: tuple[Manifest, Version] | None, delta: float, *, by_number: bool
) -> Request | None:
    """The charge of a lost statement, on the present units; None: it cannot be recorded there.

    No run ever has its identity, so none resumes or restores it.
    """
    said = loss.statement
    try:
        event = event_from_json(said["event"])
    except (KeyError, ValueError):
        return None
    if present is None or said.get("unit") != present[0].info.unit:
        return None
    manifest, version = present
    # Of other data, or of the same under a lost secret. To count too much is safe.
    alike = by_number and said.get("units") == version.units
    if said.get("dataset_fingerprint") != version.fingerprint and not alike:
        return None
    return Request(
        version=version,
        dataset=manifest.info.dataset,
        stage="repair",
        identity="",
        event=event,
        delta=said.get("delta") or delta,  # a statement without a guarantee has none
        git_commit=None,
        mlflow_run=None,
    )


def _unnamed(missing: Sequence[MissingCharge], known: Mapping[str, int]) -> int:
    """How many more charges the statements of lost charges count than are lost by name, or are in the ledger.

    Args:
        missing: the lost charges.
        known: how many the ledger has, by the fingerprint of the data.
    """
    by_data: dict[str, list[MissingCharge]] = {}
    for loss in missing:
        by_data.setdefault(str(loss.statement.get("dataset_fingerprint")), []).append(loss)
    return sum(
        max(0, max(map(_counted, group)) - len(group) - known.get(data, 0))
        for data, group in by_data.items()
    )


def _counted(loss: MissingCharge) -> int:
    spent = loss.statement.get("spent_on_dataset")
    count = spent.get("charges") if isinstance(spent, dict) else 1
    return count if type(count) is int else 1


def _spent(said: Mapping[str, Any]) -> str:
    """Return the cost of a statement and of all charges until then, as it states them, in brackets."""
    if not said:
        return ""
    own, whole, spent = _shown(said, "without a guarantee"), "", said.get("spent_on_dataset")
    if isinstance(spent, dict):
        total = _shown(spent, "no finite ε")
        whole = f"; {spent.get('charges')} charge(s) on these units until then, {total} in all"
    return f" ({own}, of {said.get('units')} units: {said.get('unit')}{whole})"


def _shown(stated: Mapping[str, Any], nothing: str) -> str:
    numbers = (stated.get("epsilon"), stated.get("delta"))
    epsilon, delta = (
        at_most(each, 4) if type(each) in (int, float) else "unknown" for each in numbers
    )
    return nothing if numbers[0] is None else f"ε {epsilon} at δ {delta}"


def _recorded(loss: MissingCharge) -> dict[str, Any]:
    kept = ("epsilon", "delta", "event", "unit", "units", "dataset_fingerprint", "spent_on_dataset")
    return {
        "charge": loss.charge,
        "file": loss.file,
        **{key: loss.statement.get(key) for key in kept},
    }
