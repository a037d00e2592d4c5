"""How a setting that ``params.yaml`` leaves empty is decided: by the dataset's ``recipe``, by
default, or by a rule.

An empty key and one that is not there are the same: None, until something decides.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from primorl.base.paths import PARAMS
from primorl.config.blocks import (
    Behaviour,
    Dynamics,
    Evaluation,
    Partition,
    Policy,
    Privacy,
    Shares,
)
from primorl.config.reading import UNKNOWN_KEY, explain, shown_key

TARGET, SHARES = "privacy.target_epsilon", "privacy.shares"
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
        "dynamics": "ensemble_size degree hidden log_variance_bounds beta_nll learning_rate "
        "max_transitions_per_unit server_momentum server_averaging start",
        "policy": "uncertainty penalty horizon starts epochs updates_per_epoch rollout_batch "
        "buffer_size target_entropy reward_scale",
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
    """Decide the model's class, and what is asked of the private units beside the rounds; yield the
    keys.

    Where no unit is public, or only people who consented and may differ from the others, heads are
    linear, unless ``dynamics.hidden`` or ``dynamics.start`` asks for a network. Of linear heads the
    private people tell scales, and first states where no environment does. Networks begin with a
    public split that a hash drew, which tells both for nothing.
    """
    nobody = said.get(_FRACTION) == 0
    drawn = not nobody and _PUBLIC not in said
    network = drawn or "dynamics.hidden" in said or "dynamics.start" in said
    alone = entry.get("environment") is None
    kind = said.get(_KIND, "network" if network else "linear")
    decided = {
        _KIND: kind,
        _NORMALISER: "private" if kind == "linear" or nobody else "public",
        _STARTS: (nobody or kind == "linear") and alone,
    }
    for key, value in decided.items():
        if key not in said:
            said[key] = value
            yield key


@cache
def leaves() -> Mapping[str, Any]:
    """Return the type of every key of the blocks, by dotted key."""
    found: dict[str, Any] = {}
    for name, kind in BLOCKS.items():
        found |= _leaves(kind, f"{name}.")
    return types.MappingProxyType(found)


def _leaves(kind: type, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        if is_dataclass(hint):
            found |= _leaves(hint, f"{prefix}{each.name}.")  # type: ignore[arg-type]
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
                _adapter(key).validate_python(value)
                found[key] = value
            except ValidationError as refused:
                errors = refused.errors()[:3]
                wrong += [f"recipe.{key}: {explain(key, error)}" for error in errors]
    return found


@cache
def _adapter(key: str) -> TypeAdapter[Any]:
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
