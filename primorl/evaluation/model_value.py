"""What a policy is worth in the released model, where no environment can measure it. Model-based, not a measurement."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

import torch
from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.policy import member_values
from primorl.policy.member_values import Policies

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
    survival: Tensor | None = None,
) -> Tensor:
    """The mean of `returns_by_member` over the rollouts, ``[P, N]``."""
    return returns_by_member(
        ensemble,
        policy,
        starts,
        rollouts=rollouts,
        horizon=horizon,
        seed=seed,
        discount=discount,
        survival=survival,
    ).mean(-1)


@torch.no_grad()
def returns_by_member(
    ensemble: GaussianEnsemble,
    policy: Policies,
    starts: Tensor,
    *,
    rollouts: int,
    horizon: int,
    seed: int,
    discount: float = 1.0,
    survival: Tensor | None = None,
) -> Tensor:
    """Unpenalised return Σ_t S(t) γ^t r_t of whole rollouts, each in one member alone.

    States and rewards are held within the ensemble's bounds, and rollouts end where the model says that the
    episode terminates. Members and policies share their start states, and policies
    the model's draws: what one is worth does not depend on which others are there.

    Args:
        ensemble: the released one, on the CPU.
        policy: P policies.
        starts: first states in the environment's units, ``[n, S]``.
        rollouts: of each policy in each member, from starts drawn with replacement.
        horizon: steps of a rollout that does not terminate.
        seed: of the draws.
        discount: γ; by default the return is undiscounted.
        survival: S(t), ``[horizon]``, see `primorl.evaluation.survival`; None: 1, every rollout has all its steps.

    Returns:
        float64 ``[P, N, rollouts]``.
    """
    weights = torch.ones(horizon, dtype=torch.float64) if survival is None else survival
    weights = weights * discount ** torch.arange(horizon, dtype=torch.float64)
    return member_values.returns_by_member(ensemble, policy, starts, rollouts=rollouts, weights=weights, seed=seed)
