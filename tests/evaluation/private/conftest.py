"""Small problems whose answers are known, and chains that pay a constant."""

from typing import Any

import torch

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.evaluation.private.problem import Problem
from tests.evaluation.private.logs import Log, question

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
    settings: dict[str, Any] = {
        "unit": "trajectory",
        "horizon": horizon,
        "discount": discount,
        "observation_high": torch.tensor([10.0]),
        "observation_mean": torch.tensor([2.0]),
        "observation_scale": torch.tensor([2.0]),
        "reward_low": -2.0,
        "reward_high": 2.0,
        "ensemble": ensemble,
    }
    return question(units, 1, 1, **settings)


def payers(units: int, pay: float, length: int = 5, seed: int = 0, noise: float = 0.3) -> Log:
    """Units of one to three trajectories of a chain 0, 1, 2, … that pays ``pay`` + noise on every step."""
    generator = torch.Generator().manual_seed(seed)
    rows = 3 * length
    state = torch.arange(rows).remainder(length).double().expand(units, -1)
    action = 2 * torch.rand(units, rows, generator=generator, dtype=torch.float64) - 1
    reward = pay + noise * torch.randn(units, rows, generator=generator, dtype=torch.float64)
    targets = torch.stack((torch.ones_like(state), reward, torch.zeros_like(state)), -1)
    return Log(torch.stack((state, action), -1), targets, state == 0, (torch.arange(units) % 3 + 1) * length)
