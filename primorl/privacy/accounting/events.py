"""Accounted events as plain data: the JSON that ``privacy.json`` and the ledger hold."""

import math
from collections.abc import Collection
from typing import Any

import attrs
from dp_accounting import dp_event

_MOST_PARTS = 256  # of a composed event: no more than is composed in a moment
_FIELDS = {
    "ComposedDpEvent": {"events"},
    "SelfComposedDpEvent": {"event", "count"},
    "PoissonSampledDpEvent": {"sampling_probability", "event"},
    "GaussianDpEvent": {"noise_multiplier"},
    "NonPrivateDpEvent": set(),
}
_IN_SELF_COMPOSED = ("PoissonSampledDpEvent", "GaussianDpEvent")
_IN_COMPOSED = ("SelfComposedDpEvent", *_IN_SELF_COMPOSED)


def event_to_json(event: dp_event.DpEvent) -> dict[str, Any]:
    """Convert an event to plain data: the name of each class and its fields, inner events likewise.

    Raises:
        ValueError: this project does not account such an event.
    """
    _check_type(type(event).__name__, _FIELDS)
    fields = {field.name: getattr(event, field.name) for field in attrs.fields(type(event))}
    return {"type": type(event).__name__, **{name: _plain(value) for name, value in fields.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, dp_event.DpEvent):
        return event_to_json(value)
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def event_from_json(
    content: dict[str, Any], allowed: Collection[str] = tuple(_FIELDS)
) -> dp_event.DpEvent:
    """Rebuild the event of `event_to_json`.

    The ``allowed`` types are checked before inner events are read, so that a stranger's file cannot
    nest without end.

    Raises:
        ValueError: it is no event that this project writes; the message names the field, its
            content and the allowed ones.
    """
    name = _check_type(
        content.get("type") if isinstance(content, dict) else type(content).__name__, allowed
    )
    found = content.keys() - {"type"}
    if found != _FIELDS[name]:
        raise ValueError(
            f"{name}: found the fields {sorted(found)}; they must be {sorted(_FIELDS[name])}"
        )
    match name:
        case "ComposedDpEvent":
            parts = content["events"]
            if not isinstance(parts, list) or not 1 <= len(parts) <= _MOST_PARTS:
                raise ValueError(f"{name}.events: a list of 1 to {_MOST_PARTS} events is needed")
            inner = tuple(event_from_json(part, _IN_COMPOSED) for part in parts)
            return dp_event.ComposedDpEvent(inner)  # a tuple, unlike a list, can be counted
        case "SelfComposedDpEvent":
            event = event_from_json(content["event"], _IN_SELF_COMPOSED)
            if type(content["count"]) is not int:
                raise ValueError(f"{name}.count: found {content['count']!r}; allowed: an integer")
            return dp_event.SelfComposedDpEvent(event, _positive(content, "count", math.inf))
        case "PoissonSampledDpEvent":
            probability = _positive(content, "sampling_probability", 1)
            event = event_from_json(content["event"], ("GaussianDpEvent",))
            return dp_event.PoissonSampledDpEvent(probability, event)
        case "GaussianDpEvent":
            return dp_event.GaussianDpEvent(_positive(content, "noise_multiplier", math.inf))
    return dp_event.NonPrivateDpEvent()


def _check_type(name: Any, allowed: Collection[str]) -> str:
    if not isinstance(name, str) or name not in allowed:
        raise ValueError(f"unknown event type {name!r}, allowed: {sorted(allowed)}")
    return name


def _positive(content: dict[str, Any], key: str, most: float) -> Any:
    """Return a finite number above 0 and at most ``most``."""
    value = content[key]
    fits = type(value) in (int, float) and 0 < value <= most and value < math.inf
    if not fits:
        raise ValueError(
            f"{content['type']}.{key}: found {value!r}; allowed: a finite number above 0, at most "
            f"{most:g}"
        )
    return value
