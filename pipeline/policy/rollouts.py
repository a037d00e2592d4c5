"""Rollouts of the current policy in the pessimistic model (PriMORL, Algorithm 4)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.policy.model import Model
from pipeline.policy.replay import Scaling

Act = Callable[[Tensor], Tensor]
"""A stochastic policy: standardised observations ``[B, S]`` to actions ``[B, A]`` in [-1, 1], or one-hot."""


@dataclass(frozen=True)
class Batch:
    """One batch of rollouts: ``rows [H·B, width]``, and 0-d means of penalised ``reward`` and ``uncertainty``."""

    rows: Tensor
    reward: Tensor
    uncertainty: Tensor


class Rollouts:
    """B rollouts of H steps at a time.

    Each rollout begins at a start state with probability ``reset_fraction`` and otherwise where the same
    rollout of the previous batch ended, so that episodes go on beyond H: with 1 every rollout is
    fresh. A rollout that terminates is not bootstrapped there and begins again at a start state; the last
    transition of one that is cut off at H is bootstrapped like all others.

    Args:
        model: where they run.
        scaling: of the rows.
        starts: start states in the environment's units, ``[n, S]``.
        batch: B.
        horizon: H.
        reset_fraction: in (0, 1].
        generator: on the device of ``starts``.
    """

    def __init__(
        self,
        model: Model,
        scaling: Scaling,
        starts: Tensor,
        *,
        batch: int,
        horizon: int,
        reset_fraction: float,
        generator: torch.Generator,
    ) -> None:
        self._model = model
        self._scaling = scaling
        self._starts = starts
        self._horizon = horizon
        self._reset_fraction = reset_fraction
        self._generator = generator
        self._ends = self._draw_starts(batch)

    @torch.no_grad()
    def collect(self, act: Act) -> Batch:
        """Roll ``act`` out from the next start states."""
        observation = self._begin()
        never = torch.zeros(len(observation), dtype=torch.bool, device=observation.device)
        rows, rewards, uncertainties = [], [], []
        for _ in range(self._horizon):
            action = self._scaling.environment_action(act(self._scaling.observation(observation)))
            step = self._model.step(observation, action, self._generator)
            ended = never if step.terminated is None else step.terminated
            rows.append(self._scaling.rows(observation, action, step.reward, step.next_observation, ended))
            rewards.append(step.reward)
            uncertainties.append(step.uncertainty)
            observation = step.next_observation
            if step.terminated is not None:
                observation = torch.where(ended.unsqueeze(1), self._draw_starts(len(ended)), observation)
        self._ends = observation
        return Batch(torch.cat(rows), torch.stack(rewards).mean(), torch.stack(uncertainties).mean())

    def _begin(self) -> Tensor:
        size = len(self._ends)
        fresh = torch.rand(size, generator=self._generator, device=self._ends.device) < self._reset_fraction
        return torch.where(fresh.unsqueeze(1), self._draw_starts(size), self._ends)

    def _draw_starts(self, size: int) -> Tensor:
        chosen = torch.randint(len(self._starts), (size,), generator=self._generator, device=self._starts.device)
        return self._starts[chosen]
