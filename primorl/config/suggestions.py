"""Values that are a share of the model's ε, for logs without an environment: the word ``share``
among suggestions.

Such a log has no other way to tell what a policy is worth, so where nobody says what to spend on
it, the clone and the questions get their shares. With an environment they get nothing.

``privacy.total_epsilon`` is the cost of model, clone and questions together. For such a log the
model's ε is what the shares leave of it, whatever is asked: a model that is paid for stays the same
when another question is added. With an environment it is the total.
"""

import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from primorl.base.paths import MODEL
from primorl.config import reading
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

SHARE = "share"
CLONE_SHARE = 0.35
"""ε of the clone over the model's."""
ESTIMATOR_SHARES: Mapping[EstimatorName, float] = {"behaviour": 0.2, "model_check": 0.2}
"""ε of each estimator that is asked over the model's."""
CLONE, ESTIMATORS = "behaviour.target_epsilon", "evaluation.private.estimators"
TOTAL, TARGET = "privacy.total_epsilon", "privacy.target_epsilon"
KEYS = (CLONE, ESTIMATORS)
STATED = f"{MODEL}/privacy.json"
"""Where the model's ε stands if a noise multiplier decides it."""
_DIGITS = 12  # 0.2 × 0.3 is 0.06
_LEFT, _LEFT_PER_EPSILON, _LEAST_LEFT = 0.985, 0.01, 0.9
"""Share of a total that the closed form may take.

The ledger's filter, which lets a run be chosen by the results of
earlier ones, counts up to 7% more for sampled rounds at ε 8, and less than 2% more at ε 1."""


def decide_shares(content: dict[str, Any], origins: dict[str, str], environment: object) -> None:
    """Put numbers in the place of ``share``, in both arguments, and the model's ε in that of
    ``target_epsilon``.

    A noise multiplier decides the model's ε when it is trained. Then no clone is made, and the
    origin of the estimators is `STATED`: the stage ``plan`` takes `estimators` of that ε.
    """
    total, delta = found_at(content, TOTAL), found_at(content, "privacy.delta")
    given = found_at(content, TARGET) is not None
    if not given and all(
        isinstance(value, int | float) and 0 < value < math.inf for value in (total, delta)
    ):
        content["privacy"]["target_epsilon"] = (
            total if environment is not None else model_of(total, delta)
        )
        origins[TARGET] = TOTAL
    target = found_at(content, TARGET)
    for key in KEYS:
        block, _, last = key.rpartition(".")
        place = found_at(content, block)
        if not isinstance(place, dict) or place.get(last) != SHARE:
            continue
        if environment is None and isinstance(target, int | float):
            place[last] = clone(target) if key == CLONE else estimators(target)
            continue
        place[last] = None if key == CLONE else {}
        if environment is None and key == ESTIMATORS:
            origins[key] = STATED


