"""The settings that meet a target ε: the noise multiplier or the number of rounds."""

import bisect
import math
from collections.abc import Callable
from functools import cache

from dp_accounting import dp_event
from scipy import optimize

from primorl.privacy.accounting.epsilon import Training, compose, gaussian_mean
from primorl.privacy.accounting.rounding import at_most, rounded_up

_LARGEST_MULTIPLIER = 1e5
_SMALLEST_MULTIPLIER = 0.1  # below it ε is in the hundreds, which guarantees nothing of use
_MOST_ROUNDS = 1_000_000
_DIGITS = 4  # of a noise multiplier
_STRIDE = 1.3  # of the search for a bracket
_PRECISION = 2e-5  # of the search, relative
_NO_BOUND = 1e4  # stands for an infinite ε


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

    def excess(multiplier: float) -> float:
        training = Training(sampling_probability, multiplier, rounds, queries)
        return min(training.spent(delta).epsilon_pld, _NO_BOUND) - target_epsilon

    left = gaussian_mean(target_epsilon, delta) ** 2 - math.fsum(1 / z**2 for z in queries)
    near = _noise_of_mean(math.sqrt(max(left, 1e-12)), sampling_probability, rounds)
    multiplier = rounded_up(_root(excess, near) * (1 - _PRECISION), _DIGITS)
    # ε is read on a grid that follows it, so the root is exact to some digits only.
    while excess(multiplier) > 0:
        if multiplier >= _LARGEST_MULTIPLIER:
            raise ValueError(
                f"no noise multiplier below {_LARGEST_MULTIPLIER:g} reaches epsilon "
                f"{at_most(target_epsilon, 6)}"
            )
        multiplier = rounded_up(multiplier * (1 + 10**-_DIGITS), _DIGITS)
    return multiplier


def _root(excess: Callable[[float], float], near: float) -> float:
    """Find where a falling function changes its sign, from short steps around ``near``; the nearer
    limit if nowhere: far away a PLD may take minutes.
    """
    low = high = min(max(near, _SMALLEST_MULTIPLIER), _LARGEST_MULTIPLIER)
    while excess(low) < 0:
        if low <= _SMALLEST_MULTIPLIER:
            return low
        low, high = max(low / _STRIDE, _SMALLEST_MULTIPLIER), low
    while excess(high) > 0:
        if high >= _LARGEST_MULTIPLIER:
            return high
        low, high = high, min(high * _STRIDE, _LARGEST_MULTIPLIER)
    return float(optimize.brentq(excess, low, high, xtol=_PRECISION * low)) if low < high else low


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

    def epsilon(rounds: int) -> float:
        training = Training(sampling_probability, noise_multiplier, rounds, queries)
        return training.spent(delta).epsilon_pld

    rounds = bisect.bisect_right(range(1, _MOST_ROUNDS + 1), target_epsilon, key=epsilon)
    if rounds == 0:
        raise ValueError(
            f"no round fits: one alone costs more than epsilon {at_most(target_epsilon, 6)}"
        )
    return rounds


def _refuse_costly(target_epsilon: float, delta: float, queries: tuple[float, ...]) -> None:
    alone = compose([dp_event.GaussianDpEvent(z) for z in queries], delta).epsilon_pld
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
