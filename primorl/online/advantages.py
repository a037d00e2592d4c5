"""Advantages of one user's steps, made of her own data alone."""

import torch
from torch import Tensor

from primorl.online.trajectories import Trajectories

_LEAST_SCALE = 1e-6


def returns_to_go(met: Trajectories, discount: float) -> Tensor:
    """Discounted sum of the rewards from each step to the end of its episode, ``[U, T]``; 0 at padding.

    Where an episode was cut off, rewards go on as they were: the mean reward of the user's own steps for ever, so that
    the last steps before a time limit do not look worse than the first ones.
    """
    counts = met.valid.sum(1, keepdim=True).clamp(min=1)
    beyond = met.rewards.sum(1, keepdim=True) / counts / (1 - discount)
    following = torch.zeros_like(met.rewards[:, 0])
    result = torch.empty_like(met.rewards)
    cut = met.ends & ~met.terminated
    for step in reversed(range(met.steps)):
        after = torch.where(met.ends[:, step], torch.where(cut[:, step], beyond[:, 0], 0.0), following)
        following = met.rewards[:, step] + discount * after
        result[:, step] = following
    return result * met.valid


def normalised(values: Tensor, valid: Tensor) -> Tensor:
    """(value - mean) / standard deviation over each user's own valid steps, ``[U, T]``; 0 at padding.

    A user whose values are all the same gets zeros.
    """
    weights = valid.to(values.dtype)
    counts = weights.sum(1, keepdim=True).clamp(min=1)
    centred = (values - (values * weights).sum(1, keepdim=True) / counts) * weights
    scale = (centred.square().sum(1, keepdim=True) / counts).sqrt()
    return torch.where(scale > _LEAST_SCALE, centred / scale, 0.0)
