"""Logs in memory, the question about them, and chains that pay a constant, whose values are
known.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from primorl.evaluate.private.problem import Episodes, Problem
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.work.jobs import RELEASES, QuestionJob
from tests.model.models import plain_maps
from tests.units import Padded

SURE = -30.0  # logarithm of a variance so small that the model is as good as deterministic


@dataclass(frozen=True)
class Log(Padded):
    """See `primorl.evaluate.private.problem.EpisodeSource`."""

    first: Tensor

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        return self.first[units[:, None], steps]

    def episodes(self, *units: int) -> Episodes:
        """Some units, or all."""
        return Episodes.read(self, torch.tensor(units or range(self.units)))

    def spoilt(self, unit: int, number: float) -> "Log":
        """All numbers of one unit are ``number``."""
        inputs, targets = self.inputs.clone(), self.targets.clone()
        inputs[unit] = targets[unit] = number
        return replace(self, inputs=inputs, targets=targets)


@dataclass(frozen=True)
class Acting:
    """A function of ``[B, S]`` as a single policy; see `primorl.model.pessimism.Policies`."""

    one: Callable[[Tensor], Tensor]
    policies: int = 1

    def act(self, observation: Tensor) -> Tensor:
        return self.one(observation[0])[None]


def question(units: int, states: int, actions: int, **changes: Any) -> Problem:
    """Observations, actions and rewards in [-1, 1], horizon 5, unless ``changes`` say otherwise."""
    ones = torch.ones(states)
    limits: dict[str, Any] = {"observation_low": -ones, "observation_high": ones}
    limits |= {"action_low": -torch.ones(actions), "action_high": torch.ones(actions)}
    limits |= {"reward_low": -1.0, "reward_high": 1.0}
    limits |= {name: changes.pop(name) for name in vars(Bounds(**limits)) if name in changes}
    mean, scale = changes.pop("observation_mean", 0 * ones), changes.pop("observation_scale", ones)
    ensemble = changes.pop("ensemble", None) or model([0.0], [0.0], states, actions)
    inputs = torch.cat((mean, torch.zeros(actions))), torch.cat((scale, torch.ones(actions)))
    maps = replace(ensemble.normaliser, input_mean=inputs[0], input_scale=inputs[1])
    settings: dict[str, Any] = {
        "units": units,
        "horizon": 5,
        "policy": Acting(lambda observation: torch.zeros(len(observation), actions)),
        "ensemble": replace(ensemble, normaliser=maps, bounds=Bounds(**limits)),
        "starts": torch.zeros(4, states),
    }
    made = Problem(**settings | changes)
    return made if "return_low" in changes else made.with_return_bounds(None)


def mechanism_of(units: int, noise_multiplier: float, releases: int = RELEASES) -> Mechanism:
    """That of the question to so many people, with so many releases."""
    rest: Any = {"delta": 1e-5, "discount": 1.0, "return_bounds": "reward", "draw": 0}
    job = QuestionJob(noise_multiplier=noise_multiplier, **rest)
    manifest: Any = SimpleNamespace(private_units=units, info=SimpleNamespace(unit="person"))
    return replace(job.build_mechanism(manifest), rounds=releases)


def model(
    rewards: list[float], moves: list[float], states: int = 1, actions: int = 1
) -> GaussianEnsemble:
    """Member i moves the first state by ``moves[i]`` and pays ``rewards[i]``, whatever is done."""
    shape = Architecture(states, actions, len(rewards), (2,), SURE - 1, SURE)
    weights = [torch.zeros_like(part) for part in shape.initial_weights(0)]
    weights[-1][:, 0, 0], weights[-1][:, 0, states] = torch.tensor(moves), torch.tensor(rewards)
    one = torch.ones(1)
    bounds = Bounds(-one, 10 * one, -one, one, -2.0, 2.0)
    maps = plain_maps(states + actions, states + 1)
    return GaussianEnsemble(shape, tuple(weights), maps, bounds)


MODEL = model([0.5, 0.9], [1.0, 1.0])


def problem(units: int, ensemble: GaussianEnsemble = MODEL, **changes: Any) -> Problem:
    """A state in [-1, 10] that says the time, an action in [-1, 1], rewards in [-2, 2]."""
    settings: dict[str, Any] = {"ensemble": ensemble}
    settings |= {"observation_high": torch.tensor([10.0])}
    settings |= {"observation_mean": torch.tensor([2.0]), "observation_scale": torch.tensor([2.0])}
    settings |= {"reward_low": -2.0, "reward_high": 2.0}
    return question(units, 1, 1, **settings | changes)


def payers(units: int, pay: float, length: int = 5, seed: int = 0, noise: float = 0.3) -> Log:
    """Units of one to three trajectories of a chain 0, 1, 2, … that pays ``pay`` + noise on every
    step.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = 3 * length
    state = torch.arange(rows).remainder(length).double().expand(units, -1)
    action = 2 * torch.rand(units, rows, generator=generator, dtype=torch.float64) - 1
    reward = pay + noise * torch.randn(units, rows, generator=generator, dtype=torch.float64)
    targets = torch.stack((torch.ones_like(state), reward, torch.zeros_like(state)), -1)
    return Log(
        torch.stack((state, action), -1),
        targets,
        (torch.arange(units) % 3 + 1) * length,
        state == 0,
    )
