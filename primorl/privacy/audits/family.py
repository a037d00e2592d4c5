"""The mechanisms that an audit compares with: T Poisson-sampled Gaussian releases, of every noise multiplier.

Guesses that are better than some multiplier allows refute it, and with it all larger ones. The ε of the largest
multiplier that is refuted is a lower bound on ε, if the audited mechanism is a member of the family.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event, pld
from numpy.typing import NDArray

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.mechanism.plan import Plan

Floats = NDArray[np.float64]

# The search for the noise multiplier goes within this factor of the plan's.
_WIDEST = 4.0
_HALVINGS = 10
# Where the privacy curve is known: finely where it is steep.
_GRID = np.concatenate((np.linspace(0, 1, 60, endpoint=False), np.linspace(1, 10, 70)))
_ORDERS = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128)  # of RDP, which only says how fine the PLD must be


@dataclass(frozen=True)
class Curve:
    """What one mechanism allows: δ(ε) on a grid of ε. Fewer points allow more, so the curve errs to the safe side.

    Attributes:
        factors: e^ε of every point, ``[G]``; the first is 1.
        deltas: δ(ε), ``[G]``.
    """

    factors: Floats
    deltas: Floats

    @property
    def total_variation(self) -> float:
        """δ(0): at most this lie apart the probabilities of anything with and without a unit."""
        return float(self.deltas[0])

    def allows(self, hit: float, alarm: float) -> bool:
        """Whether a guess may be right with probability ``hit`` and a false alarm with probability ``alarm``."""
        return self.least(hit) <= alarm

    def least(self, hit: float) -> float:
        """The least rate of false alarms of a test whose power is ``hit``: the inverse of 1 - f (Dong et al. 2022).

        hit ≤ e^ε·alarm + δ(ε) for every ε, and the same of the guesses withheld, 1 - alarm ≤ e^ε(1 - hit) + δ(ε).
        """
        by_hits = ((hit - self.deltas) / self.factors).max()
        by_rest = (1 - self.deltas - self.factors * (1 - hit)).max()
        return max(0.0, float(by_hits), float(by_rest))


@dataclass(frozen=True)
class Family:
    """T Poisson-sampled Gaussian releases with the plan's q, of any noise multiplier.

    Attributes:
        sampling_probability: q.
        rounds: T.
        delta: at which ε is read.
        stated: the multiplier that the plan states; the search begins around it.
    """

    sampling_probability: float
    rounds: int
    delta: float
    stated: float

    @classmethod
    def of(cls, plan: Plan) -> "Family":
        """That which the plan says it is of."""
        return cls(plan.sampling_probability, plan.rounds, plan.delta, plan.noise_multiplier)

    def curve(self, multiplier: float) -> Curve:
        """What the member with ``multiplier`` allows."""
        return _curve(self, multiplier)

    def lower_bound(self, refuted: Callable[[Curve], bool]) -> float:
        """ε of the largest multiplier that is refuted, at most four times smaller than the stated one; 0 if none is.

        Args:
            refuted: whether what was seen contradicts a curve; curves fall as the multiplier grows.
        """
        low, high = self.stated / _WIDEST, self.stated * _WIDEST
        if not refuted(self.curve(high)):
            return 0.0
        if refuted(self.curve(low)):
            high = low
        for _ in range(_HALVINGS if low < high else 0):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if refuted(self.curve(middle)) else (middle, high)
        return accounting.spent(self.event(high), self.delta, rounds=self.rounds).epsilon_pld

    def event(self, multiplier: float) -> dp_event.DpEvent:
        """What the member with ``multiplier`` does, for the accountant."""
        return accounting.training_event(self.sampling_probability, multiplier, self.rounds)


@lru_cache(256)
def _curve(family: Family, multiplier: float) -> Curve:
    """Several bounds search the same multipliers."""
    event = family.event(multiplier)
    loose, _ = accounting.rdp_epsilon(event, family.delta, _ORDERS)
    accountant = pld.PLDAccountant(accounting.RELATION, accounting.grid_interval(event, loose, family.rounds))
    return Curve(np.exp(_GRID), np.asarray(accountant.compose(event).get_delta(list(_GRID))))
