"""The privacy filter: the total of charges that were each chosen after looking at the results of
the earlier ones.

The PLD of a composition holds for events that were fixed beforehand. A privacy filter holds for any
choice: it adds up the cost of each event in a currency with proved sums for adaptive choices, and
refuses the event that would exceed the budget. Two currencies are added up side by side, each with
a share of δ:

- Gaussian differential privacy. Up to a mass of `ESCAPED`, the privacy profile of an event is at
  most that of one Gaussian release with mean μ (`gaussian_cost`). The squares μ² add up (Smith and
  Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy"), and so do the
  masses. It is the tighter one where many rounds with
  much noise are made: 1 to 3% above PLD.
- Rényi differential privacy at a few orders (Feldman and Zrnic 2021, "Individual privacy accounting
  via a Rényi filter"). It is the tighter one where ε is large and few units decide.

A charge is granted while at least one of them stays within its share. docs/theory.md has the proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from primorl.privacy.accounting import DpEvent, dp
from primorl.privacy.accounting.epsilon import (
    LARGEST_TIGHT,
    accountant_near,
    gaussian_epsilon,
    rdp_values,
)

ORDERS = (2, 3, 4, 6, 8, 12, 20, 32)
ESCAPED = 1e-10
"""Mass of an event's privacy loss that its Gaussian need not cover: far above the rounding errors
of PLDs.
"""

DELTAS = (1e-4, 1e-3, 1e-2, 0.02, 0.05, 0.1, 0.2)
"""At which attacks are bounded, beside a budget's own δ."""

