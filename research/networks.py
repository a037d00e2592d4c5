"""Policies that are learned from nothing: all layers of a network with random weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from primorl.online.network import PolicyNetwork
from primorl.policy.exported import initial_layers


def random_network(
    hidden: Sequence[int],
    observation_mean: Tensor,
    observation_scale: Tensor,
    action_low: Tensor,
    action_high: Tensor,
    discrete_actions: bool,
    *,
    seed: int = 0,
) -> PolicyNetwork:
    """Make a policy whose weights begin as ``torch.nn.Linear``'s do, with a last layer a hundredth
    as large.
    """
    sizes = (len(observation_mean), *hidden, len(action_low))
    *inner, weight, bias = initial_layers(sizes, 1, torch.Generator().manual_seed(seed))
    layers = (*inner, weight * 0.01, bias * 0.01)
    scales = (observation_mean, observation_scale, action_low, action_high)
    return PolicyNetwork(layers, *scales, discrete_actions, learned=len(hidden) + 1)
