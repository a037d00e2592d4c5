"""``primorl release``: make the bundle of files that may leave, and check that it holds nothing else."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq

from primorl.config.params import Params, Reading, declared_texts
from primorl.evaluation.private.results import PrivateEvaluation
from primorl.evaluation.recommendation import Released, found_in
from primorl.evaluation.summary import Summary, stated
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger.account import fixed_epsilon, total_of
from primorl.privacy.ledger.ledger import Charge
from primorl.privacy.statement import Statement
from primorl.project import paths
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, finite, home, read_json, replaced_directory
from primorl.project.paths import CONSENT, LOCK, MODELS, PARTITIONS, RAW, SUMMARY, TRAJECTORIES, WITHDRAWALS
from primorl.project.records import write_record
from primorl.release import bundle, signature
from primorl.release.accounted import OURS
from primorl.release.both import as_released
from primorl.release.contents import (
    ANSWERS,
    CLONE,
    DECLARED,
    EVALUATION,
    FILES,
    LEDGER,
    MANIFEST,
    MODEL,
    OPTIONAL,
    POLICY,
    STARTS,
    ChargeRecord,
    Declared,
    LedgerStatement,
)
from primorl.release.pages import render
from primorl.release.recommended import chosen_policy, clone_statement, made_clone, quoted
from primorl.release.recorded import check_outputs
from primorl.setup.accounts import begun_ledger, dataset_version
from primorl.setup.losses import refuse_losses
from primorl.trajectories.storage.manifest import Manifest

_OF_ANSWERS = ("spent_on_dataset", "private_evaluation", "model_verdict")  # in a summary
_PRIVATE = (RAW, TRAJECTORIES, PARTITIONS, CONSENT, WITHDRAWALS)
_NO_TIME = 315532800  # 1980-01-01, the earliest time that archives can hold; a file's own would tell when it was made
_FEWEST_HASH_DIGITS, _FEWEST_COUNT_DIGITS = 12, 4  # shorter ones match by chance


def release(
    target: Path,
    params: Params | Reading,
    *,
    void_ok: bool,
    sign: Path | None = None,
    policy: Released | None = None,
) -> Statement:
    """Make a bundle in ``target``. If that fails, everything stays as it was.

    Args:
        target: a folder that is empty, holds an earlier bundle, or does not exist yet.
        params: names the place of the ledger.
        void_ok: release also if the statement is void; the card says so.
        sign: file of the private key to sign the bundle with; None: it is not signed.
        policy: folder of the policy to release; None: the recommended one.

    Returns:
        What the bundle states.

    Raises:
        PipelineError: if a file is missing or contradicts another, the statement is void, or something must not leave.
    """
    _refuse_to_overwrite(target)
    signer = None if sign is None else signature.read_private_key(sign)
    if read_json(MODELS / MODEL[1]).get("variant") == "mopo":
        raise PipelineError(f"{MODELS / MODEL[1]}: variant mopo holds raw private transitions and is never released")
    statement = bundle.read(MODELS, MODEL[2], Statement)
    summary, answers = Summary.read(SUMMARY), PrivateEvaluation.read(paths.PRIVATE_EVALUATION)
    answers.refuse_other_files(paths.PRIVATE_EVALUATION, paths.MODEL, paths.POLICY, paths.BEHAVIOUR)
    of_policy = bundle.read(MODELS, POLICY[2], Statement)
    _refuse_other_summary(summary, of_policy, answers)
    if summary.model_sha256 is None:
        raise PipelineError(
            f"{SUMMARY}: model_sha256: missing, as an earlier version wrote it; `dvc repro -f -s optimize_policy` and "
            "`dvc repro evaluate` make policy and summary again, for free"
        )
    manifest = Manifest.load(paths.MANIFEST)
    _refuse_other_data(manifest, statement)
    if answers.horizon != manifest.info.horizon:
        raise PipelineError(f"{paths.PRIVATE_EVALUATION}: horizon: not that of {paths.MANIFEST}; run `dvc repro`")
    if summary.dataset != manifest.info.dataset:
        raise PipelineError(
            f"{SUMMARY}: dataset: found {summary.dataset!r}, allowed is {manifest.info.dataset!r}, as in "
            f"{paths.MANIFEST}; run `dvc repro`"
        )
    check_outputs((paths.MODEL, paths.POLICY, paths.BEHAVIOUR, paths.PRIVATE_EVALUATION, SUMMARY))
    source, clone = chosen_policy(summary, answers, policy), clone_statement()
    declared = declared_texts(summary.dataset)
    ledger = _ledger_statement(params, statement, clone, answers, manifest)
    with replaced_directory(target) as fresh:
        for name in (*MODEL, *POLICY, *(name for name in (STARTS, CLONE) if (MODELS / name).exists())):
            (fresh / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / Path(name).name if name in POLICY else MODELS / name, fresh / name)
        asked, evaluation = answers if answers.asked else None, quoted(summary, answers, source)
        write_record(fresh / LEDGER, ledger)
        if declared:
            write_record(fresh / DECLARED, Declared(**declared))
        write_record(fresh / EVALUATION, evaluation)
        as_released(Statement.read(source), evaluation, asked).write(fresh / Path(POLICY[2]).parent)
        if asked is not None:
            write_record(fresh / ANSWERS, asked)
        try:
            for card, text in render(fresh).items():
                (fresh / card).write_text(text, encoding="utf-8")
            write_record(fresh / MANIFEST, bundle.manifest_of(fresh))
            _refuse_private_marks(fresh, statement, manifest)
            released = bundle.check(fresh, void_ok=void_ok)
        except PipelineError as wrong:  # name the file to mend, not its copy
            message = str(wrong).replace(str(fresh / EVALUATION), str(SUMMARY))
            message = message.replace(str(fresh / ANSWERS), str(paths.PRIVATE_EVALUATION))
            message = message.replace(str(fresh / DECLARED), f"datasets/{summary.dataset}.yaml: card")
            raise PipelineError(message.replace(str(fresh), str(MODELS))) from None
        if signer is not None:
            signature.sign(fresh, signer)
        forget_times(fresh)
    return released


def _refuse_to_overwrite(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PipelineError(f"{target}: in the way; allowed is an empty folder or an earlier bundle")
    if target.is_dir() and any(target.iterdir()) and not bundle.is_bundle(target):
        raise PipelineError(f"{target}: holds something else than a bundle; give a new or empty folder")


def _refuse_other_summary(summary: Summary, statement: Statement, answers: PrivateEvaluation) -> None:
    """Refuse a summary that repeats another statement than the policy's, or other answers than the private units'."""
    expected = {"recommendation": found_in(answers, paths.BEHAVIOUR, summary.env_id)}
    for key, value in (stated(statement, answers) | expected).items():
        if getattr(summary, key) != value:
            of_answers = key in expected or (answers.asked and key in _OF_ANSWERS)
            source = paths.PRIVATE_EVALUATION if of_answers else MODELS / POLICY[2]
            raise PipelineError(f"{SUMMARY}: {key}: not what {source} says; run `dvc repro evaluate`")


def _refuse_other_data(manifest: Manifest, statement: Statement) -> None:
    """Refuse a statement that speaks of other data, another unit or another K than the partitions here."""
    if manifest.info.dataset_fingerprint != statement.dataset_fingerprint:
        raise PipelineError(
            f"{paths.MANIFEST}: another version of the data than the model's; `dvc checkout` brings both of one commit"
        )
    for key, found, allowed in (
        ("unit", statement.unit, manifest.info.unit),
        ("units", statement.units, manifest.private_units),
        ("public_units", statement.public_units, manifest.public_units),
    ):
        if found != allowed:
            raise PipelineError(
                f"{MODELS / MODEL[2]}: {key}: found {found!r}, allowed is {allowed!r}, as in {paths.MANIFEST}; "
                "`dvc checkout` brings both of one commit"
            )


def _ledger_statement(
    params: Params | Reading,
    statement: Statement,
    clone: Statement | None,
    answers: PrivateEvaluation,
    manifest: Manifest,
) -> LedgerStatement:
    """What was spent on the units of this version of the data, without names, times of day or other data."""
    if statement.spent_on_dataset is None:
        raise PipelineError(f"{MODELS / MODEL[2]}: spent_on_dataset: found null; run `dvc repro train_model`")
    version = dataset_version(manifest, PARTITIONS)
    delta = statement.spent_on_dataset.delta
    opened = begun_ledger(params)
    if opened is None:
        raise PipelineError(
            f"{MODELS / MODEL[2]}: charge {statement.charge} is in no ledger: none was begun here; put back the one "
            "it was written to"
        )
    with closing(opened) as ledger:
        ledger.verify()
        refuse_losses(ledger)
        account = ledger.account(version)
    total = total_of(account.events, delta)  # again by this version's accountant, as whoever checks the bundle does
    own = next((charge for charge in account.charges if charge.id == statement.charge), None)
    if own is None:
        raise PipelineError(f"{MODELS / MODEL[2]}: charge {statement.charge} is not in the ledger for these data")
    made = {own.id: _made(own), **_answered(account.charges, answers)}
    if clone is not None:
        made[str(clone.charge)] = made_clone(account.charges, clone)
    return LedgerStatement(
        dataset_fingerprint=statement.dataset_fingerprint,
        unit=statement.unit,
        neighboring_relation=statement.neighboring_relation,
        accountant=OURS,
        epsilon=finite(total.epsilon),
        epsilon_fixed=finite(total.epsilon_fixed),
        epsilon_rdp=finite(total.epsilon_rdp),
        delta=delta,
        charges=total.charges,
        records=tuple(
            ChargeRecord(
                id=charge.id,
                stage=charge.stage,
                event=charge.event,
                epsilon=finite(fixed_epsilon(event_from_json(charge.event), charge.delta)),
                delta=charge.delta,
                state=charge.state,
                day=charge.time[:10],
                same_version=charge.dataset_fingerprint == statement.dataset_fingerprint,
                unit=charge.unit,
                units_each=units,
                made=made.get(charge.id),
            )
            for charge, units in ((entry.charge, entry.units) for entry in account.entries)
        ),
    )


def _made(charge: Charge) -> dict[str, str]:
    """The digests that a charge was recorded with: those of the files that are here, if it made them."""
    if not charge.made and charge.stage == "repair":
        raise PipelineError(
            f"{MODELS / MODEL[0]}: charge {charge.id}: a repair of the ledger recorded it again and does not know its "
            "files; bring the ledger's backup, or train again, which is charged"
        )
    if not charge.made:
        raise PipelineError(
            f"{MODELS / MODEL[0]}: charge {charge.id}: the ledger has no digest of what it made: found state "
            f"{charge.state!r}, or an earlier version recorded it; `dvc repro -f -s train_model` restores the model "
            "for free from its checkpoint and records them, then run `dvc repro`"
        )
    here = {Path(name).name: file_sha256(MODELS / name) for name in (*MODEL, STARTS) if (MODELS / name).exists()}
    return here if here in charge.made else charge.made[-1]


def _answered(charges: Sequence[Charge], answers: PrivateEvaluation) -> Mapping[str, dict[str, str]]:
    """By charge: the digest of the answers that it was recorded with, for every charge that answers name."""
    found = {}
    for name, statement in answers.statements.items():
        made = answers.made(name)
        if not any(charge.id == statement.charge and made in charge.made for charge in charges):
            raise PipelineError(
                f"{paths.PRIVATE_EVALUATION}: {name}: the ledger has no charge {statement.charge} for these answers: "
                "they were edited, are not about these data, or a kill came before they were recorded; "
                "`dvc repro -f -s evaluate_private` restores them for free from their checkpoint, then run `dvc repro`"
            )
        found[str(statement.charge)] = made
    return found


def _refuse_private_marks(fresh: Path, statement: Statement, manifest: Manifest) -> None:
    """Refuse hashes, sizes and row counts of private files: they tell neighbouring datasets apart."""
    hashes = set(_hashes())
    texts = (FILES | OPTIONAL | {MANIFEST}) - {MODEL[0], POLICY[0], STARTS}
    for name in sorted(name for name in texts if (fresh / name).exists()):
        text = (fresh / name).read_text(encoding="utf-8").lower()
        for run in set(re.findall(rf"[0-9a-f]{{{_FEWEST_HASH_DIGITS},}}", text)):
            if any(known in run or known.startswith(run) for known in hashes):
                raise PipelineError(f"{name}: holds an unkeyed hash of private data; find what wrote it there")
    declared = {str(manifest.private_units), str(manifest.public_units), str(manifest.info.horizon)}
    counts = {str(count) for count in _counts()} - declared
    for key, words in (("public_assumptions", statement.public_assumptions), ("void", statement.void)):
        found = set(re.findall(rf"\d{{{_FEWEST_COUNT_DIGITS},}}", " ".join(words)))
        if found & counts:
            raise PipelineError(
                f"{MODEL[2]}: {key}: holds a size or a row count of private data, which is not declared"
            )


def _hashes() -> Iterator[str]:
    """Hashes of every private file, and those that DVC recorded."""
    for file in _private_files():
        with file.open("rb") as opened:
            for algorithm in ("md5", "sha1", "sha256"):
                opened.seek(0)
                yield hashlib.file_digest(opened, algorithm).hexdigest()
    lock = LOCK
    yield from re.findall(r"\b[0-9a-f]{32}\b", lock.read_text(encoding="utf-8") if lock.exists() else "")
    for entry in (home() / ".dvc" / "cache").glob("**/[0-9a-f][0-9a-f]/*"):
        yield entry.parent.name + entry.name.removesuffix(".dir")


def _counts() -> Iterator[int]:
    """Numbers of bytes and rows of every private file, and of each folder of them."""
    for folder in _PRIVATE:
        sizes = [file.stat().st_size for file in _private_files() if file.is_relative_to(folder)]
        rows = [pq.read_metadata(file).num_rows for file in folder.glob("**/*.parquet")]
        yield from (*sizes, sum(sizes), *rows, sum(rows))
    yield sum(pq.read_metadata(file).num_rows for file in (PARTITIONS / "private").glob("*.parquet"))


def _private_files() -> Iterator[Path]:
    return (file for folder in _PRIVATE for file in sorted(folder.rglob("*")) if file.is_file())


def forget_times(folder: Path) -> None:
    """Give a bundle's files and folders one time and the usual permissions."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (_NO_TIME, _NO_TIME))
