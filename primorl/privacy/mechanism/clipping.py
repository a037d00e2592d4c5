"""Bounds on what one unit may contribute (PriMORL, section 4.1.2: ensemble clipping)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:  # the accountant is slow to import, and clipping needs none of it
    from primorl.privacy.accounting.accountant import Relation

# A row of up to so many numbers is summed in float32: in whatever order, its norm is off by 2^-15 of itself at most.
_LONGEST_ROW = 1024
# Aim a hair below the bound: for that, and for scaling in float32.
_MARGIN = 1 - 2.0**-14


@dataclass(frozen=True)
class EnsembleClip:
    """Clip every member's update so that the joint update of the ensemble has norm at most C.

    ``flat``: member i's whole update is held to C/√N. ``per_layer``: layer ℓ of member i is held to C/√(N·L).
    Either way the squares over members (and layers) add up to C², so N members are one Gaussian
    mechanism of sensitivity C and are charged once.

    Formal guarantee: after `finish`, the update of one unit has joint L2 norm ≤ C, whatever its data. So the sum over
    units moves by at most `sensitivity_under` a relation between neighbouring datasets.

    | update            | after `finish`                                   |
    |-------------------|--------------------------------------------------|
    | zero              | zero (factor 1)                                  |
    | within the bound  | unchanged                                        |
    | NaN or infinite   | zero, the member's whole update                  |
    | beyond 1.8e19     | the same: its square is no float32 number        |
    | C infinite        | unchanged if finite; sensitivities are infinite  |

    Local training clips after every step by `factors` too, in float32: that shapes the updates, and promises nothing.
    """

    clipping_norm: float
    mode: Literal["flat", "per_layer"]
    members: int
    layers: int

    @property
    def sensitivity(self) -> float:
        """Sensitivity when one unit is added or removed: what a noise multiplier multiplies (`accounting.spent`)."""
        return self.sensitivity_under("add_or_remove_one")

    def sensitivity_under(self, relation: "Relation") -> float:
        """Most that the sum over units moves, in L2, between neighbouring datasets.

        C where one unit is added or removed: its update is all that comes or goes. 2C where one is replaced: one update
        goes and another comes, and the two may point in opposite directions.
        """
        return self.clipping_norm if relation == "add_or_remove_one" else 2 * self.clipping_norm

    @property
    def bound(self) -> float:
        """What each clipped piece is held to: C/√N or C/√(N·L)."""
        pieces = self.members * (self.layers if self.mode == "per_layer" else 1)
        return self.clipping_norm / math.sqrt(pieces)

    def factors(self, squares: Tensor) -> Tensor:
        """Scale for every layer of every update.

        Args:
            squares: squared norms of the layers of P updates, ``[P, L]``.

        Returns:
            ``[P, L]``, at most 1. NaN where the norm is NaN, 0 where it is infinite.
        """
        if math.isinf(self.clipping_norm):
            return torch.ones_like(squares)
        norms = squares.sqrt() if self.mode == "per_layer" else squares.sum(1, keepdim=True).sqrt()
        return (self.bound * _MARGIN / norms).clamp(max=1.0).expand_as(squares)

    def finish(self, updates: list[Tensor]) -> list[Tensor]:
        """Hold every update to the bound, and zero, whole, those that are not finite; in place.

        Short rows are summed in float32, long ones and the rows' squares in float64: a few large entries do not swallow
        many small ones.

        Args:
            updates: one float32 tensor ``[P, .., n]`` a layer, which together hold P updates.
        """
        squares = torch.stack([_squares(update) for update in updates], dim=1)
        sound = squares.isfinite().all(dim=1, keepdim=True)
        factors = torch.where(sound, self.factors(squares), 0.0).to(torch.float32)
        for i, update in enumerate(updates):
            # Zero times what is not finite would not be zero.
            update.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).mul_(factors[:, i].view(-1, *[1] * (update.dim() - 1)))
        return updates


def _squares(update: Tensor) -> Tensor:
    """``[P, .., n]`` to the squared norms of the P updates, float64."""
    dtype = None if update.shape[-1] <= _LONGEST_ROW else torch.float64
    rows: Tensor = torch.linalg.vector_norm(update, dim=-1, dtype=dtype).double().square_()
    return rows.sum(tuple(range(1, rows.dim()))) if rows.dim() > 1 else rows
