"""Running counts of a stream of people, released after every one of them: the binary-tree mechanism."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from primorl.privacy.accounting.events import PureDpEvent
from primorl.privacy.mechanism.entropy import Entropy, SystemEntropy, integers

Whole = NDArray[np.int64]
_AHEAD = 1 << 16  # noise is drawn for many people at once: about so many numbers


@dataclass(frozen=True)
class TreeCounter:
    """Sums of n whole numbers over the people so far, after each of at most T people.

    Person t adds a vector x_t. Every node of a binary tree over the T people holds the sum over those below it plus
    noise of its own; the sum over the first t people is that of as many nodes as t has binary ones (Dwork et al. 2010,
    "Differential privacy under continual observation"; Chan, Shi and Song 2011, "Private and continual release of
    statistics", Algorithm 2). Of the nodes only log T are kept.

    Formal guarantee: with unseeded entropy all T releases together are ε-differentially private under zero-out
    adjacency of one person, at δ = 0. A person is below L = `levels` nodes, one a level. Replacing her vector by zero
    changes each of their sums by at most Δ in L1 norm, all of them together by L Δ, and each entry has discrete
    Laplace noise of scale b ≥ L Δ / ε: P(k) ∝ exp(-|k| / b). The next people's vectors may depend on earlier releases:
    the bound holds node by node, given all that was released before. A vector of L1 norm above Δ counts as zeros.

    Attributes:
        people: T; public.
        sensitivity: Δ, a whole number; public.
        epsilon: of all releases together; infinite: no noise, the non-private twin.
        entropy: source of the noise.
    """

    people: int
    sensitivity: int
    epsilon: float
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)

    @property
    def private(self) -> bool:
        """Tell whether there is noise."""
        return math.isfinite(self.epsilon)

    @property
    def levels(self) -> int:
        """Count the nodes that one person is below, L: as many as T has binary digits."""
        return self.people.bit_length()

    @property
    def scale(self) -> int:
        """Scale b of the noise: L Δ / ε, rounded up to a whole number; 0 without noise."""
        return math.ceil(self.levels * self.sensitivity / Fraction(self.epsilon)) if self.private else 0

    @property
    def event(self) -> dp_event.DpEvent:
        """Event of all releases together, which the accountant composes.

        Raises:
            ValueError: there is no noise.
        """
        if not self.private:
            raise ValueError("a counter without noise has no event")
        return PureDpEvent(self.epsilon)

    def error(self, failure: float) -> float:
        """Bound |released - true| of one entry after one person, but for probability ``failure``.

        The noise is a sum of at most L independent variables with E[exp(sY)] ≤ 1 / (1 - s²b²), as for continuous
        Laplace noise, so Corollary 2.9 of Chan, Shi and Song holds: √8 ν √ln(2/β), ν = b max(√L, √(2 ln(2/β))).
        """
        logarithm = math.log(2 / failure)
        return self.scale * math.sqrt(8 * logarithm) * max(math.sqrt(self.levels), math.sqrt(2 * logarithm))


class Stream:
    """One stream that a `TreeCounter` counts. Holds sensitive sums: discard it with the data.

    Args:
        counter: the mechanism.
        size: n.
    """

    def __init__(self, counter: TreeCounter, size: int):
        self.counter, self.size, self.arrived = counter, size, 0
        self.sums, self.noisy = np.zeros((2, counter.levels, size), np.int64)
        self._noise = np.zeros((0, size), np.int64)

    def add(self, vector: Whole) -> Whole:
        """Count one person's int64 ``[n]``, which is sensitive, and release the sums over all so far.

        Raises:
            ValueError: T people have been counted.
        """
        counter = self.counter
        if self.arrived == counter.people:
            raise ValueError(f"{counter.people} people were counted, as many as are paid for")
        self.arrived += 1
        level = (self.arrived & -self.arrived).bit_length() - 1
        fits = np.abs(vector.astype(np.float64)).sum() <= counter.sensitivity
        node = self.sums[:level].sum(0) + (vector if fits else 0)
        self.sums[:level] = self.noisy[:level] = 0
        self.sums[level] = node
        self.noisy[level] = node + self._fresh() if counter.private else node
        return self.noisy.sum(0)

    def _fresh(self) -> Whole:
        """Noise of one node, used once."""
        if not len(self._noise):
            rows = min(_AHEAD // self.size + 1, self.counter.people)
            drawn = discrete_laplace(self.counter.entropy, rows * self.size, self.counter.scale)
            self._noise = drawn.reshape(rows, self.size)
        row, self._noise = self._noise[0], self._noise[1:]
        return row


def discrete_laplace(entropy: Entropy, count: int, scale: int) -> Whole:
    """Draw ``count`` whole numbers with P(k) ∝ exp(-|k| / b), exactly; b ≥ 1 is ``scale``.

    Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy", Algorithm 2 at s = 1, for many
    at once. All is decided by comparing whole numbers, so there is no floating-point noise to attack (Mironov 2012).
    """
    found = np.empty(0, np.int64)
    while len(found) < count:
        wanted = (count - len(found)) * 7 // 4 + 16  # 63% are accepted
        low = _below(entropy, np.full(wanted, scale, np.uint64))
        low = low[_flips(entropy, low, scale)]
        high, going = np.zeros(len(low), np.int64), np.arange(len(low))
        while len(going):
            going = going[_flips(entropy, np.full(len(going), scale, np.uint64), scale)]
            high[going] += 1
        sizes = low.astype(np.int64) + scale * high
        negative = _below(entropy, np.full(len(sizes), 2, np.uint64)) == 1
        found = np.concatenate([found, np.where(negative, -sizes, sizes)[~negative | (sizes > 0)]])
    return found[:count]


def _flips(entropy: Entropy, numerators: NDArray[np.uint64], denominator: int) -> NDArray[np.bool_]:
    """True with probability exp(-numerator / denominator) each, for numerators up to the denominator.

    Algorithm 1 there: coins of probability γ/1, γ/2, γ/3, … until one falls the other way, at an odd number.
    """
    found = np.zeros(len(numerators), bool)
    going, number = np.arange(len(numerators)), 0
    while len(going):
        number += 1
        limit = np.full(len(going), number * denominator, np.uint64)
        again = _below(entropy, limit) < numerators[going]
        found[going[~again]] = number % 2 == 1
        going = going[again]
    return found


def _below(entropy: Entropy, limits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Uniform whole numbers from 0 to limit - 1, exactly: words past the last whole multiple are drawn anew."""
    most = np.uint64(2**64 - 1)
    found = np.empty_like(limits)
    going = np.arange(len(limits))
    while len(going):
        own, words = limits[going], integers(entropy, len(going))
        kept = words < most - most % own
        found[going[kept]] = words[kept] % own[kept]
        going = going[~kept]
    return found
