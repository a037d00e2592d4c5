"""Sums asked of all private units before the rounds: what one unit may add to them, exactly, and their noise.

Contributions are whole numbers, multiples of 2⁻²⁰ of what they stand for, and are added up as such. So the sum is the
same in every order, and a sensitivity is exact: no rounding error of a sum depends on who is in it.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from dp_accounting import dp_event
from torch import Tensor

from primorl.privacy.accounting import accountant as accounting
from primorl.privacy.mechanism.entropy import Entropy, normals

if TYPE_CHECKING:
    from primorl.privacy.accounting.accountant import Relation

ONE = 1 << 20
"""What stands for 1 in a contribution."""


@dataclass(frozen=True)
class GaussianQuery:
    """One Gaussian release of a sum over all units, none left out (q = 1).

    Formal guarantee: where the sum moves by at most ``sensitivity``, in L2, as one unit is added or removed, its
    `release` is a Gaussian mechanism of noise multiplier z: `event`. With z = 0 the sum itself is released, and nothing
    is guaranteed.

    Attributes:
        what: names it in ``privacy.json``.
        sensitivity: of the sum, in units of one.
        noise_multiplier: z.
    """

    what: str
    sensitivity: float
    noise_multiplier: float

    @property
    def standard_deviation(self) -> float:
        """Of the noise on every number of the sum, in units of one."""
        return self.noise_multiplier * self.sensitivity

    @property
    def event(self) -> dp_event.DpEvent:
        """What the accountant is told."""
        if self.noise_multiplier == 0:
            return dp_event.NonPrivateDpEvent()
        return dp_event.GaussianDpEvent(self.noise_multiplier)

    def release(self, total: Tensor, entropy: Entropy) -> Tensor:
        """The sum + N(0, (z · sensitivity)² I): all that leaves.

        Args:
            total: sum of the units' contributions, int64 (in multiples of 1 / ONE), of any shape; sensitive, discard
                right after use.
            entropy: where the noise comes from.

        Returns:
            The same shape, float64, in units of one.
        """
        exact = total.to(torch.float64) / ONE
        if self.noise_multiplier == 0:
            return exact
        noise = normals(entropy, exact.numel()).view(exact.shape) * self.standard_deviation
        return exact + noise.to(exact.device)

    def statement(self, delta: float) -> dict[str, Any]:
        """What ``privacy.json`` says of it; ε is that of this query alone."""
        alone = accounting.spent(self.event, delta, rounds=1) if self.noise_multiplier else None
        return {
            "what": self.what,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "epsilon": alone.epsilon_pld if alone else None,
        }


@dataclass(frozen=True)
class Fractions:
    """For each of ``columns`` columns: in which of ``bins`` bins a unit's rows fall, as fractions of its rows.

    Formal guarantee: a unit of n rows, c_b of them in bin b of a column, adds ⌊2²⁰ c_b / n⌋ to that bin. These are not
    negative and add up to at most 2²⁰, so their L2 norm, at most their sum, is at most one; over the columns it is at
    most √columns, which is reached when each column has all its rows in one bin. Nothing else depends on the unit: the
    bins are public. Replacing a unit exchanges two such vectors, whose difference has norm at most √(2 · columns).

    | a unit's row            | what happens                          |
    |-------------------------|---------------------------------------|
    | a bin outside 0 … n - 1 | counts in no bin of that column       |
    | not its own (padding)   | counts nowhere                        |
    | no rows at all          | the unit adds nothing                 |
    """

    columns: int
    bins: int

    @property
    def sensitivity(self) -> float:
        """Most that the sum moves, in L2, as one unit is added or removed."""
        return self.sensitivity_under("add_or_remove_one")

    def sensitivity_under(self, relation: "Relation") -> float:
        """Most that the sum over units moves, in L2, between neighbouring datasets."""
        return math.sqrt(self.columns if relation == "add_or_remove_one" else 2 * self.columns)

    def total(self, bins: Tensor, own: Tensor) -> Tensor:
        """Sum of the contributions of some units.

        Args:
            bins: of every row and column, int64 ``[U, M, columns]``.
            own: which rows are the unit's own, bool ``[U, M]``.

        Returns:
            int64 ``[columns, bins]``; sensitive.
        """
        units = len(bins)
        counted = own.unsqueeze(-1) & (bins >= 0) & (bins < self.bins)
        place = torch.arange(self.columns, device=bins.device) * self.bins
        place = place + torch.arange(units, device=bins.device).view(-1, 1, 1) * (self.columns * self.bins)
        counts = torch.zeros(units * self.columns * self.bins, dtype=torch.int64, device=bins.device)
        counts.index_add_(0, (place + bins)[counted], counted[counted].long())
        rows = own.sum(1).clamp(min=1).view(-1, 1, 1)
        return (counts.view(units, self.columns, self.bins) * ONE // rows).sum(0)


@dataclass(frozen=True)
class Moments:
    """First and second moments of one vector a unit, and the categories of its one-hot parts.

    Formal guarantee: a unit adds x and the x_i x_j with i ≤ j, every number held to [-1, 1] and cut to a multiple of
    2⁻²⁰ towards zero, and for each of ``blocks`` one-hot parts a one at its category. That is at most
    S + S (S + 1) / 2 numbers of size at most one, and ``blocks`` ones: the joint norm is at most
    √(S (S + 3) / 2 + blocks), which is reached in a corner of the box. Where a unit is replaced, the numbers may change
    sign, but for the S squares, and the ones move: √(4 S (S + 1) / 2 + S + 2 blocks).

    | x               | what happens                  |
    |-----------------|-------------------------------|
    | beyond ±1       | held to ±1                    |
    | NaN             | 0                             |
    | no such category| nothing is added in its block |

    Attributes:
        size: S.
        categories: sizes of the one-hot parts.
    """

    size: int
    categories: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """Length of the sum: S, S (S + 1) / 2, then the categories."""
        return self.size + self.size * (self.size + 1) // 2 + sum(self.categories)

    @property
    def sensitivity(self) -> float:
        """Most that the sum moves, in L2, as one unit is added or removed."""
        return self.sensitivity_under("add_or_remove_one")

    def sensitivity_under(self, relation: "Relation") -> float:
        """Most that the sum over units moves, in L2, between neighbouring datasets."""
        size, blocks = self.size, len(self.categories)
        if relation == "add_or_remove_one":
            return math.sqrt(size * (size + 3) // 2 + blocks)
        return math.sqrt(2 * size * (size + 1) + size + 2 * blocks)

    def total(self, vectors: Tensor, chosen: Tensor) -> Tensor:
        """Sum of the contributions of some units.

        Args:
            vectors: x, ``[U, S]``.
            chosen: the category of each one-hot part, int64 ``[U, blocks]``, from 0.

        Returns:
            int64 ``[numbers]``; sensitive.
        """
        held = vectors.to(torch.float64).nan_to_num(nan=0.0).clamp(-1, 1)
        first, second = torch.triu_indices(self.size, self.size, device=held.device)
        moments = torch.cat((held, held[:, first] * held[:, second]), dim=1)
        parts = [(moments * ONE).trunc().to(torch.int64).sum(0)]
        for block, size in enumerate(self.categories):
            category = chosen[:, block]
            inside = category[(category >= 0) & (category < size)]
            parts.append(torch.bincount(inside, minlength=size) * ONE)
        return torch.cat(parts)
