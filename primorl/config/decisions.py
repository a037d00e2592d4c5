"""How a setting that ``params.yaml`` leaves empty is decided: by the dataset's ``recipe``, by
default, or by a rule.

An empty key and one that is not there are the same. Shares of the model's ε: a log without an
environment has no other way to tell what a policy is worth, so its clone and its questions get
their shares where nobody says what to spend on them. With an environment they get nothing.

``privacy.total_epsilon`` is the cost of model, clone and questions together. For a log without an
environment the model's ε is what the shares leave of it, whatever is asked: a model that is paid
for stays the same when another question is added. With an environment it is the total.
"""

import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from primorl.base.paths import MODEL, PARAMS
from primorl.config.blocks import (
    Behaviour,
    Dynamics,
    EstimatorName,
    Estimators,
    Evaluation,
    Partition,
    Policy,
    Privacy,
)
from primorl.config.reading import UNKNOWN_KEY, explain, found_at, shown_key

CLONE_SHARE = 0.35
"""ε of the clone over the model's."""
ESTIMATOR_SHARES: Mapping[EstimatorName, float] = types.MappingProxyType(
    {"behaviour": 0.2, "model_check": 0.2}
)
"""ε of each estimator that is asked over the model's."""
CLONE, ESTIMATORS = "behaviour.target_epsilon", "evaluation.private.estimators"
TOTAL, TARGET = "privacy.total_epsilon", "privacy.target_epsilon"
STATED = f"{MODEL}/privacy.json"
"""Where the model's ε stands if a noise multiplier decides it."""
DEFAULT_TOTAL = 0.5
_FRACTION, _KIND = "partition.public_fraction", "dynamics.model"
_NORMALISER, _STARTS = "privacy.statistics.normaliser", "privacy.statistics.starts"
_DIGITS = 12  # 0.2 × 0.3 is 0.06
_LEFT, _LEFT_PER_EPSILON, _LEAST_LEFT = 0.985, 0.01, 0.9
"""Share of a total that the closed form may take.

The ledger's filter, which lets a run be chosen by the results of
earlier ones, counts up to 7% more for sampled rounds at ε 8, and less than 2% more at ε 1."""

BLOCKS: dict[str, type] = {
    "partition": Partition,
    "privacy": Privacy,
    "dynamics": Dynamics,
    "behaviour": Behaviour,
    "policy": Policy,
    "evaluation": Evaluation,
}
ONE_OF: tuple[tuple[str, ...], ...] = (
    (TOTAL, TARGET, "privacy.noise_multiplier"),
    (_FRACTION, "partition.public"),
)
FITTED: dict[str, Any] = {
    "privacy.sampling_probability": 0.3,
    "privacy.rounds": 100,
    "privacy.clipping_norm": 0.3,
    "dynamics.ensemble_size": 3,
    "dynamics.degree": 2,
    "dynamics.hidden": [32, 32],
    "dynamics.log_variance_bounds": [-5.0, 3.0],
    "dynamics.beta_nll": 0.0,
    "dynamics.learning_rate": 0.01,
    "dynamics.max_transitions_per_unit": None,
    "dynamics.server_momentum": 0.6,
    "dynamics.server_averaging": 0.9,
    "dynamics.start": "random",
    "policy.uncertainty": "max_pairwise_difference",
    "policy.penalty": 0.5,
    "policy.horizon": 30,
    "policy.starts": "reset",
    "policy.epochs": 25,
    "policy.updates_per_epoch": 500,
    "policy.rollout_batch": 256,
    "policy.buffer_size": 200_000,
    "policy.target_entropy": -3.0,
    "policy.reward_scale": 0.1,
}
"""Keys that rules decide, each with a value of its type that stands in its place until then."""
TO_FIT, FIT = "rule, to be applied", "rule"
"""The origin of a key that a rule is to decide, and of one that it decided."""
DEFAULT, PUBLIC = "default", "who is public"
_ALONE = {  # decided in params.yaml alone, with the reason
    "privacy.budget": "all runs share it",
    "privacy.draw": "another draw is paid for",
    "evaluation.private.draw": "another draw is paid for",
    "dynamics.variant": "whether a run is private must be seen in params.yaml",
    "dynamics.train_anyway": "it must be said in so many words in params.yaml",
    "partition.public": "who consented must be seen in params.yaml",
}


