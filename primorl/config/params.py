"""The typed view of ``params.yaml`` and of the dataset that it names, checked once.

``params.yaml`` says how a run is made, ``datasets/NAME.yaml`` what the data are and which recipe
suits them. What neither says is a default of its class, or decided by a rule. An empty
key and one that is not there are the same: None, until something decides.
"""

import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from primorl.base.errors import PipelineError
from primorl.base.paths import ONLINE_SETTINGS, PARAMS
from primorl.base.records import Delta, Seed
from primorl.config.blocks import (
    Behaviour,
    Budget,
    Compute,
    Dynamics,
    EstimatorName,
    Evaluation,
    LedgerStore,
    Online,
    Partition,
    Policy,
    Privacy,
    Shares,
    Tracking,
)
from primorl.config.datasets import Dataset, DeclaredTexts, checked
from primorl.config.reading import (
    UNKNOWN_KEY,
    explain,
    explanations,
    found_at,
    read_yaml,
    shown,
    shown_key,
)
from primorl.config.texts import Block, Name

T = TypeVar("T")
DATASETS = "datasets"
_NO_CHOICES = ("ledger", "tracking", "compute")
_WHY = "every choice of a run lives in this file"
SHARES = "privacy.shares"
SHARES_OF_A_LOG: Shares = {"model": 0.83, "clone": 0.1, "behaviour": 0.035, "model_check": 0.035}
"""A log without an environment has no other way to tell what a policy is worth."""
SHARES_OF_A_SIMULATOR: Shares = {"model": 1.0}
_FRACTION, _PUBLIC, _KIND = "partition.public_fraction", "partition.public", "dynamics.model"
_NORMALISER, _STARTS = "privacy.statistics.normaliser", "privacy.statistics.starts"

BLOCKS: dict[str, type] = {
    "partition": Partition,
    "privacy": Privacy,
    "dynamics": Dynamics,
    "behaviour": Behaviour,
    "policy": Policy,
    "evaluation": Evaluation,
}
RULED = frozenset(
    f"{block}.{key}"
    for block, keys in {
        "privacy": "sampling_probability rounds clipping_norm",
        "dynamics": "model ensemble_size degree hidden log_variance_bounds beta_nll learning_rate "
        "max_transitions_per_unit server_momentum server_averaging start",
        "policy": "uncertainty penalty horizon starts reset_fraction discount hidden "
        "learning_rate epochs updates_per_epoch rollout_batch buffer_size target_entropy "
        "reward_scale",
    }.items()
    for key in keys.split()
)
"""Keys that a rule decides where nobody sets them."""
RULE, DEFAULT, PUBLIC = "rule", "default", "who is public"
"""The origins of keys that no file gives."""
_ALONE = {  # decided in params.yaml alone, with the reason
    "privacy.budget": "all runs share it",
    "privacy.delta": "all runs share it",
    "privacy.draw": "another draw is paid for",
    "evaluation.private.draw": "another draw is paid for",
    "dynamics.variant": "whether a run is private must be seen in params.yaml",
    "dynamics.train_anyway": "it must be said in so many words in params.yaml",
    "partition.public": "who consented must be seen in params.yaml",
}


