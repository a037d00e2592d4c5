"""Clips: bounds on the contribution of one unit.

Each clip states the sensitivity of the sum it makes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # slow to import: clipping needs no accountant, and what it costs needs no torch
    from torch import Tensor

# A row of up to so many numbers is summed in float32: in whatever order, its norm is off by 2^-15
# of itself at most.
_LONGEST_ROW = 1024
# Aim a hair below the bound, to allow for that error and for the rounding of float32 products.
_MARGIN = 1 - 2.0**-14

_LEAST_NORM, _LARGEST_NORM = 1e-6, 1e6  # as in params.yaml


@dataclass(frozen=True)
class Clip:
    """A bound on one unit's contribution, and the sensitivity of the sum that follows from it.

    Attributes:
        clipping_norm: C, the largest L2 norm of one unit's contribution. Infinite: contributions
            are not clipped.
    """

    clipping_norm: float

    def __post_init__(self) -> None:
        """Refuse norms (ValueError) at which squares of vectors to be clipped leave float32.

        A square below 2⁻¹²⁶ is rounded to a multiple of 2⁻¹⁴⁹ or to 0, so that the squares of d
        numbers lose at most d·2⁻¹⁵⁰ of their sum. `_MARGIN` leaves for that 2⁻¹⁵ of the squared
        bound of a part, C² / (N·L). So C ≥ 2⁻⁶⁷ √(d N L) is enough: 2e-16 for a million numbers and
        N·L = 1000.
        """
        found = self.clipping_norm
        if not (_LEAST_NORM <= found <= _LARGEST_NORM or found == math.inf):
            raise ValueError(
                f"clipping_norm: found {found}, allowed: {_LEAST_NORM:g} to {_LARGEST_NORM:g}, ∞"
            )

    @property
    def sensitivity(self) -> float:
        """C, which the noise multiplier scales: zeroing out one unit takes its contribution away.
        Replacing one moves the sum by 2C at most, as the two contributions may point in opposite
        directions.
        """
        return self.clipping_norm

    def describe(self) -> dict[str, Any]:
        """Return the keys of the privacy statement that describe the clip: ``clipping_norm`` and
        ``clipping``, the mode: ``flat`` without one.
        """
        norm = self.clipping_norm if math.isfinite(self.clipping_norm) else None
        return {"clipping_norm": norm, "clipping": getattr(self, "mode", "flat")}


@dataclass(frozen=True)
class L2Clip(Clip):
    """Clip one vector per unit to L2 norm at most C.

    Formal guarantee: after `finish`, the vector of one unit has L2 norm ≤ C, for any data. So the
    sum over units moves by at most C between neighbouring datasets, and by 2C where a unit is
    replaced.

    | vector            | after `finish`                                   |
    |-------------------|--------------------------------------------------|
    | zero              | zero                                             |
    | within the bound  | unchanged (but for a factor of 1 - 2⁻¹⁴ at C)    |
    | NaN or infinite   | zero                                             |
    | beyond 1.8e19     | zero in float32, for its square overflows        |
    | C infinite        | unchanged if finite; the sensitivity is infinite |
    """

    def finish(self, vectors: Tensor) -> Tensor:
        """Clip every row of ``vectors`` and set rows that are not finite to zero. In place.

        A row, of float32 or float64 ``[P, n]``, must be all that one unit contributes.

        Raises:
            ValueError: if ``vectors`` has another shape or type.
        """
        import torch

        if vectors.dim() != 2 or vectors.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"vectors: found {vectors.dtype} {tuple(vectors.shape)}; allowed: floats [P, n]"
            )
        squares = _squares(vectors)
        norms = squares.sqrt()
        factors = torch.ones_like(norms)
        if math.isfinite(self.clipping_norm):
            factors = (self.clipping_norm * _MARGIN / norms).clamp(max=1.0)
        factors = torch.where(squares.isfinite(), factors, 0.0).to(vectors.dtype)
        return vectors.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).mul_(factors.unsqueeze(-1))


@dataclass(frozen=True)
class EnsembleClip(Clip):
    """Clip every member's update so that the joint update of the ensemble has norm at most C
    (PriMORL, section 4.1.2).

    ``flat``: member i's whole update is clipped to C/√N. ``per_layer``: layer ℓ of member i is
    clipped to C/√(N·L). Either way the squares over members (and layers) add up to C², so N members
    are one Gaussian mechanism of sensitivity C and are charged once.

    Formal guarantee: after `finish`, the update of one unit has joint L2 norm ≤ C, for any data. So
    the sum over units moves by at most C between neighbouring datasets, and by 2C where a unit is
    replaced.

    | update            | after `finish`                                   |
    |-------------------|--------------------------------------------------|
    | zero              | zero (factor 1)                                  |
    | within the bound  | unchanged                                        |
    | NaN or infinite   | zero, the member's whole update                  |
    | beyond 1.8e19     | zero, for its square overflows float32           |
    | C infinite        | unchanged if finite; sensitivities are infinite  |

    Local training also clips after every step, by `factors` in float32. That shapes the updates;
    the guarantee rests on `finish` alone.

    Attributes:
        clipping_norm: C.
        mode: see above.
        members: N.
        layers: L.
    """

    mode: Literal["flat", "per_layer"]
    members: int
    layers: int

    @property
    def bound(self) -> float:
        """Norm of each clipped part: C/√N or C/√(N·L)."""
        parts = self.members * (self.layers if self.mode == "per_layer" else 1)
        return self.clipping_norm / math.sqrt(parts)

    def factors(self, squares: Tensor) -> Tensor:
        """Compute the scaling factor, at most 1, of every layer of P updates, by their squared
        norms; both ``[P, L]``.

        NaN where the norm is NaN, 0 where it is infinite.
        """
        if math.isinf(self.clipping_norm):
            return squares.new_ones(squares.shape)
        norms = squares.sqrt() if self.mode == "per_layer" else squares.sum(1, keepdim=True).sqrt()
        return (self.bound * _MARGIN / norms).clamp(max=1.0).expand_as(squares)

    def finish(self, updates: list[Tensor]) -> list[Tensor]:
        """Clip every update to the bound and set updates that are not finite to zero, as a whole.

        In place.

        There is one float32 tensor ``[P, .., n]`` for each layer; together they hold P updates.
        Short rows are summed in float32; long rows and the rows' squares in float64, so that many
        small entries are not lost beside a few large ones.
        """
        import torch

        squares = torch.stack([_squares(update) for update in updates], dim=1)
        sound = squares.isfinite().all(dim=1, keepdim=True)
        factors = torch.where(sound, self.factors(squares), 0.0).to(torch.float32)
        for i, update in enumerate(updates):
            # Zero times infinity is NaN.
            update.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).mul_(
                factors[:, i].view(-1, *[1] * (update.dim() - 1))
            )
        return updates


def _squares(update: Tensor) -> Tensor:
    """Compute the squared norms of P updates ``[P, .., n]``, float64 ``[P]``."""
    import torch

    update = update.flatten(1) if update.shape[1:].numel() <= _LONGEST_ROW else update
    dtype = None if update.shape[-1] <= _LONGEST_ROW else torch.float64
    rows: Tensor = torch.linalg.vector_norm(update, dim=-1, dtype=dtype).double().square_()
    if dtype is not None and update.dtype == torch.float32:  # short rows overflow by themselves
        rows = torch.where(rows > torch.finfo(torch.float32).max, math.inf, rows)
    return rows.sum(tuple(range(1, rows.dim()))) if rows.dim() > 1 else rows
