"""Units with several trajectories, and a problem about them, for tests of the queries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.evaluation.private.problem import Problem

S, A = 3, 2


@dataclass(frozen=True)
class Step:
    observation: Tensor
    action: Tensor
    reward: float
    following: Tensor


Unit = list[list[Step]]
"""Trajectories of steps."""


@dataclass(frozen=True)
class Logged:
    """An `EpisodeSource` over plain lists."""

    people: Sequence[Unit]

    @property
    def units(self) -> int:
        return len(self.people)

    def lengths(self, units: Tensor) -> Tensor:
        return torch.tensor([sum(map(len, self.people[u])) for u in units.tolist()], dtype=torch.int64)

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = [], []
        for u, own in zip(units.tolist(), steps.tolist(), strict=True):
            rows = [step for trajectory in self.people[u] for step in trajectory]
            inputs.append(torch.stack([torch.cat((rows[s].observation, rows[s].action)) for s in own]))
            changes = [(rows[s].following - rows[s].observation, rows[s].reward) for s in own]
            targets.append(torch.stack([torch.cat((c, torch.tensor([r, 0.0]))) for c, r in changes]))
        return torch.stack(inputs).float(), torch.stack(targets).float()

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        firsts = [[s for t in self.people[u] for s in range(len(t))] for u in units.tolist()]
        flags = [[firsts[i][s] == 0 for s in own] for i, own in enumerate(steps.tolist())]
        return torch.tensor(flags)

    def behaviour_probabilities(self, units: Tensor, steps: Tensor) -> Tensor | None:
        return None

    def replaced(self, unit: int, by: Unit) -> "Logged":
        return Logged([by if i == unit else own for i, own in enumerate(self.people)])


def people(lengths: Sequence[Sequence[int]], seed: int = 0) -> Logged:
    """Units with trajectories of these lengths."""
    draw = torch.Generator().manual_seed(seed)
    found: list[Unit] = []
    for unit in lengths:
        found.append([])
        for length in unit:
            states = torch.randn(length + 1, S, generator=draw).cumsum(0) * 0.3
            actions, rewards = torch.rand(length, A, generator=draw) * 2 - 1, torch.randn(length, generator=draw)
            found[-1].append([Step(states[t], actions[t], float(rewards[t]), states[t + 1]) for t in range(length)])
    return Logged(found)


def problem(units: int, **changes: Any) -> Problem:
    """A problem with a random ensemble, horizon 8 and γ = 0.9."""
    shape = Architecture(S, A, 2, (8,), -5.0, 0.5)
    bounds = Bounds(-torch.ones(S) * 2, torch.ones(S) * 2, -torch.ones(A), torch.ones(A), -1.0, 1.5)
    normaliser = Normaliser(
        torch.full((S + A,), 0.1), torch.full((S + A,), 0.7), torch.full((S + 1,), 0.05), torch.full((S + 1,), 0.6)
    )
    ensemble = GaussianEnsemble(shape, shape.initial_weights(0), normaliser, bounds)
    made = Problem(
        units=units,
        unit="person",
        delta=1e-5,
        horizon=8,
        discount=0.9,
        observation_low=bounds.observation_low,
        observation_high=bounds.observation_high,
        observation_mean=normaliser.input_mean[:S],
        observation_scale=normaliser.input_scale[:S],
        action_low=bounds.action_low,
        action_high=bounds.action_high,
        discrete_actions=False,
        reward_low=-1.0,
        reward_high=1.5,
        return_low=0.0,
        return_high=0.0,
        policy=lambda observation: torch.zeros(len(observation), A),
        ensemble=ensemble,
        starts=torch.zeros(4, S),
    )
    return replace(made.with_return_bounds((-3.0, 2.0)), **changes)


def extreme(kind: str) -> Unit:
    """A unit that a broken log might hold."""
    value = {"nan": float("nan"), "huge": 3e38, "infinite": float("inf")}[kind]
    step = Step(torch.full((S,), value), torch.full((A,), value), value, torch.full((S,), -value))
    return [[step] * 6, [step]]
