"""Standardised inputs and targets of the dynamics model, from public data only."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from primorl.dynamics.features import Polynomials

_MOST_QUANTILE_ROWS = 1 << 18  # torch.quantile takes 16 million numbers at most
_STEADY = 0.05  # scale of a change that is always the same, in standard deviations of what changes
_HEAVY = 2.0  # a standard deviation of so many usual spreads is that of rare large values


@dataclass(frozen=True)
class Normaliser:
    """Affine maps to standardised inputs and targets; made from public data only.

    Inputs are centred on their mean and divided by their standard deviation. Targets are centred on their median and
    divided by a robust spread, the 90% quantile of |y - median| over 1.645 (the normal's): a few rare
    jumps may hold most of a target's variance, and scaled by that the usual motion would vanish.

    With ``flag``, targets keep one column behind the standardised ones as it is: whether the episode terminated.
    With ``features``, inputs become these, of columns that are combined by ``basis`` (`Polynomials.basis`).
    """

    input_mean: Tensor
    input_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    flag: bool = False
    features: Polynomials | None = None
    basis: Tensor | None = None

    @classmethod
    def from_public(cls, inputs: Tensor, targets: Tensor, flag: bool = False) -> "Normaliser":
        """Fit to public transitions: inputs ``[R, S + A]``, targets ``[R, S + 1]``, one column more with ``flag``."""
        targets = targets[:, :-1] if flag else targets
        targets = targets[:: -(-len(targets) // _MOST_QUANTILE_ROWS)]
        centre = targets.median(dim=0).values
        spread = (targets - centre).abs().quantile(0.9, dim=0) / 1.645
        # Sparse targets have no such spread; of rewards, rare large ones are what matters, and none may be far outside.
        spread = torch.where(spread > 0, spread, deviation := targets.std(dim=0))
        spread[-1] = deviation[-1] if deviation[-1] > _HEAVY * spread[-1] else spread[-1]
        scale = _positive(inputs.std(0))
        # A counter or a trait of the person moves alike in every step. Its noise must be small beside its own range.
        steady = _STEADY * scale[: len(spread) - 1]
        spread[:-1] = torch.where(spread[:-1] > 1e-6, spread[:-1], steady)
        return cls(inputs.mean(0), scale, centre, _positive(spread), flag)

    def inputs(self, raw: Tensor) -> Tensor:
        """Standardise ``[..., S + A]``, and make features of it where there are any."""
        standardised = (raw - self.input_mean) / self.input_scale
        return standardised if self.features is None or self.basis is None else self.features(standardised, self.basis)

    def with_features(self, features: Polynomials, frequencies: Tensor) -> "Normaliser":
        """Make ``features`` of the inputs, whose categories have these ``frequencies [S + A]``."""
        shares, one_hot = features.centre(frequencies), torch.ones(features.inputs, dtype=torch.bool)
        one_hot[features.continuous] = False
        return replace(
            self,
            input_mean=torch.where(one_hot, shares, self.input_mean),
            input_scale=torch.where(one_hot, torch.ones_like(shares), self.input_scale),
            features=features,
            basis=features.basis(frequencies),
        )

    def targets(self, raw: Tensor) -> Tensor:
        """Standardise the first S + 1 columns of ``[..., >= S + 1]``; gives these, and the flag where it is kept."""
        size = len(self.target_mean)
        standardised = (raw[..., :size] - self.target_mean) / self.target_scale
        return torch.cat((standardised, raw[..., size : size + 1]), dim=-1) if self.flag else standardised

    def to(self, device: torch.device) -> "Normaliser":
        """The same maps on ``device``."""
        moved: dict[str, Any] = {name: v.to(device) for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def _positive(scale: Tensor) -> Tensor:
    return torch.where(scale > 1e-6, scale, torch.ones_like(scale))
