"""Small problems whose answers are known, and episodes with every oddity."""

from dataclasses import replace

import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.problem import Problem

SURE = -30.0  # logarithm of a variance so small that the model is as good as deterministic


def model(rewards: list[float], moves: list[float]) -> GaussianEnsemble:
    """Member i moves the only state by ``moves[i]`` and pays ``rewards[i]``, whatever is done."""
    shape = Architecture(1, 1, len(rewards), (2,), SURE - 1, SURE)
    weights = [torch.zeros_like(part) for part in shape.initial_weights(0)]
    weights[-1][:, 0, 0], weights[-1][:, 0, 1] = torch.tensor(moves), torch.tensor(rewards)
    bounds = Bounds(torch.tensor([-1.0]), torch.tensor([10.0]), torch.tensor([-1.0]), torch.tensor([1.0]), -2.0, 2.0)
    normaliser = Normaliser(torch.zeros(2), torch.ones(2), torch.zeros(2), torch.ones(2))
    return GaussianEnsemble(shape, tuple(weights), normaliser, bounds)


def problem(ensemble: GaussianEnsemble, units: int, horizon: int = 5, discount: float = 0.9) -> Problem:
    """A state in [-1, 10] that says the time, an action in [-1, 1], rewards in [-2, 2]."""
    made = Problem(
        units=units,
        unit="trajectory",
        delta=1e-5,
        horizon=horizon,
        discount=discount,
        observation_low=torch.tensor([-1.0]),
        observation_high=torch.tensor([10.0]),
        observation_mean=torch.tensor([2.0]),
        observation_scale=torch.tensor([2.0]),
        action_low=torch.tensor([-1.0]),
        action_high=torch.tensor([1.0]),
        discrete_actions=False,
        reward_low=-2.0,
        reward_high=2.0,
        return_low=0.0,
        return_high=0.0,
        policy=lambda observation: torch.zeros(len(observation), 1),
        ensemble=ensemble,
        starts=torch.zeros(4, 1),
    )
    return made.with_return_bounds(None)


class Chain:
    """Units of one to three trajectories of a chain 0, 1, 2, … that pays ``pay`` + noise on every step, as a source."""

    def __init__(self, units: int, pay: float, length: int = 5, seed: int = 0, noise: float = 0.3) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.trajectories = torch.arange(units) % 3 + 1
        rows = 3 * length
        self.length = length
        state = torch.arange(rows).remainder(length).double().expand(units, -1)
        action = 2 * torch.rand(units, rows, generator=generator, dtype=torch.float64) - 1
        reward = pay + noise * torch.randn(units, rows, generator=generator, dtype=torch.float64)
        self.inputs = torch.stack((state, action), -1)
        self.targets = torch.stack((torch.ones_like(state), reward, torch.zeros_like(state)), -1)

    @property
    def units(self) -> int:
        return len(self.trajectories)

    def lengths(self, units: Tensor) -> Tensor:
        return self.trajectories[units] * self.length

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[units[:, None], steps], self.targets[units[:, None], steps]

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        return steps.remainder(self.length) == 0

    def behaviour_probabilities(self, units: Tensor, steps: Tensor) -> None:
        return None


def episodes(units: int = 4) -> Episodes:
    return Episodes.read(Chain(units, 1.0), torch.arange(units))


def spoilt(whole: Episodes, unit: int, number: float) -> Episodes:
    """The same episodes, all numbers of one unit being ``number``."""
    parts = {name: getattr(whole, name).clone() for name in ("observation", "action", "reward", "following")}
    for part in parts.values():
        part[unit] = number
    return replace(whole, **parts)
