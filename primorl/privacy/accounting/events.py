"""Accounted events as plain data: the JSON that ``privacy.json`` and the ledger hold."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray


@attrs.frozen
class PureDpEvent(dp_event.DpEvent):  # type: ignore[misc]  # the package has no types
    """A mechanism that is ε-differentially private, and of which nothing else is known.

    Whatever it does with two neighbouring datasets, randomized response with the odds e^ε can be post-processed into it
    (Kairouz, Oh and Viswanath 2015, "The composition theorem for differential privacy", Theorem 8). So the pair
    P = (e^ε, 1) / (1 + e^ε) and Q = (1, e^ε) / (1 + e^ε) dominates it: the privacy profile, every Rényi divergence and
    every trade-off function of the mechanism are bounded by those of the pair, and so under composition.

    It is this project's own. dp-accounting's `RandomizedResponseDpEvent` is no substitute: under `REPLACE_SPECIAL` it
    compares randomized response with a uniform draw, which says less than ε; and dp-accounting 0.6 counts
    a self-composition of it once.

    Attributes:
        epsilon: ε of one unit.
    """

    epsilon: float


def pure_epsilon(event: dp_event.DpEvent) -> float:
    """Compute ε at δ = 0 by basic composition; infinite if a part is not of pure ε-DP."""
    if isinstance(event, PureDpEvent):
        return float(event.epsilon)
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return float(event.count) * pure_epsilon(event.event)
    if isinstance(event, dp_event.ComposedDpEvent):
        return math.fsum(map(pure_epsilon, event.events))
    return math.inf


def pure_rdp(epsilon: float, orders: Sequence[float]) -> NDArray[np.float64]:
    """Compute the pair's Rényi divergence at each order α: log((e^(αε) + e^((1-α)ε)) / (1 + e^ε)) / (α - 1)."""
    alphas = np.asarray(orders, dtype=np.float64)
    logs = np.logaddexp(alphas * epsilon, (1 - alphas) * epsilon) - np.logaddexp(0.0, epsilon)
    divergences: NDArray[np.float64] = np.clip(logs / (alphas - 1), 0.0, epsilon)
    return divergences


_MOST_PARTS = 256  # of a composed event: and no more than is composed in a moment


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
        ValueError: it is no event that this project writes; the message names the field, its content and the allowed
            ones.
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
    "PureDpEvent": {
        "epsilon": _number(
            "a number in (0, 100] is needed", lambda epsilon: 0 < epsilon <= 100, int, float
        )
    },
    "NonPrivateDpEvent": {},
    "NoOpDpEvent": {},  # of what was made without a private row
}
_OURS: dict[str, type[dp_event.DpEvent]] = {"PureDpEvent": PureDpEvent}


def _known(name: Any) -> tuple[type[dp_event.DpEvent], dict[str, Callable[[Any], Any]]]:
    if not isinstance(name, str) or name not in _READERS:
        raise ValueError(f"unknown event type {name!r}, allowed: {sorted(_READERS)}")
    return _OURS.get(name) or getattr(dp_event, name), _READERS[name]
