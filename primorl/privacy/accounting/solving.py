"""The settings that meet a target ε: the noise multiplier or the number of rounds."""

import math
from collections.abc import Callable
from functools import cache

import dp_accounting
from dp_accounting import dp_event, pld

from primorl.privacy.accounting.epsilon import (
    RELATION,
    Training,
    compose,
    grid_interval,
    releases,
    spent,
)
from primorl.privacy.accounting.gaussian import gaussian_mean
from primorl.privacy.accounting.rounding import at_most, rounded_up

_LARGEST_MULTIPLIER = 1e5
_SMALLEST_MULTIPLIER = 0.1  # below it ε is in the hundreds, which guarantees nothing of use
_MOST_ROUNDS = 1_000_000
_DIGITS = 4  # of a noise multiplier
_STRIDE = 1.3  # of the search for a bracket
_PRECISION = 2e-5  # of a search, relative


@cache  # the parts of a plan ask for few of them, many times
def solve_noise_multiplier(
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    rounds: int,
    queries: tuple[float, ...] = (),
) -> float:
    """Find a noise multiplier of the rounds (four digits, rounded up) with a PLD ε of at most the
    target.

    The ε is that of rounds and ``queries`` together; see `Training`.

    Raises:
        ValueError: the queries alone cost more, or no multiplier below 100,000 meets the target.
    """
    _refuse_costly(target_epsilon, delta, queries)

    def event(multiplier: float) -> dp_event.DpEvent:
        return Training(sampling_probability, multiplier, rounds, queries).event

    left = gaussian_mean(target_epsilon, delta) ** 2 - math.fsum(1 / z**2 for z in queries)
    near = _noise_of_mean(math.sqrt(max(left, 1e-12)), sampling_probability, rounds)
    limits = _SMALLEST_MULTIPLIER, _LARGEST_MULTIPLIER
    found = _calibrated(event, target_epsilon, delta, near, limits, rising=False)
    multiplier = rounded_up(found * (1 - _PRECISION), _DIGITS)
    # The statement reads ε on a grid of its own, which may differ in the fifth digit: it must keep
    # the target too.
    while spent(event(multiplier), delta).epsilon_pld > target_epsilon:
        if multiplier >= _LARGEST_MULTIPLIER:
            raise ValueError(
                f"no noise multiplier below {_LARGEST_MULTIPLIER:g} reaches epsilon "
                f"{at_most(target_epsilon, 6)}"
            )
        multiplier = rounded_up(multiplier * (1 + 10**-_DIGITS), _DIGITS)
    return multiplier


def solve_rounds(
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    noise_multiplier: float,
    queries: tuple[float, ...] = (),
) -> int:
    """Find about the most rounds with a PLD ε of at most the target, up to 1,000,000.

    The ε is that of rounds and ``queries`` together; see `Training`.

    Raises:
        ValueError: one round already costs more.
    """
    _refuse_costly(target_epsilon, delta, queries)

    def event(rounds: float) -> dp_event.DpEvent:
        return Training(sampling_probability, noise_multiplier, round(rounds), queries).event

    def fits(rounds: int) -> bool:
        return spent(event(rounds), delta).epsilon_pld <= target_epsilon

    left = gaussian_mean(target_epsilon, delta) ** 2 - math.fsum(1 / z**2 for z in queries)
    of_one = sampling_probability**2 * math.expm1(min(1 / noise_multiplier**2, 700.0))
    near = max(left, 1e-12) / max(of_one, 1e-300)
    found = _calibrated(event, target_epsilon, delta, near, (1, _MOST_ROUNDS), rising=True)
    rounds = round(found)
    step = max(1, rounds // 10_000)
    while rounds < _MOST_ROUNDS and fits(min(rounds + step, _MOST_ROUNDS)):
        rounds = min(rounds + step, _MOST_ROUNDS)
    while rounds > 0 and not fits(rounds):
        rounds -= step
    if rounds <= 0:
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


def _noise_of_mean(mean: float, sampling_probability: float, rounds: int) -> float:
    """Estimate the z at which the rounds cost about one Gaussian release of mean μ.

    By the central limit theorem of Gaussian DP (Bu et al. 2020), μ = q √(T (exp(1/z²) - 1)). It
    only begins a search.
    """
    if sampling_probability == 1.0:
        return math.sqrt(rounds) / mean
    return 1 / math.sqrt(math.log1p((mean / sampling_probability) ** 2 / rounds))


def _calibrated(
    event: Callable[[float], dp_event.DpEvent],
    target: float,
    delta: float,
    near: float,
    limits: tuple[float, float],
    *,
    rising: bool,
) -> float:
    """Find the parameter at which ε, rising or falling in it, meets the target; the nearer limit if
    there is none.

    dp_accounting's own search for a bracket evaluates the far end, where ε may be so large that a
    PLD takes minutes; so the bracket is found here, in short steps from the estimate ``near``
    outwards.
    """
    lowest, highest = limits
    here = min(max(near, lowest), highest)
    interval = grid_interval(event(here), target, releases(event(here)))

    def accountant() -> pld.PLDAccountant:
        return pld.PLDAccountant(RELATION, interval)

    @cache
    def exceeds(parameter: float) -> bool:
        return float(accountant().compose(event(parameter)).get_epsilon(delta)) > target

    upwards = exceeds(here) != rising
    while True:
        there = min(here * _STRIDE, highest) if upwards else max(here / _STRIDE, lowest)
        if there == here:
            return here
        if exceeds(there) != exceeds(here):
            break
        here = there
    bracket = dp_accounting.ExplicitBracketInterval(min(here, there), max(here, there))
    precision = _PRECISION * bracket.endpoint_1
    return float(
        dp_accounting.calibrate_dp_mechanism(
            accountant, event, target, delta, bracket, tol=precision
        )
    )
