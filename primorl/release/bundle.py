"""The bundle that may leave: which files and keys it has, and the check that nothing else is in it.

Every JSON key is declared here, and with it where its value comes from: the mechanism's output, params.yaml, the
environment, the public split, what is declared public, or the ledger. A file is sound when our writer would write
exactly these bytes for what our reader finds in it: there is no room for an extra key, tensor, comment or padding.
"""

import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from dp_accounting import dp_event
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from primorl.dynamics import starts
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.starts import StartModel
from primorl.policy import exported
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.project.errors import PipelineError
from primorl.release.card import is_inert, stated_epsilon

MANIFEST, LEDGER, CARDS = "MANIFEST.json", "ledger-statement.json", ("card.md", "card.html")
MODEL = ("dynamics/model.safetensors", "dynamics/config.json", "dynamics/privacy.json")
POLICY = ("policy/policy.safetensors", "policy/config.json", "policy/privacy.json")
FILES = frozenset((*MODEL, *POLICY, *CARDS, LEDGER))
"""What a bundle holds beside its manifest."""
STARTS = f"dynamics/{starts.FILE}"
"""And what it holds besides where a query for first states was paid for."""

_MOST_ROUNDS, _LEAST_NOISE = 10**6, 0.1
_LARGEST_MODEL, _LARGEST_TEXT = 1 << 34, 1 << 24  # bytes
_TOLERANCE = 1e-3  # of ε, for an accountant of another version
# Places that exist at home only: a path from the root of a disk, and the project's own private folders.
_PATH = re.compile(
    r"(?<![\w.:/<\\])(?:~?/[\w.+-]+(?:/[\w.+-]+)+|[A-Za-z]:\\|file:)"
    r"|(?<!\w)(?:data/(?:raw|trajectories|partitions)|\.dvc\b|\.primorl|dvc\.lock|units\.bin|mlruns|mlflow\.db)"
)

