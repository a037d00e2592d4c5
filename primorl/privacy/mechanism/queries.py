"""Queries: noisy sums over all private units, answered beside the rounds.

A query has two parts. A *contribution* class (`Fractions`, `BoundedSum`) defines the contribution
of one unit to the sum, and states its sensitivity. A `GaussianQuery` adds the noise;
``privacy.json`` lists its name. `primorl.engine.queries` computes the sum from the data.

Contributions are whole numbers: multiples of 2⁻²⁰. Sums of integers are exact and the same in every
order, so a sensitivity is exact too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dp_accounting import dp_event

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.mechanism.sampling import Entropy
from primorl.privacy.statement import QueryStatement

if TYPE_CHECKING:  # torch is slow to import, and a query that is only costed sums nothing
    from torch import Tensor

ONE = 1 << 20
"""The integer that represents 1 in a contribution."""

_MOST_NOISE = 1e8  # in units of 1; whole numbers of more noise would not all be exact


class Contribution(Protocol):
    """Contribution of one unit to the sum of a query."""

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the sum when one unit is zeroed out, in units of 1."""


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
        if not 0 <= self.standard_deviation <= _MOST_NOISE:
            raise ValueError(
                f"query {self.what!r}: found noise of {self.standard_deviation}, allowed are 0 to "
                f"{_MOST_NOISE:g}"
            )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on every number of the sum, in units of 1."""
        return self.noise_multiplier * self.sensitivity

    @property
    def event(self) -> dp_event.DpEvent:
        """The event that the accountant composes."""
        if self.noise_multiplier == 0:
            return dp_event.NonPrivateDpEvent()
        return dp_event.GaussianDpEvent(self.noise_multiplier)

    def release(self, total: Tensor, entropy: Entropy) -> Tensor:
        """Compute the sum + discrete N(0, (z · sensitivity)² I), float64 in units of 1: the only
        released value.

        ``total`` is the sum of the units' contributions, int64 (in multiples of 1 / ONE), of any
        shape; sensitive, discard right after use.
        """
        from primorl.privacy.mechanism.noise import discrete_gaussian

        if self.noise_multiplier == 0:
            return total.double() / ONE
        noise = discrete_gaussian(entropy, total.numel(), self.standard_deviation * ONE).long()
        return (total + noise.view(total.shape).to(total.device)).double() / ONE

    def statement(self, delta: float) -> QueryStatement:
        """Make the entry in ``privacy.json``; its ε is that of this query alone."""
        alone = accounting.spent(self.event, delta) if self.noise_multiplier else None
        return QueryStatement(
            what=self.what,
            noise_multiplier=self.noise_multiplier,
            sensitivity=self.sensitivity,
            epsilon=alone.epsilon_pld if alone else None,
        )


@dataclass(frozen=True)
class Fractions:
    """Histograms: for each of ``columns`` columns, the fractions of a unit's rows that fall into
    each of ``bins`` bins.

    Formal guarantee: a unit of n rows, c_b of them in bin b of a column, adds ⌊2²⁰ c_b / n⌋ to that
    bin. These are not negative and add up to at most 2²⁰, so their L2 norm, at most their sum, is
    at most one; over the columns it is at most √columns, which is reached when each column has all
    its rows in one bin. The bins are public. Replacing a unit exchanges two such vectors; their
    difference has norm at most √(2 · columns).

    | a unit's row            | what happens                          |
    |-------------------------|---------------------------------------|
    | bin outside 0 … bins-1  | not counted in that column            |
    | padding                 | not counted                           |
    | no rows at all          | the unit adds nothing                 |
    """

    columns: int
    bins: int

    @property
    def sensitivity(self) -> float:
        """See `Contribution`."""
        return math.sqrt(self.columns)

    def total(self, bins: Tensor, own: Tensor) -> Tensor:
        """Sum of the contributions of some units: int64 ``[columns, bins]``; sensitive.

        ``bins`` is that of every row and column, int64 ``[U, M, columns]``; ``own`` says which rows
        are the unit's own, bool ``[U, M]``.
        """
        import torch

        units = len(bins)
        counted = own.unsqueeze(-1) & (bins >= 0) & (bins < self.bins)
        place = torch.arange(self.columns, device=bins.device) * self.bins
        place = place + torch.arange(units, device=bins.device).view(-1, 1, 1) * (
            self.columns * self.bins
        )
        counts = torch.zeros(
            units * self.columns * self.bins, dtype=torch.int64, device=bins.device
        )
        counts.index_add_(0, (place + bins)[counted], counted[counted].long())
        rows = own.sum(1).clamp(min=1).view(-1, 1, 1)
        return (counts.view(units, self.columns, self.bins) * ONE // rows).sum(0)


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
        """See `Contribution`."""
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
