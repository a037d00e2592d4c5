"""ε of events by PLD and RDP: of training runs, of compositions, and of a person with several
units.

dp_accounting composes the events. (ε, δ) for one unit does not give (kε, δ) for k units, so the
event of a group is accounted as a whole.
"""

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from primorl.base.files import finite
from primorl.privacy.accounting import DpEvent, dp
from primorl.privacy.statement import RELATION_NAME, Relation

# probability of cohorts that the accountant drops anyhow: they are counted as the largest
_NEGLIGIBLE = 1e-30
_PRECISION = 1e-7  # of an ε in closed form
# beyond, a PLD takes minutes and gigabytes to say that nothing is guaranteed
LARGEST_TIGHT = 1000.0
_MOST_PARTS = 256  # of a composed event: no more than is composed in a moment
EPSILONS = "epsilon_pld", "epsilon_rdp", "epsilon_replace_one"
_FIELDS = {
    "ComposedDpEvent": ("events",),
    "SelfComposedDpEvent": ("event", "count"),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "GaussianDpEvent": ("noise_multiplier",),
    "NonPrivateDpEvent": (),
}
_IN_SELF_COMPOSED = ("PoissonSampledDpEvent", "GaussianDpEvent")
_IN_COMPOSED = ("SelfComposedDpEvent", *_IN_SELF_COMPOSED)


@dataclass(frozen=True)
class Spent:
    """ε at one δ, by both accountants; infinite where an accountant gives no bound."""

    epsilon_pld: float
    epsilon_rdp: float
    delta: float


@dataclass(frozen=True)
class Training:
    """A training run as the accountant sees it: T rounds of PriMORL's Algorithm 2, and the queries
    before them.

    The multiplier z is the noise over the clipping norm C, under either neighbouring relation (see
    `compute_spent`); ``queries`` holds those of Gaussian releases of sums over all units
    (`queries.GaussianQuery`).
    """

    sampling_probability: float
    noise_multiplier: float
    rounds: int
    queries: tuple[float, ...] = ()

    @property
    def event(self) -> DpEvent:
        """``rounds`` Poisson-sampled Gaussian releases, after a Gaussian one for each query."""
        gaussian = dp.GaussianDpEvent(self.noise_multiplier)
        sampled = dp.PoissonSampledDpEvent(self.sampling_probability, gaussian)
        rounds = dp.SelfComposedDpEvent(sampled, self.rounds)
        if not self.queries:
            return rounds
        return dp.ComposedDpEvent((*map(dp.GaussianDpEvent, self.queries), rounds))

    def compute_spent(self, delta: float, relation: Relation = RELATION_NAME) -> Spent:
        """Compute ε at ``delta``."""
        return compose([self.event], delta, relation)

    def epsilons(self, delta: float) -> dict[str, float | None]:
        """Compute ε at ``delta`` by PLD, by RDP, and if one unit is replaced; None: no bound."""
        found = [math.inf] * 3
        if self.noise_multiplier > 0:
            spent, replaced = self.compute_spent(delta), self.compute_spent(delta, "replace_one")
            found = [spent.epsilon_pld, spent.epsilon_rdp, replaced.epsilon_pld]
        return dict(zip(EPSILONS, map(finite, found), strict=True))


