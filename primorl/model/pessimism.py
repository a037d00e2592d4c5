"""The pessimistic MDP that policies are trained in (PriMORL, section 4.2)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.model.ensemble import GaussianEnsemble
from primorl.model.numerics import SeedGenerators
from primorl.model.termination import RULES

Uncertainty = Callable[[Tensor, Tensor], Tensor]
"""Means and standard deviations of all members, ``[N, B, S + 1]`` each, to an uncertainty
``[B]``.
"""


def max_aleatoric(mean: Tensor, std: Tensor) -> Tensor:
    """Return u_MA(s, a) = max_i ‖Σ_i(s, a)‖_F, Σ_i being member i's diagonal covariance."""
    norms: Tensor = torch.linalg.vector_norm(std.square(), dim=-1)
    return norms.amax(0)


def max_pairwise_difference(mean: Tensor, std: Tensor) -> Tensor:
    """Return u_MPD(s, a) = max_{i,j} ‖μ_i(s, a) - μ_j(s, a)‖₂."""
    first, second = torch.triu_indices(mean.shape[0], mean.shape[0], offset=1, device=mean.device)
    gaps: Tensor = torch.linalg.vector_norm(mean[first] - mean[second], dim=-1)
    return gaps.amax(0)


def standardised_difference(mean: Tensor, std: Tensor) -> Tensor:
    """Return u_SD(s, a) = max_i ‖(μ_i(s, a) - μ̄(s, a)) / σ‖₂, without a unit; ``mean`` is already
    divided by the scale σ.
    """
    gaps: Tensor = torch.linalg.vector_norm(mean - mean.mean(0), dim=-1)
    return gaps.amax(0)


_WITHOUT_UNIT = "standardised_difference"
UNCERTAINTIES: dict[str, Uncertainty] = {
    "max_aleatoric": max_aleatoric,
    "max_pairwise_difference": max_pairwise_difference,
    _WITHOUT_UNIT: standardised_difference,
}


@dataclass(frozen=True)
class Step:
    """One step of B rollouts.

    ``next_observation [B, S]``, penalised ``reward [B]``, ``uncertainty [B]``, and bool
    ``terminated [B]``: None where episodes never end by termination. ``known``, bool ``[B]``, tells
    whether all that the drawn member predicts and the uncertainty are finite numbers.
    """

    next_observation: Tensor
    reward: Tensor
    uncertainty: Tensor
    terminated: Tensor | None
    known: Tensor


class PessimisticModel:
    """r̃(s, a) = r̂(s, a) - λ·u(s, a) on the dynamics of a member drawn anew at every step.

    A post-processing of the released ensemble: no data enters. States and rewards are held within
    the ensemble's declared or public bounds (before the penalty), so that a rollout cannot run
    away. The next state is drawn; r̂ is the drawn member's mean, since a draw that is held within
    bounds has another mean than the member's. u is measured in the data's units, over
    (next_observation - observation, reward), as in the paper; only ``standardised_difference`` has
    no unit, and λ is then in units of the rewards' public scale.

    Where the drawn member predicts what is not a finite number, the rollout stays put. It gets the
    lowest reward there, and where another member does so and no doubt is known: a broken model must
    not look good.

    A learned termination is drawn from the probability of the member that gives the state and the
    reward. A declared rule sees the predicted state before it is held within the bounds, which may
    be narrower than the task's range.
    """

    def __init__(self, ensemble: GaussianEnsemble, *, uncertainty: str, penalty: float) -> None:
        self._ensemble = ensemble
        self.uncertainty, self.penalty = uncertainty, penalty
        self._uncertainty = UNCERTAINTIES[uncertainty]
        self._scale = ensemble.normaliser.target_scale if uncertainty == _WITHOUT_UNIT else None
        self._penalty = penalty if self._scale is None else penalty * float(self._scale[-1])
        self._rule = RULES.get(ensemble.termination)
        self.observation_size = size = ensemble.architecture.observation_size
        bounds = ensemble.bounds
        self.observation_low, self.observation_high = (
            bounds.observation_low,
            bounds.observation_high,
        )
        self.action_low, self.action_high = bounds.action_low, bounds.action_high
        self.discrete_actions = bounds.discrete_actions
        self.observation_mean = ensemble.normaliser.input_mean[:size]
        self.observation_scale = ensemble.normaliser.input_scale[:size]

    @torch.no_grad()
    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> Step:
        """Advance B rollouts, ``[B, S]`` and ``[B, A]``, an equal share for each seed of
        ``generators``.
        """
        mean, std, ends = self._ensemble.predict(observation, action)
        members, rollouts, targets = mean.shape
        member = generators.randint(members, rollouts)
        row = torch.arange(rollouts, device=observation.device)
        drawn = mean[member, row] + std[member, row] * generators.randn(rollouts, targets)
        known = drawn.isfinite().all(1)
        if ends is not None:
            known &= ends[member, row].isfinite()
        bounds = self._ensemble.bounds
        predicted = observation + torch.where(known.unsqueeze(1), drawn[:, :-1], 0.0)
        following = bounds.hold(predicted, observation)
        reward = torch.where(known, mean[member, row, -1], bounds.reward_low)
        reward = reward.clamp(bounds.reward_low, bounds.reward_high)
        doubt = self._uncertainty(
            *((mean, std) if self._scale is None else (mean / self._scale, std / self._scale))
        )
        terminated = None
        if ends is not None:
            terminated = generators.rand(rollouts) < ends[member, row]
        elif self._rule is not None:
            terminated = self._rule(observation, action, predicted)
        known &= doubt.isfinite()  # a member that is not drawn may be broken too
        lowest = torch.full_like(reward, bounds.reward_low)
        reward = torch.where(known, reward - self._penalty * doubt, lowest)
        return Step(following, reward, doubt, terminated, known)
