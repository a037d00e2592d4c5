"""``primorl release``: make the bundle of files that may leave, and check that it holds nothing
else.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from primorl.base import PipelineError, files
from primorl.base.dvc import Status
from primorl.base.files import (
    BEHAVIOUR,
    MODELS,
    PARAMS,
    POLICY,
    SUMMARY,
    file_sha256,
    finite,
    replaced_directory,
)
from primorl.base.records import write_record
from primorl.config.params import Params
from primorl.data.storage.rows import NEWER, data_changed
from primorl.evaluate.summary import Summary
from primorl.policy.loaded import refuse_against_advice
from primorl.privacy.accounting.epsilon import compose, event_from_json
from primorl.privacy.ledger.history import Charge, list_budget_changes
from primorl.privacy.statement import our_accountant
from primorl.release import bundle, contents
from primorl.release.card import DECLARED_TEXTS, render
from primorl.run import VerifiedRun
from primorl.work.data import budget_of, read_ledger, read_version, refuse_missing_charges

# 1980-01-01, the earliest time that archives can hold; a file's own would tell when it was made
_NO_TIME = 315532800


def release(
    target: Path,
    params: Params,
    *,
    sign: Path | None = None,
    against_advice: bool = False,
) -> None:
    """Make a bundle in ``target``. If that fails, everything stays as it was.

    Args:
        target: a folder that is empty or does not exist yet.
        params: names the place of the ledger.
        sign: file of the private key to sign the bundle with; None: it is not signed.
        against_advice: release the policy although it is not recommended.

    Raises:
        PipelineError: if a file is missing or contradicts another, the statement is void, or
            something must not leave.
    """
    if target.is_symlink() or (target.exists() and (target.is_file() or any(target.iterdir()))):
        raise PipelineError(f"{target}: in the way; allowed is a new or empty folder")
    signer = None if sign is None else bundle.read_private_key(sign)
    status = Status()
    run = VerifiedRun.read(params)
    if data_changed() or status.has_other_people():
        raise PipelineError(f"{SUMMARY}: {NEWER}")
    if not against_advice:
        refuse_against_advice(POLICY)
    records = _collect_records(run, params)
    with replaced_directory(target) as fresh:
        for name in (*contents.MODEL, *contents.POLICY[:2], contents.STARTS, contents.CLONE):
            if (MODELS / name).exists():
                (fresh / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(MODELS / name, fresh / name)
        for name, record in records.items():
            write_record(fresh / name, record)
        try:
            card = render(contents.Bundle.read(fresh))
            (fresh / contents.CARD).write_text(card, encoding="utf-8")
            write_record(fresh / contents.MANIFEST, contents.make_manifest(fresh))
            bundle.verify(fresh)
        except PipelineError as wrong:  # name the file to mend, not its copy
            message = str(wrong).replace(str(fresh / contents.DECLARED), _entry(run.evaluated))
            raise PipelineError(message.replace(str(fresh), str(MODELS))) from None
        if signer is not None:
            bundle.sign(fresh, signer)
        for path in (*fresh.rglob("*"), fresh):
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.utime(path, (_NO_TIME, _NO_TIME))


def _entry(summary: Summary) -> str:
    return f"datasets/{summary.dataset}.yaml: card"


def _collect_records(run: VerifiedRun, params: Params) -> dict[str, Any]:
    """Make the records that a bundle does not copy, by the names of their files."""
    summary, answers = run.evaluated, run.answers
    declared = params.chosen.texts if params.dataset == summary.dataset else {}
    left = [key for key in DECLARED_TEXTS if key not in declared]
    if summary.env_id is None and left:
        raise PipelineError(
            f"{_entry(summary)}: {', '.join(left)}: not stated; the card needs each, and an edit "
            "charges nothing"
        )
    asked = answers if answers.asked else None
    evaluation = _quote(summary)
    records = {
        contents.LEDGER: _ledger_statement(params, run),
        contents.EVALUATION: evaluation,
        contents.POLICY[2]: bundle.add_choice(run.policy, evaluation, asked),
    }
    if declared:
        records[contents.DECLARED] = contents.Declared(**declared)
    if asked is not None:
        records[contents.ANSWERS] = asked
    return records


def _quote(summary: Summary) -> contents.ReleasedResult:
    """Collect the figures of the summary that the card quotes; of several seeds those of the
    first.
    """
    found = {field.name: getattr(summary, field.name) for field in fields(contents.ReleasedResult)}
    if summary.by_seed:
        found |= {name: value for name, value in vars(summary.by_seed[0]).items() if name in found}
    return contents.ReleasedResult(**found)


def _ledger_statement(params: Params, run: VerifiedRun) -> contents.LedgerStatement:
    """Collect the charges on the units of these data, without names, times of day or other data."""
    statement, place = run.model, MODELS / contents.MODEL[2]
    delta = params.privacy.delta
    if statement.delta not in (None, delta):
        found = f"found {delta!r}, and the run is stated at {statement.delta!r}"
        raise PipelineError(f"{PARAMS}: privacy.delta: {found}; put it back, or run `dvc repro`")
    ledger = read_ledger(params)
    if ledger is None:
        found = f"charge {statement.charge} is in no ledger: none was begun here"
        raise PipelineError(f"{place}: {found}; put back the one it was written to")
    ledger.verify()
    refuse_missing_charges(ledger)
    account = ledger.account(read_version(run.manifest))
    budget = budget_of(params, run.manifest.private_units)
    _check_made(run, {charge.id: charge for charge in account.charges})
    records = []
    for entry in account.entries:
        charge = entry.charge
        alone = compose([event_from_json(charge.event)], charge.delta)
        records.append(
            contents.ChargeRecord(
                id=charge.id,
                stage=charge.stage,
                event=charge.event,
                delta=charge.delta,
                state=charge.state,
                unit=charge.unit,
                epsilon=finite(alone.epsilon_pld),
                day=charge.time[:10],
                same_version=charge.dataset_fingerprint == statement.dataset_fingerprint,
                same_unit=entry.same_unit,
            )
        )
    return contents.LedgerStatement(
        dataset_fingerprint=statement.dataset_fingerprint,
        unit=statement.unit,
        neighboring_relation=statement.neighboring_relation,
        accountant=our_accountant(),
        # by this version, as whoever checks the bundle does
        epsilon=finite(account.epsilon(delta)),
        delta=delta,
        budget=None if budget is None else budget.epsilon,
        budget_changes=tuple(change for change, _ in list_budget_changes(account.charges, budget)),
        charges=len(account.entries),
        records=tuple(records),
    )


def _check_made(run: VerifiedRun, charges: Mapping[str, Charge]) -> None:
    """Refuse files that are not what the ledger says that their charges made."""
    own = [MODELS / name for name in (*contents.MODEL, contents.STARTS) if (MODELS / name).exists()]
    here = [(MODELS / contents.MODEL[2], run.model, {file.name: file_sha256(file) for file in own})]
    if run.clone is not None:
        cloned = {file.name: file_sha256(file) for file in BEHAVIOUR.iterdir()}
        here.append((MODELS / contents.CLONE, run.clone, cloned))
    for statement in run.answers.statements.values():
        here.append((files.PRIVATE_EVALUATION, statement, run.answers.hash_answers()))
    for place, statement, digests in here:
        charge = charges.get(str(statement.charge))
        if charge is None or digests not in charge.made:
            raise PipelineError(
                f"{place}: not what charge {statement.charge} made, by the ledger: damaged, edited "
                "or of another run; `dvc repro -f -s STAGE` restores it for free"
            )
