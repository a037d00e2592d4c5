"""Transitions as SAC sees them: their rows, the ring buffer that holds them, rollouts that fill it,
and batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import PessimisticModel
from primorl.policy.config import SacConfig
from primorl.policy.exported import in_bounds

_GATHERED_AT_ONCE = 16  # batches: rows lie far apart, and two threads wait for memory at once


class ReplayColumns:
    """Where the parts of a transition lie in its row: next_observation, observation, action,
    reward, continues.

    One row a transition makes a batch a single gather; next_observation comes first so that the
    critics' input (observation, action) is one slice. Observations are standardised, actions lie in
    [-1, 1] or are one-hot (0 and 1) where they are discrete, rewards are multiplied by the reward
    scale, and ``continues`` is 0 after a termination, 1 otherwise.
    """

    def __init__(self, observation_size: int, action_size: int) -> None:
        self.observation_size, self.action_size = observation_size, action_size
        S, end = observation_size, 2 * observation_size + action_size
        self.next_observation, self.observation = slice(0, S), slice(S, 2 * S)
        self.action, self.observation_action = slice(2 * S, end), slice(S, end)
        self.reward, self.continues = end, end + 1
        self.width = end + 2


@dataclass(frozen=True)
class Scaling:
    """Maps between the environment's units and the rows of a buffer.

    ``observation_*`` ``[S]`` are of the public normaliser, ``action_*`` ``[A]`` finite bounds;
    discrete actions are one-hot vectors, the same here and there. SAC's entropy bonus is measured
    against rewards times ``reward_scale``.
    """

    observation_mean: Tensor
    observation_scale: Tensor
    action_low: Tensor
    action_high: Tensor
    reward_scale: float
    discrete_actions: bool = False

    @classmethod
    def of(cls, model: PessimisticModel, reward_scale: float) -> "Scaling":
        """Return the scales of ``model``."""
        mean, scale, low = model.observation_mean, model.observation_scale, model.action_low
        return cls(mean, scale, low, model.action_high, reward_scale, model.discrete_actions)

    @property
    def columns(self) -> ReplayColumns:
        """The layout of the rows that ``rows`` makes."""
        return ReplayColumns(len(self.observation_mean), len(self.action_low))

    def observation(self, observation: Tensor) -> Tensor:
        """Standardise ``[B, S]``."""
        return (observation - self.observation_mean) / self.observation_scale

    def environment_action(self, action: Tensor) -> Tensor:
        """Map actions from [-1, 1] to the environment's units, never outside its bounds: ``[B,
        A]``; one-hot ones as they are.
        """
        if self.discrete_actions:
            return action
        return in_bounds(action, self.action_low, self.action_high)

    def rows(
        self,
        observation: Tensor,
        action: Tensor,
        reward: Tensor,
        next_observation: Tensor,
        terminated: Tensor,
    ) -> Tensor:
        """Make rows ``[B, width]`` of B transitions given in the environment's units.

        A truncation is no termination: its row is bootstrapped.
        """
        if not self.discrete_actions:
            action = 2 * (action - self.action_low) / (self.action_high - self.action_low) - 1
        tail = torch.stack((reward * self.reward_scale, 1 - terminated.to(reward.dtype)), dim=1)
        return torch.cat(
            (self.observation(next_observation), self.observation(observation), action, tail), dim=1
        )


class ReplayBuffer:
    """A ring of rows for each of G seeds, preallocated on the device; the newest rows overwrite the
    oldest.
    """

    def __init__(self, capacity: int, width: int, device: torch.device, seeds: int = 1) -> None:
        self._rows = torch.zeros(seeds, capacity, width, device=device)
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        """Return the rows of each seed."""
        return self._size

    @property
    def rows(self) -> Tensor:
        """The rows held, ``[G, len, width]``, in no particular order."""
        return self._rows[:, : self._size]

    def extend(self, rows: Tensor) -> None:
        """Append ``[G, n, width]``, no more rows than the ring holds."""
        capacity, count = self._rows.shape[1], rows.shape[1]
        before_the_end = min(count, capacity - self._next)
        self._rows[:, self._next : self._next + before_the_end] = rows[:, :before_the_end]
        self._rows[:, : count - before_the_end] = rows[:, before_the_end:]
        self._next = (self._next + count) % capacity
        self._size = min(self._size + count, capacity)

    def batches(
        self, updates: int, batch_size: int, generators: SeedGenerators
    ) -> Iterator[Tensor]:
        """Draw uniform batches with replacement: ``updates`` times ``[G, batch_size, width]``, each
        seed's of its own rows.

        A buffer made for one seed serves any number of them. All indices are drawn at once.
        """
        seeds, capacity, width = self._rows.shape
        wanted = len(generators.generators)
        indices = generators.randint(self._size, wanted * updates, batch_size).view(
            wanted, updates, batch_size
        )
        if seeds > 1:
            indices += capacity * torch.arange(seeds, device=indices.device).view(-1, 1, 1)
        rows, by_update = self._rows.view(-1, width), indices.transpose(0, 1)
        for chosen in torch.split(by_update, _GATHERED_AT_ONCE):
            yield from rows.index_select(0, chosen.flatten()).view(
                len(chosen), wanted, batch_size, width
            )


Sampler = Callable[[ReplayBuffer, int, int, SeedGenerators], Iterator[Tensor]]
"""From the model's buffer, a number of updates and a batch size to as many batches of rows ``[G, B,
width]``.

