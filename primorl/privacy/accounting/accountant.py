"""ε of a training run, by dp-accounting: PLD for the headline, RDP (the paper's) beside it."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

import attrs
import dp_accounting
from dp_accounting import dp_event, pld, rdp
from scipy.optimize import brentq

from primorl.privacy.accounting.rounding import at_most

Relation = Literal["add_or_remove_one", "replace_one"]
RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
RELATION_NAME: Relation = "add_or_remove_one"
ACCOUNTANT = {"name": "dp_accounting.pld.PLDAccountant", "version": version("dp-accounting")}
_LARGEST_MULTIPLIER = 1e5
_SMALLEST_MULTIPLIER = 0.1  # below it ε is in the hundreds: no guarantee worth the name
_MOST_ROUNDS = 1_000_000
_LARGEST_TIGHT = 1000.0  # beyond, a PLD takes minutes and gigabytes to say that nothing is guaranteed
_PRECISION = 2e-5  # of a search, relative
_ROUGH = 0.05
_MOST_PARTS = 16  # of a composed event
_WHOLE_ORDERS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512]


@dataclass(frozen=True)
class Spent:
    """ε at one δ, by both accountants; infinite where an accountant gives no bound."""

    epsilon_pld: float
    epsilon_rdp: float
    delta: float


@dataclass(frozen=True)
class Training:
    """A training run as the accountant sees it: T rounds of PriMORL's Algorithm 2, and the queries before them.

    Attributes:
        sampling_probability: q.
        noise_multiplier: z, the noise over the clipping norm C, under either neighbouring relation (see `spent`).
        rounds: T.
        queries: noise multipliers of Gaussian releases of sums over all units (`queries.GaussianQuery`).
    """

    sampling_probability: float
    noise_multiplier: float
    rounds: int
    queries: tuple[float, ...] = ()

    @property
    def event(self) -> dp_event.DpEvent:
        """``rounds`` Poisson-sampled Gaussian releases, after a Gaussian one for each query."""
        gaussian = dp_event.GaussianDpEvent(self.noise_multiplier)
        sampled = dp_event.PoissonSampledDpEvent(self.sampling_probability, gaussian)
        rounds = dp_event.SelfComposedDpEvent(sampled, self.rounds)
        if not self.queries:
            return rounds
        return dp_event.ComposedDpEvent((*map(dp_event.GaussianDpEvent, self.queries), rounds))

    @property
    def releases(self) -> int:
        """How many there are in all."""
        return self.rounds + len(self.queries)

    @classmethod
    def of(cls, event: dp_event.DpEvent) -> "Training | None":
        """The run that ``event`` is of; None if it is of none."""
        *queries, rounds = event.events if isinstance(event, dp_event.ComposedDpEvent) else (event,)
        if not (
            isinstance(rounds, dp_event.SelfComposedDpEvent)
            and isinstance(rounds.event, dp_event.PoissonSampledDpEvent)
            and isinstance(rounds.event.event, dp_event.GaussianDpEvent)
            and all(isinstance(query, dp_event.GaussianDpEvent) for query in queries)
        ):
            return None
        inner = rounds.event
        multipliers = tuple(query.noise_multiplier for query in queries)
        return cls(inner.sampling_probability, inner.event.noise_multiplier, rounds.count, multipliers)

    def spent(self, delta: float, relation: "Relation" = RELATION_NAME) -> "Spent":
        """ε at ``delta``."""
        return spent(self.event, delta, rounds=self.releases, relation=relation)


def training_event(
    sampling_probability: float, noise_multiplier: float, rounds: int, queries: tuple[float, ...] = ()
) -> dp_event.DpEvent:
    """See `Training.event`."""
    return Training(sampling_probability, noise_multiplier, rounds, queries).event


def spent(event: dp_event.DpEvent, delta: float, *, rounds: int, relation: Relation = RELATION_NAME) -> Spent:
    """ε of ``event`` at ``delta``.

    The same event serves both relations, since dp-accounting's PLD reads a multiplier z as noise over what *one* unit
    may contribute. With q the sampling probability and N(μ) a Gaussian of mean μ and standard deviation z, it compares

    - added or removed: (1-q) N(0) + q N(1) with N(0), in both orders;
    - replaced: (1-q) N(0) + q N(-1) with (1-q) N(0) + q N(1), the old and the new contribution being opposite. At q = 1
      that is a Gaussian mechanism of sensitivity 2C under noise zC (`EnsembleClip.sensitivity_under`).

    dp-accounting's RDP knows no Poisson sampling under replacement, and would take a plain Gaussian's sensitivity for C
    there too; so ``epsilon_rdp`` is infinite for it, as it is where rounding errors spoil RDP. Where RDP's ε is beyond
    1000, PLD is not asked: the headline is RDP's (an upper bound too), and infinite under replacement.

    Args:
        event: what happened.
        delta: the failure probability at which ε is read.
        rounds: compositions in the event; it sets how fine the PLD's grid must be.
        relation: what neighbouring datasets are.
    """
    loose, sound = _rdp_epsilon(event, delta)
    replaced = relation == "replace_one"
    stated = loose if sound and not replaced else math.inf
    if loose > _LARGEST_TIGHT:
        return Spent(stated, stated, delta)
    neighbours = dp_accounting.NeighboringRelation.REPLACE_ONE if replaced else RELATION

    def tight(guess: float) -> float:
        interval = _interval(event, guess, rounds)
        return float(pld.PLDAccountant(neighbours, interval).compose(event).get_epsilon(delta))

    guess, epsilon = loose, tight(loose)
    while 0 < epsilon < guess / 4:  # a grid for what was guessed is too coarse for what turned out to be far less
        guess, epsilon = epsilon, tight(epsilon)
    return Spent(epsilon, stated, delta)


def compose(events: Sequence[dp_event.DpEvent], delta: float, relation: Relation = RELATION_NAME) -> Spent:
    """ε at ``delta`` of everything that ``events`` did to the same people, one after another.

    Equal mechanisms are merged before composing, so ten runs of one plan cost as much time as one. Nothing at all costs
    0; one event without a guarantee makes the whole infinite.
    """
    rounds: dict[dp_event.DpEvent, int] = {}
    for event in _flat(events):
        if isinstance(event, dp_event.NonPrivateDpEvent):
            return Spent(math.inf, math.inf, delta)
        inner, count = (event.event, event.count) if isinstance(event, dp_event.SelfComposedDpEvent) else (event, 1)
        rounds[inner] = rounds.get(inner, 0) + count
    if not rounds:
        return Spent(0.0, 0.0, delta)
    merged = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(*mechanism) for mechanism in rounds.items()])
    return spent(merged, delta, rounds=sum(rounds.values()), relation=relation)


def _flat(events: Iterable[dp_event.DpEvent]) -> Iterator[dp_event.DpEvent]:
    for event in events:
        yield from _flat(event.events) if isinstance(event, dp_event.ComposedDpEvent) else (event,)


def solve_noise_multiplier(
    target_epsilon: float, delta: float, sampling_probability: float, rounds: int, queries: tuple[float, ...] = ()
) -> float:
    """Smallest noise multiplier of the rounds (to four digits, rounded up) whose PLD ε is at most the target.

    The ε is that of rounds and ``queries`` together; see `Training`.

    Raises:
        ValueError: the queries alone cost more, or no multiplier below 100,000 reaches the target.
    """
    _refuse_costly(target_epsilon, delta, queries)

    def event(multiplier: float) -> dp_event.DpEvent:
        return training_event(sampling_probability, multiplier, rounds, queries)

    bounds = _SMALLEST_MULTIPLIER, _LARGEST_MULTIPLIER
    rough = _crossing(lambda z: _rough_epsilon(event(z), delta), target_epsilon, 1.0, *bounds, _ROUGH, rising=False)
    epsilon = _epsilon_near(target_epsilon, delta, rounds)
    near = _crossing(lambda z: epsilon(event(z)), target_epsilon, rough, *bounds, _PRECISION, rising=False)
    scale = 10 ** (4 - math.ceil(math.log10(near)))

    # The statement reads ε on a grid of its own, which may differ in the fifth digit: it must keep the target too.
    @cache
    def too_small(scaled: int) -> bool:
        return spent(event(scaled / scale), delta, rounds=rounds + len(queries)).epsilon_pld > target_epsilon

    scaled, largest = math.ceil(round(near * scale, 6)), round(_LARGEST_MULTIPLIER * scale)
    if too_small(scaled):
        scaled = _last(too_small, scaled, 0, largest, 1) + 1
    if scaled > largest:
        raise ValueError(f"no noise multiplier below {_LARGEST_MULTIPLIER:g} reaches epsilon {target_epsilon:g}")
    return float(scaled / scale)


def solve_rounds(
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    noise_multiplier: float,
    queries: tuple[float, ...] = (),
) -> int:
    """Largest number of rounds whose PLD ε is at most the target, at most 1,000,000; beyond 10,000 to one in 10,000.

    The ε is that of rounds and ``queries`` together; see `Training`.

    Raises:
        ValueError: one round already costs more.
    """
    _refuse_costly(target_epsilon, delta, queries)

    def event(rounds: int) -> dp_event.DpEvent:
        return training_event(sampling_probability, noise_multiplier, rounds, queries)

    def fits(rounds: int) -> bool:
        return spent(event(rounds), delta, rounds=rounds + len(queries)).epsilon_pld <= target_epsilon

    bounds = 1, _MOST_ROUNDS
    rough = _crossing(
        lambda n: _rough_epsilon(event(round(n)), delta), target_epsilon, 100.0, *bounds, _ROUGH, rising=True
    )
    epsilon_near = _epsilon_near(target_epsilon, delta, round(rough))
    epsilon = cache(lambda rounds: epsilon_near(event(rounds)))
    near = round(_crossing(lambda n: epsilon(round(n)), target_epsilon, rough, *bounds, 1e-3, rising=True))
    rounds = _last(fits, near, 0, _MOST_ROUNDS, max(1, near // 10_000))
    if rounds == 0:
        raise ValueError(f"no round fits: one alone costs more than epsilon {target_epsilon:g}")
    return rounds


def _refuse_costly(target_epsilon: float, delta: float, queries: tuple[float, ...]) -> None:
    alone = compose([dp_event.GaussianDpEvent(multiplier) for multiplier in queries], delta).epsilon_pld
    if alone > target_epsilon:
        raise ValueError(f"the queries before the rounds alone cost epsilon {at_most(alone)}")


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
        "queries": [],
        "units": units,
        "public_assumptions": [],
        "dataset_fingerprint": dataset_fingerprint,
        "void": [reason],
    }


def event_to_json(event: dp_event.DpEvent) -> dict[str, Any]:
    """A training event as plain data: each class's name and fields, the inner event likewise.

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
    """Rebuild what `event_to_json` wrote.

    Raises:
        ValueError: it is no event that this project writes; the message names the field, what it holds and what is
            allowed.
    """
    if not isinstance(content, dict):
        raise ValueError(f"found {type(content).__name__} for an event; a JSON object is needed")
    kind, readers = _known(content.get("type"))
    found = content.keys() - {"type"}
    if found != readers.keys():
        raise ValueError(f"{kind.__name__}: found the fields {sorted(found)}; they must be {sorted(readers)}")
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
        "events": _several(_inner("SelfComposedDpEvent", "PoissonSampledDpEvent", "GaussianDpEvent")),
    },
    "SelfComposedDpEvent": {
        "event": _inner("PoissonSampledDpEvent", "GaussianDpEvent"),
        "count": _number("a whole number from 1 is needed", lambda n: n >= 1, int),
    },
    "PoissonSampledDpEvent": {
        "sampling_probability": _number("a number in (0, 1] is needed", lambda q: 0 < q <= 1, int, float),
        "event": _inner("GaussianDpEvent"),
    },
    "GaussianDpEvent": {
        "noise_multiplier": _number("a positive, finite number is needed", lambda z: 0 < z < math.inf, int, float),
    },
    "NonPrivateDpEvent": {},
}


