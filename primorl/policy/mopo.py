"""The MOPO baseline's batches, in which real transitions are mixed with the model's. NOT PRIVATE."""

from collections.abc import Iterator

import torch
from torch import Tensor

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.replay import ReplayBuffer, Scaling
from primorl.policy.sac import Sampler


def real_transitions(inputs: Tensor, targets: Tensor, terminated: Tensor, scaling: Scaling) -> ReplayBuffer:
    """A buffer of real transitions with their own rewards and terminations, on SAC's scales.

    Args:
        inputs: observations and actions, ``[n, S + A]``.
        targets: changes of the observation, then rewards, ``[n, S + 1]`` or wider.
        terminated: whether the episode ended there, ``[n]``.
        scaling: SAC's.
    """
    S = scaling.columns.observation_size
    observation, action, change, reward = inputs[:, :S], inputs[:, S:], targets[:, :S], targets[:, S]
    rows = scaling.rows(observation, action, reward, observation + change, terminated)
    buffer = ReplayBuffer(len(rows), scaling.columns.width, inputs.device)
    buffer.extend(rows.unsqueeze(0))
    return buffer


def with_real(real: ReplayBuffer, fraction: float) -> Sampler:
    """A sampler of batches with ``fraction`` of their rows (rounded, at least one) from ``real``."""

    def batches(generated: ReplayBuffer, updates: int, batch_size: int, generators: SeedGenerators) -> Iterator[Tensor]:
        from_real = max(1, round(fraction * batch_size))
        of_model = generated.batches(updates, batch_size - from_real, generators)
        of_data = real.batches(updates, from_real, generators)
        return (torch.cat(parts, dim=1) for parts in zip(of_model, of_data, strict=True))

    return batches
