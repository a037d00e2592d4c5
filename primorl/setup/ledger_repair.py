"""``primorl ledger repair``: say what the ledger has lost, record again what can be, and begin a new head."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from primorl.config.params import Params, Reading
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.ledger import BrokenLedger, Disagreement, Ledger, Request, Version
from primorl.project.errors import PipelineError
from primorl.project.files import home
from primorl.project.paths import LEDGER_HEAD, MANIFEST, PARTITIONS
from primorl.setup.accounts import begun, check_secret, dataset_version, open_ledger
from primorl.setup.losses import Loss, losses
from primorl.trajectories.storage.manifest import Manifest

_ASK = (
    "nothing was changed: put back what was lost from its backup (.primorl, or the database of ledger.url); if there "
    "is none, run `primorl ledger repair --accept-loss`, and keep by hand what the lines above say was spent"
)


def repair(params: Params | Reading, *, accept_loss: bool) -> Iterator[str]:
    """Repair the project's ledger, and say every step in a line. Only a new head and new records are written.

    A charge that a model or an answer names, and that the ledger lacks, is recorded again as spent on the units of
    ``data/partitions``: at once if the fingerprint agrees, else only with ``accept_loss`` and if unit and number of
    units agree. What cannot be recorded again stays in the record of the repair.

    Args:
        params: names the ledger's place.
        accept_loss: go on although something is lost that cannot be recorded again.

    Raises:
        PipelineError: the records are broken, something is lost and ``accept_loss`` is false, or the ledger would
            refuse what is to be recorded again; nothing was written.
    """
    head, wrong, known = home() / LEDGER_HEAD, None, Counter[str]()
    found = begun(params, BrokenLedger)
    if found is None:
        yield "no ledger was begun here"
        missing = losses(None)
    else:
        with closing(found) as ledger:
            yield ledger.describe()
            wrong, missing = ledger.disagreement(), losses(ledger)
            known.update(charge.dataset_fingerprint for charge in ledger.charges())
    if wrong is not None:
        yield f"{head}: {wrong.says}: records that were cut off at the end would go unnoticed"
    if wrong is None and not missing:
        yield "nothing to repair: the head fits the records, and they have every charge that a file names"
        return
    present = _present(missing)
    again = [loss for loss in missing if _fits(loss, present, by_number=accept_loss)]
    lost = [loss for loss in missing if loss not in again]
    yield from _told(missing, again, present)
    more = _unnamed(missing, known)
    if more:
        yield f"the same statements count {more} more charge(s) on the same units, which no file names"
    if not accept_loss and (lost or more or (wrong is not None and wrong.records_lost)):
        raise PipelineError(f"ledger: {_ASK}")
    yield from _written(params, head, wrong, again, lost, present)


def _told(missing: Sequence[Loss], again: Sequence[Loss], present: tuple[Manifest, Version] | None) -> Iterator[str]:
    for loss in missing:
        yield f"{loss.says}{_spent(loss.statement)}"
        if loss in again:
            yield f"  it can be recorded again, as spent on the units of {PARTITIONS}"
        elif _fits(loss, present, by_number=True):
            yield (
                f"  it is of other data than those in {PARTITIONS}, or of the same under another secret; with "
                "--accept-loss it is counted on them, as the number of units agrees"
            )
        else:
            yield f"  it cannot be recorded again: no event is known, or it is of other data than those in {PARTITIONS}"


def _written(
    params: Params | Reading,
    head: Path,
    wrong: Disagreement | None,
    again: Sequence[Loss],
    lost: Sequence[Loss],
    present: tuple[Manifest, Version] | None,
) -> Iterator[str]:
    requests = {}
    for loss in again:
        assert present is not None
        requests[loss.charge] = _request(loss.statement, *present, params.privacy.budget.delta)
    with closing(open_ledger(params, BrokenLedger, read_only=False)) as ledger:
        for request in requests.values():
            ledger.dry_run(request, None)  # before anything is written
        if wrong is not None:
            kept = ledger.renew_head()
            yield f"{head}: begun anew" + ("" if kept is None else f"; the previous one is kept as {kept.name}")
        ledger.record_repair(
            {
                "head": None if wrong is None else wrong.says,
                "lost": [_recorded(loss) for loss in lost],
                "again": list(requests),
            }
        )
        yield f"recorded: this repair{f', and {len(lost)} charge(s) as lost' if lost else ''}"
    with closing(open_ledger(params, Ledger, read_only=False)) as ledger:
        for charge, request in requests.items():
            ledger.reserve(request, None, charge)
            yield f"recorded again: charge {charge}"
        yield f"repaired: {ledger.verify()} records, and {head} knows the last of them"


def _present(missing: Sequence[Loss]) -> tuple[Manifest, Version] | None:
    """The partitioned data, if they are there.

    Raises:
        PipelineError: they are of another secret. Made anew first, they show on whom a lost charge can be counted.
    """
    if not missing or not MANIFEST.exists():
        return None
    manifest = Manifest.load(MANIFEST)
    check_secret(manifest, PARTITIONS)
    return manifest, dataset_version(manifest, PARTITIONS)


def _fits(loss: Loss, present: tuple[Manifest, Version] | None, *, by_number: bool) -> bool:
    """Whether a lost charge can be recorded on the present units."""
    said = loss.statement
    if present is None or not _readable(said):
        return False
    manifest, version = present
    equal = said.get("dataset_fingerprint") == version.fingerprint
    # Of other data, or of the same under a lost secret. To count too much is safe.
    alike = by_number and said.get("units") == version.units
    return said.get("unit") == manifest.info.unit and (equal or alike)


def _readable(said: Mapping[str, Any]) -> bool:
    try:
        event_from_json(said["event"])
    except (KeyError, ValueError):
        return False
    return True


def _unnamed(missing: Sequence[Loss], known: Mapping[str, int]) -> int:
    """How many more charges the statements of lost charges count than are lost by name, or are in the ledger.

    Args:
        missing: the lost charges.
        known: how many the ledger has, by the fingerprint of the data.
    """
    by_data: dict[str, list[Loss]] = {}
    for loss in missing:
        by_data.setdefault(str(loss.statement.get("dataset_fingerprint")), []).append(loss)
    return sum(max(0, max(map(_counted, group)) - len(group) - known.get(data, 0)) for data, group in by_data.items())


def _counted(loss: Loss) -> int:
    spent = loss.statement.get("spent_on_dataset")
    count = spent.get("charges") if isinstance(spent, dict) else 1
    return count if type(count) is int else 1


def _spent(said: Mapping[str, Any]) -> str:
    if not said:
        return ""
    epsilon, spent = said.get("epsilon"), said.get("spent_on_dataset")
    own = "without a guarantee" if epsilon is None else f"ε {_shown(epsilon)} at δ {_shown(said.get('delta'))}"
    whole = ""
    if isinstance(spent, dict):
        total = (
            "no finite ε"
            if spent.get("epsilon") is None
            else f"ε {_shown(spent['epsilon'])} at δ {_shown(spent.get('delta'))}"
        )
        whole = f"; {spent.get('charges')} charge(s) on these units until then, {total} in all"
    return f" ({own}, of {said.get('units')} units: {said.get('unit')}{whole})"


def _shown(stated: Any) -> str:
    return at_most(stated, 4) if type(stated) in (int, float) else "unknown"


def _recorded(loss: Loss) -> dict[str, Any]:
    kept = ("epsilon", "delta", "event", "unit", "units", "dataset_fingerprint", "spent_on_dataset")
    return {"charge": loss.charge, "file": loss.file, **{key: loss.statement.get(key) for key in kept}}


def _request(said: Mapping[str, Any], manifest: Manifest, version: Version, delta: float) -> Request:
    """The charge of a statement; no run ever has its identity, so none resumes or restores it."""
    return Request(
        version=version,
        dataset=manifest.info.dataset,
        stage="repair",
        identity="",
        event=event_from_json(said["event"]),
        delta=said.get("delta") or delta,  # a statement without a guarantee has none
        git_commit=None,
        mlflow_run=None,
    )
