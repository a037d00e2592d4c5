"""The check of a bundle: it holds what `primorl.release.contents` declares and nothing else, and its parts agree.

A file is sound when our writer would write exactly these bytes for what our reader finds in it. So there is no room for
an extra key, tensor, comment or padding.
"""

import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from dp_accounting import dp_event

from primorl.dynamics.config import ModelConfig
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.starts import StartModel
from primorl.policy import exported
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.mechanism.queries import GaussianQuery, query_types
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.project.errors import PipelineError
from primorl.project.records import printable, read_record, to_json
from primorl.release.card import is_inert, stated_epsilon
from primorl.release.contents import CARDS, FILES, LEDGER, MANIFEST, MODEL, POLICY, STARTS, LedgerStatement, Manifest
from primorl.release.stated_figures import understated
from primorl.training import normaliser_query as _normaliser_query  # noqa: F401 - registers its query
from primorl.training.start_query import STARTS as STARTS_QUERY

Content = TypeVar("Content")
Value = TypeVar("Value")

_MOST_ROUNDS, _LEAST_NOISE = 10**6, 0.1
_LARGEST_MODEL, _LARGEST_TEXT = 1 << 34, 1 << 24  # bytes
_TOLERANCE = 1e-3  # of ε, for an accountant of another version
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
    bounded = event.get("count", 1) <= _MOST_ROUNDS and event.get("noise_multiplier", 1) >= _LEAST_NOISE
    return bounded and all(_bounded(part) for part in inner)


def is_bundle(folder: Path) -> bool:
    """Whether ``folder`` is a bundle of ours, sound or not: its manifest says so, and no other file is in it."""
    try:
        read(folder, MANIFEST, Manifest)
        return set(_files(folder)) - {STARTS} == FILES | {MANIFEST}
    except PipelineError:
        return False


def check(folder: Path, *, void_ok: bool) -> Statement:
    """Check a bundle, one's own or a stranger's; runs nothing that is in it, and opens no file outside of it.

    Args:
        folder: the bundle.
        void_ok: accept a statement that says of itself that it must not be relied on.

    Returns:
        What the bundle states.

    Raises:
        PipelineError: one line that names the file, what is wrong with it, and what to do.
    """
    names = _check_names_and_hashes(folder)
    model, policy = read(folder, MODEL[1], ModelConfig), read(folder, POLICY[1], PolicyConfig)
    _check_tensors(folder, model, policy)
    statement, ledger = read(folder, MODEL[2], Statement), read(folder, LEDGER, LedgerStatement)
    if read(folder, POLICY[2], Statement) != statement:
        raise PipelineError(f"{folder / POLICY[2]}: differs from {MODEL[2]}: the policy is not of this model")
    _check_configs(folder, model, policy, statement)
    _check_statement(folder, statement, void_ok)
    _check_starts(folder, statement, STARTS in names)
    _check_ledger(folder, statement, ledger)
    for card in CARDS:
        if stated_epsilon(_text(folder / card)) != json.dumps(statement.epsilon):
            raise PipelineError(f"{folder / card}: its ε is not the one in {POLICY[2]}; make the card again")
        if not is_inert(_text(folder / card)):
            raise PipelineError(f"{folder / card}: holds markup that is not ours and may run or fetch; do not open it")
    for name in sorted(FILES - {MODEL[0], POLICY[0]}):
        if _PATH.search(_text(folder / name)):
            raise PipelineError(f"{folder / name}: holds a path of the machine or project it was made in; remove it")
    return statement


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
    if isinstance(found, LedgerStatement):
        events = {f"records.{number}.event": record.event for number, record in enumerate(found.records)}
    for key, event in events.items():
        if not _accountable(event):
            raise PipelineError(f"{path}: not as declared: {key} (not an event that this project accounts)")
    return found


def manifest_of(folder: Path) -> Manifest:
    """The content of ``MANIFEST.json`` for the files that are in ``folder``."""
    names = FILES | {STARTS} if (folder / STARTS).exists() else FILES
    return Manifest(kind="primorl release", files={name: _sha256(folder / name) for name in sorted(names)})


