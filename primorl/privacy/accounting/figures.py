"""Figures of an event beside ε at one δ: its privacy profile, groups of units, and the best attack.

All numbers are upper bounds by the PLD accountant. None is derived from ε and δ alone: the loss
exceeds ε with a probability that may be far above δ, and k units are guaranteed neither kε nor (kε,
kδ).
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from primorl.base.files import finite
from primorl.privacy.accounting import DpEvent, dp
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.privacy_filter import cost, total
from primorl.privacy.accounting.rounding import at_most, round_up
from primorl.privacy.statement import AttackPoint, GroupPoint, ProfilePoint

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
GROUP_SIZES = (2, 4, 8)
_PROFILE = (*(j / 10 for j in range(10)), 1.5, 2.0)  # shares of ε
_SLOPES = 1000  # lines under which the trade-off curve is read
_LEAST_DELTA = 1e-10
_COIN_DELTA = 1e-5  # at which ε only sets the grid
_NO_BOUND = 700.0  # ε, above which e^ε is no float; such a point bounds nothing
_LARGEST_PROFILE = 30.0  # ε; beyond, an attack may be certain and there is nothing to tell

_LARGEST_MULTIPLIER = 1e5
_SMALLEST_MULTIPLIER = 0.1  # below it ε is in the hundreds, which guarantees nothing of use
_MOST_ROUNDS = 1_000_000
_DIGITS = 4  # of a noise multiplier
_STEPS = 10  # of a last digit, before the root is looked for
_STRIDE = 1.3  # of the search for a bracket
_PRECISION = 2e-5  # of the search, relative
_INFINITE = 1e4  # stands for an infinite ε


@dataclass(frozen=True)
class Figures:
    """Guarantees of one event, as `primorl.privacy.statement.Statement` has them; ``profile`` is
    empty where ε is beyond 30.
    """

    epsilon_replace_one: float | None
    profile: tuple[ProfilePoint, ...]
    groups: tuple[GroupPoint, ...]
    attacks: tuple[AttackPoint, ...]


@lru_cache(maxsize=64)
def figures(event: DpEvent, delta: float) -> Figures:
    """Compute the figures of ``event`` around ε at ``delta``.

    Raises:
        ValueError: the event is not of a kind that this project accounts.
    """
    epsilon = accounting.compose([event], delta).epsilon_pld
    if not 0 < epsilon <= _LARGEST_PROFILE:
        points: list[tuple[float, float]] = []
        rates = [1.0] * len(FALSE_POSITIVE_RATES)
    else:
        shares = [round_up(share * epsilon, 3) if share else 0.0 for share in _PROFILE]
        known = deltas(event, epsilon, shares)
        points = sorted([*zip(shares, known, strict=True), (epsilon, delta)])
        rates = true_positive_rates(event, epsilon, FALSE_POSITIVE_RATES)
    attacks = zip(FALSE_POSITIVE_RATES, rates, strict=True)
    groups = []
    for units in GROUP_SIZES:
        whole = accounting.group_event(event, units)
        of_all = accounting.compose([whole], delta, guess=units * epsilon)
        groups.append(GroupPoint(units=units, epsilon=finite(of_all.epsilon_pld)))
    replaced = accounting.compose([event], delta, "replace_one")
    return Figures(
        epsilon_replace_one=finite(replaced.epsilon_pld),
        profile=tuple(ProfilePoint(epsilon=e, delta=d) for e, d in points),
        groups=tuple(groups),
        attacks=tuple(AttackPoint(false_positive_rate=a, true_positive_rate=b) for a, b in attacks),
    )


def state_figures(event: DpEvent, spent: accounting.Spent | None) -> dict[str, Any]:
    """Compute the keys of a privacy statement that follow from an event; ``spent`` None: nothing is
    guaranteed.

    Raises:
        ValueError: the event is not of a kind that this project accounts.
    """
    if spent is None:
        event = accounting.event_to_json(dp.NonPrivateDpEvent())
        nothing = dict.fromkeys(("epsilon", "epsilon_rdp", "epsilon_replace_one"))
        return {"event": event, **nothing, **dict.fromkeys(("profile", "groups", "attacks"), ())}
    return {
        "event": accounting.event_to_json(event),
        "epsilon": spent.epsilon_pld,
        "epsilon_rdp": finite(spent.epsilon_rdp),
    } | vars(figures(event, spent.delta))


def deltas(event: DpEvent, near: float, epsilons: Sequence[float]) -> list[float]:
    """Compute δ of ``event`` at each of ``epsilons``, which rise from 0, on a grid for ε near
    ``near``.

    It is the larger one of both directions: a unit in the data against zeros, and zeros against the
    unit. Values below 1e-10 are raised to it, since rounding in the accountant's convolution could
    carry them below the truth.
    """
    accountant = accounting.accountant_near(event, near)
    found = np.atleast_1d(accountant.get_delta(list(epsilons)))
    return [float(delta) for delta in np.clip(found, _LEAST_DELTA, 1.0)]


def true_positive_rates(event: DpEvent, near: float, rates: Sequence[float]) -> list[float]:
    """Bound the true positive rate of any membership attack, for each false positive rate α.

    Every (ε, δ) that holds bounds it by δ + e^ε α and, read from the other side, by 1 - e^-ε (1 - δ
    - α) (Dong, Roth and Su 2022, "Gaussian differential privacy", Proposition 2.5). The least of
      these lines over the whole profile is
    the trade-off function; over a finite part of the profile it is an upper bound.
    """
    furthest = max(4 * near, math.log(1 / min(rates)))
    epsilons = np.linspace(0.0, min(furthest, accounting.LARGEST_TIGHT), _SLOPES)
    lines = list(zip(epsilons.tolist(), deltas(event, near, epsilons.tolist()), strict=True))
    return [true_positive_rate(lines, rate) for rate in rates]


def true_positive_rate(profile: Sequence[tuple[float, float]], rate: float) -> float:
    """Compute the bound at one false positive rate from the points of a profile alone; see
    `true_positive_rates`.
    """
    bounds = (
        bound
        for epsilon, delta in profile
        if epsilon < _NO_BOUND
        for bound in (delta + math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - delta - rate))
    )
    return min(1.0, max(rate, min(bounds, default=1.0)))


def posterior(prior: float, rate: float, power: float) -> float:
    """Compute an attacker's posterior belief, from prior p, in a unit that the attack names: p β /
    (p β + (1 - p) α).

    α is the attack's false positive ``rate``, β its true positive rate, ``power``.
    """
    return prior * power / (prior * power + (1 - prior) * rate)


def right_guesses(events: Sequence[DpEvent]) -> float:
    """Bound how often in 100 an attacker tells rightly whether one unit took part, where both are
    equally likely: 50 (1 + δ(0)).

    δ(0) is the largest difference between a true and a false positive rate; of several events, as
    the ledger counts them.
    """
    if len(events) > 1:
        return 50 * (1 + total([cost(event) for event in events]).total_variation())
    epsilon = accounting.compose(events, _COIN_DELTA).epsilon_pld
    if not 0 < epsilon <= _LARGEST_PROFILE:
        return 100.0 if epsilon else 50.0
    (least,) = deltas(dp.ComposedDpEvent(tuple(accounting.flat(events))), epsilon, [0.0])
    return min(100.0, 50 * (1 + least))


# ---- the settings that meet a target ε: the noise multiplier or the number of rounds


@lru_cache  # the parts of a plan ask for few of them, many times
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
        training = accounting.Training(sampling_probability, multiplier, rounds, queries)
        return min(training.compute_spent(delta).epsilon_pld, _INFINITE) - target_epsilon

    near = estimate_noise_multiplier(target_epsilon, delta, sampling_probability, rounds, queries)
    least = max(near, _SMALLEST_MULTIPLIER)  # a closed form at q = 1; the PLD's grid adds to it
    if sampling_probability < 1.0:
        least = _root(excess, near) * (1 - _PRECISION)
    multiplier = round_up(min(least, _LARGEST_MULTIPLIER), _DIGITS)
    # ε is read on a grid that follows it, so the root is exact to some digits only.
    tries = 0
    while excess(multiplier) > 0:
        tries += 1
        if tries == _STEPS:  # queries that take nearly all of ε make single digits a long way
            multiplier = max(multiplier, _root(excess, multiplier) * (1 - _PRECISION))
        if multiplier >= _LARGEST_MULTIPLIER:
            raise ValueError(
                f"no noise below {_LARGEST_MULTIPLIER:g} reaches ε {at_most(target_epsilon, 6)}"
            )
        multiplier = round_up(multiplier * (1 + 10**-_DIGITS), _DIGITS)
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
    if low == high:
        return low
    return float(scipy.optimize.brentq(excess, low, high, xtol=_PRECISION * low))


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
        training = accounting.Training(sampling_probability, noise_multiplier, rounds, queries)
        return training.compute_spent(delta).epsilon_pld

    rounds = bisect.bisect_right(range(1, _MOST_ROUNDS + 1), target_epsilon, key=epsilon)
    if rounds == 0:
        raise ValueError(
            f"no round fits: one alone costs more than epsilon {at_most(target_epsilon, 6)}"
        )
    return rounds


def _refuse_costly(target_epsilon: float, delta: float, queries: tuple[float, ...]) -> None:
    alone = accounting.compose([dp.GaussianDpEvent(z) for z in queries], delta).epsilon_pld
    if alone > target_epsilon:
        raise ValueError(f"the queries before the rounds alone cost epsilon {at_most(alone)}")


def estimate_noise_multiplier(
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    rounds: int,
    queries: tuple[float, ...] = (),
) -> float:
    """Estimate what `solve_noise_multiplier` finds: within a few percent where ε is small, and
    worse at large ε or tiny δ.

    By the central limit theorem of Gaussian DP (Bu et al. 2020), the rounds cost about one Gaussian
    release of mean μ = q √(T (exp(1/z²) - 1)); squares of means add up.
    """
    whole = accounting.gaussian_mean(target_epsilon, delta) ** 2
    left = max(whole - math.fsum(1 / z**2 for z in queries), 1e-12)
    if sampling_probability == 1.0:
        return math.sqrt(rounds / left)
    return 1 / math.sqrt(math.log1p(left / sampling_probability**2 / rounds))
