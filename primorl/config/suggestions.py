"""Who decides a value: ``params.yaml`` decides, a dataset suggests.

A key of ``params.yaml`` in the blocks below is either a value, which holds, or ``auto``, which takes what the dataset's
file suggests, or else what ``datasets/defaults.yaml`` suggests. ``null`` means ``auto`` where it has no meaning of its
own; where it has one (for instance ``privacy.noise_multiplier: null``, not used), it holds as any value does.

A key of `FITTED` that is ``auto`` and that nobody suggests a value for is decided by the stage that needs it, a key of
`primorl.config.derived` by other keys.

Of each of `ONE_OF` exactly one key is used. If one has a value, those that are ``auto`` are not used, whatever is
suggested; if all are ``auto``, the most specific file that suggests one of them decides.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from primorl.config import derived, shares
from primorl.config.blocks import Behaviour, Dynamics, Evaluation, Partition, Policy, Privacy
from primorl.config.reading import explain, found_at, shown_key, unknown_key

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
    "privacy.train_on": "whose rows make the model must be seen in params.yaml",
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
    """Check what one file suggests; what is wrong is added to ``wrong``, one text a key."""
    source = Source(file, prefix, {})
    if not isinstance(content, dict):
        wrong.append(f"{prefix.rstrip('.')}: a block of keys is needed".removeprefix(": "))
        return source
    for key, value in _flat(content, ""):
        reason = _alone(key)
        if reason is not None:
            wrong.append(f"{prefix}{shown_key(key)}: {reason}; it is set in params.yaml alone")
        elif key not in leaves():
            why = "a block of keys is needed" if _is_block(key) else unknown_key(key)
            wrong.append(f"{prefix}{shown_key(key)}: {why}")
        elif value == AUTO:
            wrong.append(f"{prefix}{key}: found auto; a suggestion is a value")
        elif value == shares.SHARE and key in shares.KEYS:
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


def decide(raw: dict[str, Any], sources: list[Source]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Put suggestions in the place of ``auto``.

    Returns:
        The content with values in place; where each came from, by dotted key; and what is wrong, one text a key.
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
        if key in derived.KEYS:
            origins[key] = derived.ORIGIN
            return AUTO
        reason, found = _alone(key), "null" if value is None else AUTO
        if reason is not None:
            wrong.append(f"{key}: found {found}; {reason}, so that no dataset suggests it; give a value")
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
    """Keys of `ONE_OF` that are ``auto`` and give way to another one, with the file that decided so."""
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
            unused |= {key: "params.yaml" for key in auto if key == shares.TOTAL}
    return unused
