"""The settings that meet a target ε: the noise multiplier or the number of rounds."""

import math
from collections.abc import Callable
from functools import cache

import dp_accounting
from dp_accounting import dp_event, pld

from primorl.privacy.accounting.epsilon import (
    LARGEST_TIGHT,
    RELATION,
    Training,
    compose,
    grid_interval,
    rdp_epsilon,
    spent,
)
from primorl.privacy.accounting.rounding import at_most

_LARGEST_MULTIPLIER = 1e5
_SMALLEST_MULTIPLIER = 0.1  # below it ε is in the hundreds, which guarantees nothing of use
_MOST_ROUNDS = 1_000_000
_PRECISION = 2e-5  # of a search, relative
_ROUGH = 0.05
_WHOLE_ORDERS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512]


@cache  # candidates of a fit, and the parts of a plan, ask for few of them, many times
def solve_noise_multiplier(
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    rounds: int,
    queries: tuple[float, ...] = (),
) -> float:
    """Find the smallest noise multiplier of the rounds (four digits, rounded up) with a PLD ε of at most the target.

    The ε is that of rounds and ``queries`` together; see `Training`.

    Raises:
        ValueError: the queries alone cost more, or no multiplier below 100,000 meets the target.
    """
    _refuse_costly(target_epsilon, delta, queries)

    def event(multiplier: float) -> dp_event.DpEvent:
        return Training(sampling_probability, multiplier, rounds, queries).event

    bounds = _SMALLEST_MULTIPLIER, _LARGEST_MULTIPLIER
    rough = _crossing(
        event,
        lambda e: _rough_epsilon(e, delta),
        target_epsilon,
        1.0,
        *bounds,
        _ROUGH,
        rising=False,
    )
    epsilon = _epsilon_near(target_epsilon, delta, rounds)
    near = _crossing(event, epsilon, target_epsilon, rough, *bounds, _PRECISION, rising=False)
    near *= (
        1 - _PRECISION
    )  # `_crossing` may be above by so much, and `too_small` below corrects upwards only
    scale = 10 ** (4 - math.ceil(math.log10(near)))

    # The statement reads ε on a grid of its own, which may differ in the fifth digit: it must keep the target too.
    @cache
    def too_small(scaled: int) -> bool:
        return spent(event(scaled / scale), delta).epsilon_pld > target_epsilon

    scaled, largest = math.ceil(round(near * scale, 6)), round(_LARGEST_MULTIPLIER * scale)
    if too_small(scaled):
        scaled = _last(too_small, scaled, 0, largest, 1) + 1
    if scaled > largest:
        raise ValueError(
            f"no noise multiplier below {_LARGEST_MULTIPLIER:g} reaches epsilon {at_most(target_epsilon, 6)}"
        )
    return float(scaled / scale)


