"""``primorl release``: make the bundle of files that may leave, and check that it holds nothing else."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

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
from primorl.paid.accounts import begun_ledger, dataset_version, refuse_missing_charges
from primorl.paid.online import MADE_ONLINE, RELEASES, user_epsilon
from primorl.paid.private_evaluation import ROLLOUTS
from primorl.policy.advice import AGAINST, follows
from primorl.policy.config import PolicyConfig
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.composition import mechanism
from primorl.privacy.ledger.account import fixed_epsilon
from primorl.privacy.ledger.history import Charge
from primorl.privacy.stated_figures import OURS, check_alone
from primorl.privacy.statement import FILE, OnlineProtocol, Statement
from primorl.release import bundle
from primorl.release.bundle import (
    check_cards,
    checked_policy,
    read_private_key,
    refuse_void,
    verify,
)
from primorl.release.bundle import sign as sign_bundle
from primorl.release.card import online_cards, render
from primorl.release.contents import (
    ANSWERS,
    CARDS,
    CLONE,
    DECLARED,
    EVALUATION,
    FILES,
    LEDGER,
    MANIFEST,
    MODEL,
    ONLINE,
    OPTIONAL,
    POLICY,
    STARTS,
    ChargeRecord,
    Declared,
    Evaluation,
    LedgerStatement,
    check_names_and_hashes,
    is_bundle,
    manifest_of,
    read,
)
from primorl.release.recheck import account_figures, check_statement, given, spent
from primorl.run import Run

CLONE_NOTE = "the mean return of the clone of today's practice in the released model, not measured: wrong where that is"
_LEAVING = (paths.POLICY, BEHAVIOUR, paths.ONLINE)
_PRIVATE = (paths.RAW, paths.TRAJECTORIES, PARTITIONS, paths.CONSENT, paths.WITHDRAWALS)
_NO_TIME = 315532800  # 1980-01-01, the earliest time that archives can hold; a file's own would tell when it was made
_FEWEST_HASH_DIGITS, _FEWEST_COUNT_DIGITS = 12, 4  # shorter ones match by chance


def release(
    target: Path,
    params: Params | Reading,
    *,
    void_ok: bool,
    sign: Path | None = None,
    policy: Released | None = None,
    against_advice: bool = False,
) -> Statement:
    """Make a bundle in ``target``. If that fails, everything stays as it was.

    Args:
        target: a folder that is empty, holds an earlier bundle, or does not exist yet.
        params: names the place of the ledger.
        void_ok: release also if the statement is void; the card says so.
        sign: file of the private key to sign the bundle with; None: it is not signed.
        policy: folder of the policy to release; None: the recommended one.
        against_advice: release the named policy although the recommendation is another one or none.

    Returns:
        The statement of the bundle.

    Raises:
        PipelineError: if a file is missing or contradicts another, the statement is void, or something must not leave.
    """
    _refuse_to_overwrite(target)
    signer = None if sign is None else bundle.read_private_key(sign)
    run = Run.read(params)
    statement, clone, manifest, summary, answers = (
        run.model,
        run.clone,
        run.manifest,
        run.evaluated,
        run.answers,
    )
    if statement.public_units is None:
        raise PipelineError(
            f"{MODELS / MODEL[2]}: public_units: missing, as an earlier version wrote it; "
            "`dvc repro -f -s train_model` restores the model for free and states it, then run `dvc repro`"
        )
    if summary.model_sha256 is None:
        raise PipelineError(
            f"{SUMMARY}: model_sha256: missing, as an earlier version wrote it; `dvc repro -f -s optimize_policy` and "
            "`dvc repro evaluate` make policy and summary again, for free"
        )
    check_outputs((paths.MODEL, paths.POLICY, BEHAVIOUR, paths.PRIVATE_EVALUATION, SUMMARY))
    source = chosen_policy(summary, answers, policy, against_advice)
    declared = declared_texts(summary.dataset)
    left = [each.name for each in fields(Declared) if each.name not in declared]
    if summary.env_id is None and left:
        raise PipelineError(
            f"datasets/{summary.dataset}.yaml: card: {', '.join(left)}: not stated, so nobody can sign the card; state "
            "each in a line of text under `card:`, such as `owner: Ward 3`, and release again, which charges nothing"
        )
    ledger = _ledger_statement(params, statement, clone, answers, manifest)
    asked, evaluation = answers if answers.asked else None, _quoted(summary, answers, source)
    with replaced_directory(target) as fresh:
        for name in (
            *MODEL,
            *POLICY,
            *(name for name in (STARTS, CLONE) if (MODELS / name).exists()),
        ):
            (fresh / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(
                source / Path(name).name if name in POLICY else MODELS / name, fresh / name
            )
        write_record(fresh / LEDGER, ledger)
        write_record(fresh / EVALUATION, evaluation)
        bundle.as_released(Statement.read(source), evaluation, asked).write(
            fresh / Path(POLICY[2]).parent
        )
        if declared:
            write_record(fresh / DECLARED, Declared(**declared))
        if asked is not None:
            write_record(fresh / ANSWERS, asked)
        try:
            finish(fresh, render(fresh))
            _refuse_private_marks(fresh, statement, manifest)
            released = bundle.check(fresh, void_ok=void_ok)
        except PipelineError as wrong:  # name the file to mend, not its copy
            message = str(wrong).replace(str(fresh / EVALUATION), str(SUMMARY))
            message = message.replace(str(fresh / ANSWERS), str(paths.PRIVATE_EVALUATION))
            message = message.replace(
                str(fresh / DECLARED), f"datasets/{summary.dataset}.yaml: card"
            )
            raise PipelineError(message.replace(str(fresh), str(MODELS))) from None
        if signer is not None:
            bundle.sign(fresh, signer)
        forget_times(fresh)
    return released


def check_origin(
    folder: Path, stated: Statement, *, void_ok: bool, against_advice: bool
) -> Statement:
    """Refuse a policy that may not leave: one rule for bundles and for single files such as ONNX.

    A policy of this project must be one that `release` releases, so it is released into a folder that is deleted again.
    One in a bundle needs a sound bundle. One of another project is refused, as its ledger is there. Elsewhere there is
    no ledger and no bundle to ask: of a policy there, only the figures of the statement are compared with its event.

    Args:
        folder: of the policy.
        stated: its statement.
        void_ok: accept a void statement.
        against_advice: accept a policy that its run advises against.

    Returns:
        The statement as a bundle has it, with `bundle.CHOSEN` where answers of the private units chose the policy.
    """
    place = folder.resolve()
    own = next((each for each in _LEAVING if place == each.resolve()), None)
    project = place.parent.parent
    if own is not None:
        with TemporaryDirectory() as scratch:
            target, params = Path(scratch) / "bundle", load_reading(paths.PARAMS)
            if own == paths.ONLINE:
                release_online(target, params, void_ok=void_ok)
            else:
                name: Released = "models/behaviour" if own == BEHAVIOUR else "models/policy"
                release(target, params, void_ok=void_ok, policy=name, against_advice=against_advice)
            return Statement.read(target / "policy")
    if is_online(place.parent):
        check_online(place.parent, void_ok=void_ok)
    elif (
        place.parent / MANIFEST
    ).exists():  # `is_bundle` is false of a bundle with a file too many
        bundle.check(place.parent, void_ok=void_ok)
    elif (project / paths.PARAMS).exists() and place.relative_to(project) in _LEAVING:
        raise PipelineError(
            f"{folder}: a policy of the project {project}; run the command there, which has its ledger"
        )
    else:
        config = PolicyConfig.read(folder)
        if not void_ok:
            refuse_void(folder / FILE, stated)
        if stated.private:
            check_alone(folder / FILE, stated, near_clone=config.clone_error is not None)
    return stated


def finish(fresh: Path, cards: Mapping[str, str]) -> None:
    """Write the cards of a bundle, then the manifest of all that is in it."""
    for card, text in cards.items():
        (fresh / card).write_text(text, encoding="utf-8")
    write_record(fresh / MANIFEST, manifest_of(fresh))


def forget_times(folder: Path) -> None:
    """Give a bundle's files and folders one time and the usual permissions."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (_NO_TIME, _NO_TIME))


