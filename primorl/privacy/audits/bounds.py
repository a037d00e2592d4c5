"""Lower bounds on ε from observations of canaries in the releases.

One report holds several bounds. Together they fail with probability 1 - confidence: each of n is made at
(1 - confidence)/n (Bonferroni), so that their largest is a bound as well.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from dp_accounting import dp_event, pld
from numpy.typing import NDArray
from scipy.special import ndtri

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.audits.one_run import clopper_pearson, guesses, refutes_trade_off
from primorl.privacy.mechanism.plan import Plan

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Name = Literal["guesses", "gaussian", "likelihood", "one_run_fdp"]

_THRESHOLDS = 256
_ROWS = 4096  # canaries whose likelihoods are computed at once
# The share of the canaries that the f-DP bound guesses about is this over the root of their number: few and sure
# guesses refute more, until too few are left. Chosen by simulation, before anything was audited.
_SHARE = 13.0
_FAMILY = "rounds are Gaussian releases of Poisson samples with the plan's q; only the noise multiplier is unknown"
ASSUMPTIONS: dict[Name, str] = {
    "guesses": "canaries are independent of each other",
    "gaussian": f"canaries are independent of each other; {_FAMILY}",
    "likelihood": f"canaries are independent of each other; {_FAMILY}",
    "one_run_fdp": _FAMILY,
}
"""What each bound takes for granted of the mechanism, beside fair and independent coins."""


# The search for the noise multiplier goes within this factor of the plan's.
_WIDEST = 4.0
_HALVINGS = 10
# Where the privacy curve is known: finely where it is steep.
_GRID = np.concatenate((np.linspace(0, 1, 60, endpoint=False), np.linspace(1, 10, 70)))
_ORDERS = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128)  # of RDP, which only says how fine the PLD must be


@dataclass(frozen=True)
class Curve:
    """Privacy curve of one mechanism: δ(ε) on a grid of ε. Fewer points allow more, so the curve errs to the safe side.

    ``factors`` are e^ε of the points, ``[G]``, the first 1; ``deltas`` are δ(ε), ``[G]``.
    """

    factors: Floats
    deltas: Floats

    @property
    def total_variation(self) -> float:
        """δ(0): at most this lie apart the probabilities of anything with and without a unit."""
        return float(self.deltas[0])

    def least(self, hit: float) -> float:
        """Compute the least rate of false alarms of a test of power ``hit``: the inverse of 1 - f (Dong et al. 2022).

        hit ≤ e^ε·alarm + δ(ε) for every ε, and the same of the guesses withheld, 1 - alarm ≤ e^ε(1 - hit) + δ(ε).
        """
        by_hits = ((hit - self.deltas) / self.factors).max()
        by_rest = (1 - self.deltas - self.factors * (1 - hit)).max()
        return max(0.0, float(by_hits), float(by_rest))


@dataclass(frozen=True)
class Family:
    """The mechanisms that an audit compares with: T Poisson-sampled Gaussian releases, of any noise multiplier.

    Guesses that are better than some multiplier allows refute it, and with it all larger ones. The ε of the largest
    multiplier that is refuted is a lower bound on ε, if the audited mechanism is a member. The search begins around the
    multiplier that the plan has ``stated``.
    """

    sampling_probability: float
    rounds: int
    delta: float
    stated: float

    @classmethod
    def of(cls, plan: Plan) -> "Family":
        """Return the family of a plan."""
        return cls(plan.sampling_probability, plan.rounds, plan.delta, plan.noise_multiplier)

    def lower_bound(self, refuted: Callable[[Curve], bool]) -> float:
        """Compute ε of the largest multiplier with a ``refuted`` curve, at least a quarter of the stated; 0 if none is.

        Curves fall as the multiplier grows.
        """
        low, high = self.stated / _WIDEST, self.stated * _WIDEST
        if not refuted(privacy_curve(self, high)):
            return 0.0
        if refuted(privacy_curve(self, low)):
            high = low
        for _ in range(_HALVINGS if low < high else 0):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if refuted(privacy_curve(self, middle)) else (middle, high)
        return accounting.spent(self.event(high), self.delta).epsilon_pld

    def event(self, multiplier: float) -> dp_event.DpEvent:
        """Return the event of the member with ``multiplier``."""
        return accounting.training_event(self.sampling_probability, multiplier, self.rounds)


@lru_cache(256)  # several bounds search the same multipliers
def privacy_curve(family: Family, multiplier: float) -> Curve:
    """Compute the privacy curve of the member of ``family`` with ``multiplier``."""
    event = family.event(multiplier)
    loose, _ = accounting.rdp_epsilon(event, family.delta, _ORDERS)
    accountant = pld.PLDAccountant(
        accounting.RELATION, accounting.grid_interval(event, loose, family.rounds)
    )
    return Curve(np.exp(_GRID), np.asarray(accountant.compose(event).get_delta(list(_GRID))))


@dataclass(frozen=True)
class Observations:
    """Observations of every canary in the releases. The data are canaries only, so this is not sensitive.

    Attributes:
        included: whether the canary was in the data, ``[canaries]`` (those of all runs).
        by_round: each round's release along the canary's direction, in units of C: B + zN(0, 1) where B says whether
            the canary joined, ``[canaries, T]``.
        by_block: the same sum over rounds for each layer of each member apart, ``[canaries, N·L]``; each holds an equal
            share of the canary, so without noise they are equal.
    """

    included: Booleans
    by_round: NDArray[np.floating]
    by_block: Floats


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε: the method's name, and its assumptions on the mechanism."""

    name: str
    epsilon: float
    assumes: str


