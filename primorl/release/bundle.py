"""The check of a bundle: it holds what `primorl.release.contents` declares and nothing else, and its parts agree.

A file is sound when our writer would write exactly these bytes for what our reader finds in it. So there is no room for
an extra key, tensor, comment or padding.
"""

import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from primorl.dynamics.config import ModelConfig
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.starts import StartModel
from primorl.evaluation.private.results import PrivateEvaluation
from primorl.policy import exported
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256
from primorl.project.records import printable, read_record, to_json
from primorl.release import signature
from primorl.release.accounted import LEAST_NOISE, MOST_ROUNDS, check_ledger, check_statement, given
from primorl.release.both import as_made, check_policy_statement
from primorl.release.card import is_inert
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
    OPTIONAL,
    POLICY,
    SIGNATURE,
    STARTS,
    Declared,
    Evaluation,
    LedgerStatement,
    Manifest,
)
from primorl.release.evaluated import check_answers, check_clone, check_recommendation
from primorl.release.pages import render
from primorl.release.provenance import check_chain
from primorl.release.soundness import check_model, check_policy
from primorl.training.start_query import STARTS as STARTS_QUERY

Content = TypeVar("Content")

_LARGEST_MODEL, _LARGEST_TEXT = 1 << 34, 1 << 24  # bytes
# Places that exist at home only: a path from the root of a disk, and the project's own private folders.
_PATH = re.compile(
    r"(?<![\w.:/<\\])(?:~?/[\w.+-]+(?:/[\w.+-]+)+|[A-Za-z]:\\|file:)"
    r"|(?<!\w)(?:data/(?:raw|trajectories|partitions|consent|withdrawals)|\.dvc\b|\.primorl|dvc\.lock|units\.bin|mlruns|mlflow\.db)"
)


def _accountable(content: dict[str, Any]) -> bool:
    """Whether the accountant takes the event, and in a bounded time."""
    try:
        same = event_to_json(event_from_json(content)) == content
    except (TypeError, ValueError, AttributeError, RecursionError):
        same = False
    return same and _bounded(content)


def _bounded(event: dict[str, Any]) -> bool:
    inner = [event["event"]] if "event" in event else event.get("events", [])
    bounded = event.get("count", 1) <= MOST_ROUNDS and event.get("noise_multiplier", 1) >= LEAST_NOISE
    return bounded and all(_bounded(part) for part in inner)


def is_bundle(folder: Path) -> bool:
    """Whether ``folder`` is a bundle of ours, sound or not: its manifest says so, and no other file is in it.

    A bundle that an earlier version made is one, too.
    """
    try:
        read(folder, MANIFEST, Manifest)
        return set(_files(folder)) <= FILES | OPTIONAL | {MANIFEST, SIGNATURE}
    except PipelineError:
        return False


def check(folder: Path, *, void_ok: bool, key: Path | None = None) -> Statement:
    """Check a bundle, one's own or a stranger's; runs nothing that is in it, and opens no file outside of it.

    Args:
        folder: the bundle.
        void_ok: accept a statement that says of itself that it must not be relied on.
        key: file of the public key that must have signed it; None: no signature is needed, and none is verified.

    Returns:
        What the bundle states.

    Raises:
        PipelineError: one line that names the file, what is wrong with it, and what to do.
    """
    names = check_names_and_hashes(folder, FILES, OPTIONAL)
    if key is not None:
        signature.verify(folder, key)
    model, policy = read(folder, MODEL[1], ModelConfig), read(folder, POLICY[1], PolicyConfig)
    _check_tensors(folder, model, policy)
    statement, ledger = read(folder, MODEL[2], Statement), read(folder, LEDGER, LedgerStatement)
    evaluation = read(folder, EVALUATION, Evaluation)
    if DECLARED in names:
        read(folder, DECLARED, Declared)
    clone = read(folder, CLONE, Statement) if CLONE in names else None
    whole = read(folder, POLICY[2], Statement)
    answers = read(folder, ANSWERS, PrivateEvaluation) if ANSWERS in names else None
    made = as_made(folder / POLICY[2], whole, evaluation, answers)
    cloned = policy.policy == "models/behaviour"
    if cloned and made != clone:
        raise PipelineError(f"{folder / POLICY[2]}: differs from {CLONE}, so it is not what paid for this policy")
    _check_configs(folder, model, policy, statement)
    paid = () if answers is None else answers.statements.values()
    own_clone = [] if clone is None else [(CLONE, clone)]
    for name, own in ((MODEL[2], statement), (POLICY[2], whole), *own_clone, *((ANSWERS, each) for each in paid)):
        if not void_ok:
            refuse_void(folder / name, own)
    check_statement(folder / MODEL[2], statement)
    _check_starts(folder, statement, STARTS in names)
    check_ledger(folder / LEDGER, ledger, folder / MODEL[2], statement)
    if clone is not None:
        check_clone(folder, clone, statement, ledger)
    if not cloned:
        near = bool(policy.candidates)
        check_policy_statement(folder, made, statement, ledger, answers, clone=clone, candidates=near)
    check_recommendation(folder, evaluation, answers)
    if answers is not None:
        check_answers(folder, answers, statement, ledger, evaluation)
    texts = sorted((FILES | names) - {MODEL[0], POLICY[0], STARTS, *CARDS})
    for name in (*texts, *CARDS):  # the cards repeat the others
        if _PATH.search(_text(folder / name)):
            raise PipelineError(f"{folder / name}: holds a path of the machine or project it was made in; remove it")
    check_chain(folder, statement, clone, ledger, policy, evaluation, answers)
    for card, text in render(folder).items():
        if not is_inert(found := _text(folder / card)):
            raise PipelineError(f"{folder / card}: holds markup that is not ours and may run or fetch; do not open it")
        if found != text:
            raise PipelineError(
                f"{folder / card}: not the card that the figures of this bundle make; do not believe it: read "
                f"{POLICY[2]}, or make the bundle again"
            )
    return whole


