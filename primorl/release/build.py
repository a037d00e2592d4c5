"""``primorl release``: make the bundle of files that may leave, and check that it holds nothing
else.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pyarrow.parquet as pq
import yaml

from primorl.base import paths
from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256, finite, home, replaced_directory
from primorl.base.paths import BEHAVIOUR, MODELS, PARTITIONS, SUMMARY
from primorl.base.records import write_record
from primorl.config.params import Params, Reading, declared_texts, load_reading
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.results import MEAN_RETURN, PrivateEvaluation
from primorl.evaluate.recommendation import Released
from primorl.evaluate.summary import OnlineSummary, Summary
from primorl.evaluate.wording import ADVICE
from primorl.policy.advice import AGAINST, follows
from primorl.policy.config import PolicyConfig
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger.account import fixed_epsilon
from primorl.privacy.ledger.history import Charge
from primorl.privacy.statement import FILE, Statement
from primorl.privacy.verification import OURS, verify_with_parts
from primorl.release import bundle
from primorl.release.bundle import refuse_void
from primorl.release.card import render
from primorl.release.contents import (
    ANSWERS,
    CLONE,
    DECLARED,
    EVALUATION,
    LEDGER,
    MANIFEST,
    MODEL,
    ONLINE,
    POLICY,
    SPREAD,
    STARTS,
    ChargeRecord,
    Declared,
    Evaluation,
    LedgerStatement,
    files_of,
    is_bundle,
    manifest_of,
)
from primorl.release.recheck import account_figures, spent
from primorl.run import Run
from primorl.work.accounts import begun_ledger, dataset_version, refuse_missing_charges
from primorl.work.online import MADE_ONLINE
from primorl.work.private_evaluation import ROLLOUTS

CLONE_NOTE = (
    "the mean return of the clone of today's practice in the released model, not measured: wrong "
    "where that is"
)
_LEAVING = (paths.POLICY, BEHAVIOUR, paths.ONLINE)
_PRIVATE = (paths.RAW, paths.TRAJECTORIES, PARTITIONS, paths.CONSENT, paths.WITHDRAWALS)
# 1980-01-01, the earliest time that archives can hold; a file's own would tell when it was made
_NO_TIME = 315532800
_FEWEST_HASH_DIGITS, _FEWEST_COUNT_DIGITS = 12, 4  # shorter ones match by chance


def release(
    target: Path,
    params: Params | Reading,
    *,
    void_ok: bool,
    sign: Path | None = None,
    policy: Released | Literal["models/online"] | None = None,
    against_advice: bool = False,
) -> Statement:
    """Make a bundle in ``target``. If that fails, everything stays as it was.

    Args:
        target: a folder that is empty, holds another bundle, or does not exist yet.
        params: names the place of the ledger.
        void_ok: release also if the statement is void; the card says so.
        sign: file of the private key to sign the bundle with; None: it is not signed.
        policy: folder of the policy to release; None: the recommended one.
        against_advice: release the named policy although the recommendation is another one or none.

    Returns:
        The statement of the policy.

    Raises:
        PipelineError: if a file is missing or contradicts another, the statement is void, or
            something must not leave.
    """
    _refuse_to_overwrite(target)
    signer = None if sign is None else bundle.read_private_key(sign)
    content: Contents
    if policy == "models/online":
        content = _online(params)
    else:
        content = _with_model(params, policy, against_advice=against_advice)
    with replaced_directory(target) as fresh:
        for name, source in content.copied.items():
            (fresh / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, fresh / name)
        for name, written in content.written.items():
            write_record(fresh / name, written)
        try:
            for card, text in render(fresh).items():
                (fresh / card).write_text(text, encoding="utf-8")
            write_record(fresh / MANIFEST, manifest_of(fresh))
            if content.manifest is not None:
                _refuse_private_marks(fresh, content.statement, content.manifest)
            released = bundle.verify(fresh, void_ok=void_ok)
        except PipelineError as wrong:  # name the file to mend, not its copy
            message = str(wrong)
            for name, origin in content.origins.items():
                message = message.replace(str(fresh / name), origin)
            raise PipelineError(message.replace(str(fresh), str(MODELS))) from None
        if signer is not None:
            bundle.sign(fresh, signer)
        _forget_times(fresh)
    return released


@dataclass(frozen=True)
class Contents:
    """What a bundle is made of.

    Attributes:
        copied: files by their name in the bundle.
        written: records by their name.
        statement: of the model, or of a policy that learned from users.
        manifest: of the log's partitions; None: there is no log.
        origins: in words, of files that have another name at home.
    """

    copied: Mapping[str, Path]
    written: Mapping[str, Any]
    statement: Statement
    manifest: Manifest | None = None
    origins: Mapping[str, str] = field(default_factory=dict)


def _with_model(
    params: Params | Reading, policy: Released | None, *, against_advice: bool
) -> Contents:
    """Collect the bundle of a policy with its model."""
    run = Run.read(params)
    summary, answers = run.evaluated, run.answers
    check_outputs((paths.MODEL, paths.POLICY, BEHAVIOUR, paths.PRIVATE_EVALUATION, SUMMARY))
    source = chosen_policy(summary, answers, policy, against_advice)
    entry = f"datasets/{summary.dataset}.yaml: card"
    declared = declared_texts(summary.dataset)
    left = [each.name for each in fields(Declared) if each.name not in declared]
    if summary.env_id is None and left:
        raise PipelineError(
            f"{entry}: {', '.join(left)}: not stated, so nobody can sign the card; state each in "
            "a line of text; an edit charges nothing"
        )
    copied = {name: MODELS / name for name in (*MODEL, STARTS, CLONE)}
    spread = SPREAD if (source / Path(SPREAD[0]).name).exists() else ()
    copied |= {name: source / Path(name).name for name in (*POLICY[:2], *spread)}
    evaluation = _quoted(summary, answers, source)
    asked = answers if answers.asked else None
    written = {
        LEDGER: _ledger_statement(params, run),
        EVALUATION: evaluation,
        POLICY[2]: bundle.as_released(Statement.read(source), evaluation, asked),
        **({DECLARED: Declared(**declared)} if declared else {}),
        **({} if asked is None else {ANSWERS: asked}),
    }
    return Contents(
        {name: path for name, path in copied.items() if path.exists()},
        written,
        run.model,
        run.manifest,
        {EVALUATION: str(SUMMARY), ANSWERS: str(paths.PRIVATE_EVALUATION), DECLARED: entry},
    )


def _online(params: Params | Reading) -> Contents:
    """Collect the bundle of ``models/online``: the policy that learned from users, without
    a model.
    """
    summary, statement = OnlineSummary.read(paths.ONLINE_METRICS), Statement.read(paths.ONLINE)
    if not summary.met:
        raise PipelineError(
            f"{paths.ONLINE_METRICS}: nobody was met; set online.users in params.yaml, run `dvc "
            "repro`"
        )
    check_outputs((paths.ONLINE, paths.ONLINE_METRICS))
    ledger, charges = begun_ledger(params), []
    if ledger is not None:
        with closing(ledger):
            charges = ledger.charges()
    made = next((charge.made for charge in charges if charge.id == statement.charge), ())
    found = {name: file_sha256(paths.ONLINE / name) for name in MADE_ONLINE}
    if found not in [dict(each) for each in made]:
        raise PipelineError(
            f"{paths.ONLINE}: not what charge {statement.charge} made, as the ledger has it; `dvc "
            "repro online`"
        )
    copied = {name: paths.ONLINE / Path(name).name for name in POLICY}
    return Contents(copied, {ONLINE: replace(summary, seconds=None)}, statement)


def check_origin(
    folder: Path, stated: Statement, *, void_ok: bool, against_advice: bool
) -> Statement:
    """Refuse a policy that may not leave: one rule for bundles and for single files such as ONNX.

    A policy of this project must be one that `release` releases, so it is released into a folder
    that is deleted again. One in a bundle needs a sound bundle. One of another project is refused,
    as its ledger is there. Elsewhere there is no ledger and no bundle to ask: of a policy there,
    only the figures of the statement are compared with its event.

    Args:
        folder: of the policy.
        stated: its statement.
        void_ok: accept a void statement.
        against_advice: accept a policy that its run advises against.

    Returns:
        The statement as a bundle has it, with `bundle.CHOSEN` where answers of the private units
        chose the policy.
    """
    place = folder.resolve()
    own = next((each for each in _LEAVING if place == each.resolve()), None)
    project = place.parent.parent
    if own is not None:
        with TemporaryDirectory() as scratch:
            return release(
                Path(scratch) / "bundle",
                load_reading(paths.PARAMS),
                void_ok=void_ok,
                policy=own.as_posix(),  # type: ignore[arg-type]
                against_advice=against_advice,
            )
    if (place.parent / MANIFEST).exists():  # also of a bundle with a file too many
        bundle.verify(place.parent, void_ok=void_ok)
    elif (project / paths.PARAMS).exists() and place.relative_to(project) in _LEAVING:
        raise PipelineError(
            f"{folder}: a policy of the project {project}; run the command there, which has its "
            "ledger"
        )
    else:
        config = PolicyConfig.read(folder)
        if not void_ok:
            refuse_void(folder / FILE, stated)
        if stated.private:
            verify_with_parts(folder, stated, {}, near_clone=config.clone_error is not None)
    return stated


def _forget_times(folder: Path) -> None:
    """Give a bundle's files and folders one time and the usual permissions."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (_NO_TIME, _NO_TIME))