@lru_cache(maxsize=256)
def compute_spent(
    event: DpEvent,
    delta: float,
    relation: Relation = RELATION_NAME,
    guess: float | None = None,
) -> Spent:
    """Compute ε of ``event`` at ``delta``.

    The same event serves both relations, since dp-accounting's PLD reads a multiplier z as noise
    over the contribution of *one* unit. With q the sampling probability and N(μ) a Gaussian of mean
    μ and standard deviation z, it compares

    - zeroed out: (1-q) N(0) + q N(1) with N(0), in both orders. These are the pairs of adding or
      removing a unit too, since a unit that contributes zero leaves the sum where a missing one
      leaves it; the difference is K, which is public here and the same for both neighbours
      (dp-accounting's `REPLACE_SPECIAL`);
    - replaced: (1-q) N(0) + q N(-1) with (1-q) N(0) + q N(1), the old and the new contribution
      being opposite. At q = 1 that is a Gaussian mechanism of sensitivity 2C under noise zC.

    dp-accounting's RDP knows no Poisson sampling under replacement, and would take a plain
    Gaussian's sensitivity for C there too; so ``epsilon_rdp`` is infinite for it, as it is where
    rounding errors spoil RDP. Where RDP's ε is beyond 1000, PLD is not asked: the headline is RDP's
    (an upper bound too), and infinite under replacement.

    Args:
        event: of the mechanism.
        delta: δ at which ε is read.
        relation: of neighbouring datasets.
        guess: an ε that the PLD's grid begins with, of an event of `group_event`, which RDP does
            not compose; None: RDP's.
    """
    loose, sound = rdp_epsilon(event, delta) if guess is None else (guess, False)
    replaced = relation == "replace_one"
    stated = loose if sound and not replaced else math.inf
    if loose > LARGEST_TIGHT:
        return Spent(stated, stated, delta)

    def tight(near: float) -> float:
        return float(accountant_near(event, near, relation).get_epsilon(delta))

    near, epsilon = loose, tight(loose)
    # A grid for what was guessed is too coarse for what turned out to be far less.
    while 0 < epsilon < near / 4:
        near, epsilon = epsilon, tight(epsilon)
    return Spent(epsilon, stated, delta)


def compose(
    events: Sequence[DpEvent],
    delta: float,
    relation: Relation = RELATION_NAME,
    guess: float | None = None,
) -> Spent:
    """Compute ε at ``delta`` of all ``events`` on the same people, one after another; ``guess`` as
    `compute_spent` takes it.

    Equal mechanisms are merged before composing, so ten runs of one plan cost as much time as one.
    Nothing at all costs 0; one event without a guarantee makes the whole infinite.
    """
    rounds: dict[DpEvent, int] = {}
    for inner, count in _releases(events):
        if isinstance(inner, dp.NonPrivateDpEvent):
            return Spent(math.inf, math.inf, delta)
        rounds[inner] = rounds.get(inner, 0) + count
    if not rounds:
        return Spent(0.0, 0.0, delta)
    merged = dp.ComposedDpEvent(tuple(dp.SelfComposedDpEvent(*each) for each in rounds.items()))
    return compute_spent(merged, delta, relation, guess)


def flat(events: Iterable[DpEvent]) -> Iterator[DpEvent]:
    """Yield the events, and the parts of composed ones."""
    for event in events:
        yield from flat(event.events) if isinstance(event, dp.ComposedDpEvent) else (event,)


def _releases(events: Iterable[DpEvent]) -> Iterator[tuple[DpEvent, int]]:
    """Yield the releases of events: the event of one, and how many there are."""
    for event in flat(events):
        repeated = isinstance(event, dp.SelfComposedDpEvent)
        yield (event.event, int(event.count)) if repeated else (event, 1)


def accountant_near(event: DpEvent, epsilon: float, relation: Relation = RELATION_NAME) -> Any:
    """Compose ``event`` in a new PLD accountant, on a grid for ε near ``epsilon``; see
    `compute_spent`.
    """
    rounds = sum(count for _, count in _releases([event]))
    kinds = dp.NeighboringRelation
    neighbours = kinds.REPLACE_ONE if relation == "replace_one" else kinds.REPLACE_SPECIAL
    accountant = dp.pld.PLDAccountant(neighbours, grid_interval(event, epsilon, rounds))
    return accountant.compose(event)


def grid_interval(event: DpEvent, epsilon: float, rounds: int) -> float:
    """Compute the width of the PLD's grid: it over-reports ε by at most 1%, unless that took over
    100,000 points.
    """
    if epsilon == 0:
        return 1e-4
    fine = 0.01 * epsilon / math.sqrt(rounds)
    parts = [part for part, _ in _releases([event])]
    affordable = max(map(_widest_loss, parts)) * max(2e-5, 2e-6 * math.sqrt(rounds))
    # A point of a mixture's PLD is found by bisection, which takes ten times as long.
    mixed = any(isinstance(part, dp.dp_event.MixtureOfGaussiansDpEvent) for part in parts)
    return min(1e-2 if mixed else 1e-3, max(fine, affordable))


