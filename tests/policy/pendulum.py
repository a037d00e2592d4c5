"""Gymnasium's Pendulum-v1 as a batched model in torch: the policy room's stand-in for a learned
one.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from primorl.model.numerics import SeedGenerators
from primorl.policy.config import SacConfig

CONFIG = SacConfig(
    hidden=(32, 32),
    learning_rate=2e-3,
    discount=0.97,
    target_rate=0.01,
    reward_scale=0.1,
    target_entropy=-3.0,
    discrete_target_entropy=0.3,
    batch_size=128,
    epochs=5,
    updates_per_epoch=400,
    buffer_size=50_000,
    horizon=30,
    rollout_every=100,
    rollout_batch=64,
)
"""Learns the swing-up within 2,000 updates, a few seconds."""


@dataclass(frozen=True)
class PendulumStep:
    next_observation: Tensor
    reward: Tensor
    uncertainty: Tensor
    terminated: Tensor | None = None


@dataclass(frozen=True)
class Pendulum:
    """Satisfies `primorl.policy.model.Model`; the uncertainty is zero, for the dynamics are
    known.
    """

    discrete_actions = False
    action_low: Tensor = field(default_factory=lambda: torch.tensor([-2.0]))
    action_high: Tensor = field(default_factory=lambda: torch.tensor([2.0]))
    observation_mean: Tensor = field(default_factory=lambda: torch.zeros(3))
    observation_scale: Tensor = field(default_factory=lambda: torch.tensor([1.0, 1.0, 4.0]))

    def to(self, device: torch.device) -> "Pendulum":
        return Pendulum(*(tensor.to(device) for tensor in vars(self).values()))

    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> PendulumStep:
        del generators
        cos, sin, speed = observation.unbind(1)
        angle, torque = torch.atan2(sin, cos), action[:, 0]
        reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = (speed + (15 * sin + 3 * torque) * 0.05).clamp(-8, 8)
        angle = angle + speed * 0.05
        return PendulumStep(
            torch.stack((angle.cos(), angle.sin(), speed), dim=1), reward, torch.zeros_like(reward)
        )


def resets(count: int, seed: int) -> Tensor:
    """Start states ``[count, 3]`` with Pendulum-v1's distribution."""
    uniform = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    angle = uniform[:, 0] * math.pi
    return torch.stack((angle.cos(), angle.sin(), uniform[:, 1]), dim=1)
