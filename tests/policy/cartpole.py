"""Gymnasium's CartPole-v1 as a batched model in torch: discrete actions, and episodes that terminate."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.dynamics.termination import RULES
from tests.policy.pendulum import CONFIG as PENDULUM
from tests.policy.pendulum import PendulumStep

CONFIG = replace(
    PENDULUM, discount=0.98, epochs=3, updates_per_epoch=400, rollout_batch=64, horizon=50, buffer_size=50_000
)


@dataclass(frozen=True)
class CartPole:
    """Satisfies `primorl.policy.model.Model`."""

    discrete_actions = True
    action_low: Tensor = field(default_factory=lambda: torch.zeros(2))
    action_high: Tensor = field(default_factory=lambda: torch.ones(2))
    observation_mean: Tensor = field(default_factory=lambda: torch.zeros(4))
    observation_scale: Tensor = field(default_factory=lambda: torch.tensor([1.0, 0.5, 0.1, 0.5]))

    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> PendulumStep:
        del generators
        assert torch.equal(action.sum(1), torch.ones_like(action[:, 0]))
        x, speed, angle, turning = observation.unbind(1)
        force = 20 * action[:, 1] - 10
        cos, sin = angle.cos(), angle.sin()
        inner = (force + 0.05 * turning**2 * sin) / 1.1
        spin = (9.8 * sin - cos * inner) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        push = inner - 0.05 * spin * cos / 1.1
        following = torch.stack(
            (x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turning, turning + 0.02 * spin), dim=1
        )
        nothing = torch.zeros_like(x)
        return PendulumStep(following, nothing + 1, nothing, RULES["cartpole"](observation, action, following))


def resets(count: int, seed: int) -> Tensor:
    """Start states ``[count, 4]`` with CartPole-v1's distribution."""
    return 0.1 * torch.rand(count, 4, generator=torch.Generator().manual_seed(seed)) - 0.05
