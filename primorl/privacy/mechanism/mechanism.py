"""The mechanism: sampling, clip, noise and accounted event from one frozen object, so that they
cannot disagree.

Beside the rounds it answers queries: noisy sums over all private units. A query has two parts. A
*contribution* class (`Fractions`, `BoundedSum`) defines the contribution of one unit to the sum,
and states its sensitivity. A `GaussianQuery` adds the noise; ``privacy.json`` lists its name.
`primorl.engine.queries` computes the sum from the data. Contributions are whole numbers: multiples
of 2⁻²⁰. Sums of integers are exact and the same in every order, so a sensitivity is exact too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from primorl.privacy.accounting import DpEvent, dp
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.figures import state_figures
from primorl.privacy.mechanism.clipping import Clip
from primorl.privacy.mechanism.sampling import (
    Entropy,
    SystemEntropy,
    discrete_gaussian,
    poisson_sample,
)
from primorl.privacy.statement import (
    RELATION_NAME,
    QueryStatement,
    Statement,
    our_accountant,
)

if TYPE_CHECKING:  # slow to import, and a mechanism that is only costed releases nothing
    from torch import Tensor

MOST_UNITS = 1 << 26
"""Largest number of units with an exact sum of contributions (`Mechanism.grid`)."""
ONE = 1 << 20
"""The integer that represents 1 in a contribution."""

_MOST_QUERY_NOISE = 1e8  # in units of 1; whole numbers of more noise would not all be exact
_MOST_NOISE = 1e5  # beyond, noise on the grid would not be exact


@dataclass(frozen=True)
class Mechanism:
    """A private mechanism: everything that bears on privacy, and nothing else.

    In each round, every one of ``units`` private units joins with probability q (`cohort`) and
    contributes a vector of L2 norm at most C (``clip``). The sum of the contributions, plus one
    draw of discrete Gaussian noise of standard deviation zC, is divided by a public constant, qK by
    default (`release`). Beside the rounds, each of ``queries`` is answered once, over all units
    (`answer`). This is the mechanism of PriMORL's Algorithm 2, where a contribution is one unit's
    update of the whole ensemble; any other bounded contribution works the same way
    (docs/privacy-proofs.md).

    Formal guarantee: with ``noise_multiplier`` > 0, C finite and unseeded entropy, the sequence
    of the answers and ``rounds`` releases is (ε, δ)-DP under zero-out adjacency, ε being
    `compute_spent`. Two datasets of the same K, a public constant, are neighbours if one of
    them has a null record in place of one unit: it takes part in the sampling, and its
    contribution to every round and every query is zero.

    | case | what happens |
    |-------------------------|-------------------------------------------------------------------------|
    | empty cohort | pure noise is released; skipping the round would reveal an empty cohort |
    | noise multiplier 0 | the exact sum is released; `is_private` is False, ε is infinite |
    | C infinite | allowed only with noise multiplier 0 (`no_clip`) |
    | fewer rounds are run | ε stays that of ``rounds``: a stop may depend on what was seen |
    | a query is not answered | ε stays that of all of them |
    | seeded entropy | for tests only; `void` says so |

    Attributes:
        units: K, the number of private units; public.
        unit: of privacy, such as ``trajectory`` or ``person``.
        sampling_probability: q, with which a unit joins a round.
        clip: bounds the contribution of one unit to a round, and states the sensitivity of the sum.
        noise_multiplier: z. The standard deviation of a round's noise is at least z times the
            clip's sensitivity.
        rounds: T, the most rounds that are run. All of them are paid for.
        delta: δ, at which ε is stated.
        queries: answered beside the rounds, each once.
        denominator: of the sum of a round, a public constant; None: qK.
        entropy: source of the coins and the noise.
    """

    units: int
    unit: str
    sampling_probability: float
    clip: Clip
    noise_multiplier: float
    rounds: int
    delta: float
    queries: tuple[GaussianQuery, ...] = ()
    denominator: float | None = None
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"a mechanism needs at least one private unit, found {self.units}")
        if self.units > MOST_UNITS:
            raise ValueError(
                f"units: found {self.units}, allowed are up to {MOST_UNITS}, whose sum is exact"
            )
        if not 0 <= self.noise_multiplier <= _MOST_NOISE:
            raise ValueError(
                f"noise multiplier: found {self.noise_multiplier}, allowed are 0 to {_MOST_NOISE:g}"
            )
        if self.noise_multiplier > 0 and not math.isfinite(self.clipping_norm):
            raise ValueError("noise covers only clipped contributions: give a finite clipping norm")
        if self.is_private and any(query.noise_multiplier == 0 for query in self.queries):
            raise ValueError(
                "the noise of the rounds covers no query: give each a noise multiplier above 0"
            )
        if len({query.what for query in self.queries}) < len(self.queries):
            raise ValueError("two queries have the same name: each query is answered once")
        if self.denominator is not None and not 0 < self.denominator < math.inf:
            raise ValueError(
                f"the denominator must be positive and finite, found {self.denominator}"
            )

    @property
    def is_private(self) -> bool:
        """Whether the mechanism gives any guarantee."""
        return self.noise_multiplier > 0

    @property
    def clipping_norm(self) -> float:
        """C, the clip's."""
        return self.clip.clipping_norm

    @property
    def grid(self) -> float:
        """Grid of contributions: a power of two, at most 2⁻²⁶ C. 0 where C is infinite.

        A number of one contribution is at most 2²⁷ of these, so the sum of up to `MOST_UNITS` is
        exact in float64, in whatever order. Cut towards zero, no contribution's norm grows.
        """
        if not math.isfinite(self.clipping_norm):
            return 0.0
        return math.ldexp(1.0, math.frexp(self.clipping_norm)[1] - 27)

    @property
    def expected_cohort(self) -> float:
        """qK, the expected number of units in a round. It is public; the realised number is not."""
        return self.sampling_probability * self.units

    @property
    def divisor(self) -> float:
        """Divisor of the sum of a round."""
        return self.expected_cohort if self.denominator is None else self.denominator

    @property
    def event(self) -> DpEvent:
        """The event that the accountant composes."""
        if not self.is_private:
            return dp.NonPrivateDpEvent()
        return self._training.event

    def cohort(self) -> Tensor:
        """Draw this round's cohort: indices of units, ``[U]``.

        Sensitive: discard right after use.
        """
        return poisson_sample(self.entropy, self.units, self.sampling_probability)

    def release(self, total: Tensor) -> Tensor:
        """Compute (sum of clipped contributions + discrete N(0, (zC)² I)) / (qK), float32: the only
        release of a round.

        ``total`` is the float64 sum of the cohort's clipped contributions; sensitive, discard right
        after use. It is rounded to whole multiples of `grid`, on which the contributions of
        training lie already; noise is a whole multiple too (`discrete_gaussian`). Rounding two sums
        of n numbers moves their difference by at most √n multiples, for which there is noise as
        well.
        """
        if self.is_private:
            sensitivity = self.clip.sensitivity / self.grid + math.sqrt(total.numel())
            scale = self.noise_multiplier * sensitivity
            noise = discrete_gaussian(self.entropy, total.numel(), scale).to(total.device)
            total = ((total / self.grid).round() + noise.view_as(total)) * self.grid
        return (total / self.divisor).float()

    def answer(self, query: GaussianQuery, total: Tensor) -> Tensor:
        """Compute (sum of the units' contributions + noise) / K, float64: the only release of a
        query.

        ``total`` is as `GaussianQuery.release` takes it; sensitive, discard right after use. Each
        of ``queries`` may be answered once.
        """
        return query.release(total, self.entropy) / self.units

    def compute_spent(self) -> accounting.Spent | None:
        """Compute ε of the queries and all rounds, whether they are run or not; None without
        noise.
        """
        return self._training.compute_spent(self.delta) if self.is_private else None

    @property
    def _training(self) -> accounting.Training:
        queries = tuple(query.noise_multiplier for query in self.queries)
        return accounting.Training(
            self.sampling_probability, self.noise_multiplier, self.rounds, queries
        )

    def void(self) -> list[str]:
        """List reasons not to rely on the statement of a run of this mechanism."""
        reasons = {
            "noise is seeded": self.entropy.seeded,
            f"delta is not below one over the number of units, {self.units}": self.is_private
            and self.delta >= 1 / self.units,
            "no noise is added": not self.is_private,
            "updates are not clipped": math.isinf(self.clipping_norm),
        }
        return [reason for reason, holds in reasons.items() if holds]

    def statement(
        self,
        *,
        dataset_fingerprint: str,
        public_assumptions: Sequence[str],
        termination: str | None = None,
    ) -> Statement:
        """Make the statement for ``privacy.json``; the ledger's part is added when it is paid for.

        ``termination`` says how a dynamics model ends episodes; None for other mechanisms.
        """
        return Statement(
            private=self.is_private,
            **state_figures(self.event, self.compute_spent()),
            delta=self.delta,
            unit=self.unit,
            neighboring_relation=RELATION_NAME,
            accountant=our_accountant(),
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            **self.clip.describe(),
            rounds=self.rounds,
            queries=tuple(query.statement(self.delta) for query in self.queries),
            units=self.units,
            public_assumptions=tuple(public_assumptions),
            dataset_fingerprint=dataset_fingerprint,
            void=tuple(self.void()),
            termination=termination,
        )