def _known(name: Any) -> tuple[type[dp_event.DpEvent], dict[str, Callable[[Any], Any]]]:
    if not isinstance(name, str) or name not in _READERS:
        raise ValueError(f"unknown event type {name!r}, allowed: {sorted(_READERS)}")
    return getattr(dp_event, name), _READERS[name]


def _rough_epsilon(event: dp_event.DpEvent, delta: float) -> float:
    """ε by RDP at whole orders only, which takes milliseconds and is somewhat too large."""
    return _rdp_epsilon(event, delta, _WHOLE_ORDERS)[0]


def _epsilon_near(target: float, delta: float, rounds: int) -> Callable[[dp_event.DpEvent], float]:
    """ε of events whose ε is near ``target``, on grids for it so that it moves smoothly."""
    if target > _LARGEST_TIGHT / 2:
        return lambda event: spent(event, delta, rounds=rounds).epsilon_pld

    def epsilon(event: dp_event.DpEvent) -> float:
        rough = _rough_epsilon(event, delta)
        if rough > _LARGEST_TIGHT:  # far from the target, and too far for this grid
            return rough
        interval = _interval(event, target, rounds)
        return float(pld.PLDAccountant(RELATION, interval).compose(event).get_epsilon(delta))

    return epsilon


def _crossing(
    epsilon: Callable[[float], float],
    target: float,
    start: float,
    lowest: float,
    highest: float,
    precision: float,
    *,
    rising: bool,
) -> float:
    """Where ``epsilon``, rising or falling, passes ``target``: the nearer bound if it does so nowhere between them.

    It goes from ``start`` outwards in steps that stay short, as ε far on the expensive side of the target may take
    minutes, and then along straight lines in logarithms, which ε nearly follows.
    """

    @cache
    def excess(logarithm: float) -> float:
        return math.log(max(epsilon(math.exp(logarithm)) / target, 1e-3))

    ends = math.log(lowest), math.log(highest)
    here = min(max(math.log(start), ends[0]), ends[1])
    up = (excess(here) > 0) != rising
    stride = 0.1
    while True:
        there = min(here + stride, ends[1]) if up else max(here - stride, ends[0])
        if there == here:
            return highest if up else lowest
        if (excess(here) > 0) != (excess(there) > 0):
            return math.exp(brentq(excess, here, there, xtol=precision))
        here, stride = there, min(2 * stride, 0.7)


