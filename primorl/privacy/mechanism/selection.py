"""Private selection: which of k candidates has the largest sum of scores, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from primorl.privacy.accounting.epsilon import spent
from primorl.privacy.accounting.events import PureDpEvent
from primorl.privacy.accounting.figures import stated
from primorl.privacy.mechanism.plan import MOST_UNITS
from primorl.privacy.mechanism.sampling import Entropy, SystemEntropy
from primorl.privacy.statement import NO_ROUNDS, RELATION_NAME, Statement, our_accountant

ONE = 1 << 36
"""The integer that represents a score of 1: sums of up to `MOST_UNITS` fit 63 bits."""
ROUNDING = Fraction(1, 1 << 28)
"""By so much a unit's score may depend on which others it is computed with; a step of the grid is 1/256 of it."""


@dataclass(frozen=True)
class Scores:
    """Contribution of one unit to the k sums: a score within [0, 1] for each candidate, truncated to multiples of 2⁻³⁶.

    Formal guarantee: zeroing out a unit moves every sum down by between 0 and 1. The direction is the same for all,
    and no sum moves by more, so the sums are *monotone* with sensitivity 1 (see `Selection`).

    | score    | what happens        |
    |----------|---------------------|
    | below 0  | 0                   |
    | above 1  | 1                   |
    | NaN      | 0                   |
    """

    candidates: int

    def total(self, scores: Tensor) -> Tensor:
        """Sum of ``[U, candidates]`` scores over some units: int64 ``[candidates]``, multiples of 1 / ONE; sensitive.

        Raises:
            ValueError: ``scores`` has another shape.
        """
        if scores.dim() != 2 or scores.shape[1] != self.candidates:
            raise ValueError(
                f"scores: found shape {tuple(scores.shape)}, allowed is [U, {self.candidates}]"
            )
        held = scores.to(torch.float64).nan_to_num(nan=0.0).clamp(0, 1)
        whole: Tensor = (held * ONE).trunc().to(torch.int64)
        return whole.sum(0)


