"""The released model and a policy in float64, and functions of rows that do not depend on the batch.

In float32 the rounding of a product depends on the size of the batch, so what one unit contributes would depend on who
shares its batch by more than the margins of the mechanisms cover.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.loaded import SCALES

BLOCK = 1024


def in_blocks(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """``function`` of every row, ``[B, n]`` to ``[B, m]``, asked in blocks of one constant size.

    The rounding of a product depends on its number of rows. Where a decision hangs on it, as that of a discrete action
    does, one unit's rows would decide about another's. The last block is filled up with zeros.
    """
    count = len(rows)
    filled = torch.nn.functional.pad(rows, (0, 0, 0, -count % BLOCK))
    return torch.cat([function(block) for block in torch.split(filled, BLOCK)])[:count]


def ensemble_in_float64(ensemble: GaussianEnsemble, device: torch.device) -> GaussianEnsemble:
    """The same model in float64 on ``device``."""

    def double(part: Tensor) -> Tensor:
        return part.to(device, torch.float64)

    old, bounds = ensemble.normaliser, ensemble.bounds
    return replace(
        ensemble,
        weights=tuple(double(part) for part in ensemble.weights),
        normaliser=Normaliser(
            double(old.input_mean), double(old.input_scale), double(old.target_mean), double(old.target_scale), old.flag
        ),
        bounds=replace(
            bounds,
            observation_low=double(bounds.observation_low),
            observation_high=double(bounds.observation_high),
            action_low=double(bounds.action_low),
            action_high=double(bounds.action_high),
        ),
    )


def policy_in_float64(policy: DeterministicPolicy) -> DeterministicPolicy:
    """The same policy in float64."""
    return replace(
        policy,
        layers=tuple(layer.double() for layer in policy.layers),
        **{name: getattr(policy, name).double() for name in SCALES},
    )
