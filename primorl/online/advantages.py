"""Advantages and policy gradients of a user's steps, each computed from her own data alone."""

import torch
from torch import Tensor

from primorl.online.learning import Trajectories
from primorl.online.network import PolicyNetwork

_LEAST_SCALE = 1e-6
_RIDGE = 1e-3


def returns_to_go(met: Trajectories, discount: float) -> Tensor:
    """Sum the discounted rewards from each step to the end of its episode, ``[U, T]``; 0 at padding.

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
    """Standardise over each user's own valid steps, float32 ``[U, T]``; 0 at padding.

    A user whose values are all equal gets zeros.
    """
    weights = valid.to(values.dtype)
    counts = weights.sum(1, keepdim=True).clamp(min=1)
    centred = (values - (values * weights).sum(1, keepdim=True) / counts) * weights
    scale = (centred.square().sum(1, keepdim=True) / counts).sqrt()
    return torch.where(scale > _LEAST_SCALE, centred / scale, 0.0).float()


def generalised_advantages(met: Trajectories, before: Tensor, after: Tensor, discount: float, decay: float) -> Tensor:
    """Compute GAE (Schulman et al. 2016, equation 16), ``[U, T]``; 0 at padding.

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
    """Estimate V of observations and next ones, float64 ``[U, T]`` each, by ridge regression on a user's own returns.

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


def own_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Average over each user's own valid steps: ``[U, T]`` to ``[U, 1]``; 0 for a user without steps."""
    return torch.where(valid, values, 0.0).sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)


def own_weights(valid: Tensor) -> Tensor:
    """Weigh each step by one over the number of its user's steps, ``[U, T]``."""
    return valid / valid.sum(1, keepdim=True).clamp(min=1)


def policy_gradients(network: PolicyNetwork, parameters: Tensor, met: Trajectories, weights: Tensor) -> Tensor:
    """Compute Σ_t w_t ∇ log π(a_t | s_t) of every user, ``[U, d]``. Sensitive."""
    own = parameters.expand(met.users, -1).contiguous().requires_grad_()
    logs = network.log_probabilities(own, met.observations, met.actions)
    (gradients,) = torch.autograd.grad((logs * weights).sum(), own)
    return gradients


def within(vectors: Tensor, bound: float) -> Tensor:
    """Scale vectors ``[.., n]`` to norm at most ``bound``."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    scaled: Tensor = vectors * (bound / norms).clamp(max=1.0)
    return scaled
