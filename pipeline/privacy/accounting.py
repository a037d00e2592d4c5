"""ε of a training run, by dp-accounting: PLD for the headline, RDP (the paper's) beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import attrs
import dp_accounting
from dp_accounting import dp_event, pld, rdp

RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
RELATION_NAME = "add_or_remove_one"
ACCOUNTANT = {"name": "dp_accounting.pld.PLDAccountant", "version": version("dp-accounting")}
_LARGEST_MULTIPLIER = 1e5
_SMALLEST_MULTIPLIER = 0.1  # below it ε is in the hundreds: no guarantee worth the name
_KNOWN_EVENTS = (
    dp_event.SelfComposedDpEvent,
    dp_event.PoissonSampledDpEvent,
    dp_event.GaussianDpEvent,
    dp_event.NonPrivateDpEvent,
)


@dataclass(frozen=True)
class Spent:
    """ε at one δ, by both accountants."""

    epsilon_pld: float
    epsilon_rdp: float
    delta: float


def training_event(sampling_probability: float, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
    """``rounds`` Poisson-sampled Gaussian releases: PriMORL's Algorithm 2 as the accountant sees it."""
    gaussian = dp_event.GaussianDpEvent(noise_multiplier)
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(sampling_probability, gaussian), rounds)


def spent(event: dp_event.DpEvent, delta: float, *, rounds: int) -> Spent:
    """ε of ``event`` at ``delta``.

    Args:
        event: what happened.
        delta: the failure probability at which ε is read.
        rounds: compositions in the event; it sets how fine the PLD's grid must be.
    """
    loose = float(rdp.RdpAccountant(neighboring_relation=RELATION).compose(event).get_epsilon(delta))
    tight = float(pld.PLDAccountant(RELATION, _interval(loose, rounds)).compose(event).get_epsilon(delta))
    return Spent(tight, loose, delta)


def compose(events: Sequence[dp_event.DpEvent], delta: float) -> Spent:
    """ε at ``delta`` of everything that ``events`` did to the same people, one after another.

    Equal mechanisms are merged before composing, so ten runs of one plan cost as much time as one. Nothing at all costs
    0; one event without a guarantee makes the whole infinite.
    """
    rounds: dict[dp_event.DpEvent, int] = {}
    for event in events:
        if isinstance(event, dp_event.NonPrivateDpEvent):
            return Spent(math.inf, math.inf, delta)
        inner, count = (event.event, event.count) if isinstance(event, dp_event.SelfComposedDpEvent) else (event, 1)
        rounds[inner] = rounds.get(inner, 0) + count
    if not rounds:
        return Spent(0.0, 0.0, delta)
    merged = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(*mechanism) for mechanism in rounds.items()])
    return spent(merged, delta, rounds=sum(rounds.values()))


def solve_noise_multiplier(target_epsilon: float, delta: float, sampling_probability: float, rounds: int) -> float:
    """Smallest noise multiplier (to four digits, rounded up) whose PLD ε is at most the target.

    Raises:
        ValueError: no multiplier below 100,000 reaches the target.
    """
    interval = _interval(target_epsilon, rounds)

    def epsilon(multiplier: float) -> float:
        event = training_event(sampling_probability, multiplier, rounds)
        return float(pld.PLDAccountant(RELATION, interval).compose(event).get_epsilon(delta))

    # Start where T Gaussian releases of sensitivity q would meet the target: far below it, the PLD of a
    # small multiplier on this target's fine grid takes minutes.
    scale = sampling_probability * math.sqrt(2 * rounds * math.log(1.25 / delta)) / target_epsilon
    high = low = min(max(0.5, scale), _LARGEST_MULTIPLIER)
    while epsilon(high) > target_epsilon:
        if high >= _LARGEST_MULTIPLIER:
            raise ValueError(f"no noise multiplier below {_LARGEST_MULTIPLIER:g} reaches epsilon {target_epsilon:g}")
        low, high = high, 2 * high
    while low == high or epsilon(low) <= target_epsilon:
        high, low = low, low / 2
        if low < _SMALLEST_MULTIPLIER:
            break
    while high - low > 1e-4 * high and high > _SMALLEST_MULTIPLIER:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle) > target_epsilon else (low, middle)
    digits = 4 - math.ceil(math.log10(high))
    rounded = math.ceil(high * 10**digits) / 10**digits
    # The statement reads ε on a grid of its own, which may differ in the fifth digit: it must keep the target too.
    while (
        spent(training_event(sampling_probability, rounded, rounds), delta, rounds=rounds).epsilon_pld > target_epsilon
    ):
        rounded *= 1.0001
    return float(rounded)


def no_guarantee(*, unit: str, units: int, dataset_fingerprint: str, reason: str) -> dict[str, Any]:
    """The ``privacy.json`` of something made from private data without any mechanism."""
    return {
        "private": False,
        "epsilon": None,
        "delta": None,
        "unit": unit,
        "neighboring_relation": RELATION_NAME,
        "accountant": ACCOUNTANT,
        "epsilon_rdp": None,
        "event": event_to_json(dp_event.NonPrivateDpEvent()),
        "sampling_probability": None,
        "noise_multiplier": None,
        "clipping_norm": None,
        "clipping": None,
        "rounds": None,
        "units": units,
        "public_assumptions": [],
        "dataset_fingerprint": dataset_fingerprint,
        "void": [reason],
    }


def event_to_json(event: dp_event.DpEvent) -> dict[str, Any]:
    """A training event as plain data: each class's name and fields, the inner event likewise."""
    fields = {field.name: getattr(event, field.name) for field in attrs.fields(type(event))}
    inner = {name: event_to_json(value) for name, value in fields.items() if isinstance(value, dp_event.DpEvent)}
    return {"type": type(event).__name__, **fields, **inner}


def event_from_json(content: dict[str, Any]) -> dp_event.DpEvent:
    """Rebuild what `event_to_json` wrote.

    Raises:
        ValueError: the type is not one that this project writes.
    """
    known = {kind.__name__: kind for kind in _KNOWN_EVENTS}
    if content.get("type") not in known:
        raise ValueError(f"unknown event type {content.get('type')!r}, allowed: {sorted(known)}")
    fields = {key: event_from_json(value) if isinstance(value, dict) else value for key, value in content.items()}
    kind = known[fields.pop("type")]
    return kind(**fields)


def _interval(epsilon: float, rounds: int) -> float:
    # A grid of width h over-reports ε by about h·√rounds: keep that near 1% of ε.
    return min(1e-3, max(1e-5, 0.01 * epsilon / math.sqrt(rounds)))
