"""The released model and a policy in float64.

In float32 the rounding of a product depends on the size of the batch, so what one unit contributes would depend on who
shares its batch by more than the margins of the mechanisms cover.
"""

from dataclasses import replace

import torch
from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble, Normaliser
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.saved import SCALES


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