def solve_rounds(
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    noise_multiplier: float,
    queries: tuple[float, ...] = (),
) -> int:
    """Find the most rounds with a PLD ε of at most the target, up to 1,000,000; beyond 10,000 to one in 10,000.

    The ε is that of rounds and ``queries`` together; see `Training`.

    Raises:
        ValueError: one round already costs more.
    """
    _refuse_costly(target_epsilon, delta, queries)

    def event(rounds: int) -> dp_event.DpEvent:
        return Training(sampling_probability, noise_multiplier, rounds, queries).event

    def fits(rounds: int) -> bool:
        return spent(event(rounds), delta).epsilon_pld <= target_epsilon

    bounds = 1, _MOST_ROUNDS

    def about(rounds: float) -> dp_event.DpEvent:
        return event(round(rounds))

    rough = _crossing(
        about,
        lambda e: _rough_epsilon(e, delta),
        target_epsilon,
        100.0,
        *bounds,
        _ROUGH,
        rising=True,
    )
    epsilon = _epsilon_near(target_epsilon, delta, round(rough))
    near = round(_crossing(about, epsilon, target_epsilon, rough, *bounds, 1e-3, rising=True))
    rounds = _last(fits, near, 0, _MOST_ROUNDS, max(1, near // 10_000))
    if rounds == 0:
        raise ValueError(
            f"no round fits: one alone costs more than epsilon {at_most(target_epsilon, 6)}"
        )
    return rounds


def _refuse_costly(target_epsilon: float, delta: float, queries: tuple[float, ...]) -> None:
    alone = compose(
        [dp_event.GaussianDpEvent(multiplier) for multiplier in queries], delta
    ).epsilon_pld
    if alone > target_epsilon:
        raise ValueError(f"the queries before the rounds alone cost epsilon {at_most(alone)}")


def _rough_epsilon(event: dp_event.DpEvent, delta: float) -> float:
    """Compute ε by RDP at whole orders only, which takes milliseconds and is somewhat too large."""
    return rdp_epsilon(event, delta, _WHOLE_ORDERS)[0]


def _epsilon_near(target: float, delta: float, rounds: int) -> Callable[[dp_event.DpEvent], float]:
    """Make a function for ε of events near ``target``, on a grid for it, so that ε changes smoothly."""
    if target > LARGEST_TIGHT / 2:
        return lambda event: spent(event, delta).epsilon_pld

    def epsilon(event: dp_event.DpEvent) -> float:
        rough = _rough_epsilon(event, delta)
        if rough > LARGEST_TIGHT:  # far from the target, and too far for this grid
            return rough
        interval = grid_interval(event, target, rounds)
        return float(pld.PLDAccountant(RELATION, interval).compose(event).get_epsilon(delta))

    return epsilon


class _Accountant:
    """The part of an accountant that `calibrate_dp_mechanism` uses, with ε from a function of the event."""

    ledger = dp_event.NoOpDpEvent()

    def __init__(self, epsilon: Callable[[dp_event.DpEvent], float]) -> None:
        self._epsilon = epsilon
        self._event: dp_event.DpEvent = self.ledger

    def compose(self, event: dp_event.DpEvent) -> "_Accountant":
        self._event = event
        return self

    def get_epsilon(self, delta: float) -> float:
        return self._epsilon(self._event)


def _crossing(
    event: Callable[[float], dp_event.DpEvent],
    epsilon: Callable[[dp_event.DpEvent], float],
    target: float,
    start: float,
    lowest: float,
    highest: float,
    precision: float,
    *,
    rising: bool,
) -> float:
    """Find the parameter at which ε, rising or falling in it, meets ``target``; the nearer bound if there is none.

    `calibrate_dp_mechanism` finds it, in the parameter's logarithm, within a bracket. The bracket is found here, from
    ``start`` outwards in steps that stay short: dp_accounting's own search evaluates the far ends, and ε far on the
    expensive side of the target may take minutes.
    """
    known = cache(epsilon)

    def at(logarithm: float) -> dp_event.DpEvent:
        return event(math.exp(logarithm))

    def exceeds(logarithm: float) -> bool:
        return known(at(logarithm)) > target

    ends = math.log(lowest), math.log(highest)
    here = min(max(math.log(start), ends[0]), ends[1])
    up = exceeds(here) != rising
    stride = 0.1
    while True:
        there = min(here + stride, ends[1]) if up else max(here - stride, ends[0])
        if there == here:
            return highest if up else lowest
        if exceeds(here) != exceeds(there):
            bracket = dp_accounting.ExplicitBracketInterval(here, there)
            found = dp_accounting.calibrate_dp_mechanism(
                lambda: _Accountant(known), at, target, 0.5, bracket, tol=precision
            )
            return math.exp(found)
        here, stride = there, min(2 * stride, 0.7)


def _last(
    holds: Callable[[int], bool], near: int, lowest: int, highest: int, resolution: int
) -> int:
    """Find the last number for which ``holds`` is true, to ``resolution``, in longer and longer steps from ``near``.

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