@dataclass(frozen=True)
class GaussianQuery:
    """One Gaussian release of a sum over all units (q = 1), of the name ``what`` in
    ``privacy.json``.

    Formal guarantee: where zeroing out one unit moves the sum by at most ``sensitivity`` in L2,
    `release` is a Gaussian mechanism of noise multiplier z: `event`. With z = 0 the exact sum is
    released, without any guarantee.
    """

    what: str
    sensitivity: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not 0 <= self.standard_deviation <= _MOST_QUERY_NOISE:
            raise ValueError(
                f"query {self.what}: noise {self.standard_deviation}, allowed: 0 to "
                f"{_MOST_QUERY_NOISE:g}"
            )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on every number of the sum, in units of 1."""
        return self.noise_multiplier * self.sensitivity

    @property
    def event(self) -> DpEvent:
        """The event that the accountant composes."""
        if self.noise_multiplier == 0:
            return dp.NonPrivateDpEvent()
        return dp.GaussianDpEvent(self.noise_multiplier)

    def release(self, total: Tensor, entropy: Entropy) -> Tensor:
        """Compute the sum + discrete N(0, (z · sensitivity)² I), float64 in units of 1: the only
        released value.

        ``total`` is the sum of the units' contributions, int64 (in multiples of 1 / ONE), of any
        shape; sensitive, discard right after use.
        """
        if self.noise_multiplier == 0:
            return total.double() / ONE
        noise = discrete_gaussian(entropy, total.numel(), self.standard_deviation * ONE).long()
        return (total + noise.view(total.shape).to(total.device)).double() / ONE

    def statement(self, delta: float) -> QueryStatement:
        """Make the entry in ``privacy.json``; its ε is that of this query alone."""
        alone = accounting.compute_spent(self.event, delta) if self.noise_multiplier else None
        return QueryStatement(
            what=self.what,
            noise_multiplier=self.noise_multiplier,
            sensitivity=self.sensitivity,
            epsilon=alone.epsilon_pld if alone else None,
        )


@dataclass(frozen=True)
class Fractions:
    """A histogram: the fractions of a unit's rows that fall into each of ``bins`` bins.

    Formal guarantee: a unit of n rows, c_b of them in bin b, adds ⌊2²⁰ c_b / n⌋ to that bin. These
    are not negative and add up to at most 2²⁰, so their L2 norm, at most their sum, is at most one,
    which is reached with all rows in one bin. The bins are public. Replacing a unit exchanges two
    such vectors; their difference has norm at most √2.

    | a unit's row            | what happens                          |
    |-------------------------|---------------------------------------|
    | bin outside 0 … bins-1  | not counted                           |
    | padding                 | not counted                           |
    | no rows at all          | the unit adds nothing                 |
    """

    bins: int
    sensitivity: ClassVar[float] = 1.0

    def total(self, bins: Tensor, own: Tensor) -> Tensor:
        """Sum of the contributions of some units: int64 ``[bins]``; sensitive.

        ``bins`` is that of every row, int64 ``[U, M]``; ``own`` says which rows are the unit's own,
        bool ``[U, M]``.
        """
        import torch

        counted = own & (bins >= 0) & (bins < self.bins)
        first = torch.arange(len(bins), device=bins.device).unsqueeze(1) * self.bins
        counts = torch.bincount((first + bins)[counted], minlength=len(bins) * self.bins)
        rows = own.sum(1, keepdim=True).clamp(min=1)
        return (counts.view(len(bins), self.bins) * ONE // rows).sum(0)


@dataclass(frozen=True)
class BoundedSum:
    """One vector for each unit, clipped to L2 norm ``norm``; divided by K, the answer is a mean.

    Formal guarantee: a unit adds its vector, scaled to L2 norm at most ``norm`` and truncated to
    multiples of 2⁻²⁰ towards zero, so the norm of its contribution is at most ``norm``. Replacing a
    unit moves the sum by at most twice that.

    | vector           | what happens                       |
    |------------------|------------------------------------|
    | longer than norm | scaled to ``norm``                 |
    | NaN or infinite  | the unit adds nothing              |

    Attributes:
        size: numbers in the vector.
        norm: the bound, a public constant.
    """

    size: int
    norm: float

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the sum when one unit is zeroed out, in units of 1."""
        return self.norm

    def total(self, vectors: Tensor) -> Tensor:
        """Sum of the ``[U, size]`` contributions of some units: int64 ``[size]``; sensitive.

        Raises:
            ValueError: if ``vectors`` has another shape, or the sum could overflow.
        """
        import torch

        if vectors.dim() != 2 or vectors.shape[1] != self.size:
            raise ValueError(
                f"vectors: found shape {tuple(vectors.shape)}, allowed is [U, {self.size}]"
            )
        if not 0 < self.norm * max(len(vectors), 1) * ONE < 2.0**62:
            raise ValueError(
                f"norm: found {self.norm} for {len(vectors)} units, which whole numbers cannot sum"
            )
        exact = vectors.to(torch.float64)
        exact = torch.where(exact.isfinite().all(1, keepdim=True), exact, 0.0)
        # Divided by the largest entry first, so that no square overflows; aimed a hair below the
        # bound for rounding.
        largest = exact.abs().amax(1, keepdim=True)
        largest = torch.where(largest > 0, largest, 1.0)
        norms = torch.linalg.vector_norm(exact / largest, dim=1, keepdim=True)
        factors = (self.norm * (1 - 2.0**-40) / norms / largest).clamp(max=1.0)
        contributions: Tensor = (exact * factors * ONE).trunc().to(torch.int64)
        return contributions.sum(0)