@dataclass(frozen=True, kw_only=True)
class Params(Block):
    """Every choice of a run.

    Attributes:
        dataset: its name.
        chosen: the content of the dataset's file.
        seed: of initial weights, policies and evaluation; never of noise or cohorts.
        origins: the file that decided each key of the blocks that a dataset may suggest values for,
            by dotted key.
    """

    dataset: Name
    seed: Seed = 0
    chosen: Dataset
    partition: Partition
    privacy: Privacy
    dynamics: Dynamics
    behaviour: Behaviour
    policy: Policy
    evaluation: Evaluation
    online: Online
    ledger: LedgerStore
    tracking: Tracking
    compute: Compute
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse rollouts that begin nowhere.

        Found out after training, another model would have to be paid for.
        """
        nobody, starts, nowhere = self.partition.public_fraction == 0, self.policy.starts, None
        if starts == "reset" and self.chosen.environment is None:
            nowhere = f"{DATASETS}/{self.dataset}.yaml says environment: null"
        elif starts == "public" and nobody:
            nowhere = "partition.public_fraction is 0"
        elif starts == "released" and not self.privacy.statistics.starts:
            nowhere = "privacy.statistics.starts is false"
        if nowhere is not None:
            raise ValueError(
                f"policy.starts: found {starts!r}, while {nowhere}; allowed: reset with "
                "an environment, public with a public split, released with "
                "privacy.statistics.starts: true"
            )

    @property
    def policy_seeds(self) -> tuple[int, ...]:
        """The seed of every policy that is trained, first that of the policy that is used and
        released.
        """
        return (self.seed,) if self.policy.seeds is None else self.policy.seeds

    @property
    def undecided(self) -> frozenset[str]:
        """Keys that a rule is still to decide."""
        return frozenset(key for key in RULED if found_in(self, key) is None)

    def choices(self) -> dict[str, Any]:
        """Return values to compare runs by, by dotted key, without addresses, speed and what a rule
        is still to decide.
        """
        blocks = {
            key: value for key, value in plain(self).items() if key not in ("chosen", *_NO_CHOICES)
        }
        undecided = self.undecided
        facts = {"environment": self.chosen.environment, "unit": self.chosen.unit}
        return facts | {key: value for key, value in _leaves(blocks) if key not in undecided}

    def given(self) -> dict[str, Any]:
        """Return the choices that a person wrote, into params.yaml or a recipe, by dotted key."""
        nobody = (RULE, DEFAULT, PUBLIC)
        return {
            key: value
            for key, value in self.choices().items()
            if key == "seed" or self.origins.get(key, DEFAULT) not in nobody
        }

    def with_decided(self, values: Mapping[str, Any]) -> "Params":
        """Return the same choices with what a rule decided, by dotted key; set keys stay."""
        taken = {key: value for key, value in values.items() if found_in(self, key) is None}
        blocks: dict[str, dict[str, Any]] = {}
        for key, value in taken.items():
            block, _, name = key.partition(".")
            blocks.setdefault(block, {})[name] = value
        changed = {name: replace(getattr(self, name), **own) for name, own in blocks.items()}
        origins = {**self.origins, **dict.fromkeys(taken, RULE)}
        return replace(self, **changed, origins=origins)

    @property
    def same_people(self) -> bool:
        """Whether users who arrive are people of the log, whose charges add up where ids are the
        same.
        """
        return self.online.arrivals is not None and self.chosen.unit != "trajectory"

    @property
    def clones(self) -> bool:
        """Whether a clone of the behaviour has a share of ε."""
        return "clone" in self.privacy.shares

    @property
    def questions(self) -> tuple[EstimatorName, ...]:
        """The questions that have a share of ε."""
        return tuple(name for name in QUESTIONS if name in self.privacy.shares)


QUESTIONS: tuple[EstimatorName, ...] = get_args(EstimatorName)


def found_in(settings: Any, key: str) -> Any:
    """Return the value at a dotted key of a settings object."""
    return functools.reduce(getattr, key.split("."), settings)


@dataclass(frozen=True, kw_only=True)
class ReadingPrivacy:
    """The part of the block ``privacy`` that commands which only read need."""

    budget: Budget
    delta: Delta = 1e-5


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Settings for commands that only read the ledger: a subset of `Params` with the same names."""

    dataset: Name
    ledger: LedgerStore
    privacy: ReadingPrivacy


def load(path: Path = PARAMS) -> Params:
    """Read and check ``params.yaml`` and the dataset's file.

    ``primorl check`` and ``make run`` do so before DVC reads them: DVC removes a stage's outputs
    before it finds out that ``params.yaml`` does not fit, and expands YAML aliases without a limit.

    Raises:
        PipelineError: a file is missing, is not YAML, or does not fit; the message names the keys.
    """
    return parse(read_yaml(path, _WHY), path)


def parse(raw: Any, path: Path = PARAMS) -> Params:
    """Check the content of ``params.yaml``; the dataset's file is read beside it.

    Raises:
        PipelineError: one line that names every wrong key, the value found and the values allowed.
    """
    raw = _block(raw, path)
    folder = path.parent / DATASETS
    name = _dataset(raw, path)
    own = folder / f"{name}.yaml"
    entry = read_yaml(own, "")
    if not isinstance(entry, dict):
        raise PipelineError(f"{own}: a block of keys is needed")
    wrong: dict[Path, list[str]] = {path: [], own: []}
    said, origins = decide(raw, entry, f"{DATASETS}/{name}.yaml", wrong[own])
    users = path.parent / ONLINE_SETTINGS
    said["online"] = read_yaml(users, "") if users.exists() else {}
    for block, kind in _PLAIN.items():
        said[block] = _given(said.get(block), kind)
    said |= {"chosen": entry, "origins": origins}
    return _check(said, path, own, wrong)