def _check_names_and_hashes(folder: Path) -> set[str]:
    """Names of the files, without the manifest."""
    if not folder.is_dir() or folder.is_symlink():
        raise PipelineError(f"{folder}: not a folder; give the folder of a bundle")
    found, needed = set(_files(folder)), FILES | {MANIFEST}
    allowed = needed | {STARTS}
    for names, what in ((found - allowed, "does not belong in a bundle"), (needed - found, "is missing")):
        if names:
            raise PipelineError(f"{folder}: {printable(min(names))} {what}; allowed are {', '.join(sorted(allowed))}")
    listed = read(folder, MANIFEST, Manifest).files
    if set(listed) != found - {MANIFEST}:
        raise PipelineError(f"{folder / MANIFEST}: lists other files than a bundle has")
    for name in sorted(listed):
        if _sha256(folder / name) != listed[name]:
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
        if path.is_file() or name not in ("dynamics", "policy"):
            yield name


def _check_tensors(folder: Path, config: ModelConfig, of_policy: PolicyConfig) -> None:
    """Load both with our loaders, write them with our writers, and compare."""
    ensemble = GaussianEnsemble.load(folder / "dynamics", torch.device("cpu"))
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
        if stated is not None and list(stated) != getattr(ensemble.bounds, side).tolist():
            raise PipelineError(f"{folder / POLICY[1]}: {side}: not the bound in {MODEL[0]}: it is of another model")
    if not all(bool(weight.isfinite().all()) for weight in ensemble.weights):
        raise PipelineError(f"{folder / MODEL[0]}: found weights that are not finite")


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
    if "mopo" in (model.variant, policy.variant) or policy.policy != "models/policy":
        raise PipelineError(f"{folder / POLICY[1]}: variant mopo holds raw private transitions and is never released")
    loss = model.public_loss
    if loss is None and statement.public_units:
        raise PipelineError(f"{folder / MODEL[1]}: public_loss: missing, though there is a public split")
    if loss is not None and loss.diverged:
        raise PipelineError(f"{folder / MODEL[1]}: public_loss: the model is no better than a constant prediction")
    for key in (
        *("environment", "variant", "observation_size", "action_size", "discrete_actions"),
        *("observation_names", "action_names"),
    ):
        if getattr(model, key) != getattr(policy, key):
            raise PipelineError(
                f"{folder / POLICY[1]}: {key}: differs from {MODEL[1]}: the policy is not of this model"
            )
    if statement.private != (model.variant == "private"):
        raise PipelineError(f"{folder / MODEL[2]}: private: contradicts the variant in {MODEL[1]}, {model.variant!r}")
    if model.termination != statement.termination:
        raise PipelineError(f"{folder / MODEL[2]}: termination: differs from {MODEL[1]}")
    rounds = _given(folder, "rounds", statement.rounds)
    if model.rounds > rounds:
        raise PipelineError(f"{folder / MODEL[1]}: rounds: more than the {rounds} that were paid for")


