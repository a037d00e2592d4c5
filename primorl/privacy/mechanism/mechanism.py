"""The mechanism: sampler, clip, noise and accounted event from one frozen object, so that they
cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dp_accounting import dp_event

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.figures import stated
from primorl.privacy.mechanism.clipping import Clip
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import Entropy, PoissonSampler, SystemEntropy
from primorl.privacy.statement import RELATION_NAME, Statement, our_accountant

if TYPE_CHECKING:  # slow to import, and a mechanism that is only costed releases nothing
    from torch import Tensor

MOST_UNITS = 1 << 26
"""Largest number of units with an exact sum of contributions (`Mechanism.grid`)."""
_MOST_NOISE = 1e5  # beyond, noise on the grid would not be exact


@dataclass(frozen=True)
class Mechanism:
    """A private mechanism: everything that bears on privacy, and nothing else.

    In each round, every one of ``units`` private units joins with probability q (`cohort`) and
    contributes a vector of L2 norm at most C (``clip``). The sum of the contributions, plus one
    draw of discrete Gaussian noise of standard deviation zC, is divided by a public constant, qK by
    default (`release`). Before the rounds, each of ``queries`` is answered once, over all units
    (`answer`). This is the mechanism of PriMORL's Algorithm 2, where a contribution is one unit's
    update of the whole ensemble; any other bounded contribution works the same way
    (docs/privacy-proofs.md).

    Formal guarantee: with ``noise_multiplier`` > 0, C finite and unseeded entropy, the sequence of
    the answers and ``rounds`` releases is (ε, δ)-DP under zero-out adjacency, ε being `spent`. Two
    datasets of the same K, a public constant, are neighbours if one of them has a null record in
    place of one unit: it takes part in the sampling, and its contribution to every round and every
    query is zero.

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
        sampler: which units join a round.
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
    sampler: PoissonSampler
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
                "the noise of the rounds covers no query: give every query a noise multiplier "
                "above 0"
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
    def sampling_probability(self) -> float:
        """q, the probability with which a unit joins a round."""
        return self.sampler.sampling_probability

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
        return (
            math.ldexp(1.0, math.frexp(self.clipping_norm)[1] - 27)
            if math.isfinite(self.clipping_norm)
            else 0.0
        )

    @property
    def expected_cohort(self) -> float:
        """qK, the expected number of units in a round. It is public; the realised number is not."""
        return self.sampling_probability * self.units

    @property
    def divisor(self) -> float:
        """Divisor of the sum of a round."""
        return self.expected_cohort if self.denominator is None else self.denominator

    @property
    def event(self) -> dp_event.DpEvent:
        """The event that the accountant composes."""
        if not self.is_private:
            return dp_event.NonPrivateDpEvent()
        return self._account(self.rounds).event

    def cohort(self) -> Tensor:
        """Draw this round's cohort: indices of units, ``[U]``.

        Sensitive: discard right after use.
        """
        return self.sampler.sample(self.units, self.entropy)

    def release(self, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute (sum of clipped contributions + discrete N(0, (zC)² I)) / (qK), float32: the only
        release of a round.

        ``total`` holds float64 tensors that together are the sum of the cohort's clipped
        contributions; sensitive, discard right after use. It is rounded to whole multiples of
        `grid`, on which the contributions of training lie already; noise is a whole multiple too
        (`discrete_gaussian`). Rounding two sums of n numbers moves their difference by at most √n
        multiples, for which there is noise as well.
        """
        import torch

        from primorl.privacy.mechanism.noise import discrete_gaussian

        sizes = [part.numel() for part in total]
        if self.is_private:
            sensitivity = self.clip.sensitivity / self.grid + math.sqrt(sum(sizes))
            scale = self.noise_multiplier * sensitivity
            drawn = discrete_gaussian(self.entropy, sum(sizes), scale).to(total[0].device)
            noise = torch.split(drawn, sizes)
            whole = [(part / self.grid).round() for part in total]
            total = [
                (part + draw.view_as(part)) * self.grid
                for part, draw in zip(whole, noise, strict=True)
            ]
        return tuple((part / self.divisor).to(torch.float32) for part in total)

    def answer(self, query: GaussianQuery, total: Tensor) -> Tensor:
        """Compute (sum of the units' contributions + noise) / K, float64: the only release of a
        query.

        ``total`` is as `GaussianQuery.release` takes it; sensitive, discard right after use. Each
        of ``queries`` may be answered once.
        """
        return query.release(total, self.entropy) / self.units

    def spent(self, rounds: int | None = None) -> accounting.Spent | None:
        """Compute ε after the queries and ``rounds`` (default: the whole reservation); None without
        noise.
        """
        count = self.rounds if rounds is None else rounds
        return self._account(count).spent(self.delta) if self.is_private else None

    def _account(self, rounds: int) -> accounting.Training:
        queries = tuple(query.noise_multiplier for query in self.queries)
        return accounting.Training(
            self.sampling_probability, self.noise_multiplier, rounds, queries
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
            **stated(self.event, self.spent()),
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
