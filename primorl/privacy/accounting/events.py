"""Accounted events as plain data: the JSON that ``privacy.json`` and the ledger hold."""

import math
from collections.abc import Callable
from typing import Any

import attrs
from dp_accounting import dp_event

_MOST_PARTS = 256  # of a composed event: no more than is composed in a moment


def event_to_json(event: dp_event.DpEvent) -> dict[str, Any]:
    """Convert an event to plain data: the name of each class and its fields, inner events likewise.

    Raises:
        ValueError: this project does not account such an event.
    """
    _known(type(event).__name__)
    fields = {field.name: getattr(event, field.name) for field in attrs.fields(type(event))}
    return {"type": type(event).__name__, **{name: _plain(value) for name, value in fields.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, dp_event.DpEvent):
        return event_to_json(value)
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def event_from_json(content: dict[str, Any]) -> dp_event.DpEvent:
    """Rebuild the event of `event_to_json`.

    Raises:
        ValueError: it is no event that this project writes; the message names the field, its
            content and the allowed ones.
    """
    if not isinstance(content, dict):
        raise ValueError(f"found {type(content).__name__} for an event; a JSON object is needed")
    kind, readers = _known(content.get("type"))
    found = content.keys() - {"type"}
    if found != readers.keys():
        raise ValueError(
            f"{kind.__name__}: found the fields {sorted(found)}; they must be {sorted(readers)}"
        )
    fields = {}
    for name, read in readers.items():
        try:
            fields[name] = read(content[name])
        except ValueError as wrong:
            raise ValueError(f"{kind.__name__}.{name}: {wrong}") from None
    return kind(**fields)


def _number(allowed: str, fits: Callable[[Any], bool], *kinds: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, kinds) or not fits(value):
            raise ValueError(f"found {value!r}; {allowed}")
        return value

    return read


def _inner(*kinds: str) -> Callable[[Any], dp_event.DpEvent]:
    def read(content: Any) -> dp_event.DpEvent:
        # Before descending, so that a stranger's file cannot nest without end.
        if not isinstance(content, dict) or content.get("type") not in kinds:
            found = content.get("type") if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"found {found!r}; allowed: {sorted(kinds)}")
        return event_from_json(content)

    return read


def _several(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_all(content: Any) -> Any:
        if not isinstance(content, list) or not 1 <= len(content) <= _MOST_PARTS:
            found = len(content) if isinstance(content, list) else type(content).__name__
            raise ValueError(f"found {found!r}; a list of 1 to {_MOST_PARTS} events is needed")
        return tuple(read(part) for part in content)  # a tuple, unlike a list, can be counted

    return read_all


_READERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "ComposedDpEvent": {
        "events": _several(
            _inner("SelfComposedDpEvent", "PoissonSampledDpEvent", "GaussianDpEvent")
        )
    },
    "SelfComposedDpEvent": {
        "event": _inner("PoissonSampledDpEvent", "GaussianDpEvent"),
        "count": _number("a whole number from 1 is needed", lambda n: n >= 1, int),
    },
    "PoissonSampledDpEvent": {
        "sampling_probability": _number(
            "a number in (0, 1] is needed", lambda q: 0 < q <= 1, int, float
        ),
        "event": _inner("GaussianDpEvent"),
    },
    "GaussianDpEvent": {
        "noise_multiplier": _number(
            "a positive, finite number is needed", lambda z: 0 < z < math.inf, int, float
        )
    },
    "NonPrivateDpEvent": {},
}


def _known(name: Any) -> tuple[type[dp_event.DpEvent], dict[str, Callable[[Any], Any]]]:
    if not isinstance(name, str) or name not in _READERS:
        raise ValueError(f"unknown event type {name!r}, allowed: {sorted(_READERS)}")
    return getattr(dp_event, name), _READERS[name]