def _check_statement(folder: Path, statement: Statement, void_ok: bool) -> None:
    path = folder / MODEL[2]
    if not statement.sound and not void_ok:
        reason = "; ".join(statement.void) or "nothing is guaranteed"
        raise PipelineError(f"{path}: void: {reason}; do not rely on it (--void-ok goes on all the same)")
    delta = _given(folder, "delta", statement.delta)
    largest = max(delta, _given(folder, "spent_on_dataset", statement.spent_on_dataset).delta)
    if statement.private and largest >= 1 / statement.units and not statement.void:
        raise PipelineError(f"{path}: delta: {largest:g} is not below one over the units, and void does not say so")
    for place, query in enumerate(statement.queries):
        if query.what not in query_types():
            raise PipelineError(f"{path}: not as declared: queries.{place}.what (no query of this project)")
    multiplier = _given(folder, "noise_multiplier", statement.noise_multiplier)
    q = _given(folder, "sampling_probability", statement.sampling_probability)
    rounds = _given(folder, "rounds", statement.rounds)
    if rounds > _MOST_ROUNDS:
        raise PipelineError(f"{path}: rounds: found {rounds}, allowed are up to {_MOST_ROUNDS}")
    if not statement.private:
        expected: dp_event.DpEvent = dp_event.NonPrivateDpEvent()
        numbers: tuple[float | None, float | None] = (None, None)
    else:
        if multiplier < _LEAST_NOISE:
            raise PipelineError(f"{path}: private: true, yet without noise (≥ {_LEAST_NOISE:g})")
        queries = tuple(query.noise_multiplier for query in statement.queries)
        if min(queries, default=_LEAST_NOISE) < _LEAST_NOISE:
            raise PipelineError(f"{path}: private: true, yet a query without noise (≥ {_LEAST_NOISE:g})")
        whole = accounting.Training(q, multiplier, rounds, queries)
        spent, expected = whole.spent(delta), whole.event
        numbers = (spent.epsilon_pld, spent.epsilon_rdp)
        for query in statement.queries:
            alone = GaussianQuery(query.what, query.sensitivity, query.noise_multiplier).statement(delta)
            if query.epsilon is None or not _covers(query.epsilon, alone.epsilon):
                raise PipelineError(f"{path}: queries: {query.what}: less ε than the accountant makes of it")
    if statement.event != event_to_json(expected):
        raise PipelineError(f"{path}: event: not that of the mechanism the same file describes")
    for key, number in zip(("epsilon", "epsilon_rdp"), numbers, strict=True):
        if not _covers(getattr(statement, key), number):
            raise PipelineError(f"{path}: {key}: less than the accountant makes of the event in the same file")
    if statement.private and (figure := understated(statement)) is not None:
        raise PipelineError(f"{path}: {figure}: promises more than the accountant makes of the event in the same file")


def _given(folder: Path, key: str, value: Value | None) -> Value:
    """A value of the statement that is null for other mechanisms, and never for a dynamics model."""
    if value is None:
        raise PipelineError(f"{folder / MODEL[2]}: not as declared: {key} (null); a model's statement has it")
    return value


def _check_ledger(folder: Path, statement: Statement, ledger: LedgerStatement) -> None:
    path = folder / LEDGER
    for key in ("dataset_fingerprint", "unit", "neighboring_relation"):
        if getattr(ledger, key) != getattr(statement, key):
            raise PipelineError(f"{path}: {key}: differs from {MODEL[2]}: the ledger speaks of other data")
    places = [place for place, record in enumerate(ledger.records) if record.id == statement.charge]
    own = ledger.records[places[0]] if len(places) == 1 else None
    if own is None or own.event != statement.event or own.state != "committed":
        raise PipelineError(f"{path}: found no committed charge with the id and event of {MODEL[2]}")
    if ledger.charges != len(ledger.records):
        raise PipelineError(f"{path}: charges: not the number of records")
    events = [event_from_json(record.event) for record in ledger.records]
    if not _covers_all(ledger, events):
        raise PipelineError(f"{path}: epsilon: less than the accountant makes of its records together")
    account = _given(folder, "spent_on_dataset", statement.spent_on_dataset)
    if not _covers_all(account, events[: places[0] + 1]):  # oldest first; its own the last of them
        raise PipelineError(f"{folder / MODEL[2]}: spent_on_dataset: less than the accountant makes of {LEDGER}")


def _covers_all(stated: LedgerStatement | SpentOnDataset, events: Sequence[dp_event.DpEvent]) -> bool:
    composed = accounting.compose(events, stated.delta)
    return _covers(stated.epsilon, composed.epsilon_pld) and _covers(stated.epsilon_rdp, composed.epsilon_rdp)


def _covers(stated: float | None, accounted: float | None) -> bool:
    """Whether a stated ε (None: infinite) is at least the accounted one."""
    if stated is None:
        return True
    return accounted is not None and accounted <= stated * (1 + _TOLERANCE)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PipelineError(f"{path}: not text in UTF-8") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
