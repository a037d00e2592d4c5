"""Auditing with one training run (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846).

m canaries enter the data by fair coins; after one run a guesser says, for as many of them as it likes, which are in.
Too many right guesses disprove (ε, δ). Nothing is assumed of the mechanism, and the canaries need not be independent
of each other given the output; only the coins must be fair, independent and unknown to the guesser.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import betaincinv

_TOLERANCE = 1e-6


def guesses(
    scores: NDArray[np.float64], included: NDArray[np.bool_], k_in: int, k_out: int
) -> tuple[int, int]:
    """Guess "in" for the ``k_in`` highest scores and "out" for the ``k_out`` lowest; abstain from the rest.

    How many are guessed must be settled before ``included`` (the coins, ``[m]``) is looked at: trying several and
    keeping the best needs a correction by their number. Returns guesses made, and those that were right.

    Raises:
        ValueError: more guesses than canaries, or scores that are not numbers.
    """
    if k_in < 0 or k_out < 0 or k_in + k_out > len(scores):
        raise ValueError(
            f"k_in + k_out: found {k_in} + {k_out}, allowed are up to {len(scores)} guesses, one a canary"
        )
    if np.isnan(scores).any():
        raise ValueError("scores: found NaN, allowed are numbers")
    order = np.argsort(scores, kind="stable")
    right_out = np.count_nonzero(~included[order[:k_out]])
    right_in = np.count_nonzero(included[order[len(order) - k_in :]])
    return k_in + k_out, int(right_in + right_out)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Compute the largest probability with which an (ε, δ)-DP mechanism lets so many guesses be right (theorem 5.2).

    With δ = 0 the right guesses are stochastically below W ~ Binomial(r, 1/(1 + e^-ε)): each is no better than
    randomised response. δ adds F ≥ 0 further right guesses with E[F] ≤ 2mδ, so

        P[W + F ≥ v] = P[W ≥ v] + Σᵢ P[F = i] P[v - i ≤ W < v] ≤ P[W ≥ v] + 2mδ·maxᵢ P[v - i ≤ W < v]/i.

    For 2mδ ≤ 1 that is a maximum of mixtures of P[W ≥ v] and P[W ≥ v - i], so it grows with ε. Of m canaries,
    abstentions included, r are guessed and v of them rightly.

    Raises:
        ValueError: not 0 ≤ v ≤ r ≤ m, or δ not within 0 and 1/(2m).
    """
    if not 0 <= 2 * canaries * delta <= 1:
        raise ValueError(
            f"delta: found {delta:g}, allowed is up to {0.5 / canaries:g}, half of one over the canaries"
        )
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"found {correct} right of {guesses} guesses on {canaries} canaries: allowed is 0 ≤ v ≤ r ≤ m"
        )
    law = stats.binom(guesses, 1 / (1 + np.exp(-epsilon)))
    just_below = np.cumsum(
        law.pmf(np.arange(correct - 1, -1, -1))
    )  # P[v - i ≤ W < v] for i = 1 … v
    slope = float((just_below / np.arange(1, correct + 1)).max()) if correct else 0.0
    return min(1.0, float(law.sf(correct - 1)) + 2 * canaries * delta * slope)


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float
) -> float:
    """Find the largest ε (to 1e-6, rounded down) for which (ε, δ)-DP is refuted (`p_value`); 0 if none is.

    It exceeds the ε of the mechanism with probability at most 1 - ``confidence``.

    Raises:
        ValueError: counts, δ or confidence out of range.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: found {confidence}, allowed is a number between 0 and 1")

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def refutes_trade_off(
    least: Callable[[float], float], canaries: int, guesses: int, correct: int, significance: float
) -> bool:
    """Tell whether so many right guesses refute f-DP (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235).

    If they were as probable as ``significance``: let r_i be the probability that a random canary is guessed right and
    at least i guesses are right, and h_i that it is guessed wrong and at least i are right. With its coin turned, a
    right guess is a wrong one and one guess fewer is right, so f-DP says h_(i-1) ≥ ``least``(r_i), where ``least`` is
    the inverse of 1 - f. Exactly i right guesses add to both in the ratio i : r - i, so r_(i-1) follows from h_(i-1).
    Where r_0 + h_0 would pass the share of canaries that is guessed, the assumption was wrong. As the (ε, δ) bound
    above, it needs fair and independent coins alone: canaries may depend on each other given the output.

    Raises:
        ValueError: not 0 ≤ v ≤ r ≤ m.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"found {correct} right of {guesses} guesses on {canaries} canaries: allowed is 0 ≤ v ≤ r ≤ m"
        )
    share = guesses / canaries
    right = significance * correct / canaries
    wrong = significance * (guesses - correct) / canaries
    for exactly in range(correct - 1, -1, -1):
        more = least(right)
        if more <= wrong:
            return False  # and so at every later step
        right = min(1.0, right + exactly / (guesses - exactly) * (more - wrong))
        wrong = more
        if right + wrong > share:
            return True
    return right + wrong > share


def clopper_pearson(
    successes: ArrayLike, trials: ArrayLike, confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute exact two-sided intervals of probabilities from counts (Clopper and Pearson 1934); arguments broadcast.

    Each end alone fails with probability at most (1 - confidence)/2. P[Binomial(n, p) ≥ k] is the distribution function
    of Beta(k, n - k + 1) at p, so the bounds are its quantiles. Without trials they are 0 and 1.

    Raises:
        ValueError: counts or confidence out of range.
    """
    k, n = np.broadcast_arrays(np.asarray(successes), np.asarray(trials))
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: found {confidence}, allowed is a number between 0 and 1")
    if np.any((k < 0) | (k > n)):
        raise ValueError("successes: allowed are counts between 0 and the number of trials")
    tail = (1 - confidence) / 2
    # The arguments of a beta function must be positive: where a count is at an end, so is the bound.
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), n - k + 1, tail))
    # One minus the lower bound of the failures: a quantile near 1 - 1e-9 would lose its digits.
    high = np.where(k == n, 1.0, 1 - betaincinv(np.maximum(n - k, 1), k + 1, tail))
    return low, high