``ReplayBuffer.batches`` is the one for policies that see the model and nothing else.
"""
Act = Callable[[Tensor], Tensor]
"""Stochastic policies: standardised observations ``[G, B, S]`` to actions ``[G, B, A]`` in [-1, 1],
or one-hot.
"""


class Rollouts:
    """B rollouts of H steps at a time, for each of G seeds (PriMORL, Algorithm 4).

    Each rollout begins at a start state with probability ``resets`` and otherwise where the same
    rollout of the previous batch ended, so that episodes go on beyond H: with 1 every rollout is
    fresh. A rollout that terminates is not bootstrapped there and begins again at a start state;
    the last transition of one that is cut off at H is bootstrapped like all others.

    Args:
        model: where they run.
        starts: start states in the environment's units, ``[n, S]``.
        config: B (``rollout_batch``, of each seed), H and the scale of rewards.
        generators: of every seed's draws, on the device of ``starts``.
        resets: share of rollouts that begin at a start state, in (0, 1].
    """

    def __init__(
        self,
        model: PessimisticModel,
        starts: Tensor,
        config: SacConfig,
        generators: SeedGenerators,
        resets: float,
    ) -> None:
        self._model, self._starts, self._generators = model, starts, generators
        self._scaling = Scaling.of(model, config.reward_scale)
        self._horizon, self._resets = config.horizon, resets
        self._seeds = len(generators.generators)
        self._ends = self._draw_starts(self._seeds * config.rollout_batch)

    @torch.no_grad()
    def collect(self, act: Act) -> tuple[Tensor, Tensor, Tensor]:
        """Roll ``act`` out from the next start states.

        Returns:
            Rows ``[G, H·B, width]``, and means ``[G]`` of penalised rewards and of uncertainties.
        """
        fresh = self._generators.rand(len(self._ends)) < self._resets
        observation = torch.where(
            fresh.unsqueeze(1), self._draw_starts(len(self._ends)), self._ends
        )
        never = torch.zeros(len(observation), dtype=torch.bool, device=observation.device)
        rows, rewards, uncertainties = [], [], []
        for _ in range(self._horizon):
            chosen = act(self._by_seed(self._scaling.observation(observation)))
            action = self._scaling.environment_action(chosen).flatten(0, 1)
            step = self._model.step(observation, action, self._generators)
            ended = never if step.terminated is None else step.terminated
            transitions = self._scaling.rows(
                observation, action, step.reward, step.next_observation, ended
            )
            rows.append(self._by_seed(transitions))
            rewards.append(self._by_seed(step.reward))
            uncertainties.append(self._by_seed(step.uncertainty))
            observation = step.next_observation
            if step.terminated is not None:
                observation = torch.where(
                    ended.unsqueeze(1), self._draw_starts(len(ended)), observation
                )
        self._ends = observation
        means = [torch.stack(part).mean((0, 2)) for part in (rewards, uncertainties)]
        return torch.cat(rows, dim=1), means[0], means[1]

    def _by_seed(self, values: Tensor) -> Tensor:
        """Return ``[G·B, ...]`` as ``[G, B, ...]``."""
        return values.view(self._seeds, -1, *values.shape[1:])

    def _draw_starts(self, size: int) -> Tensor:
        return self._starts[self._generators.randint(len(self._starts), size)]
