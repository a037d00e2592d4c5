"""The papers' critic, which is carried from user to user without noise. It voids the statement (`CARRIED`)."""

from dataclasses import replace

import torch
from torch import Tensor

from primorl.online.adam import Adam
from primorl.online.learning import Values
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories

_CRITIC, _FIRST, _SECOND, _STEPS = "critic", "critic_first_moment", "critic_second_moment", "critic_steps"


def critic_of(network: PolicyNetwork) -> PolicyNetwork:
    """V's shape: the policy's, with one output."""
    one = network.action_low.new_zeros(1)
    return replace(network, action_low=one, action_high=one + 1, discrete_actions=True)


def begin(network: PolicyNetwork) -> dict[str, Tensor]:
    """V before the first cohort, and its optimiser."""
    parameters = critic_of(network).initial(0)
    zeros = torch.zeros_like(parameters)
    return {_CRITIC: parameters, _FIRST: zeros, _SECOND: zeros, _STEPS: torch.zeros((), dtype=torch.int64)}


def estimates(network: PolicyNetwork, values: Values, observations: Tensor) -> Tensor:
    """V of observations: ``[U, T, S]`` to ``[U, T]``."""
    flat = observations.flatten(0, 1).unsqueeze(0)
    return critic_of(network).outputs(values[_CRITIC].unsqueeze(0), flat).view(observations.shape[:2])


def fitted(
    network: PolicyNetwork,
    values: Values,
    met: Trajectories,
    targets: Tensor,
    minibatches: list[Tensor],
    learning_rate: float,
) -> dict[str, Tensor]:
    """V after steps of Adam on the squared error of all users' steps, without clip and noise.

    Args:
        network: shape of the policy.
        values: with V before.
        met: what users did; sensitive, and so is what is returned.
        targets: of V, ``[U, T]``.
        minibatches: numbers of the steps of each, of every user.
        learning_rate: Adam's.
    """
    shape, parameters = critic_of(network), values[_CRITIC].unsqueeze(0)
    adam = Adam(values[_FIRST].unsqueeze(0), values[_SECOND].unsqueeze(0), int(values[_STEPS]))
    for steps in minibatches:
        leaf = parameters.detach().requires_grad_()
        outputs = shape.outputs(leaf, met.observations[:, steps].flatten(0, 1).unsqueeze(0)).flatten()
        valid = met.valid[:, steps].flatten()
        errors = torch.where(valid, outputs - targets[:, steps].float().flatten(), 0.0)
        (gradient,) = torch.autograd.grad(-errors.square().sum() / valid.sum().clamp(min=1), leaf)
        parameters = parameters + learning_rate * adam.direction(gradient)
    return {
        _CRITIC: parameters.detach()[0],
        _FIRST: adam.first[0],
        _SECOND: adam.second[0],
        _STEPS: torch.tensor(adam.steps),
    }