def _check(said: dict[str, Any], path: Path, own: Path, wrong: dict[Path, list[str]]) -> Params:
    """Make `Params` of decided values; ``wrong`` holds known mistakes, by file."""
    made: Params | None = None
    try:
        made = checked(Params, said)
    except ValidationError as refused:
        for key, why in explanations(refused, said):
            block, _, inner = key.partition(".")
            file = {"chosen": own, "online": path.parent / ONLINE_SETTINGS}.get(block, path)
            inner = key if file == path else inner
            if not inner or not any(
                other.startswith((f"{inner}: ", f"{inner}.")) for other in wrong.get(file, [])
            ):
                wrong.setdefault(file, []).append(f"{inner}: {why}" if inner else why)
    lines = [f"{file}: {'; '.join(texts)}" for file, texts in wrong.items() if texts]
    if lines or made is None:
        raise PipelineError("; ".join(lines))
    return made


def load_reading(path: Path = PARAMS) -> Reading:
    """Read the settings of commands that only read: the dataset's name, the ledger's address and
    the budget.

    Nothing else is checked, so a run's settings may be wrong.

    Raises:
        PipelineError: the file cannot be read, or one of these keys is wrong.
    """
    raw = _block(read_yaml(path, _WHY), path, keys=False)
    stated = found_at(raw, "privacy.delta")
    delta = {} if stated is None else {"delta": stated}
    said = {
        "dataset": raw.get("dataset"),
        "ledger": _given(raw.get("ledger"), LedgerStore),
        "privacy": {"budget": _given(found_at(raw, "privacy.budget"), Budget)} | delta,
    }
    return _validate(Reading, said, path)


def declared_texts(dataset: str, folder: Path = Path(DATASETS)) -> dict[str, str]:
    """Read the declared texts for the card of a dataset (`DeclaredTexts` in its file); texts that
    are not given are left out.

    Nothing else of the file is checked, so it may be wrong, or gone.

    Raises:
        PipelineError: the file cannot be read, or the block does not fit.
    """
    own = folder / f"{dataset}.yaml"
    raw = read_yaml(own, "") if own.exists() else None
    said = {key: found_at(raw, key) for key in ("card", "reward_meaning")}
    return _validate(DeclaredTexts, said, own).texts


def _validate(kind: type[T], said: dict[str, Any], file: Path) -> T:
    try:
        return checked(kind, said)
    except ValidationError as refused:
        texts = (f"{key}: {why}" for key, why in explanations(refused, said))
        raise PipelineError(f"{file}: {'; '.join(texts)}") from None


def names(folder: Path = Path(DATASETS)) -> list[str]:
    """The names of the datasets in a folder, sorted."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def plain(block: Any) -> dict[str, Any]:
    """A block (or all of `Params`) as plain values that JSON can hold; `from_plain` takes those of
    `Params` back.
    """
    content: dict[str, Any] = _lists(asdict(block))
    content.pop("origins", None)
    return content


def from_plain(content: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> Params:
    """Check values as `plain` gives them: every key decided, the dataset's under ``chosen``.

    Raises:
        PipelineError: as `parse`.
    """
    own = Path(DATASETS) / f"{content.get('dataset')}.yaml"
    return _check({**content, "origins": dict(origins or {})}, PARAMS, own, {PARAMS: [], own: []})


_PLAIN = {"online": Online, "ledger": LedgerStore, "tracking": Tracking, "compute": Compute}
_NULL_IS_A_VALUE = "target_epsilon"  # of `online`: not private


def _given(block: Any, kind: type[Any]) -> Any:
    """Leave out the keys of a block that are empty: their class has a default."""
    if block is None:
        return {}
    if not isinstance(block, dict):
        return block
    empty = {each.name for each in fields(kind)} - {_NULL_IS_A_VALUE}
    return {key: value for key, value in block.items() if value is not None or key not in empty}


def _block(raw: Any, path: Path, *, keys: bool = True) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise PipelineError(f"{path}: a block of keys is needed")
    if keys:
        for reserved in ("chosen", "origins", "online"):
            if reserved in raw:
                raise PipelineError(f"{path}: {reserved}: {UNKNOWN_KEY}")
    return raw


def _dataset(raw: dict[str, Any], path: Path) -> str:
    """The name of the dataset, of which there is a file."""
    there = names(path.parent / DATASETS)
    if "dataset" not in raw:
        raise PipelineError(f"{path}: dataset: missing")
    name = raw["dataset"]
    if name not in there:
        allowed = (
            f"allowed are the files in {DATASETS}/: {', '.join(there)}"
            if there
            else f"{DATASETS}/ has no file"
        )
        found = "nothing" if name is None else shown(name)
        raise PipelineError(f"{path}: dataset: found {found}; {allowed}")
    return str(name)


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, tuple | list) else value


# ---- what is left open: by the recipe, by default, or by a rule


def decide(
    raw: Mapping[str, Any], entry: Mapping[str, Any], file: str, wrong: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the settings of the blocks, and decide those that others depend on.

    Args:
        raw: content of params.yaml.
        entry: content of the dataset's file.
        file: its name.
        wrong: gets the mistakes of its recipe, one text a key.

    Returns:
        The content without empty keys, and where each key's value came from, by dotted key.
    """
    given = {
        key: value
        for key, value in _flat(_blocks(raw), "")
        if value is not None or not _is_known(key)
    }
    recipe = _read_recipe(entry.get("recipe"), wrong)
    if _FRACTION in given or _PUBLIC in given:
        recipe.pop(_FRACTION, None)
    said = recipe | given
    if _FRACTION not in said and _PUBLIC not in said:
        said[_FRACTION] = 0  # nobody is public by default
    if SHARES not in said:
        simulated = entry.get("environment") is not None
        said[SHARES] = dict(SHARES_OF_A_SIMULATOR if simulated else SHARES_OF_A_LOG)
    origins = dict.fromkeys(recipe, file) | dict.fromkeys(given, PARAMS.name)
    origins |= dict.fromkeys(_decide_kind(said, entry), PUBLIC)
    content: dict[str, Any] = {name: {} for name in BLOCKS}
    for key, value in said.items():
        _put(content, key, value)
    content |= {
        name: raw[name] for name in BLOCKS if not isinstance(raw.get(name, {}), dict | None)
    }
    rest = {name: value for name, value in raw.items() if name not in BLOCKS}
    return rest | content, {key: origins.get(key, DEFAULT) for key in leaves()}


