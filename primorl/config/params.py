"""The typed view of ``params.yaml`` and of the dataset that it names, checked once.

``params.yaml`` says how a run is made, ``datasets/NAME.yaml`` what the data are and which recipe
suits them. What neither says is a default of its class, or decided by a rule. An empty
key and one that is not there are the same: None, until something decides.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from primorl.base.errors import PipelineError
from primorl.base.paths import DATASETS, ONLINE_SETTINGS, PARAMS
from primorl.base.records import Seed
from primorl.config.blocks import (
    Behaviour,
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
from primorl.config.datasets import Dataset, checked
from primorl.config.reading import (
    UNKNOWN_KEY,
    Block,
    Name,
    explanations,
    read_yaml,
    shown,
    shown_key,
)

QUESTIONS: tuple[EstimatorName, ...] = get_args(EstimatorName)
SHARES_OF_A_LOG: Shares = {"model": 0.83, "clone": 0.1, "behaviour": 0.035, "model_check": 0.035}
"""A log without an environment has no other way to tell what a policy is worth."""
SHARES_OF_A_SIMULATOR: Shares = {"model": 1.0}
BLOCKS = ("partition", "privacy", "dynamics", "behaviour", "policy", "evaluation")
"""Blocks of which a dataset's recipe may hold keys."""
_NESTED = {*BLOCKS, "privacy.budget", "dynamics.early_stopping", "evaluation.private", "online"}
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
    "privacy.budget.epsilon": "all runs share it",
    "privacy.delta": "all runs share it",
    "privacy.draw": "another draw is paid for",
    "evaluation.private.draw": "another draw is paid for",
    "dynamics.variant": "whether a run is private must be seen in params.yaml",
    "dynamics.train_anyway": "it must be said in so many words in params.yaml",
    "partition.public": "who consented must be seen in params.yaml",
}


class Params(Block):
    """Every choice of a run.

    Attributes:
        dataset: its name.
        chosen: the content of the dataset's file.
        seed: of initial weights, policies and evaluation; never of noise or cohorts.
        origins: what decided each key of the blocks that is no default, by dotted key.
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
        starts, nowhere = self.policy.starts, None
        if starts == "reset" and self.chosen.environment is None:
            nowhere = f"{DATASETS}/{self.dataset}.yaml says environment: null"
        elif starts == "public" and self.partition.public_fraction == 0:
            nowhere = "partition.public_fraction is 0"
        elif starts == "released" and not self.asks_starts:
            nowhere = "the public split tells first states"
        if nowhere is not None:
            raise ValueError(
                f"policy.starts: found {starts!r}, while {nowhere}; allowed: reset with an "
                "environment, public with a public split, released without a drawn one"
            )

    @property
    def policy_seeds(self) -> tuple[int, ...]:
        """The seed of every policy that is trained, first that of the policy that is used and
        released.
        """
        return (self.seed,) if self.policy.seeds is None else self.policy.seeds

    @property
    def normaliser(self) -> Literal["public", "private"]:
        """Who tells the scales: a public split that a hash drew, for nothing; else the private
        people, as those who consented may differ from the others. Linear heads need them exactly.
        """
        drawn = self.partition.public_fraction not in (None, 0)
        return "public" if drawn and self.dynamics.model != "linear" else "private"

    @property
    def asks_starts(self) -> bool:
        """Whether the private people are asked for first states, which nothing else tells."""
        alone = self.chosen.environment is None or self.policy.starts == "released"
        nobody = self.partition.public_fraction == 0 and bool(self.questions)
        return self.normaliser == "private" and (alone or nobody)

    @property
    def undecided(self) -> frozenset[str]:
        """Keys that a rule is still to decide."""
        return frozenset(key for key in RULED if found_in(self, key) is None)

    def choices(self) -> dict[str, Any]:
        """Return values to compare runs by, by dotted key, without addresses, speed and what a rule
        is still to decide.
        """
        kept = {"dataset", "seed", "online", *BLOCKS}
        blocks = {key: value for key, value in plain(self).items() if key in kept}
        facts = {"environment": self.chosen.environment, "unit": self.chosen.unit}
        undecided = self.undecided
        return facts | {key: value for key, value in flat(blocks) if key not in undecided}

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
    def clones(self) -> bool:
        """Whether a clone of the behaviour has a share of ε."""
        return "clone" in self.privacy.shares

    @property
    def questions(self) -> tuple[EstimatorName, ...]:
        """The questions that have a share of ε."""
        return tuple(name for name in QUESTIONS if name in self.privacy.shares)


def found_in(settings: Any, key: str) -> Any:
    """Return the value at a dotted key of a settings object."""
    return functools.reduce(getattr, key.split("."), settings)


def load(path: Path = PARAMS) -> Params:
    """Read and check ``params.yaml`` and the dataset's file.

    ``primorl check`` and ``make run`` do so before DVC reads them: DVC removes a stage's outputs
    before it finds out that ``params.yaml`` does not fit.

    Raises:
        PipelineError: a file is missing, is not YAML, or does not fit; the message names the keys.
    """
    return parse(read_yaml(path, "every choice of a run lives in this file"), path)


def parse(raw: Any, path: Path = PARAMS) -> Params:
    """Check the content of ``params.yaml``; the dataset's file is read beside it.

    Raises:
        PipelineError: one line that names every wrong key, the value found and the values allowed.
    """
    if not isinstance(raw, dict):
        raise PipelineError(f"{path}: a block of keys is needed")
    for reserved in ("chosen", "origins", "online"):
        if reserved in raw:
            raise PipelineError(f"{path}: {reserved}: {UNKNOWN_KEY}")
    own = path.parent / DATASETS / f"{_dataset(raw, path)}.yaml"
    entry = read_yaml(own, "")
    if not isinstance(entry, dict):
        raise PipelineError(f"{own}: a block of keys is needed")
    users = path.parent / ONLINE_SETTINGS
    said, origins = merge(raw, entry, f"{DATASETS}/{own.name}")
    said["online"] = read_yaml(users, "") if users.exists() else {}
    return check(said | {"chosen": entry, "origins": origins}, path, own)


def check(said: dict[str, Any], path: Path, own: Path) -> Params:
    """Make `Params` of merged values, the dataset's under ``chosen``.

    Raises:
        PipelineError: as `parse`; it names the file that holds the key.
    """
    files = {"chosen": own, "online": path.parent / ONLINE_SETTINGS}
    wrong: dict[Path, list[str]] = {}
    try:
        return checked(Params, said)
    except ValidationError as refused:
        for key, why in explanations(refused, said):
            block, _, inner = key.partition(".")
            file = files.get(block, path)
            if said["origins"].get(key) == f"{DATASETS}/{own.name}":
                file, key = own, f"recipe.{key}"
            elif block in files:
                key = inner
            wrong.setdefault(file, []).append(f"{shown_key(key)}: {why}" if key else why)
    raise PipelineError("; ".join(f"{file}: {'; '.join(texts)}" for file, texts in wrong.items()))


def names(folder: Path = DATASETS) -> list[str]:
    """The names of the datasets in a folder, sorted."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def _dataset(raw: Mapping[str, Any], path: Path) -> str:
    """The name of the dataset, of which there is a file."""
    if "dataset" not in raw:
        raise PipelineError(f"{path}: dataset: missing")
    name, there = raw["dataset"], names(path.parent / DATASETS)
    if name not in there:
        found = "nothing" if name is None else shown(name)
        raise PipelineError(
            f"{path}: dataset: found {found}; allowed are the files in {DATASETS}/: "
            f"{', '.join(there) or 'none is there'}"
        )
    return str(name)