def _widest_loss(event: DpEvent) -> float:
    """Compute the largest privacy loss of a release that the PLD keeps: up to 10 standard
    deviations of noise.
    """
    match event:
        case dp.PoissonSampledDpEvent():
            return math.log1p(event.sampling_probability * math.expm1(_widest_loss(event.event)))
        case dp.GaussianDpEvent():
            z = float(event.noise_multiplier)
            return min(10 / z + 0.5 / z**2, 700.0)
        case dp.dp_event.MixtureOfGaussiansDpEvent():
            z, farthest = float(event.standard_deviation), max(event.sensitivities)
            shares = zip(event.sensitivities, event.sampling_probs, strict=True)
            joins = min(1.0, math.fsum(p for s, p in shares if s > 0))
            return math.log1p(
                joins * math.expm1(min(10 * farthest / z + 0.5 * (farthest / z) ** 2, 700.0))
            )
    return 0.0


@lru_cache(maxsize=256)
def rdp_epsilon(event: DpEvent, delta: float) -> tuple[float, bool]:
    """Compute RDP's ε, and tell whether it is valid: where a divergence is rounded below zero,
    dp-accounting answers 0.

    It warns of negative divergences and, at large q, of every fractional order it leaves out,
    dozens of lines a call. The first is acted upon and the second is harmless, so both are kept
    from stderr; its other warnings pass. Nothing depends on a warning being heard: other libraries
    disable loggers.
    """

    def is_news(record: logging.LogRecord) -> bool:
        known = ("Negative Renyi divergence", "_compute_log_a_frac failed to converge")
        return not str(record.msg).startswith(known)

    logger = logging.getLogger("absl")
    logger.addFilter(is_news)
    try:
        accountant = dp.rdp.RdpAccountant().compose(event)
        sound = all(float(value) >= 0 for value in accountant.rdp)
        return float(accountant.get_epsilon(delta)), sound
    finally:
        logger.removeFilter(is_news)


def rdp_values(event: DpEvent, orders: Sequence[int]) -> tuple[float, ...]:
    """Compute the Rényi divergences of an event at ``orders``; infinite where rounding leaves one
    below zero.
    """
    values = [float(value) for value in dp.rdp.RdpAccountant(orders).compose(event).rdp]
    return tuple(value if value >= 0 else math.inf for value in values)


def group_event(event: DpEvent, units: int) -> DpEvent:
    """Return the event of one person with at most ``units`` units, all of which are zeroed out
    together.

    A Gaussian release of multiplier z becomes one of z/k, as k contributions of norm C are at most
    kC long together. Under Poisson sampling the number of the person's units in a round is
    binomial, and so is the length of the difference in units of C: a round is dominated by the
    mixture Σ_i P[Bin(k, q) = i] N(i, z²) against N(0, z²) (Ganesh 2024, "Tight group-level DP
    guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms"). ε of the result, at
    any δ, holds in both directions, and for fewer units too.

    Args:
        event: of one unit, as `events` reads and writes it.
        units: k, the most units of one person; public.

    Raises:
        ValueError: k is below one, or the event is not of a kind that this project accounts.
    """
    if units < 1:
        raise ValueError(f"a group has at least one unit, found {units}")
    match event:
        case _ if units == 1:
            return event
        case dp.NonPrivateDpEvent():
            return event
        case dp.ComposedDpEvent():
            return dp.ComposedDpEvent(tuple(group_event(part, units) for part in event.events))
        case dp.SelfComposedDpEvent():
            return dp.SelfComposedDpEvent(group_event(event.event, units), event.count)
        case dp.GaussianDpEvent():
            return dp.GaussianDpEvent(event.noise_multiplier / units)
        case dp.PoissonSampledDpEvent(event=dp.GaussianDpEvent()):
            return _sample_group(event.sampling_probability, event.event.noise_multiplier, units)
    raise ValueError(f"no group analysis for {type(event).__name__}")