def _refuse_to_overwrite(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PipelineError(f"{target}: in the way; allowed is an empty folder or a bundle")
    if target.is_dir() and any(target.iterdir()) and not is_bundle(target):
        raise PipelineError(
            f"{target}: holds something else than a bundle; give a new or empty folder"
        )


def check_outputs(outputs: Sequence[Path]) -> None:
    """Refuse outputs that were changed since a stage wrote them, as ``dvc.lock`` has them.

    So an edit that no digest of the chain covers, such as a return in the summary, and a checkout
    that was interrupted are noticed before anything leaves. Where DVC recorded none, nothing is
    compared.
    """
    try:
        stages = yaml.safe_load(paths.LOCK.read_text(encoding="utf-8"))["stages"].values()
        written: list[dict[str, Any]] = [
            output for stage in stages for output in stage.get("outs", [])
        ]
        listed = {
            output["path"]: output["md5"] for output in written if output.get("hash") == "md5"
        }
    except (OSError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return
    for path in outputs:
        if (digest := listed.get(path.as_posix())) is not None and digest != _dvc_digest(path):
            raise PipelineError(
                f"{path}: not what {paths.LOCK} says that its stage wrote: edited, or a checkout "
                "was interrupted; `dvc checkout` brings it back, `dvc repro` makes it again"
            )


def _dvc_digest(path: Path) -> str:
    """DVC's MD5 of a file, or of the list of a folder's files."""
    if not path.is_dir():
        return _digest(path, "md5")
    files = sorted(
        (file.relative_to(path).as_posix(), file) for file in path.rglob("*") if file.is_file()
    )
    listing = [{"md5": _digest(file, "md5"), "relpath": name} for name, file in files]
    return (
        hashlib.md5(json.dumps(listing, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
        + ".dir"
    )


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def chosen_policy(
    summary: Summary,
    answers: PrivateEvaluation,
    named: Released | None,
    against_advice: bool = False,
) -> Path:
    """The folder of the policy that leaves: the recommended one, which may be the clone, or one
    that was named.

    Raises:
        PipelineError: none is recommended, another one is named without ``against_advice``, or the
            clone is wanted and nothing tells its value.
    """
    advice = summary.recommendation
    if against_advice and named is None:
        raise PipelineError(
            f"{AGAINST}: found without --policy, allowed with the policy's folder: name it"
        )
    folder = named or (advice.policy if advice is not None else "models/policy")
    if (
        advice is not None
        and not against_advice
        and not follows(folder, advice.answer, advice.policy)
    ):
        raise PipelineError(
            f"{SUMMARY}: recommendation: {ADVICE[advice.answer]}. {advice.reason} To release a "
            f"policy all the same: --policy {named or 'models/policy'} {AGAINST}"
        )
    if folder == "models/policy":
        return paths.POLICY
    if summary.env_id is not None or answers.answer("clone", MEAN_RETURN) is None:
        raise PipelineError(
            "--policy: found models/behaviour, allowed without an environment, where a clone was "
            "made (behaviour.target_epsilon) and the private units were asked "
            "(evaluation.private.estimators)"
        )
    return BEHAVIOUR


def _quoted(summary: Summary, answers: PrivateEvaluation, source: Path) -> Evaluation:
    """Collect the figures of the summary that the cards quote; of several seeds those of the first.

    Of the clone they quote its value in the model, which stands among the answers.
    """
    found = {field.name: getattr(summary, field.name) for field in fields(Evaluation)}
    if source == BEHAVIOUR:
        value = answers.answer("clone", MEAN_RETURN)
        assert value is not None
        assert value.members is not None
        found |= {
            "policy_sha256": file_sha256(source / "policy.safetensors"),
            "model_value": fmean(value.members),
            "model_value_range": (min(value.members), max(value.members)),
            "model_value_members": len(value.members),
            "model_value_rollouts": ROLLOUTS,
            "model_value_horizon": answers.horizon,
            "model_value_note": CLONE_NOTE,
            "seeds": None,
        }
    elif summary.by_seed:
        found |= {name: value for name, value in vars(summary.by_seed[0]).items() if name in found}
    try:
        return Evaluation(**found)
    except ValueError as wrong:
        raise PipelineError(f"{SUMMARY}: {wrong}; run `dvc repro evaluate`") from None


def _ledger_statement(params: Params | Reading, run: Run) -> LedgerStatement:
    """Collect the charges on the units of these data, without names, times of day or other data."""
    statement, clone = run.model, run.clone
    delta = spent(MODELS / MODEL[2], statement).delta
    opened = begun_ledger(params)
    if opened is None:
        raise PipelineError(
            f"{MODELS / MODEL[2]}: charge {statement.charge} is in no ledger: none was begun "
            "here; put back the one it was written to"
        )
    with closing(opened) as ledger:
        ledger.verify()
        refuse_missing_charges(ledger)
        account = ledger.account(dataset_version(run.manifest, PARTITIONS))
    charges = {charge.id: charge for charge in account.charges}
    files = [MODELS / name for name in (*MODEL, STARTS) if (MODELS / name).exists()]
    made = {}
    own = charges.get(str(statement.charge))
    made[str(statement.charge)] = _made_by(own, statement, MODELS / MODEL[2], files)
    if clone is not None:
        own = charges.get(str(clone.charge))
        made[str(clone.charge)] = _made_by(own, clone, MODELS / CLONE, sorted(BEHAVIOUR.iterdir()))
    made |= _made_answers(charges, run.answers)
    return LedgerStatement(
        dataset_fingerprint=statement.dataset_fingerprint,
        unit=statement.unit,
        neighboring_relation=statement.neighboring_relation,
        accountant=OURS,
        **account_figures(
            account.events, delta
        ),  # by this version, as whoever checks the bundle does
        delta=delta,
        charges=len(account.entries),
        records=tuple(
            ChargeRecord(
                id=charge.id,
                stage=charge.stage,
                event=charge.event,
                epsilon=finite(fixed_epsilon([event_from_json(charge.event)], charge.delta)),
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


def _made_by(
    charge: Charge | None, statement: Statement, path: Path, files: Sequence[Path]
) -> dict[str, str]:
    """The digests that a charge was recorded with: those of the files that are here, if it made
    them.
    """
    if charge is None:
        raise PipelineError(
            f"{path}: charge {statement.charge} is not in the ledger for these data"
        )
    if not charge.made:
        raise PipelineError(
            f"{path}: charge {charge.id}: the ledger has no digest of what it made: found state "
            f"{charge.state!r}; `dvc repro -f -s {charge.stage}` restores it for free from its "
            "checkpoint and records them"
        )
    here = {file.name: file_sha256(file) for file in files}
    return here if here in charge.made else charge.made[-1]


def _made_answers(
    charges: Mapping[str, Charge], answers: PrivateEvaluation
) -> Mapping[str, dict[str, str]]:
    """By charge: the digest of the answers that it was recorded with, for every charge that answers
    name.
    """
    found = {}
    for name, statement in answers.statements.items():
        made, charge = answers.made(name), charges.get(str(statement.charge))
        if charge is None or made not in charge.made:
            raise PipelineError(
                f"{paths.PRIVATE_EVALUATION}: {name}: the ledger has no charge {statement.charge} "
                "for these answers: they were edited, are not about these data, or a kill came "
                "before they were recorded; `dvc repro -f -s evaluate_private` restores them for "
                "free from their checkpoint, then run `dvc repro`"
            )
        found[charge.id] = made
    return found


def _refuse_private_marks(fresh: Path, statement: Statement, manifest: Manifest) -> None:
    """Refuse hashes, sizes and row counts of private files: they tell neighbouring datasets
    apart.
    """
    hashes = set(_hashes())
    for name in sorted(name for name in files_of(fresh) if not name.endswith(".safetensors")):
        text = (fresh / name).read_text(encoding="utf-8").lower()
        for run in set(re.findall(rf"[0-9a-f]{{{_FEWEST_HASH_DIGITS},}}", text)):
            if any(known in run or known.startswith(run) for known in hashes):
                raise PipelineError(
                    f"{name}: holds an unkeyed hash of private data; find what wrote it there"
                )
    declared = {str(manifest.private_units), str(manifest.public_units), str(manifest.info.horizon)}
    counts = {str(count) for count in _counts()} - declared
    for key, words in (
        ("public_assumptions", statement.public_assumptions),
        ("void", statement.void),
    ):
        found = set(re.findall(rf"\d{{{_FEWEST_COUNT_DIGITS},}}", " ".join(words)))
        if found & counts:
            raise PipelineError(
                f"{MODEL[2]}: {key}: holds a size or a row count of private data, which is not "
                "declared"
            )


def _hashes() -> Iterator[str]:
    """Hashes of every private file, and those that DVC recorded."""
    for folder in _PRIVATE:
        for file in _files(folder):
            for algorithm in ("md5", "sha1", "sha256"):
                yield _digest(file, algorithm)
    if paths.LOCK.exists():
        yield from re.findall(r"\b[0-9a-f]{32}\b", paths.LOCK.read_text(encoding="utf-8"))
    for entry in (home() / ".dvc" / "cache").glob("**/[0-9a-f][0-9a-f]/*"):
        yield entry.parent.name + entry.name.removesuffix(".dir")


def _counts() -> Iterator[int]:
    """Numbers of bytes and rows of every private file, and of each folder of them."""
    for folder in _PRIVATE:
        sizes = [file.stat().st_size for file in _files(folder)]
        rows = [pq.read_metadata(file).num_rows for file in folder.glob("**/*.parquet")]
        yield from (*sizes, sum(sizes), *rows, sum(rows))
    yield sum(
        pq.read_metadata(file).num_rows for file in (PARTITIONS / "private").glob("*.parquet")
    )


def _files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]