def _blocks(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: raw[name] for name in BLOCKS if isinstance(raw.get(name), dict)}


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key; a value in the place of a block stays, to be refused."""
    *path, last = key.split(".")
    for part in path:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            return
    content[last] = value


def _decide_kind(said: dict[str, Any], entry: Mapping[str, Any]) -> Iterator[str]:
    """Decide what is asked of the private units beside the rounds, and the model's class where a
    key tells it; yield the keys.

    A public split that a hash drew tells scales and first states for nothing, and a network begins
    with it. Where no unit is public, or only people who consented and may differ from the others,
    the private people tell scales, and first states where no environment does; the class of the
    model is a rule's (`primorl.work.resolve`).
    """
    drawn = said.get(_FRACTION) != 0 and _PUBLIC not in said
    if (drawn or "dynamics.hidden" in said or "dynamics.start" in said) and _KIND not in said:
        said[_KIND] = "network"
        yield _KIND
    asked = not drawn or said.get(_KIND) == "linear"
    alone = entry.get("environment") is None
    decided = {_NORMALISER: "private" if asked else "public", _STARTS: asked and alone}
    for key, value in decided.items():
        if key not in said:
            said[key] = value
            yield key


@cache
def leaves() -> Mapping[str, Any]:
    """Return the type of every key of the blocks, by dotted key."""
    found: dict[str, Any] = {}
    for name, kind in BLOCKS.items():
        found |= _types_of(kind, f"{name}.")
    return types.MappingProxyType(found)


def _types_of(kind: type, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        if is_dataclass(hint):
            found |= _types_of(hint, f"{prefix}{each.name}.")  # type: ignore[arg-type]
        else:
            found[f"{prefix}{each.name}"] = hint
    return found


def _read_recipe(content: Any, wrong: list[str]) -> dict[str, Any]:
    """Check a dataset's recipe; mistakes are added to ``wrong``, one text a key."""
    found: dict[str, Any] = {}
    if content is None:
        return found
    if not isinstance(content, dict):
        wrong.append("recipe: a block of keys is needed")
        return found
    for key, value in _flat(content, ""):
        if value is None and _is_known(key):
            continue
        reason = _why_alone(key)
        if reason is not None:
            wrong.append(f"recipe.{shown_key(key)}: {reason}; it is set in params.yaml alone")
        elif key not in leaves():
            why = "a block of keys is needed" if _is_block(key) else UNKNOWN_KEY
            wrong.append(f"recipe.{shown_key(key)}: {why}")
        else:
            try:
                _type_adapter(key).validate_python(value)
                found[key] = value
            except ValidationError as refused:
                errors = refused.errors()[:3]
                wrong += [f"recipe.{key}: {explain(key, error)}" for error in errors]
    return found


@cache
def _type_adapter(key: str) -> TypeAdapter[Any]:
    return TypeAdapter(leaves()[key])


def _flat(block: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in leaves() and (value or _is_block(key)):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _is_known(key: str) -> bool:
    """Whether a key exists. An empty one that does not is a misspelt one."""
    return key in leaves() or _is_block(key)


def _is_block(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in leaves())


def _why_alone(key: str) -> str | None:
    return next((why for alone, why in _ALONE.items() if f"{key}.".startswith(f"{alone}.")), None)
