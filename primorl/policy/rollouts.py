"""Rollouts of the current policy in the pessimistic model (PriMORL, Algorithm 4)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.pessimism import PessimisticModel
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.replay import Scaling

Act = Callable[[Tensor], Tensor]
"""Stochastic policies: standardised observations ``[G, B, S]`` to actions ``[G, B, A]`` in [-1, 1], or one-hot."""


@dataclass(frozen=True)
class Batch:
    """Rollouts: ``rows [G, H·B, width]``, and means ``[G]`` of penalised ``reward`` and ``uncertainty``."""

    rows: Tensor
    reward: Tensor
    uncertainty: Tensor


class Rollouts:
    """B rollouts of H steps at a time, for each of G seeds.

    Each rollout begins at a start state with probability ``reset_fraction`` and otherwise where the same
    rollout of the previous batch ended, so that episodes go on beyond H: with 1 every rollout is
    fresh. A rollout that terminates is not bootstrapped there and begins again at a start state; the last
    transition of one that is cut off at H is bootstrapped like all others.

    Args:
        model: where they run.
        scaling: of the rows.
        starts: start states in the environment's units, ``[n, S]``.
        batch: B, of each seed.
        horizon: H.
        reset_fraction: in (0, 1].
        generators: of every seed's draws, on the device of ``starts``.
    """

    def __init__(
        self,
        model: PessimisticModel,
        scaling: Scaling,
        starts: Tensor,
        *,
        batch: int,
        horizon: int,
        reset_fraction: float,
        generators: SeedGenerators,
    ) -> None:
        self._model = model
        self._scaling = scaling
        self._starts = starts
        self._horizon = horizon
        self._reset_fraction = reset_fraction
        self._generators = generators
        self._seeds = len(generators.generators)
        self._ends = self._draw_starts(self._seeds * batch)

    @torch.no_grad()
    def collect(self, act: Act) -> Batch:
        """Roll ``act`` out from the next start states."""
        observation = self._begin()
        never = torch.zeros(len(observation), dtype=torch.bool, device=observation.device)
        rows, rewards, uncertainties = [], [], []
        for _ in range(self._horizon):
            chosen = act(self._by_seed(self._scaling.observation(observation)))
            action = self._scaling.environment_action(chosen).flatten(0, 1)
            step = self._model.step(observation, action, self._generators)
            ended = never if step.terminated is None else step.terminated
            rows.append(
                self._by_seed(self._scaling.rows(observation, action, step.reward, step.next_observation, ended))
            )
            rewards.append(self._by_seed(step.reward))
            uncertainties.append(self._by_seed(step.uncertainty))
            observation = step.next_observation
            if step.terminated is not None:
                observation = torch.where(ended.unsqueeze(1), self._draw_starts(len(ended)), observation)
        self._ends = observation
        return Batch(torch.cat(rows, dim=1), torch.stack(rewards).mean((0, 2)), torch.stack(uncertainties).mean((0, 2)))

    def _by_seed(self, values: Tensor) -> Tensor:
        """``[G·B, ...]`` as ``[G, B, ...]``."""
        return values.view(self._seeds, -1, *values.shape[1:])

    def _begin(self) -> Tensor:
        size = len(self._ends)
        fresh = self._generators.rand(size) < self._reset_fraction
        return torch.where(fresh.unsqueeze(1), self._draw_starts(size), self._ends)

    def _draw_starts(self, size: int) -> Tensor:
        return self._starts[self._generators.randint(len(self._starts), size)]