@dataclass(frozen=True)
class LowerBound:
    """Result of an audit of the mechanism.

    ``bounds`` holds, all read at ``delta``:

    - ``guesses``: from the rates of right and wrong guesses alone (Clopper-Pearson).
    - ``gaussian``: the ε of the largest noise multiplier under which the rates could have been as good (at most four
      times smaller than the plan's). With q = 1 it is the bound by Gaussian DP of Nasr et al. 2023 (arXiv 2302.07956).
    - ``likelihood``: the same from the share of right guesses by the likelihood ratio of the plan as stated, half of
      them "in". No canary is needed to choose anything. No other statistic is better against the stated plan, and this
      bound comes nearest to the claim.
    - ``one_run_fdp``: the same by Mahloujifar et al. 2024 (arXiv 2410.22235), from the highest and lowest likelihoods.

    Attributes:
        claimed: the plan's ε at ``delta``.
        bounds: see above; `ASSUMPTIONS` has the assumptions of each.
        delta: at which all are read.
        confidence: with which all bounds hold together; each is made at (1 - confidence)/4.
        canaries: in all runs. The first two bounds choose statistic and threshold on one half, and judge the other.
        statistic: that told most in ``guesses``: ``likelihood``, ``layers`` or ``rounds``.
    """

    claimed: float
    bounds: tuple[Bound, ...]
    delta: float
    confidence: float
    canaries: int
    statistic: str

    @property
    def epsilon(self) -> float:
        """The largest of the bounds."""
        return max(bound.epsilon for bound in self.bounds)

    @property
    def refutes_the_claim(self) -> bool:
        """Whether the plan leaks more than it states, by any bound."""
        return self.epsilon > self.claimed

    def of(self, name: Name) -> float:
        """Return one of the bounds."""
        return next(bound.epsilon for bound in self.bounds if bound.name == name)


def lower_bound(plan: Plan, seen: Observations, claimed: float, confidence: float) -> LowerBound:
    """Compute all lower bounds on the ε of a mechanism; see `LowerBound`."""
    family, each = Family.of(plan), 1 - (1 - confidence) / len(ASSUMPTIONS)
    likelihood = _likelihood_ratios(plan, seen)
    statistic, *rates = _by_rates(plan, family, seen, likelihood, each)
    found: dict[Name, float] = {
        "guesses": rates[0],
        "gaussian": rates[1],
        "likelihood": _by_accuracy(family, seen.included, likelihood, each),
        "one_run_fdp": _by_one_run(family, seen.included, likelihood, each),
    }
    bounds = tuple(Bound(name, found[name], assumes) for name, assumes in ASSUMPTIONS.items())
    return LowerBound(claimed, bounds, plan.delta, confidence, len(seen.included), statistic)


def f_dp_bound(family: Family, canaries: int, made: int, right: int, confidence: float) -> float:
    """Compute the ε that ``right`` of ``made`` guesses prove of a member of ``family`` (`refutes_trade_off`)."""
    return family.lower_bound(
        lambda curve: refutes_trade_off(curve.least, canaries, made, right, 1 - confidence)
    )


def _by_accuracy(
    family: Family, included: Booleans, likelihood: Floats, confidence: float
) -> float:
    """Bound ε by the accuracy of guessing "in" where the ratio is above the median of all.

    The best guess, by the posterior, is right with probability (1 + δ(0))/2, independently for each canary. Given the
    releases, no other guess is right more probably, whatever it makes of them; so the number of right ones is at most
    binomial although the median depends on all. (A threshold of 0 suits the stated noise only.)
    """
    right = int(np.count_nonzero((likelihood > np.median(likelihood)) == included))
    accuracy, _ = clopper_pearson(right, len(included), 1 - 2 * (1 - confidence))  # one end is used
    return family.lower_bound(lambda curve: bool(2 * accuracy - 1 > curve.total_variation))


def _by_one_run(family: Family, included: Booleans, likelihood: Floats, confidence: float) -> float:
    canaries = len(included)
    side = max(1, int(min(0.5, _SHARE / math.sqrt(canaries)) * canaries / 2))
    return f_dp_bound(family, canaries, *guesses(likelihood, included, side, side), confidence)