def plain(block: Any) -> dict[str, Any]:
    """A block (or all of `Params`) as plain values that JSON can hold; `check` takes those of
    `Params` back.
    """
    content: dict[str, Any] = _lists(asdict(block))
    content.pop("origins", None)
    return content


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of blocks, dotted, with their values."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in _NESTED and isinstance(value, dict):
            yield from flat(value, f"{key}.")
        else:
            yield key, value


def merge(
    raw: Mapping[str, Any], entry: Mapping[str, Any], file: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the blocks of params.yaml over a dataset's recipe, and decide what others depend on.

    Args:
        raw: content of params.yaml.
        entry: content of the dataset's file.
        file: name of that file.

    Returns:
        The content, and where values came from, by dotted key; of empty keys nothing is known.

    Raises:
        PipelineError: the recipe is no block, or has a key that params.yaml alone may set.
    """
    for key in raw:
        if "." in str(key):
            raise PipelineError(f"{PARAMS}: {shown_key(str(key))}: {UNKNOWN_KEY}")
    recipe = entry.get("recipe") or {}
    if not isinstance(recipe, dict):
        raise PipelineError(f"{file}: recipe: a block of keys is needed")
    given, suggested = (dict(flat(each)) for each in (raw, recipe))
    for key in suggested:
        if key in _ALONE or key.partition(".")[0] not in BLOCKS:
            why = f"{_ALONE[key]}; it is set in params.yaml alone" if key in _ALONE else UNKNOWN_KEY
            raise PipelineError(f"{file}: recipe.{shown_key(key)}: {why}")
    empty = {key: None for key, value in [*given.items(), *suggested.items()] if value is None}
    given = {key: value for key, value in given.items() if value is not None}
    origins = dict.fromkeys(suggested, file) | dict.fromkeys(given, PARAMS.name)
    suggested = {key: value for key, value in suggested.items() if value is not None}
    if given.keys() & {"partition.public_fraction", "partition.public"}:
        suggested.pop("partition.public_fraction", None)
    said = empty | suggested | given
    origins = {key: of for key, of in origins.items() if key.partition(".")[0] in BLOCKS}
    if not said.get("partition.public") and said.get("partition.public_fraction") is None:
        said["partition.public_fraction"] = 0  # nobody is public by default
    if said.get("privacy.shares") is None:
        simulated = entry.get("environment") is not None
        said["privacy.shares"] = dict(SHARES_OF_A_SIMULATOR if simulated else SHARES_OF_A_LOG)
    # A network begins with what a drawn public split tells; else a rule decides about the class.
    drawn = said.get("partition.public_fraction") not in (None, 0)
    shaped = {"dynamics.hidden", "dynamics.start"} & (given.keys() | suggested.keys())
    if said.get("dynamics.model") is None and (drawn or shaped):
        said["dynamics.model"], origins["dynamics.model"] = "network", PUBLIC
    content: dict[str, Any] = {name: {} for name in (*BLOCKS, "ledger", "tracking", "compute")}
    for key, value in said.items():
        _put(content, key, value)
    return content, origins


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key; a value in the place of a block stays, to be refused."""
    *path, last = key.split(".")
    for part in path:
        if content.get(part) is None:
            content[part] = {}
        content = content[part]
        if not isinstance(content, dict):
            return
    content[last] = value
