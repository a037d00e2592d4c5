"""The pessimistic MDP that policies are trained in (PriMORL, section 4.2)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pipeline.dynamics.ensemble import GaussianEnsemble

Uncertainty = Callable[[Tensor, Tensor], Tensor]


def max_aleatoric(mean: Tensor, std: Tensor) -> Tensor:
    """u_MA(s, a) = max_i ‖Σ_i(s, a)‖_F, Σ_i being member i's diagonal covariance.

    Args:
        mean: ``[N, B, S + 1]``, unused: every uncertainty takes the same arguments.
        std: ``[N, B, S + 1]``.

    Returns:
        ``[B]``.
    """
    del mean
    norms: Tensor = torch.linalg.vector_norm(std.square(), dim=-1)
    return norms.amax(0)


def max_pairwise_difference(mean: Tensor, std: Tensor) -> Tensor:
    """u_MPD(s, a) = max_{i,j} ‖μ_i(s, a) - μ_j(s, a)‖₂.

    Args:
        mean: ``[N, B, S + 1]``.
        std: ``[N, B, S + 1]``, unused.

    Returns:
        ``[B]``.
    """
    del std
    first, second = torch.triu_indices(mean.shape[0], mean.shape[0], offset=1, device=mean.device)
    gaps: Tensor = torch.linalg.vector_norm(mean[first] - mean[second], dim=-1)
    return gaps.amax(0)


UNCERTAINTIES: dict[str, Uncertainty] = {
    "max_aleatoric": max_aleatoric,
    "max_pairwise_difference": max_pairwise_difference,
}


@dataclass(frozen=True)
class Step:
    """One step of B rollouts: ``next_observation [B, S]``, penalised ``reward [B]``, ``uncertainty [B]``."""

    next_observation: Tensor
    reward: Tensor
    uncertainty: Tensor


class PessimisticModel:
    """r̃(s, a) = r̂(s, a) - λ·u(s, a) on the dynamics of a member drawn anew at every step.

    A post-processing of the released ensemble: no data enters. States and rewards are held within the
    ensemble's declared or public bounds (before the penalty), so that a rollout cannot run away.
    u is measured in the data's units, over (next_observation - observation, reward), as in the paper.
    """

    def __init__(self, ensemble: GaussianEnsemble, *, uncertainty: str, penalty: float) -> None:
        self._ensemble = ensemble
        self._uncertainty = UNCERTAINTIES[uncertainty]
        self._penalty = penalty
        self.observation_size = ensemble.architecture.observation_size
        self.action_size = ensemble.architecture.action_size
        bounds = ensemble.bounds
        self.observation_low, self.observation_high = bounds.observation_low, bounds.observation_high
        self.action_low, self.action_high = bounds.action_low, bounds.action_high
        self.observation_mean = ensemble.normaliser.input_mean[: self.observation_size]
        self.observation_scale = ensemble.normaliser.input_scale[: self.observation_size]

    @classmethod
    def load(cls, folder: Path, *, uncertainty: str, penalty: float, device: torch.device) -> "PessimisticModel":
        """Read the ensemble that ``train_model`` wrote; raises what `GaussianEnsemble.load` raises."""
        return cls(GaussianEnsemble.load(folder, device), uncertainty=uncertainty, penalty=penalty)

    @torch.no_grad()
    def step(self, observation: Tensor, action: Tensor, generator: torch.Generator) -> Step:
        """Advance B rollouts: ``observation [B, S]``, ``action [B, A]``, both on the model's device."""
        mean, std = self._ensemble.predict(observation, action)
        members, rollouts = mean.shape[:2]
        device = observation.device
        member = torch.randint(members, (rollouts,), generator=generator, device=device)
        row = torch.arange(rollouts, device=device)
        noise = torch.randn(mean.shape[1:], generator=generator, device=device)
        drawn = mean[member, row] + std[member, row] * noise
        # A prediction that is not a number would survive clamp and poison every later step: such a rollout stays put.
        drawn = torch.nan_to_num(drawn, nan=0.0)
        bounds = self._ensemble.bounds
        following = torch.clamp(observation + drawn[:, :-1], bounds.observation_low, bounds.observation_high)
        reward = drawn[:, -1].clamp(bounds.reward_low, bounds.reward_high)
        doubt = self._uncertainty(mean, std)
        return Step(following, reward - self._penalty * doubt, doubt)
