"""What a policy is worth in the released model, where no environment can measure it. Model-based, not a measurement."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

import torch
from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.policy.member_values import Policies, returns_by_member

NOTE = (
    "the policy's mean return in the released model, not measured in the world: wrong wherever the model is, "
    "and likely too high, for the policy was trained in this model"
)


@dataclass(frozen=True)
class ModelValue:
    """Mean over the ensemble's members of what each says, and the least and the most that one of them says."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, by_member: Tensor) -> Self:
        """From the members' values, ``[N]``."""
        return cls(float(by_member.mean()), float(by_member.min()), float(by_member.max()))

    @classmethod
    def over(cls, seeds: Sequence[Self]) -> Self:
        """The mean of several policies' values, and the least and the most that a member says of one of them."""
        return cls(fmean(own.mean for own in seeds), min(own.low for own in seeds), max(own.high for own in seeds))


def values_by_member(
    ensemble: GaussianEnsemble,
    policy: Policies,
    starts: Tensor,
    *,
    rollouts: int,
    horizon: int,
    seed: int,
    discount: float = 1.0,
) -> Tensor:
    """Mean unpenalised return Σ_t γ^t r_t of whole rollouts, each in one member alone; see `returns_by_member`.

    Args:
        ensemble: the released one, on the CPU.
        policy: P policies.
        starts: first states in the environment's units, ``[n, S]``.
        rollouts: of each policy in each member, from starts drawn with replacement.
        horizon: steps of a rollout that does not terminate.
        seed: of the draws.
        discount: γ; by default the return is undiscounted.

    Returns:
        ``[P, N]``.
    """
    weights = torch.tensor([discount**time for time in range(horizon)], dtype=torch.float64)
    return returns_by_member(ensemble, policy, starts, rollouts=rollouts, weights=weights, seed=seed)