def model_of(total: float, delta: float) -> float:
    """ε of a model that costs ``total`` at ``delta`` together with its shares, to three digits,
    rounded down.

    All count as Gaussian releases, which they are with linear heads. `primorl.paid.bill` holds what
    they are to the total.
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


AUTO = "auto"
BLOCKS: dict[str, type] = {
    "partition": Partition,
    "privacy": Privacy,
    "dynamics": Dynamics,
    "behaviour": Behaviour,
    "policy": Policy,
    "evaluation": Evaluation,
}
ONE_OF = (
    ("privacy.total_epsilon", "privacy.target_epsilon", "privacy.noise_multiplier"),
    ("partition.public_fraction", "partition.public"),
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
"""Keys that may be fitted, each with a value of its type that stands in its place until then."""
TO_FIT, FIT = "to be fitted", "fitted to public facts"
"""The origin of a key that is to be fitted, and of one that was."""
_ALONE = {  # decided in params.yaml alone, with the reason
    "privacy.budget": "all runs share it",
    "privacy.draw": "another draw is paid for",
    "evaluation.private.draw": "another draw is paid for",
    "dynamics.variant": "whether a run is private must be seen in params.yaml",
    "dynamics.train_anyway": "it must be said in so many words in params.yaml",
    "partition.public": "who consented must be seen in params.yaml",
    "partition.publish": "it must be said in so many words in params.yaml",
}


@dataclass(frozen=True)
class Source:
    """Suggestions of one file.

    Attributes:
        file: as errors name it.
        prefix: of the keys there, ``suggested.`` or nothing.
        values: by dotted key as ``params.yaml`` has it.
    """

    file: str
    prefix: str
    values: dict[str, Any]


@cache
def leaves() -> Mapping[str, Any]:
    """The type of every key of the blocks, by dotted key."""
    return dict(pair for name, kind in BLOCKS.items() for pair in _leaves(kind, f"{name}."))


def _leaves(kind: type, prefix: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from _leaves(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        else:
            yield f"{prefix}{field.name}", hint


def _takes_null(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _takes_null(get_args(hint)[0])
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


def read(content: Any, file: str, prefix: str, wrong: list[str]) -> Source:
    """Check the suggestions of one file; mistakes are added to ``wrong``, one text a key."""
    source = Source(file, prefix, {})
    if not isinstance(content, dict):
        wrong.append(f"{prefix.rstrip('.')}: a block of keys is needed".removeprefix(": "))
        return source
    for key, value in _flat(content, ""):
        reason = _alone(key)
        if reason is not None:
            wrong.append(f"{prefix}{shown_key(key)}: {reason}; it is set in params.yaml alone")
        elif key not in leaves():
            why = "a block of keys is needed" if _is_block(key) else UNKNOWN_KEY
            wrong.append(f"{prefix}{shown_key(key)}: {why}")
        elif value == AUTO:
            wrong.append(f"{prefix}{key}: found auto; a suggestion is a value")
        elif value == SHARE and key in KEYS:
            source.values[key] = value
        else:
            try:
                _adapter(key).validate_python(value)
                source.values[key] = value
            except ValidationError as refused:
                wrong += [f"{prefix}{key}: {explain(key, error)}" for error in refused.errors()[:3]]
    for group in ONE_OF:
        several = [f"{prefix}{key}" for key in group if source.values.get(key) is not None]
        if len(several) > 1:
            wrong.append(f"{', '.join(several)}: found {len(several)} values; suggest one of them")
    return source


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


def _is_block(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in leaves())


def decide(
    raw: dict[str, Any], sources: list[Source]
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Put suggestions in the place of ``auto``.

    Returns:
        The content with values in place; where each came from, by dotted key; and the mistakes, one
        text a key.
    """
    unused = _unused(raw, sources)
    origins: dict[str, str] = {}
    wrong: list[str] = []

    def decided(value: Any, key: str) -> Any:
        if isinstance(value, dict) and key not in leaves():
            return {name: decided(inner, f"{key}.{name}") for name, inner in value.items()}
        hint = leaves().get(key)
        if hint is None or not (value == AUTO or (value is None and not _takes_null(hint))):
            origins[key] = "params.yaml"
            return value
        if key in unused:
            origins[key] = unused[key]
            return None
        for source in sources:
            if key in source.values:
                origins[key] = source.file
                return source.values[key]
        if key in FITTED:
            origins[key] = TO_FIT
            return FITTED[key]
        if key in reading.KEYS:
            origins[key] = reading.ORIGIN
            return AUTO
        reason, found = _alone(key), "null" if value is None else AUTO
        if reason is not None:
            wrong.append(
                f"{key}: found {found}; {reason}, so that no dataset suggests it; give a value"
            )
        else:
            places = " nor ".join(f"{source.file} ({source.prefix}{key})" for source in sources)
            wrong.append(f"{key}: found {found}, and neither {places} suggests a value; give one")
        return value

    blocks = {name: decided(raw[name], name) for name in BLOCKS if name in raw}
    return raw | blocks, {key: file for key, file in origins.items() if key in leaves()}, wrong


def may_be_auto(key: str) -> bool:
    """Whether ``auto`` is a value of a key of ``params.yaml``, by dotted key."""
    return key in leaves() and _alone(key) is None


def _alone(key: str) -> str | None:
    return next((why for alone, why in _ALONE.items() if f"{key}.".startswith(f"{alone}.")), None)


def _unused(raw: dict[str, Any], sources: list[Source]) -> dict[str, str]:
    """Keys of `ONE_OF` that are ``auto`` and give way to another one, with the file that decided
    so.
    """
    unused: dict[str, str] = {}
    for group in ONE_OF:
        auto = [key for key in group if found_at(raw, key) == AUTO]
        if any(found_at(raw, key) not in (None, AUTO) for key in group):
            unused |= dict.fromkeys(auto, "params.yaml")
            continue
        for source in sources:
            suggested = [key for key in auto if source.values.get(key) is not None]
            if suggested:
                unused |= {key: source.file for key in auto if key != suggested[0]}
                break
        else:
            unused |= {key: "params.yaml" for key in auto if key == TOTAL}
    return unused