def _refuse_to_overwrite(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PipelineError(
            f"{target}: in the way; allowed is an empty folder or an earlier bundle"
        )
    if target.is_dir() and any(target.iterdir()) and not is_bundle(target):
        raise PipelineError(
            f"{target}: holds something else than a bundle; give a new or empty folder"
        )


def check_outputs(outputs: Sequence[Path]) -> None:
    """Refuse outputs that were changed since a stage wrote them, as ``dvc.lock`` has them.

    So an edit that no digest of the chain covers, such as a return in the summary, and a checkout that was interrupted
    are noticed before anything leaves. Where DVC recorded none, nothing is compared.
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
                f"{path}: not what {paths.LOCK} says that its stage wrote: edited, or a checkout was interrupted; "
                "`dvc checkout` brings it back, `dvc repro` makes it again"
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
    """The folder of the policy that leaves: the recommended one, which may be the clone, or one that was named.

    Raises:
        PipelineError: none is recommended, another one is named without ``against_advice``, or the clone is wanted and
            nothing tells its value.
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
            f"{SUMMARY}: recommendation: {ADVICE[advice.answer]}. {advice.reason} To release a policy all the same: "
            f"--policy {named or 'models/policy'} {AGAINST}"
        )
    if folder == "models/policy":
        return paths.POLICY
    if summary.env_id is not None or answers.answer("clone", MEAN_RETURN) is None:
        raise PipelineError(
            "--policy: found models/behaviour, allowed without an environment, where a clone was made "
            "(behaviour.target_epsilon) and the private units were asked (evaluation.private.estimators)"
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


def _ledger_statement(
    params: Params | Reading,
    statement: Statement,
    clone: Statement | None,
    answers: PrivateEvaluation,
    manifest: Manifest,
) -> LedgerStatement:
    """Collect the charges on the units of these data, without names, times of day or other data."""
    delta = spent(MODELS / MODEL[2], statement).delta
    opened = begun_ledger(params)
    if opened is None:
        raise PipelineError(
            f"{MODELS / MODEL[2]}: charge {statement.charge} is in no ledger: none was begun here; put back the one "
            "it was written to"
        )
    with closing(opened) as ledger:
        ledger.verify()
        refuse_missing_charges(ledger)
        account = ledger.account(dataset_version(manifest, PARTITIONS))
    charges = {charge.id: charge for charge in account.charges}
    files = [MODELS / name for name in (*MODEL, STARTS) if (MODELS / name).exists()]
    made = {}
    if not statement.public_alone:
        own = charges.get(str(statement.charge))
        made[str(statement.charge)] = _made_by(own, statement, MODELS / MODEL[2], files)
    if clone is not None:
        own = charges.get(str(clone.charge))
        made[str(clone.charge)] = _made_by(own, clone, MODELS / CLONE, sorted(BEHAVIOUR.iterdir()))
    made |= _made_answers(charges, answers)
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
    """The digests that a charge was recorded with: those of the files that are here, if it made them."""
    if charge is None:
        raise PipelineError(
            f"{path}: charge {statement.charge} is not in the ledger for these data"
        )
    if not charge.made:
        raise PipelineError(
            f"{path}: charge {charge.id}: the ledger has no digest of what it made: found state {charge.state!r}; "
            f"`dvc repro -f -s {charge.stage}` restores it for free from its checkpoint and records them"
        )
    here = {file.name: file_sha256(file) for file in files}
    return here if here in charge.made else charge.made[-1]


def _made_answers(
    charges: Mapping[str, Charge], answers: PrivateEvaluation
) -> Mapping[str, dict[str, str]]:
    """By charge: the digest of the answers that it was recorded with, for every charge that answers name."""
    found = {}
    for name, statement in answers.statements.items():
        made, charge = answers.made(name), charges.get(str(statement.charge))
        if charge is None or made not in charge.made:
            raise PipelineError(
                f"{paths.PRIVATE_EVALUATION}: {name}: the ledger has no charge {statement.charge} for these answers: "
                "they were edited, are not about these data, or a kill came before they were recorded; "
                "`dvc repro -f -s evaluate_private` restores them for free from their checkpoint, then run `dvc repro`"
            )
        found[charge.id] = made
    return found


def _refuse_private_marks(fresh: Path, statement: Statement, manifest: Manifest) -> None:
    """Refuse hashes, sizes and row counts of private files: they tell neighbouring datasets apart."""
    hashes = set(_hashes())
    texts = (FILES | OPTIONAL | {MANIFEST}) - {MODEL[0], POLICY[0], STARTS}
    for name in sorted(name for name in texts if (fresh / name).exists()):
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
                f"{MODEL[2]}: {key}: holds a size or a row count of private data, which is not declared"
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


_ONLINE_FILES = frozenset((*POLICY, ONLINE, *CARDS))
"""What the bundle of an online run holds beside its manifest and the signature of that, if it is signed."""
_WHAT = "models/online"


def is_online(folder: Path) -> bool:
    """Whether a folder holds such a bundle, sound or not."""
    return (folder / ONLINE).is_file()


def release_online(
    target: Path, params: Params | Reading, *, void_ok: bool, sign: Path | None = None
) -> Statement:
    """Make the bundle of ``models/online`` in ``target``; arguments and result are those of `build.release`.

    Raises:
        PipelineError: no users were met, a file is missing or contradicts another, or the statement is void.
    """
    if target.exists() and not (
        target.is_dir() and (not any(target.iterdir()) or is_online(target))
    ):
        raise PipelineError(
            f"{target}: in the way; allowed is an empty folder or an earlier bundle of this kind"
        )
    signer = None if sign is None else read_private_key(sign)
    summary = OnlineSummary.read(paths.ONLINE_METRICS)
    if not summary.met:
        raise PipelineError(
            f"{paths.ONLINE_METRICS}: nobody was met; set online.users in params.yaml, run `dvc repro`"
        )
    check_outputs((paths.ONLINE, paths.ONLINE_METRICS))
    _check_made(params, Statement.read(paths.ONLINE))
    with replaced_directory(target) as fresh:
        (fresh / "policy").mkdir()
        for name in POLICY:
            shutil.copyfile(paths.ONLINE / Path(name).name, fresh / name)
        write_record(fresh / ONLINE, replace(summary, seconds=None))
        finish(fresh, online_cards(read(fresh, POLICY[2], Statement), summary))
        checked = check_online(fresh, void_ok=void_ok)
        if signer is not None:
            sign_bundle(fresh, signer)
        forget_times(fresh)
    return checked


def check_online(folder: Path, *, void_ok: bool, key: Path | None = None) -> Statement:
    """Check such a bundle, one's own or a stranger's; see `primorl.release.bundle.check`."""
    check_names_and_hashes(folder, _ONLINE_FILES)
    if key is not None:
        verify(folder, key)
    config, statement = read(folder, POLICY[1], PolicyConfig), read(folder, POLICY[2], Statement)
    summary, path = read(folder, ONLINE, OnlineSummary), folder / POLICY[2]
    _check_policy(folder, config)
    if not void_ok:
        refuse_void(path, statement)
    given(path, "charge", statement.charge)
    protocol = given(path, "online", statement.online)
    _check_protocol(path, statement, protocol)
    check_statement(path, statement)
    _check_summary(folder, config, statement, protocol, summary)
    check_cards(folder, online_cards(statement, summary))
    return statement


def _check_made(params: Params | Reading, statement: Statement) -> None:
    """The ledger must know the charge, and that it made these very files."""
    ledger = begun_ledger(params)
    charges = []
    if ledger is not None:
        with closing(ledger):
            charges = ledger.charges()
    made = next((charge.made for charge in charges if charge.id == statement.charge), ())
    found = {name: file_sha256(paths.ONLINE / name) for name in MADE_ONLINE}
    if found not in [dict(each) for each in made]:
        raise PipelineError(
            f"{paths.ONLINE}: not what charge {statement.charge} made, as the ledger has it; `dvc repro online`"
        )


def _check_policy(folder: Path, config: PolicyConfig) -> None:
    policy = checked_policy(folder, config)
    if not all(bool(layer.isfinite().all()) for layer in policy.layers):
        raise PipelineError(
            f"{folder / POLICY[0]}: found NaN or infinity, allowed are finite numbers"
        )
    if config.policy != "models/online":
        raise PipelineError(
            f"{folder / POLICY[1]}: policy: found {config.policy!r}, allowed is 'models/online'"
        )


def _check_protocol(path: Path, statement: Statement, protocol: OnlineProtocol) -> None:
    """Check that the mechanism of the users is the one that `online_plan` makes of the protocol."""
    own = statement.mechanisms[-1] if statement.mechanisms else mechanism(_WHAT, statement)
    met = protocol.cohorts * protocol.cohort
    contradictions = {
        "mechanisms: the last one is not that of models/online": own.what != _WHAT,
        "sampling_probability: not 1, and cohorts are not sampled": own.sampling_probability != 1,
        "queries: users are asked none": bool(own.queries),
        "online: rounds are not releases times appearances": own.rounds
        != protocol.releases * protocol.appearances,
        "online: users are not the units": statement.units != protocol.users,
        "online: cohort: larger than the number of users": protocol.cohort > protocol.users,
        "online: cohorts: users are in more of them than appearances": met
        > protocol.users * protocol.appearances,
        "online: releases: not those of the algorithm": protocol.releases
        != RELEASES.get(protocol.algorithm),
    }
    for what, found in contradictions.items():
        if found:
            raise PipelineError(f"{path}: {what}")


def _check_summary(
    folder: Path,
    config: PolicyConfig,
    statement: Statement,
    protocol: OnlineProtocol,
    summary: OnlineSummary,
) -> None:
    """Check that the figures on the cards are those of the statement, and of this policy."""
    expected = {
        "met": True,
        "env_id": config.environment,
        "algorithm": protocol.algorithm,
        "users": protocol.users,
        "cohort": protocol.cohort,
        "cohorts": protocol.cohorts,
        "private": statement.sound,
        "epsilon": user_epsilon(statement),
        "epsilon_in_all": statement.epsilon if statement.sound else None,
        "delta": statement.delta,
        "unit": statement.unit,
        "void": statement.void,
        "start": "policy" if statement.mechanisms else "scratch",
        "policy_sha256": file_sha256(folder / POLICY[0]),
        "seconds": None,
    }
    for key, value in expected.items():
        if getattr(summary, key) != value:
            raise PipelineError(f"{folder / ONLINE}: {key}: contradicts {POLICY[1]} or {POLICY[2]}")