def refuse_void(path: Path, statement: Statement) -> None:
    """Refuse a statement that says of itself that it must not be relied on.

    Raises:
        PipelineError: it does; names its file, ``path``.
    """
    if not statement.sound:
        reason = "; ".join(statement.void) or "nothing is guaranteed"
        raise PipelineError(f"{path}: void: {reason}; do not rely on it (--void-ok goes on all the same)")


def read(folder: Path, name: str, kind: type[Content]) -> Content:
    """Read one JSON file of a bundle strictly.

    Raises:
        PipelineError: missing, not JSON, another set of keys or types, an event that this project does not account, or
            not written as `write_record` writes.
    """
    path = folder / name
    found = read_record(path, kind, "a bundle holds nothing else")
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    if content != to_json(found) or text != json.dumps(content, indent=2, allow_nan=False) + "\n":
        raise PipelineError(f"{path}: not written as this project writes JSON; make it again")
    events = {"event": found.event} if isinstance(found, Statement) else {}
    if isinstance(found, Statement):
        events |= {f"mechanisms.{number}.event": part.event for number, part in enumerate(found.mechanisms)}
    if isinstance(found, LedgerStatement):
        events = {f"records.{number}.event": record.event for number, record in enumerate(found.records)}
    if isinstance(found, PrivateEvaluation):
        events = {f"statements.{printable(name)}.event": own.event for name, own in found.statements.items()}
    for key, event in events.items():
        if not _accountable(event):
            raise PipelineError(f"{path}: not as declared: {key} (not an event that this project accounts)")
    return found


def manifest_of(folder: Path) -> Manifest:
    """The content of ``MANIFEST.json`` for the files that are in ``folder``."""
    names = FILES | {name for name in OPTIONAL if (folder / name).exists()}
    return Manifest(kind="primorl release", files={name: file_sha256(folder / name) for name in sorted(names)})


def check_names_and_hashes(folder: Path, needed: frozenset[str], optional: frozenset[str] = frozenset()) -> set[str]:
    """Names of the files, without the manifest.

    Args:
        folder: the bundle.
        needed: what it must hold beside manifest and signature.
        optional: what it may hold.

    Raises:
        PipelineError: a file is missing, too many, or not the one that the manifest lists.
    """
    if not folder.is_dir() or folder.is_symlink():
        raise PipelineError(f"{folder}: not a folder; give the folder of a bundle")
    found, least = set(_files(folder)), needed | {MANIFEST}
    allowed = least | optional | {SIGNATURE}
    for names, what in ((found - allowed, "does not belong in a bundle"), (least - found, "is missing")):
        if names:
            raise PipelineError(f"{folder}: {printable(min(names))} {what}; allowed are {', '.join(sorted(allowed))}")
    listed = read(folder, MANIFEST, Manifest).files
    if set(listed) != found - {MANIFEST, SIGNATURE}:
        raise PipelineError(f"{folder / MANIFEST}: lists other files than a bundle has")
    for name in sorted(listed):
        if file_sha256(folder / name) != listed[name]:
            raise PipelineError(f"{folder / name}: not the file that {MANIFEST} lists: damaged or exchanged on its way")
        if zipfile.is_zipfile(folder / name):
            raise PipelineError(f"{folder / name}: is a ZIP archive, which a pickle may hide in; a bundle holds none")
    return set(listed)