def decide(
    raw: Mapping[str, Any], entry: Mapping[str, Any], file: str, wrong: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Decide every key of the blocks.

    Args:
        raw: content of params.yaml.
        entry: content of the dataset's file.
        file: its name.
        wrong: gets the mistakes of its recipe, one text a key.

    Returns:
        The content with values in place, and where each came from, by dotted key.
    """
    given = {
        key: value
        for key, value in _flat(_blocks(raw), "")
        if value is not None or not _is_known(key)
    }
    recipe = _read_recipe(entry.get("recipe"), wrong)
    for group in ONE_OF:
        if any(key in given for key in group):
            recipe = {key: value for key, value in recipe.items() if key not in group}
    said = recipe | given
    origins = dict.fromkeys(recipe, file) | dict.fromkeys(given, PARAMS.name)
    for group, key, value in zip(ONE_OF, (TOTAL, _FRACTION), (DEFAULT_TOTAL, 0), strict=True):
        if not any(each in said for each in group):
            said[key], origins[key] = value, DEFAULT
    for key, default in _defaults().items():
        if key not in said:
            said[key], origins[key] = default, DEFAULT
    for key, stand_in in FITTED.items():
        if key not in said:
            said[key], origins[key] = stand_in, TO_FIT
    content: dict[str, Any] = {name: {} for name in BLOCKS}
    for key, value in said.items():
        _put(content, key, value)
    broken = {name: raw[name] for name in BLOCKS if not isinstance(raw.get(name, {}), dict | None)}
    content |= broken
    if not broken:
        _decide_kind(content, origins, entry)
        _decide_shares(content, origins, entry.get("environment"))
    rest = {name: value for name, value in raw.items() if name not in BLOCKS}
    known = {key: origin for key, origin in origins.items() if key in leaves()}
    return rest | content, known


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


def _decide_kind(
    content: dict[str, Any], origins: dict[str, str], entry: Mapping[str, Any]
) -> None:
    """Decide the model's class, and what is asked of the private units beside the rounds.

    Where no unit is public, or only people who consented and may differ from the others, heads are
    linear, unless ``dynamics.hidden`` asks for a network. Of linear heads the private people tell
    scales, and first states where no environment does. Networks begin with a public split that a
    hash drew, which tells both for nothing.
    """
    nobody = found_at(content, _FRACTION) == 0
    linear = (
        (nobody or found_at(content, "partition.public") is not None)
        and origins.get("dynamics.hidden") == TO_FIT
        and origins.get("dynamics.start") == TO_FIT
    )
    alone = entry.get("environment") is None
    if _KIND not in origins:
        _put(content, _KIND, "linear" if linear else "network")
        origins[_KIND] = PUBLIC
    kind = found_at(content, _KIND)
    for key, value in (
        (_NORMALISER, "private" if kind == "linear" or nobody else "public"),
        (_STARTS, (nobody or kind == "linear") and alone),
    ):
        if key not in origins:
            _put(content, key, value)
            origins[key] = PUBLIC
    if kind == "network" and origins.get("dynamics.degree") == TO_FIT:
        origins["dynamics.degree"] = PUBLIC  # networks have no features


def _decide_shares(content: dict[str, Any], origins: dict[str, str], environment: object) -> None:
    """Give the model its part of the total, and the clone and the questions their shares.

    A noise multiplier decides the model's ε when it is planned. Then no clone is made, and the
    origin of the estimators is `STATED`: they are asked at `estimators` of that ε.
    """
    total, delta = found_at(content, TOTAL), found_at(content, "privacy.delta")
    given = found_at(content, TARGET) is not None
    numbers = all(_is_number(value) for value in (total, delta))
    if not given and numbers:
        model = total if environment is not None else model_of(total, delta)
        _put(content, TARGET, model)
        origins[TARGET] = TOTAL
    target = found_at(content, TARGET)
    shared = environment is None and _is_number(target)
    if CLONE not in origins:
        _put(content, CLONE, clone(target) if shared else 0.0)
        origins[CLONE] = DEFAULT
    if ESTIMATORS not in origins:
        _put(content, ESTIMATORS, estimators(target) if shared else {})
        origins[ESTIMATORS] = DEFAULT if shared or environment is not None else STATED


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def model_of(total: float, delta: float) -> float:
    """ε of a model that costs ``total`` at ``delta`` together with its shares, to three digits,
    rounded down.

    All count as Gaussian releases, which they are with linear heads. `primorl.work.resolve` holds
    what they are to the total.
    """
    from primorl.privacy.accounting.gaussian import composed_epsilon

    def together(model: float) -> float:
        return composed_epsilon((model, clone(model), *estimators(model).values()), delta)

    low, high, most = 0.0, total, max(_LEFT - _LEFT_PER_EPSILON * total, _LEAST_LEFT) * total
    while high - low > 1e-4 * total:
        middle = (low + high) / 2
        low, high = (middle, high) if together(middle) <= most else (low, middle)
    if low == 0:  # so small that δ alone decides; what all of it costs is checked before a charge
        return total / 2
    scale: float = 10.0 ** (2 - math.floor(math.log10(low)))
    return math.floor(low * scale) / scale


def clone(epsilon: float) -> float:
    """ε of the clone beside a model of this ε."""
    return round(CLONE_SHARE * epsilon, _DIGITS)


def estimators(epsilon: float) -> Estimators:
    """Estimators and their ε beside a model of this ε."""
    return {name: round(share * epsilon, _DIGITS) for name, share in ESTIMATOR_SHARES.items()}


@cache
def leaves() -> Mapping[str, Any]:
    """The type of every key of the blocks, by dotted key."""
    return {key: hint for key, hint, _ in _walk()}


@cache
def _defaults() -> Mapping[str, Any]:
    """The default of every key of the blocks whose class has one, by dotted key."""
    return {key: default for key, _, default in _walk() if default is not MISSING}


def _walk() -> Iterator[tuple[str, Any, Any]]:
    for name, kind in BLOCKS.items():
        yield from _leaves(kind, f"{name}.")


def _leaves(kind: type, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from _leaves(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        else:
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            yield f"{prefix}{field.name}", hint, default


def _read_recipe(content: Any, wrong: list[str]) -> dict[str, Any]:
    """Check a dataset's recipe; mistakes are added to ``wrong``, one text a key."""
    found: dict[str, Any] = {}
    if content is None:
        return found
    if not isinstance(content, dict):
        wrong.append("recipe: a block of keys is needed")
        return found
    for key, value in _flat(content, ""):
        reason = _alone(key)
        if value is None and _is_known(key):
            continue
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
    for group in ONE_OF:
        several = [f"recipe.{key}" for key in group if key in found]
        if len(several) > 1:
            wrong.append(f"{', '.join(several)}: found {len(several)} values; give one of them")
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


def _alone(key: str) -> str | None:
    return next((why for alone, why in _ALONE.items() if f"{key}.".startswith(f"{alone}.")), None)
