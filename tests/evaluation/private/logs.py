"""Logs in memory, the question about them, and models whose values are known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.problem import Problem


@dataclass(frozen=True)
class Log:
    """Units as padded tensors. See `primorl.evaluation.private.episodes.EpisodeSource`."""

    inputs: Tensor
    targets: Tensor
    first: Tensor
    rows: Tensor
    probability: Tensor | None = None

    @classmethod
    def of(cls, units: Sequence[tuple[Tensor, Tensor, Tensor]]) -> "Log":
        """From inputs, targets and first rows of each unit."""
        parts = [pad_sequence(list(part), batch_first=True) for part in zip(*units, strict=True)]
        return cls(*parts, torch.tensor([len(unit[0]) for unit in units]))

    @property
    def units(self) -> int:
        return len(self.rows)

    def lengths(self, units: Tensor) -> Tensor:
        return self.rows[units]

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[units[:, None], steps], self.targets[units[:, None], steps]

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        return self.first[units[:, None], steps]

    def behaviour_probabilities(self, units: Tensor, steps: Tensor) -> Tensor | None:
        return None if self.probability is None else self.probability[units[:, None], steps]

    def episodes(self) -> Episodes:
        return Episodes.read(self, torch.arange(self.units))

    def without_probabilities(self) -> "Log":
        return replace(self, probability=None)

    def spoilt(self, unit: int, number: float) -> "Log":
        """All numbers of one unit are ``number``."""
        inputs, targets = self.inputs.clone(), self.targets.clone()
        inputs[unit] = targets[unit] = number
        return replace(self, inputs=inputs, targets=targets)


def question(units: int, states: int, actions: int, **changes: Any) -> Problem:
    """Observations, actions and rewards in [-1, 1], horizon 5 and γ 0.9, unless ``changes`` say otherwise."""
    settings: dict[str, Any] = {
        "units": units,
        "unit": "person",
        "delta": 1e-5,
        "horizon": 5,
        "discount": 0.9,
        "observation_low": -torch.ones(states),
        "observation_high": torch.ones(states),
        "observation_mean": torch.zeros(states),
        "observation_scale": torch.ones(states),
        "action_low": -torch.ones(actions),
        "action_high": torch.ones(actions),
        "discrete_actions": False,
        "reward_low": -1.0,
        "reward_high": 1.0,
        "return_low": 0.0,
        "return_high": 0.0,
        "policy": lambda observation: torch.zeros(len(observation), actions),
        "ensemble": None,
        "starts": torch.zeros(4, states),
    }
    made = Problem(**settings | changes)
    return made if "return_low" in changes else made.with_return_bounds(None)


def wander(lengths: Sequence[Sequence[int]], seed: int = 0) -> Log:
    """Units with trajectories of these lengths: random walks of three states, two actions, rewards of a normal law."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for unit in lengths:
        inputs, targets, first = [], [], []
        for length in unit:
            states = torch.randn(length + 1, 3, generator=draw).cumsum(0) * 0.3
            actions, rewards = torch.rand(length, 2, generator=draw) * 2 - 1, torch.randn(length, 1, generator=draw)
            inputs.append(torch.cat((states[:-1], actions), 1))
            targets.append(torch.cat((states.diff(dim=0), rewards, torch.zeros(length, 1)), 1))
            first.append(torch.arange(length) == 0)
        found.append((torch.cat(inputs), torch.cat(targets), torch.cat(first)))
    return Log.of(found)


def wanderers(units: int, **changes: Any) -> Problem:
    """The question about `wander`: a random ensemble, horizon 8, returns in [-3, 2]."""
    shape = Architecture(3, 2, 2, (8,), -5.0, 0.5)
    bounds = Bounds(-2 * torch.ones(3), 2 * torch.ones(3), -torch.ones(2), torch.ones(2), -1.0, 1.5)
    parts = [torch.full((size,), value) for size, value in ((5, 0.1), (5, 0.7), (4, 0.05), (4, 0.6))]
    normaliser = Normaliser(*parts)
    settings: dict[str, Any] = {
        "horizon": 8,
        "observation_low": bounds.observation_low,
        "observation_high": bounds.observation_high,
        "observation_mean": normaliser.input_mean[:3],
        "observation_scale": normaliser.input_scale[:3],
        "reward_high": 1.5,
        "return_low": -3.0,
        "return_high": 2.0,
        "ensemble": GaussianEnsemble(shape, shape.initial_weights(0), normaliser, bounds),
    }
    return question(units, 3, 2, **settings | changes)


def chain(lengths: Sequence[int], states: int = 3, action: float = 0.0) -> Log:
    """Units that walk through the states in turn, then stay in the last, which is terminal; state s pays 1 - s/2."""
    eye, found = torch.eye(states), []
    for length in lengths:
        here = torch.arange(length).clamp(max=states - 1)
        change = eye[(here + 1).clamp(max=states - 1)] - eye[here]
        targets = torch.cat((change, (1 - 0.5 * here)[:, None], (here == states - 1)[:, None].float()), 1)
        inputs = torch.cat((eye[here], torch.full((length, 1), action)), 1)
        found.append((inputs, targets, torch.arange(length) == 0))
    return Log.of(found)