def _by_rates(
    plan: Plan, family: Family, seen: Observations, likelihood: Floats, confidence: float
) -> tuple[str, float, float]:
    """Choose a statistic on one half of the canaries, and guess about the other half.

    Returns the statistic of the first bound; the bound by the rates alone; that by the family.
    """
    learning, judging = np.arange(0, len(seen.included), 2), np.arange(1, len(seen.included), 2)
    scores = {"likelihood": likelihood, **_discriminants(plan, seen, learning)}

    def judged(kind: Callable[[Floats, Floats], Floats]) -> tuple[str, float, float]:
        best, choice = -math.inf, ("", 0.0, 0)
        for name, score in scores.items():
            thresholds = np.quantile(score[learning], np.linspace(0, 1, _THRESHOLDS))
            value = kind(*_rates(score[learning], seen.included[learning], thresholds, confidence))
            side, at = divmod(int(value.argmax()), _THRESHOLDS)
            if value[side, at] > best:
                best, choice = float(value[side, at]), (name, float(thresholds[at]), side)
        name, threshold, side = choice
        one = np.array([threshold])
        hits, alarms = _rates(scores[name][judging], seen.included[judging], one, confidence)
        return name, float(hits[side, 0]), float(alarms[side, 0])

    def log_ratio(hits: Floats, alarms: Floats) -> Floats:
        return np.log(np.maximum(hits - plan.delta, 1e-12) / alarms)

    def separation(hits: Floats, alarms: Floats) -> Floats:
        return np.asarray(
            ndtri(np.clip(hits, 1e-12, None)) - ndtri(np.clip(alarms, None, 1 - 1e-12))
        )

    def refuted(curve: Curve) -> bool:
        return curve.least(gaussian_hit) > gaussian_alarm

    statistic, hit, alarm = judged(log_ratio)
    _, gaussian_hit, gaussian_alarm = judged(separation)
    by_rates = max(0.0, float(log_ratio(np.array(hit), np.array(alarm))))
    return statistic, by_rates, family.lower_bound(refuted)


def _likelihood_ratios(plan: Plan, seen: Observations) -> Floats:
    """Compute each canary's log-likelihood ratio, with it over without it, by the plan as stated: ``[canaries]``.

    Σ_t log(1 - q + q·exp((2x_t - 1)/(2z²))). No statistic is better against that plan (Neyman and Pearson).
    """
    q, z = plan.sampling_probability, plan.noise_multiplier
    with np.errstate(divide="ignore"):
        never = np.log1p(-q)
    ratios = np.empty(len(seen.included))
    for start in range(0, len(ratios), _ROWS):
        rows = seen.by_round[start : start + _ROWS].astype(np.float64)
        ratios[start : start + _ROWS] = np.logaddexp(
            never, np.log(q) + (2 * rows - 1) / (2 * z**2)
        ).sum(1)
    return ratios


def _discriminants(
    plan: Plan, seen: Observations, learning: NDArray[np.int64]
) -> dict[str, Floats]:
    """Compute Fisher's linear discriminants over blocks and over rounds, ``[canaries]``; high values say "in".

    They use the covariance that the noise is found to have: where it lacks a direction (none on one member, one draw
    for two, one round's again in another) they find it.
    """
    # A covariance needs several samples a dimension: more rounds than that are merged, neighbours with neighbours.
    most = max(1, min(_THRESHOLDS, len(learning) // 32))
    edges = np.linspace(0, plan.rounds, min(plan.rounds, most) + 1).astype(int)[:-1]
    rounds = np.add.reduceat(seen.by_round, edges, axis=1, dtype=np.float64)
    return {
        "layers": _discriminant(seen.by_block, seen.included, learning),
        "rounds": _discriminant(rounds, seen.included, learning),
    }


def _discriminant(
    features: Floats, included: NDArray[np.bool_], learning: NDArray[np.int64]
) -> Floats:
    """Project on Σ⁻¹(mean in - mean out) of the learning half; Σ is that of the canaries that are out: pure noise."""
    known, inside = features[learning], included[learning]
    out = known[~inside]
    covariance = np.atleast_2d(np.cov(out, rowvar=False))
    ridge = 1e-9 * np.trace(covariance) / len(covariance) + 1e-12  # there may be no noise at all
    weights = np.linalg.solve(
        covariance + ridge * np.eye(len(covariance)), known[inside].mean(0) - out.mean(0)
    )
    return np.asarray(features @ weights)


def _rates(
    scores: Floats, included: NDArray[np.bool_], thresholds: Floats, confidence: float
) -> tuple[Floats, Floats]:
    """Bound the rates of right and wrong guesses at every threshold, ``[2, thresholds]`` each.

    Row 0 guesses "in" above it: at least that share of those that are in, at most that share of those that are out. Row
    1 guesses "out" at or below it, the other way round. Both hold together with the confidence.
    """
    inside, outside = np.sort(scores[included]), np.sort(scores[~included])
    low_in, low_out = (
        np.searchsorted(part, thresholds, side="right") for part in (inside, outside)
    )
    right = np.stack((len(inside) - low_in, low_out))
    wrong = np.stack((len(outside) - low_out, low_in))
    sizes = np.array([[len(inside)], [len(outside)]])
    return clopper_pearson(right, sizes, confidence)[0], clopper_pearson(
        wrong, sizes[::-1], confidence
    )[1]
