"""Advantages of a user's steps: of her own data alone, unless a function says otherwise."""

from typing import Literal

import torch
from torch import Tensor

from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories

Guarantee = Literal["strict", "paper"]
"""``strict``: what a user contributes depends on her data alone. ``paper``: as the papers do it, which voids ε."""

COUPLED = "advantages are normalised over all users of a cohort, so that each depends on the data of the others"
CARRIED = "a critic is carried from user to user outside the noised vector"

_LEAST_SCALE = 1e-6
_RIDGE = 1e-3


def returns_to_go(met: Trajectories, discount: float) -> Tensor:
    """Discounted sum of the rewards from each step to the end of its episode, ``[U, T]``; 0 at padding.

    Where an episode was cut off, rewards go on as they were: the mean reward of the user's own steps for ever, so that
    the last steps before a time limit do not look worse than the first ones. In float64, so that equal returns are
    equal: `normalised` would make advantages of rounding errors.
    """
    rewards = met.rewards.double()
    counts = met.valid.sum(1, keepdim=True).clamp(min=1)
    beyond = rewards.sum(1, keepdim=True) / counts / (1 - discount)
    following = torch.zeros_like(rewards[:, 0])
    result = torch.empty_like(rewards)
    cut = met.ends & ~met.terminated
    for step in reversed(range(met.steps)):
        after = torch.where(met.ends[:, step], torch.where(cut[:, step], beyond[:, 0], 0.0), following)
        following = rewards[:, step] + discount * after
        result[:, step] = following
    return result * met.valid


def normalised(values: Tensor, valid: Tensor) -> Tensor:
    """(value - mean) / standard deviation over each user's own valid steps, float32 ``[U, T]``; 0 at padding.

    A user whose values are all the same gets zeros.
    """
    weights = valid.to(values.dtype)
    counts = weights.sum(1, keepdim=True).clamp(min=1)
    centred = (values - (values * weights).sum(1, keepdim=True) / counts) * weights
    scale = (centred.square().sum(1, keepdim=True) / counts).sqrt()
    return torch.where(scale > _LEAST_SCALE, centred / scale, 0.0).float()


def normalised_over_cohort(values: Tensor, valid: Tensor) -> Tensor:
    """The papers' normalisation, over the steps of all users together, ``[U, T]``. It couples users (`COUPLED`)."""
    return normalised(values.view(1, -1), valid.view(1, -1)).view_as(values)


def generalised_advantages(met: Trajectories, before: Tensor, after: Tensor, discount: float, decay: float) -> Tensor:
    """GAE (Schulman et al. 2016, equation 16), ``[U, T]``; 0 at padding.

    Â_t = δ_t + γλ Â_{t+1} inside an episode, δ_t = r_t + γ V(s_{t+1}) - V(s_t). V is 0 after a terminal step; it
    counts after one at which an episode was cut off.

    Args:
        met: what users did.
        before: V of the observations, ``[U, T]``.
        after: V of the next observations, ``[U, T]``.
        discount: γ.
        decay: λ.
    """
    errors = met.rewards.double() + discount * torch.where(met.terminated, 0.0, after) - before
    following = torch.zeros_like(errors[:, 0])
    result = torch.empty_like(errors)
    for step in reversed(range(met.steps)):
        following = errors[:, step] + discount * decay * torch.where(met.ends[:, step], 0.0, following)
        result[:, step] = following
    return torch.where(met.valid, result, 0.0)


def own_baseline(network: PolicyNetwork, met: Trajectories, discount: float) -> tuple[Tensor, Tensor]:
    """V of each user's observations and next ones, float64 ``[U, T]`` each: a ridge regression on her own returns.

    Features are (s, s², t/T, 1), with s standardised as the policy does it. All users' normal equations are solved at
    once, each for herself.
    """
    returns = returns_to_go(met, discount)
    counts = met.valid.sum(1, keepdim=True).clamp(min=1)
    # About her mean, so that a shift of all returns shifts V and no advantage.
    mean = returns.sum(1, keepdim=True) / counts
    targets = torch.where(met.valid, returns - mean, 0.0).unsqueeze(-1)
    time = torch.arange(met.steps + 1, device=returns.device) / met.steps
    here = _features(network, met.observations, time[:-1]) * met.valid.unsqueeze(-1)
    there = _features(network, met.next_observations, time[1:])
    penalty = _RIDGE * torch.eye(here.shape[-1], dtype=torch.float64, device=here.device)
    # A user's matrix that is not finite spoils her own weights only.
    weights, _ = torch.linalg.solve_ex(
        here.mT @ here / counts.unsqueeze(-1) + penalty, here.mT @ targets / counts.unsqueeze(-1)
    )
    return mean + (here @ weights).squeeze(-1), mean + (there @ weights).squeeze(-1)


def _features(network: PolicyNetwork, observations: Tensor, time: Tensor) -> Tensor:
    """``[U, T, 2 S + 2]``, float64."""
    standardised = ((observations - network.observation_mean) / network.observation_scale).double()
    shape = (*observations.shape[:-1], 1)
    clock = time.double().view(1, -1, 1).expand(shape)
    return torch.cat([standardised, standardised.square(), clock, torch.ones_like(clock)], -1)