def _last(holds: Callable[[int], bool], near: int, lowest: int, highest: int, resolution: int) -> int:
    """Last number for which ``holds`` is true, to ``resolution``, in longer and longer steps from ``near``.

    It is true at ``lowest``, which is not asked, and stays so up to some number.
    """
    low, high, step = lowest, highest + 1, resolution
    number = near
    while True:
        held = holds(number)
        low, high = (number, high) if held else (low, number)
        if high - low <= resolution:
            return low
        ahead = low + step if held else high - step
        number = ahead if low < ahead < high else (low + high) // 2
        step *= 2


def _interval(event: dp_event.DpEvent, epsilon: float, rounds: int) -> float:
    """Width of the PLD's grid: over-reports ε by 1% at most, unless that took more than some 100,000 points."""
    if epsilon == 0:
        return 1e-4
    fine = 0.01 * epsilon / math.sqrt(rounds)
    affordable = _widest_loss(event) * max(2e-5, 2e-6 * math.sqrt(rounds))
    return min(1e-3, max(fine, affordable))


def _widest_loss(event: dp_event.DpEvent) -> float:
    """Largest privacy loss of one release that the PLD keeps: up to 10 standard deviations of noise beyond the mean."""
    if isinstance(event, dp_event.ComposedDpEvent):
        return max(_widest_loss(part) for part in event.events)
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return _widest_loss(event.event)
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        return math.log1p(event.sampling_probability * math.expm1(_widest_loss(event.event)))
    if isinstance(event, dp_event.GaussianDpEvent):
        z = float(event.noise_multiplier)
        return min(10 / z + 0.5 / z**2, 700.0)
    return 0.0


def _rdp_epsilon(event: dp_event.DpEvent, delta: float, orders: Sequence[float] | None = None) -> tuple[float, bool]:
    """RDP's ε and whether it is one: where rounding leaves a divergence below zero, dp-accounting answers 0.

    It warns of that and, at large q, of every fractional order it leaves out, dozens of lines a call. The first is
    acted upon and the second is harmless, so both are kept from stderr; its other warnings pass.
    """
    sound = True

    def wanted(record: logging.LogRecord) -> bool:
        nonlocal sound
        negative = str(record.msg).startswith("Negative Renyi divergence")
        sound = sound and not negative
        return not negative and not str(record.msg).startswith("_compute_log_a_frac failed to converge")

    logger = logging.getLogger("absl")
    logger.addFilter(wanted)
    try:
        return float(rdp.RdpAccountant(orders).compose(event).get_epsilon(delta)), sound
    finally:
        logger.removeFilter(wanted)