@dataclass(frozen=True)
class Selection:
    """Private choice of one of k candidates by their sums of scores, once. Only the number of the winner is released.

    The mechanism is permute-and-flip (McKenna and Sheldon 2020, "Permute-and-flip: a new mechanism for differentially
    private selection"), without their factor 2, as the sums are monotone: candidate j is admitted with probability
    exp(-ε (T_max - T_j)), independently of the others, and one of the admitted is drawn uniformly. The best one is
    always admitted. It is report-noisy-max with exponential noise of scale 1/ε on the sums (Ding et al. 2021, "The
    permute-and-flip mechanism is identical to report-noisy-max with exponential noise").

    Formal guarantee: with unseeded entropy the choice is ε-differentially private under zero-out adjacency, at δ = 0.

    *Same as noisy max.* Add independent r_j ~ Exp(ε) to the sums. T_j + r_j exceeds T_max with probability
    exp(-ε (T_max - T_j)), which for the best is 1. The maximum is among those that exceed, and by the lack of memory
    their excesses are again independent Exp(ε): each of them is as likely to be the largest.

    *Privacy of noisy max.* Fix the noise of all but candidate i. It wins if r_i > t, t = max_j≠i (T_j + r_j) - T_i.
    Between neighbours all sums move the same way by at most 1, so the maximum does and T_i does, and t moves by at most
    1. P(r_i > t) = min(1, e^(-εt)) then changes by a factor of at most e^ε. Average over the noise of the others.
    (Dwork and Roth 2014, "The algorithmic foundations of differential privacy", Claim 3.9, has this for Laplace noise
    on monotone counts.)

    *Rounding.* The scores of the other units may move by up to `ROUNDING` when a unit is zeroed out, since a batched
    product's last digits depend on the batch. Then t moves by at most 1 + 2η, η = K · `ROUNDING`, and so ε / (1 + 2η)
    stands in place of ε in the coins: 1% less at a million units.

    *Exactness.* Sums are whole numbers and ε is the very fraction that its float is, so the exponents are fractions.
    Coins of probability exp(-fraction) are flipped from uniform whole numbers alone (Canonne, Kamath and Steinke 2020,
    "The discrete Gaussian for differential privacy", Algorithm 1). There is no floating-point noise to attack, and the
    probabilities are exact.

    | case                   | what happens                                                                   |
    |------------------------|--------------------------------------------------------------------------------|
    | equal sums             | each is as likely                                                              |
    | one candidate          | it is chosen; the statement is that of ε all the same                          |
    | seeded entropy         | for tests only; `void` says so                                                 |
    | asked twice            | costs twice; `event` is that of one choice                                     |
    | time that it takes     | depends on the coins, so a little on the sums: wall time is a public assumption|

    Attributes:
        units: K, the number of private units; public.
        unit: of privacy.
        candidates: k; public.
        epsilon: of the choice.
        delta: δ at which its ε is stated.
        entropy: source of the coins.
    """

    units: int
    unit: str
    candidates: int
    epsilon: float
    delta: float
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.units <= MOST_UNITS:
            raise ValueError(f"units: found {self.units}, allowed are 1 to {MOST_UNITS}")
        if self.candidates < 1:
            raise ValueError(f"candidates: found {self.candidates}, allowed is at least 1")
        if not 0 < self.epsilon <= 100:
            raise ValueError(f"epsilon: found {self.epsilon!r}, allowed is a number in (0, 100]")

    @property
    def scores(self) -> Scores:
        """Contribution of a unit to the sums."""
        return Scores(self.candidates)

    @property
    def event(self) -> PureDpEvent:
        """The event that the accountant composes."""
        return PureDpEvent(self.epsilon)

    def choose(self, total: Tensor) -> int:
        """Return the number of the winner, the only value that is released.

        ``total`` has the sums over all units as `Scores.total` makes them; sensitive, discard right after use.

        Raises:
            ValueError: ``total`` is not made of so many whole numbers.
        """
        if total.dtype != torch.int64 or total.shape != (self.candidates,):
            raise ValueError(
                f"total: found {total.dtype} {tuple(total.shape)}, allowed is int64 [{self.candidates}]"
            )
        sums = total.tolist()
        best, rate = max(sums), Fraction(self.epsilon) / (1 + 2 * self.units * ROUNDING) / ONE
        admitted = [j for j, own in enumerate(sums) if flip(self.entropy, rate * (best - own))]
        return admitted[below(self.entropy, len(admitted))]

    def void(self) -> list[str]:
        """List reasons not to rely on the statement of a choice."""
        reasons = {
            "noise is seeded": self.entropy.seeded,
            f"delta is not below one over the number of units, {self.units}": self.delta
            >= 1 / self.units,
        }
        return [reason for reason, holds in reasons.items() if holds]

    def statement(
        self, *, dataset_fingerprint: str, public_assumptions: Sequence[str]
    ) -> Statement:
        """Make the statement of the choice at ``delta``; the ledger's part is added when it is paid for."""
        return Statement(
            private=True,
            **stated(self.event, spent(self.event, self.delta)),
            delta=self.delta,
            unit=self.unit,
            neighboring_relation=RELATION_NAME,
            accountant=our_accountant(),
            **NO_ROUNDS,
            units=self.units,
            public_assumptions=tuple(public_assumptions),
            dataset_fingerprint=dataset_fingerprint,
            void=tuple(self.void()),
        )


def below(entropy: Entropy, limit: int) -> int:
    """Draw a uniform whole number from 0 to ``limit`` - 1, exactly, by rejection of random bits."""
    bits = (limit - 1).bit_length()
    buffer = bytearray(-(-bits // 8))
    while True:
        entropy.fill(memoryview(buffer))
        drawn = int.from_bytes(buffer) & ((1 << bits) - 1)
        if drawn < limit:
            return drawn


def flip(entropy: Entropy, exponent: Fraction) -> bool:
    """Draw True with probability exp(-``exponent``), exactly, for an exponent of at least 0.

    Canonne, Kamath and Steinke 2020, Algorithm 1: in a row of coins of probability γ/1, γ/2, γ/3, …, γ ≤ 1, the number
    of those that fall before the first that does not is even with probability exp(-γ).
    """
    while exponent > 1:
        if not flip(entropy, Fraction(1)):
            return False
        exponent -= 1
    fallen = 0
    while below(entropy, exponent.denominator * (fallen + 1)) < exponent.numerator:
        fallen += 1
    return fallen % 2 == 0