Text = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$")]
Hexadecimal = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1)]
Delta = Annotated[float, Field(gt=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
Names = tuple[Text, ...]
Variant = Literal["private", "no_privacy", "no_clip"]
"""Not ``mopo``: its policy is made of raw private transitions."""


def _accountable(content: dict[str, Any]) -> dict[str, Any]:
    """Refuse what the accountant would not take, or would take for ever with."""
    try:
        same = event_to_json(event_from_json(content)) == content
    except (TypeError, ValueError, AttributeError, RecursionError):
        same = False
    if not (same and _bounded(content)):
        raise ValueError("not an event that this project accounts")
    return content


def _bounded(event: dict[str, Any]) -> bool:
    inner = [event["event"]] if "event" in event else event.get("events", [])
    bounded = event.get("count", 1) <= _MOST_ROUNDS and event.get("noise_multiplier", 1) >= _LEAST_NOISE
    return bounded and all(_bounded(part) for part in inner)


Event = Annotated[dict[str, Any], AfterValidator(_accountable)]


class _Strict(BaseModel):
    """Unknown keys, other types and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelConfig(_Strict):
    """``dynamics/config.json``. Sizes and bounds: the environment's, params.yaml's or the public split's."""

    format: Literal[1]
    observation_size: Count
    action_size: Count
    members: Count
    hidden: tuple[Count, ...]
    log_variance_low: float
    log_variance_high: float
    reward_low: float
    reward_high: float
    discrete_actions: bool
    termination: Text
    environment: Text | None
    observation_names: Names | None = None
    """Of the columns, as declared; absent where nothing names them. So are the names of actions."""
    action_names: Names | None = None
    variant: Variant
    rounds: Count
    """After early stopping, which looks at the public split and released weights only."""


class PolicyConfig(_Strict):
    """``policy/config.json``: params.yaml, and the sizes of the model."""

    format: Literal[1]
    variant: Variant
    policy: Literal["models/policy"]
    environment: Text | None
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Of the policies that were trained together, where params.yaml lists them; only the first one's leaves."""
    observation_size: Count
    action_size: Count
    hidden: tuple[Count, ...]
    discrete_actions: bool
    observation_names: Names | None = None
    """Of the columns, and those of the actions: the model's."""
    action_names: Names | None = None
    observation_low: tuple[float, ...] | None = None
    """The public range of observations: the model's bounds."""
    observation_high: tuple[float, ...] | None = None
    epochs: Count


class Accountant(_Strict):
    """Who did the sums."""

    name: Text
    version: Text


class SpentOnDataset(_Strict):
    """What the ledger had when the model was written."""

    epsilon: NonNegative | None
    epsilon_rdp: NonNegative | None
    delta: Delta
    charges: Count


class Query(_Strict):
    """What was asked of all private units before the rounds; its ε is that of the query alone."""

    what: Literal["normaliser", "starts"]
    noise_multiplier: NonNegative
    sensitivity: Annotated[float, Field(gt=0)]
    epsilon: NonNegative | None


class Statement(_Strict):
    """``privacy.json``: the plan's words and the ledger's; ``units`` is declared public, the fingerprint is keyed."""

    private: bool
    epsilon: NonNegative | None
    delta: Delta
    unit: Text
    neighboring_relation: Literal["add_or_remove_one"]
    accountant: Accountant
    epsilon_rdp: NonNegative | None
    event: Event
    sampling_probability: Annotated[float, Field(gt=0, le=1)]
    noise_multiplier: NonNegative
    clipping_norm: Annotated[float, Field(gt=0)] | None
    clipping: Literal["flat", "per_layer"]
    rounds: Annotated[int, Field(ge=1, le=_MOST_ROUNDS)]
    queries: tuple[Query, ...]
    termination: Text
    """``none``, ``learned`` (inside the clipped vector) or a declared rule, which is then a public assumption."""
    units: Count
    public_units: Annotated[int, Field(ge=0)] | None = None
    """Units that are declared public, and so not protected."""
    public_assumptions: tuple[Text, ...]
    dataset_fingerprint: Hexadecimal
    void: tuple[Text, ...]
    charge: Text
    spent_on_dataset: SpentOnDataset


class ChargeRecord(_Strict):
    """One charge in ``ledger-statement.json``: nothing of git, MLflow or other datasets, and no time of day."""

    id: Text
    stage: Text
    event: Event
    epsilon: NonNegative | None
    delta: Delta
    state: Literal["reserved", "committed", "aborted"]
    day: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    same_version: bool
    """False: of another version of the data that shares a unit with this one, a relation that is declared public."""


class LedgerStatement(_Strict):
    """``ledger-statement.json``: everything spent so far on the units of this version of the data, composed."""

    format: Literal[1]
    dataset_fingerprint: Hexadecimal
    unit: Text
    neighboring_relation: Literal["add_or_remove_one"]
    accountant: Accountant
    epsilon: NonNegative | None
    epsilon_rdp: NonNegative | None
    delta: Delta
    charges: Count
    records: tuple[ChargeRecord, ...]


class Manifest(_Strict):
    """``MANIFEST.json``: SHA-256 of every other file. It tells whether a bundle is whole, not who made it."""

    format: Literal[1]
    kind: Literal["primorl release"]
    files: dict[str, Hexadecimal]


Content = TypeVar("Content", bound=_Strict)


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
        PipelineError: missing, not JSON, another set of keys or types, or not written as `write_json` writes.
    """
    path = folder / name
    try:
        text = path.read_text(encoding="utf-8")
        content = kind.model_validate_json(text)
        if text != json.dumps(json.loads(text), indent=2, allow_nan=False) + "\n":
            raise PipelineError(f"{path}: keys given twice, or not written as this project writes JSON; make it again")
        return content
    except ValidationError as wrong:
        keys = sorted({_shown(".".join(map(str, error["loc"]))) + f" ({error['type']})" for error in wrong.errors()})
        raise PipelineError(f"{path}: not as declared: {'; '.join(keys[:5])}; nothing else may be in it") from None
    except (OSError, ValueError, RecursionError) as broken:
        raise PipelineError(f"{path}: not readable as JSON ({type(broken).__name__})") from None


def manifest_of(folder: Path) -> dict[str, Any]:
    """The content of ``MANIFEST.json`` for the files that are in ``folder``."""
    names = FILES | {STARTS} if (folder / STARTS).exists() else FILES
    hashes = {name: _sha256(folder / name) for name in sorted(names)}
    return {"format": 1, "kind": "primorl release", "files": hashes}


def _check_names_and_hashes(folder: Path) -> set[str]:
    """Names of the files, without the manifest."""
    if not folder.is_dir() or folder.is_symlink():
        raise PipelineError(f"{folder}: not a folder; give the folder of a bundle")
    found, needed = set(_files(folder)), FILES | {MANIFEST}
    allowed = needed | {STARTS}
    for names, what in ((found - allowed, "does not belong in a bundle"), (needed - found, "is missing")):
        if names:
            raise PipelineError(f"{folder}: {_shown(min(names))} {what}; allowed are {', '.join(sorted(allowed))}")
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
            raise PipelineError(f"{folder}: {_shown(name)} is a link or a special file; a bundle holds plain files")
        if path.is_file() and path.stat().st_size > (
            _LARGEST_MODEL if path.suffix == ".safetensors" else _LARGEST_TEXT
        ):
            raise PipelineError(f"{folder}: {_shown(name)} is larger than any of ours")
        if path.is_file() or name not in ("dynamics", "policy"):
            yield name


def _check_tensors(folder: Path, config: ModelConfig, of_policy: PolicyConfig) -> None:
    """Load both with our loaders, write them with our writers, and compare."""
    ensemble = GaussianEnsemble.load(folder / "dynamics", torch.device("cpu"))
    policy = DeterministicPolicy.load(folder / "policy")
    with tempfile.TemporaryDirectory(prefix="primorl-check-") as name:
        again = Path(name)
        ensemble.save(again, environment=config.environment, variant=config.variant, rounds=config.rounds)
        exported.save(again, [policy])
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
    if there != any(query.what == "starts" for query in statement.queries):
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
    if model.rounds > statement.rounds:
        raise PipelineError(f"{folder / MODEL[1]}: rounds: more than the {statement.rounds} that were paid for")


def _check_statement(folder: Path, statement: Statement, void_ok: bool) -> None:
    path = folder / MODEL[2]
    if (not statement.private or statement.void) and not void_ok:
        reason = "; ".join(statement.void) or "nothing is guaranteed"
        raise PipelineError(f"{path}: void: {reason}; do not rely on it (--void-ok goes on all the same)")
    largest = max(statement.delta, statement.spent_on_dataset.delta)
    if statement.private and largest >= 1 / statement.units and not statement.void:
        raise PipelineError(f"{path}: delta: {largest:g} is not below one over the units, and void does not say so")
    if not statement.private:
        expected: dp_event.DpEvent = dp_event.NonPrivateDpEvent()
        numbers: tuple[float | None, float | None] = (None, None)
    else:
        if statement.noise_multiplier < _LEAST_NOISE or statement.clipping_norm is None or statement.epsilon is None:
            raise PipelineError(f"{path}: private: true, yet without noise (≥ {_LEAST_NOISE:g}), clipping norm or ε")
        queries = tuple(query.noise_multiplier for query in statement.queries)
        if min(queries, default=_LEAST_NOISE) < _LEAST_NOISE:
            raise PipelineError(f"{path}: private: true, yet a query without noise (≥ {_LEAST_NOISE:g})")
        whole = accounting.Training(
            statement.sampling_probability, statement.noise_multiplier, statement.rounds, queries
        )
        spent, expected = whole.spent(statement.delta), whole.event
        numbers = (spent.epsilon_pld, spent.epsilon_rdp)
        for query in statement.queries:
            alone = GaussianQuery(query.what, query.sensitivity, query.noise_multiplier).statement(statement.delta)
            if query.epsilon is None or not _covers(query.epsilon, alone["epsilon"]):
                raise PipelineError(f"{path}: queries: {query.what}: less ε than the accountant makes of it")
    if statement.event != event_to_json(expected):
        raise PipelineError(f"{path}: event: not that of the mechanism the same file describes")
    for key, number in zip(("epsilon", "epsilon_rdp"), numbers, strict=True):
        if not _covers(getattr(statement, key), number):
            raise PipelineError(f"{path}: {key}: less than the accountant makes of the event in the same file")


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
    if not _covers_all(statement.spent_on_dataset, events[: places[0] + 1]):  # oldest first; its own the last of them
        raise PipelineError(f"{folder / MODEL[2]}: spent_on_dataset: less than the accountant makes of {LEDGER}")


def _covers_all(stated: LedgerStatement | SpentOnDataset, events: Sequence[dp_event.DpEvent]) -> bool:
    composed = accounting.compose(events, stated.delta)
    return _covers(stated.epsilon, composed.epsilon_pld) and _covers(stated.epsilon_rdp, composed.epsilon_rdp)


def _covers(stated: float | None, accounted: float | None) -> bool:
    """Whether a stated ε (None: infinite) is at least the accounted one."""
    if stated is None:
        return True
    return accounted is not None and accounted <= stated * (1 + _TOLERANCE)


def _shown(name: str) -> str:
    """A stranger's name or key, fit for one line on a terminal."""
    return re.sub(r"[^ -~]", "?", name)[:100]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PipelineError(f"{path}: not text in UTF-8") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
