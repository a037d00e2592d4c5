"""Lower bounds on ε from guesses of who was in the data of one Gaussian release.

Every candidate has a score that is 1 higher in the mean if the candidate was in; the noise is z
N(0, 1), and only z is unknown. Each of the four bounds fails with a quarter of the error, so that
their largest is a bound as well.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr, ndtri

from primorl.privacy.accounting.epsilon import gaussian_epsilon

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

CONFIDENCE = 0.99
"""Of all bounds of one report together."""
_THRESHOLDS = 256
# Of the candidates, this over the root of their number is guessed about: few and sure guesses
# refute more.
_SHARE = 13.0


@dataclass(frozen=True)
class LowerBounds:
    """Bounds on ε at one δ, by name, and the ε that was claimed.

    ``guesses`` takes nothing of the mechanism for granted but that candidates are independent;
    ``gaussian`` and ``likelihood`` also that the release is Gaussian; ``one_run_fdp`` only that it
    is Gaussian.
    """

    claimed: float
    by_name: dict[str, float]

    @property
    def epsilon(self) -> float:
        """The largest of the bounds."""
        return max(self.by_name.values())

    @property
    def refutes_the_claim(self) -> bool:
        """Whether more leaks than is claimed, by any bound."""
        return self.epsilon > self.claimed


def lower_bounds(score: Floats, included: Booleans, claimed: float, delta: float) -> LowerBounds:
    """Bound ε by scores ``[m]`` of candidates and by who was in."""
    error = (1 - CONFIDENCE) / 4
    guesses, apart = _by_rates(score, included, delta, error)
    found = {
        "gaussian": apart,
        "likelihood": _by_accuracy(score, included, error),
        "one_run_fdp": _by_one_run(score, included, error),
    }
    epsilons = {
        name: gaussian_epsilon(mean, delta) if mean > 0 else 0.0 for name, mean in found.items()
    }
    return LowerBounds(claimed, {"guesses": guesses, **epsilons})


def _by_rates(score: Floats, included: Booleans, delta: float, error: float) -> tuple[float, float]:
    """Choose a threshold on one half of the candidates, and judge the other half (Clopper and
    Pearson 1934).

    Returns the ε by hit ≤ e^ε alarm + δ, and the Gaussian mean by Φ⁻¹(hit) - Φ⁻¹(alarm).
    """
    halves = slice(0, None, 2), slice(1, None, 2)
    candidates = np.quantile(score[halves[0]], np.linspace(0, 1, _THRESHOLDS))

    def rates(half: slice, threshold: float) -> tuple[float, float]:
        guessed, there = score[half] > threshold, included[half]
        hits = stats.binomtest(int((guessed & there).sum()), int(there.sum()))
        alarms = stats.binomtest(int((guessed & ~there).sum()), int((~there).sum()))
        return hits.proportion_ci(1 - error).low, alarms.proportion_ci(1 - error).high

    def ratio(hit: float, alarm: float) -> float:
        return math.log(max(hit - delta, 1e-12) / alarm)

    def apart(hit: float, alarm: float) -> float:
        return float(ndtri(max(hit, 1e-12)) - ndtri(min(alarm, 1 - 1e-12)))

    learned = [rates(halves[0], each) for each in candidates]
    found = []
    for value in (ratio, apart):
        best = max(range(_THRESHOLDS), key=lambda i: value(*learned[i]))
        found.append(max(0.0, value(*rates(halves[1], candidates[best]))))
    return found[0], found[1]


def _by_accuracy(score: Floats, included: Booleans, error: float) -> float:
    """Bound the mean μ by the share of right guesses, "in" above the median: at most Φ(μ/2) of them
    are right.
    """
    right = int(np.count_nonzero((score > np.median(score)) == included))
    accuracy = stats.binomtest(right, len(score)).proportion_ci(1 - 2 * error).low
    return max(0.0, 2 * float(ndtri(accuracy)))


def _by_one_run(score: Floats, included: Booleans, error: float) -> float:
    """Bound the mean μ by the highest and lowest scores (Mahloujifar, Melis and Chaudhuri 2024,
    arXiv 2410.22235).
    """
    side = max(1, int(min(0.5, _SHARE / math.sqrt(len(score))) * len(score) / 2))
    order = np.argsort(score, kind="stable")
    right = int(
        np.count_nonzero(~included[order[:side]]) + np.count_nonzero(included[order[-side:]])
    )
    low, high = 0.0, 16.0
    for _ in range(30):
        middle = (low + high) / 2
        if _refutes(middle, len(score), 2 * side, right, error):
            low = middle
        else:
            high = middle
    return low


def _refutes(mean: float, candidates: int, made: int, correct: int, significance: float) -> bool:
    """Tell whether so many right guesses refute the trade-off function of a Gaussian mean.

    If they were as probable as ``significance``: let r_i be the probability that a random candidate
    is guessed right and at least i guesses are right, and h_i that it is guessed wrong and at least
    i are right. With its coin turned, a right guess is a wrong one and one guess fewer is right, so
    h_(i-1) ≥ Φ(Φ⁻¹(r_i) - μ). Exactly i right guesses add to both in the ratio i : made - i. Where
    r_0 + h_0 would pass the share of candidates that is guessed, the mean is refuted.
    """
    share = made / candidates
    right, wrong = (significance * each / candidates for each in (correct, made - correct))
    for exactly in range(correct - 1, -1, -1):
        more = float(ndtr(ndtri(right) - mean))
        if more <= wrong:
            return False
        right = min(1.0, right + exactly / (made - exactly) * (more - wrong))
        wrong = more
        if right + wrong > share:
            return True
    return right + wrong > share