def _sample_group(sampling_probability: float, noise_multiplier: float, units: int) -> DpEvent:
    if sampling_probability == 1:
        return dp.GaussianDpEvent(noise_multiplier / units)
    counts = np.arange(units + 1)
    probabilities = scipy.stats.binom.pmf(counts, units, sampling_probability)
    kept = probabilities > _NEGLIGIBLE
    kept[-1] = True  # what is dropped is counted as the whole group, which is never less
    probabilities[-1] += probabilities[~kept].sum()
    return dp.dp_event.MixtureOfGaussiansDpEvent(
        float(noise_multiplier),
        tuple(map(float, counts[kept])),
        tuple(map(float, probabilities[kept] / probabilities[kept].sum())),
    )


# ---- one Gaussian release, in closed form


def gaussian_epsilon(mean: float, delta: float) -> float:
    """Compute ε of N(μ, 1) against N(0, 1) at ``delta`` (Balle and Wang 2018, Theorem 8), rounded
    up.
    """

    def exceeds(epsilon: float) -> bool:
        lower = math.exp(epsilon + float(scipy.special.log_ndtr(-mean / 2 - epsilon / mean)))
        return float(scipy.special.ndtr(mean / 2 - epsilon / mean)) - lower > delta

    low, high = 0.0, 1.0
    if not exceeds(low):
        return 0.0
    while exceeds(high):
        low, high = high, 2 * high
    while high > low * (1 + _PRECISION):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


@lru_cache(maxsize=64)
def gaussian_mean(epsilon: float, delta: float) -> float:
    """Find the mean of the Gaussian release that costs ε at δ."""
    low, high = 1e-9, 60.0
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, delta) <= epsilon else (low, middle)
    return low


# ---- events as plain data: the JSON that ``privacy.json`` and the ledger hold


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """Convert an event to plain data: the name of each class and its fields, inner events likewise.

    Raises:
        ValueError: this project does not account such an event.
    """
    name = _check_type(type(event).__name__, _FIELDS)
    return {"type": name, **{field: _plain(getattr(event, field)) for field in _FIELDS[name]}}


def _plain(value: Any) -> Any:
    if isinstance(value, dp.DpEvent):
        return event_to_json(value)
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def event_from_json(content: dict[str, Any], allowed: Collection[str] = tuple(_FIELDS)) -> DpEvent:
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
    if found != {*_FIELDS[name]}:
        raise ValueError(
            f"{name}: found the fields {sorted(found)}; they must be {sorted(_FIELDS[name])}"
        )
    match name:
        case "ComposedDpEvent":
            parts = content["events"]
            if not isinstance(parts, list) or not 1 <= len(parts) <= _MOST_PARTS:
                raise ValueError(f"{name}.events: a list of 1 to {_MOST_PARTS} events is needed")
            inner = tuple(event_from_json(part, _IN_COMPOSED) for part in parts)
            return dp.ComposedDpEvent(inner)  # a tuple, unlike a list, can be counted
        case "SelfComposedDpEvent":
            event = event_from_json(content["event"], _IN_SELF_COMPOSED)
            if type(content["count"]) is not int:
                raise ValueError(f"{name}.count: found {content['count']!r}; allowed: an integer")
            return dp.SelfComposedDpEvent(event, _positive(content, "count", math.inf))
        case "PoissonSampledDpEvent":
            probability = _positive(content, "sampling_probability", 1)
            event = event_from_json(content["event"], ("GaussianDpEvent",))
            return dp.PoissonSampledDpEvent(probability, event)
        case "GaussianDpEvent":
            return dp.GaussianDpEvent(_positive(content, "noise_multiplier", math.inf))
    return dp.NonPrivateDpEvent()


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
            f"{content['type']}.{key}: found {value!r}; allowed: finite, above 0, at most {most:g}"
        )
    return value