def _files(folder: Path) -> Iterator[str]:
    """Relative names of everything but plain folders that are known; links and special files are refused."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise PipelineError(f"{folder}: {printable(name)} is a link or a special file; a bundle holds plain files")
        if path.is_file() and path.stat().st_size > (
            _LARGEST_MODEL if path.suffix == ".safetensors" else _LARGEST_TEXT
        ):
            raise PipelineError(f"{folder}: {printable(name)} is larger than any of ours")
        if path.is_file() or name not in ("dynamics", "policy", "behaviour"):
            yield name


def _check_tensors(folder: Path, config: ModelConfig, of_policy: PolicyConfig) -> None:
    """Load both with our loaders, write them with our writers, and compare."""
    ensemble = GaussianEnsemble.load(folder / "dynamics", torch.device("cpu"))
    check_model(folder / MODEL[0], ensemble)
    policy = DeterministicPolicy.load(folder / "policy")
    with tempfile.TemporaryDirectory(prefix="primorl-check-") as name:
        again = Path(name)
        ensemble.save(again, environment=config.environment, variant=config.variant, rounds=config.rounds)
        exported.save(again, [policy], variant=config.variant, environment=config.environment)
        for file in (MODEL[0], POLICY[0]):
            if (again / Path(file).name).read_bytes() != (folder / file).read_bytes():
                raise PipelineError(
                    f"{folder / file}: holds more than its model: a tensor, metadata or padding of its own"
                )
    for side in ("observation_low", "observation_high"):
        stated = getattr(of_policy, side)
        if stated is None or list(stated) != getattr(ensemble.bounds, side).tolist():
            raise PipelineError(f"{folder / POLICY[1]}: {side}: not the bound in {MODEL[0]}: it is of another model")
    check_policy(folder / POLICY[0], policy, ensemble, own_scales=of_policy.policy == "models/behaviour")


def _check_starts(folder: Path, statement: Statement, there: bool) -> None:
    """First states are there exactly if they were asked for, within the model's bounds, and nothing else is."""
    path = folder / STARTS
    if there != any(query.what == STARTS_QUERY for query in statement.queries):
        raise PipelineError(f"{path}: {'there' if there else 'missing'}, which contradicts queries in {MODEL[2]}")
    if not there:
        return
    model = StartModel.load(path.parent, torch.device("cpu"))
    bounds = GaussianEnsemble.load(path.parent, torch.device("cpu")).bounds
    with tempfile.TemporaryDirectory(prefix="primorl-check-") as name:
        model.save(Path(name))
        if (Path(name) / path.name).read_bytes() != path.read_bytes():
            raise PipelineError(f"{path}: holds more than first states: a tensor, metadata or padding of its own")
    if not (torch.equal(model.low, bounds.observation_low) and torch.equal(model.high, bounds.observation_high)):
        raise PipelineError(f"{path}: its bounds are not those of {MODEL[0]}: they are of another model")


def _check_configs(folder: Path, model: ModelConfig, policy: PolicyConfig, statement: Statement) -> None:
    if "mopo" in (model.variant, policy.variant) or policy.policy == "models/mopo":
        raise PipelineError(f"{folder / POLICY[1]}: variant mopo holds raw private transitions and is never released")
    loss = model.public_loss
    if loss is None and statement.public_units:
        raise PipelineError(f"{folder / MODEL[1]}: public_loss: missing, though there is a public split")
    if loss is not None and loss.diverged:
        raise PipelineError(f"{folder / MODEL[1]}: public_loss: the model is no better than a constant prediction")
    for key in (
        *("environment", "variant", "observation_size", "action_size", "discrete_actions"),
        *("observation_names", "action_names", "elapsed"),
    ):
        if getattr(model, key) != getattr(policy, key):
            raise PipelineError(
                f"{folder / POLICY[1]}: {key}: differs from {MODEL[1]}: the policy is not of this model"
            )
    if statement.private != (model.variant == "private"):
        raise PipelineError(f"{folder / MODEL[2]}: private: contradicts the variant in {MODEL[1]}, {model.variant!r}")
    if model.termination != statement.termination:
        raise PipelineError(f"{folder / MODEL[2]}: termination: differs from {MODEL[1]}")
    rounds = given(folder / MODEL[2], "rounds", statement.rounds)
    if model.rounds > rounds:
        raise PipelineError(f"{folder / MODEL[1]}: rounds: more than the {rounds} that were paid for")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PipelineError(f"{path}: not text in UTF-8") from None