_SHARES = {"gaussian": 0.9, "escaped": 0.02, "renyi": 0.08}  # of δ
_LARGEST_MEAN = 60.0  # of a Gaussian; beyond, ε is in the thousands
_PRECISION = 1e-5
_ROUGH_DELTA = 1e-10

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cost:
    """Cost of events in the filter's currencies; costs add up, in any order and however events were
    chosen.

    ``squared_mean`` sums μ², ``escaped`` the masses that the Gaussians do not cover, ``renyi`` the
    divergences at `ORDERS`.
    """

    squared_mean: float = 0.0
    escaped: float = 0.0
    renyi: tuple[float, ...] = (0.0,) * len(ORDERS)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.squared_mean + other.squared_mean,
            self.escaped + other.escaped,
            tuple(mine + its for mine, its in zip(self.renyi, other.renyi, strict=True)),
        )

    def epsilon(self, delta: float) -> float:
        """Compute the smallest ε of a budget (ε, ``delta``) that grants these costs; infinite if
        there is none.
        """
        return min(
            self._gaussian_epsilon(delta),
            self.renyi_epsilon(delta * _SHARES["renyi"] / len(ORDERS)),
        )

    def renyi_epsilon(self, delta: float) -> float:
        """Compute ε at ``delta`` by the best of `ORDERS` (Canonne, Kamath and Steinke 2020,
        Proposition 12).
        """
        if not any(self.renyi):
            return 0.0
        pairs = zip(ORDERS, self.renyi, strict=True)
        found = (c + math.log1p(-1 / n) - math.log(delta * n) / (n - 1) for n, c in pairs)
        return max(0.0, min(found))

    def _gaussian_epsilon(self, delta: float) -> float:
        if self.squared_mean == 0:
            return 0.0
        if self.escaped > _SHARES["escaped"] * delta or self.squared_mean > _LARGEST_MEAN**2:
            return math.inf
        return gaussian_epsilon(math.sqrt(self.squared_mean), _SHARES["gaussian"] * delta)

    def total_variation(self) -> float:
        """Bound δ(0), the largest difference between a true and a false positive rate, rounded up:
        by the Gaussian's own, and by (ε, δ), which gives (e^ε - 1 + 2δ) / (e^ε + 1).
        """
        bounds = [math.erf(math.sqrt(self.squared_mean / 8)) + self.escaped]
        for delta in DELTAS:
            least = math.tanh(self.epsilon(delta) / 2)
            bounds.append(least + delta * (1 - least))
        return min(1.0, min(bounds) * (1 + 1e-12))

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON, as the ledger's records hold it; an infinite number is null."""
        finite = [
            value if math.isfinite(value) else None for value in (self.squared_mean, *self.renyi)
        ]
        return {"squared_mean": finite[0], "escaped": self.escaped, "renyi": finite[1:]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Cost":
        """Rebuild the cost of `to_json`."""
        numbers = [
            math.inf if each is None else float(each)
            for each in (content["squared_mean"], *content["renyi"])
        ]
        return cls(numbers[0], float(content["escaped"]), tuple(numbers[1:]))


UNBOUNDED = Cost(math.inf, 1.0, (math.inf,) * len(ORDERS))
"""Cost of an event without a guarantee: no budget allows it."""


@lru_cache(maxsize=4096)
def cost(event: DpEvent) -> Cost:
    """Compute the cost of one event: a whole run with settings that were fixed before it began."""
    if isinstance(event, dp.NonPrivateDpEvent):
        return UNBOUNDED
    mean = gaussian_cost(event)
    return Cost(mean**2, ESCAPED, rdp_values(event, ORDERS))


def gaussian_cost(event: DpEvent) -> float:
    """Find the smallest μ of a Gaussian that covers ``event`` up to a mass of `ESCAPED`; infinite
    beyond 60.

    With h(γ) = sup over sets S of P(S) - γ Q(S), of either order of the event's dominating pair,
    and g that of N(μ, 1) and N(0, 1): h(γ) ≤ g(γ) + `ESCAPED` for all γ ≥ 1, and so for all γ ≥ 0.
    h is read off a PLD that errs upwards.
    """
    # sets how fine the PLD's grid must be
    rough = Cost(renyi=rdp_values(event, ORDERS)).renyi_epsilon(_ROUGH_DELTA)
    if rough > LARGEST_TIGHT:
        return math.inf
    accountant = accountant_near(event, rough / 2)
    profiles = [_Profile.of(pmf) for pmf in (accountant._pld._pmf_remove, accountant._pld._pmf_add)]

    def covers(mean: float) -> bool:
        return all(profile.excess(mean) <= ESCAPED for profile in profiles)

    low, high = 1e-6, _LARGEST_MEAN
    if not covers(high):
        return math.inf
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if covers(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class _Profile:
    """h for γ ≥ 1: linear between the exponentials of the PLD's losses, ``ends``, ``[n + 1]``.

    Between two ends, ``upper`` and ``lower``, ``[n]``, are P's and Q's mass of all losses from
    there on, infinite ones included.
    """

    ends: _Floats
    upper: _Floats
    lower: _Floats

    @classmethod
    def of(cls, pmf: Any) -> "_Profile":
        """Build the profile of a PLD's probabilities, a `PLDPmf` of dp_accounting."""
        dense = pmf.to_dense_pmf()
        losses = (np.arange(dense.size) + dense._lower_loss) * dense._discretization
        masses = np.maximum(dense._probs, 0.0)
        kept = max(int(np.searchsorted(losses, 0.0)), 0)
        losses, masses = losses[kept:], masses[kept:]
        upper = dense._infinity_mass + np.cumsum(masses[::-1])[::-1]
        lower = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
        ends = np.concatenate([[1.0], np.exp(losses)])
        # Beyond the last loss only the infinite ones are left: h is constant there.
        return cls(
            np.append(ends, np.inf), np.append(upper, dense._infinity_mass), np.append(lower, 0.0)
        )

    def excess(self, mean: float) -> float:
        """Compute the largest h - g. g is convex, so on each piece it is where their slopes agree,
        or at an end.
        """
        special = scipy.special
        with np.errstate(divide="ignore", over="ignore"):
            equal = np.exp(-mean * (special.ndtri(np.minimum(self.lower, 1.0)) + mean / 2))
        at = np.clip(equal, self.ends[:-1], self.ends[1:])
        at = np.where(np.isfinite(at), at, self.ends[:-1])
        log = np.log(at)
        near, far = mean / 2 - log / mean, -mean / 2 - log / mean
        gaussian = special.ndtr(near) - np.exp(log + special.log_ndtr(far))
        last = self.upper[-1]  # as γ grows, g vanishes
        return max(float((self.upper - at * self.lower - gaussian).max()), float(last))


def total(costs: Sequence[Cost]) -> Cost:
    """Add up costs."""
    return sum(costs, Cost())
