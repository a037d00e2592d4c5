"""``primorl release``: make the bundle of files that may leave, and check that it holds nothing else."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq

from primorl.config.params import Params, Reading
from primorl.evaluation.summary import STATED, Summary
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.statement import Accountant, Statement
from primorl.project import paths
from primorl.project.errors import PipelineError
from primorl.project.files import finite, home, read_json, replaced_directory
from primorl.project.paths import CONSENT, LOCK, MODELS, PARTITIONS, RAW, SUMMARY, TRAJECTORIES, WITHDRAWALS
from primorl.project.records import write_record
from primorl.release import bundle
from primorl.release.card_content import make_card
from primorl.release.contents import (
    FILES,
    LEDGER,
    MANIFEST,
    MODEL,
    POLICY,
    STARTS,
    ChargeRecord,
    LedgerStatement,
)
from primorl.setup.accounts import begun_ledger, dataset_version
from primorl.setup.losses import refuse_losses
from primorl.trajectories.storage.manifest import Manifest

_PRIVATE = (RAW, TRAJECTORIES, PARTITIONS, CONSENT, WITHDRAWALS)
_NO_TIME = 315532800  # 1980-01-01, the earliest time that archives can hold; a file's own would tell when it was made
_FEWEST_HASH_DIGITS, _FEWEST_COUNT_DIGITS = 12, 4  # shorter ones match by chance


def release(target: Path, params: Params | Reading, *, void_ok: bool) -> Statement:
    """Make a bundle in ``target``. If that fails, everything stays as it was.

    Args:
        target: a folder that is empty, holds an earlier bundle, or does not exist yet.
        params: names the place of the ledger.
        void_ok: release also if the statement is void; the card says so.

    Returns:
        What the bundle states.

    Raises:
        PipelineError: if a file is missing or contradicts another, the statement is void, or something must not leave.
    """
    _refuse_to_overwrite(target)
    if read_json(MODELS / MODEL[1]).get("variant") == "mopo":
        raise PipelineError(f"{MODELS / MODEL[1]}: variant mopo holds raw private transitions and is never released")
    statement = bundle.read(MODELS, MODEL[2], Statement)
    summary = Summary.read(SUMMARY)
    for key in STATED:
        if getattr(summary, key) != getattr(statement, key):
            raise PipelineError(f"{SUMMARY}: {key}: not what {MODELS / MODEL[2]} says; run `dvc repro evaluate`")
    if summary.policy_sha256 != hashlib.sha256((MODELS / POLICY[0]).read_bytes()).hexdigest():
        raise PipelineError(f"{SUMMARY}: not of the policy in {MODELS / POLICY[0]}; run `dvc repro evaluate`")
    manifest = Manifest.load(paths.MANIFEST)
    if manifest.info.dataset_fingerprint != statement.dataset_fingerprint:
        raise PipelineError(
            f"{paths.MANIFEST}: another version of the data than the model's; `dvc checkout` brings both of one commit"
        )
    ledger = _ledger_statement(params, statement, manifest)
    with replaced_directory(target) as fresh:
        for name in (*MODEL, *POLICY, *([STARTS] if (MODELS / STARTS).exists() else [])):
            (fresh / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(MODELS / name, fresh / name)
        write_record(fresh / LEDGER, ledger)
        configs = (read_json(fresh / MODEL[1]), read_json(fresh / POLICY[1]))
        card = make_card(read_json(fresh / POLICY[2]), *configs, summary.to_json(), read_json(fresh / LEDGER))
        (fresh / "card.md").write_text(card.markdown(), encoding="utf-8")
        (fresh / "card.html").write_text(card.html(), encoding="utf-8")
        write_record(fresh / MANIFEST, bundle.manifest_of(fresh))
        try:
            bundle.check(fresh, void_ok=void_ok)
        except PipelineError as wrong:  # name the file to mend, not its copy
            raise PipelineError(str(wrong).replace(str(fresh), str(MODELS))) from None
        _refuse_private_marks(fresh, statement, manifest)
        _forget_times(fresh)
    return statement


def _refuse_to_overwrite(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PipelineError(f"{target}: in the way; allowed is an empty folder or an earlier bundle")
    if target.is_dir() and any(target.iterdir()) and not bundle.is_bundle(target):
        raise PipelineError(f"{target}: holds something else than a bundle; give a new or empty folder")


def _ledger_statement(params: Params | Reading, statement: Statement, manifest: Manifest) -> LedgerStatement:
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
    total = account.total(delta)
    if statement.charge not in {charge.id for charge in account.charges}:
        raise PipelineError(f"{MODELS / MODEL[2]}: charge {statement.charge} is not in the ledger for these data")
    return LedgerStatement(
        dataset_fingerprint=statement.dataset_fingerprint,
        unit=statement.unit,
        neighboring_relation=statement.neighboring_relation,
        accountant=Accountant(**accounting.ACCOUNTANT),
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
                epsilon=charge.epsilon,
                delta=charge.delta,
                state=charge.state,
                day=charge.time[:10],
                same_version=charge.dataset_fingerprint == statement.dataset_fingerprint,
                unit=charge.unit,
                units_each=units,
            )
            for charge, units in ((entry.charge, entry.units) for entry in account.entries)
        ),
    )


def _refuse_private_marks(fresh: Path, statement: Statement, manifest: Manifest) -> None:
    """Refuse hashes, sizes and row counts of private files: they tell neighbouring datasets apart."""
    hashes = set(_hashes())
    for name in sorted((FILES | {MANIFEST}) - {MODEL[0], POLICY[0]}):
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


def _forget_times(fresh: Path) -> None:
    for path in (*sorted(fresh.rglob("*"), reverse=True), fresh):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (_NO_TIME, _NO_TIME))
