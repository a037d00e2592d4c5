"""Soft actor-critic on a model's transitions (Haarnoja et al. 2018; PriMORL, Algorithm 4).

`Sac` is for actions in a box. `DiscreteSac` (Christodoulou 2019) is for finitely many: its critics have a value for
each, so that where the other samples an action it takes the exact expectation over all of them.

Several seeds train side by side: G leads every shape, and nothing of one seed enters another. All gradients are written
out by hand (`tests/policy/reference.py` has the same by autograd), which leaves out those that nobody needs.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.exported import DeterministicPolicy, side_by_side
from primorl.policy.graphs import CudaGraphStep
from primorl.policy.model import Model
from primorl.policy.networks import Adam, Networks, initial_layers
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Scaling
from primorl.policy.rollouts import Rollouts
from primorl.policy.settings import SacConfig
from primorl.policy.squashed import Squashed
from primorl.project.errors import PipelineError

Sampler = Callable[[ReplayBuffer, int, int, SeedGenerators], Iterator[Tensor]]
"""From the model's buffer, a number of updates and a batch size to as many batches of rows ``[G, B, width]``.

``ReplayBuffer.batches`` is the one for policies that see the model and nothing else.
"""

_FIGURES = ("critic_loss", "actor_loss", "q_mean", "entropy", "alpha")


@dataclass(frozen=True)
class Epoch:
    """What training reports.

    Attributes:
        number: of the epoch, from 1.
        metrics: means over it, of each seed.
        policies: at its end, of all seeds side by side.
    """

    number: int
    metrics: tuple[dict[str, float], ...]
    policies: DeterministicPolicy


class ActorCritic(ABC):
    """Actor, twin critics, their targets and α of every seed, and the one step that improves them.

    Args:
        config: see `SacConfig`.
        columns: layout of the rows given to ``update``.
        generators: of the actions' randomness; the networks live on their device.
        seeds: of initial weights; one policy each.
        outputs: of the actor.
        values: input and output size of each critic.
        target_entropy: H̄.
    """

    def __init__(
        self,
        config: SacConfig,
        columns: ReplayColumns,
        generators: SeedGenerators,
        seeds: Sequence[int],
        *,
        outputs: int,
        values: tuple[int, int],
        target_entropy: float,
    ) -> None:
        self._config = config
        self._target_entropy = target_entropy
        self._columns = columns
        self._generators = generators
        device, G = generators.device, len(seeds)
        actors, critics = [], []
        for seed in seeds:
            initial = torch.Generator().manual_seed(seed)
            actors.append(initial_layers((columns.observation_size, *config.hidden, outputs), 1, initial))
            critics.append(initial_layers((values[0], *config.hidden, values[1]), 2, initial))
        self.actor, self.critic = (Networks(side_by_side(parts), device) for parts in (actors, critics))
        self.target = self.critic.copy()
        self.log_alpha = torch.zeros(G, device=device)
        self._alpha_gradient = torch.zeros_like(self.log_alpha)
        self._critic_adam = Adam([self.critic.vector], [self.critic.gradient], config.learning_rate)
        self._actor_adam = Adam(
            [self.actor.vector, self.log_alpha], [self.actor.gradient, self._alpha_gradient], config.learning_rate
        )
        self._rows = torch.zeros(G, config.batch_size, columns.width, device=device)
        self._step = CudaGraphStep(self._plain_step, generators) if device.type == "cuda" else self._plain_step
        self._sums = torch.zeros(len(_FIGURES), G, device=device)
        self._updates = 0

    @abstractmethod
    def act(self, observation: Tensor) -> Tensor:
        """Sample actions for standardised observations: ``[G, B, S]`` to ``[G, B, A]``, in [-1, 1] or one-hot."""

    @abstractmethod
    def _look(self, rows: Tensor) -> tuple[Any, Any]:
        """The actor at s' and at s, in one product for both: it does not change in between."""

    @abstractmethod
    def _critic_gradient(self, rows: Tensor, following: Any) -> Tensor:
        """Leave the gradient of Σ_i E (Q_i(s, a) - y)², y = r + γ V̄(s'), in ``critic``.

        Args:
            rows: ``[G, B, width]``, see `ReplayColumns`.
            following: of ``_look``.

        Returns:
            The loss, ``[G]``.
        """

    @abstractmethod
    def _actor_gradient(self, rows: Tensor, current: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Leave the gradient of E [α log π(a|s) - min_j Q_j(s, a)], a ~ π(s), in ``actor``.

        Args:
            rows: ``[G, B, width]``; those of ``_critic_gradient``, which is called before.
            current: of ``_look``.

        Returns:
            The loss, E log π(a|s) and E min_j Q_j(s, a), all ``[G]``.
        """

    def update(self, rows: Tensor) -> None:
        """One step of critics, targets, actor and α on ``rows [G, B, width]``; never waits for a GPU.

        α descends -log α (E log π + H̄), the form whose step does not shrink with α itself.
        """
        self._rows.copy_(rows)
        self._step()
        self._updates += 1

    @torch.inference_mode()
    def _plain_step(self) -> None:
        rows = self._rows
        following, current = self._look(rows)
        critic_loss = self._critic_gradient(rows, following)
        self._critic_adam.step()
        self.target.vector.lerp_(self.critic.vector, self._config.target_rate)
        actor_loss, log_density, value = self._actor_gradient(rows, current)
        torch.sub(-self._target_entropy, log_density, out=self._alpha_gradient)
        self._actor_adam.step()
        self._sums += torch.stack((critic_loss, actor_loss, value, -log_density, self.log_alpha.exp()))

    def pop_figures(self) -> tuple[dict[str, float], ...]:
        """Of each seed, means over the updates since the last call; the only place where a GPU is waited for."""
        means = (self._sums / self._updates).T.tolist()
        self._sums.zero_()
        self._updates = 0
        return tuple(dict(zip(_FIGURES, of_seed, strict=True)) for of_seed in means)

    def snapshot(self, scaling: Scaling) -> DeterministicPolicy:
        """The actors' means (or their logits) as policies of their own, copies on the CPU."""
        *hidden, weight, bias = self.actor.layers
        A = self._columns.action_size
        return DeterministicPolicy(
            tuple(
                layer.cpu().clone(memory_format=torch.contiguous_format)
                for layer in (*hidden, weight[:, :A], bias[..., :A])
            ),
            scaling.observation_mean.cpu(),
            scaling.observation_scale.cpu(),
            scaling.action_low.cpu(),
            scaling.action_high.cpu(),
            scaling.discrete_actions,
        )

    def _actor_at_both(self, rows: Tensor) -> Tensor:
        """The actor's outputs at s' and s, one above the other: ``[G, 2 B, out]``."""
        G, B, _ = rows.shape
        S = self._columns.observation_size
        both = rows[..., : 2 * S].view(G, B, 2, S).transpose(1, 2)
        return self.actor.forward(both.reshape(G, 2 * B, S))

    def _wanted(self, rows: Tensor, value: Tensor) -> Tensor:
        """The critics' target y = r + γ V̄(s'), ``[G, B]``; V̄(s') is worth nothing after a termination."""
        columns = self._columns
        return rows[..., columns.reward] + self._config.discount * rows[..., columns.continues] * value


class Sac(ActorCritic):
    """For actions in a box: V(s) = E [min_j Q_j(s, a) - α log π(a|s)] from one reparametrised sample a ~ π(s)."""

    def __init__(
        self, config: SacConfig, columns: ReplayColumns, generators: SeedGenerators, seeds: Sequence[int] = (0,)
    ) -> None:
        S, A = columns.observation_size, columns.action_size
        entropy = config.entropy_of(None)
        super().__init__(config, columns, generators, seeds, outputs=2 * A, values=(S + A, 1), target_entropy=entropy)
        self._pairs = self._rows.new_zeros(len(seeds), 2, config.batch_size, S + A)  # (s, a), once a critic

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Sample actions in [-1, 1]."""
        return Squashed.of(self.actor.forward(observation), self._noise(observation)).action

    def _look(self, rows: Tensor) -> tuple[Squashed, Squashed]:
        output = self._actor_at_both(rows)
        both, B = Squashed.of(output, self._noise(output)), rows.shape[1]
        parts = (both.action, both.log_density, both.spread, both.free)
        return Squashed(*(part[:, :B] for part in parts)), Squashed(*(part[:, B:] for part in parts))

    def _critic_gradient(self, rows: Tensor, following: Squashed) -> Tensor:
        columns, S, B = self._columns, self._columns.observation_size, rows.shape[1]
        self._pairs[..., :S] = rows[:, None, :, columns.next_observation]
        self._pairs[..., S:] = following.action[:, None]
        alpha = self.log_alpha.exp().unsqueeze(1)
        value = torch.minimum(*self._values(self.target)) - alpha * following.log_density
        self._pairs.copy_(rows[:, None, :, columns.observation_action])
        values = torch.stack(self._values(self.critic), dim=1)
        error = values - self._wanted(rows, value).unsqueeze(1)
        self.critic.backward((error * (2 / B)).view(-1, B, 1))
        return error.square().sum((1, 2)) / B

    def _actor_gradient(self, rows: Tensor, current: Squashed) -> tuple[Tensor, Tensor, Tensor]:
        S, B = self._columns.observation_size, rows.shape[1]
        self._pairs[..., S:] = current.action[:, None]
        first, second = self._values(self.critic)
        of_first = first.le(second).to(first.dtype).mul_(-1 / B)  # -E min_j Q_j falls with the lesser one only
        of_values = torch.stack((of_first, -1 / B - of_first), dim=1)
        slopes = self.critic.input_slope(of_values.view(-1, B, 1), S).view(-1, 2, B, self._columns.action_size)
        alpha = self.log_alpha.exp()
        self.actor.backward(current.slope(slopes.sum(1), (alpha / B).view(-1, 1, 1)), B)
        log_density, mean_value = current.log_density.mean(1), torch.minimum(first, second).mean(1)
        return alpha * log_density - mean_value, log_density, mean_value

    def _values(self, critic: Networks) -> tuple[Tensor, Tensor]:
        """Of both critics, ``[G, B]`` each, for the pairs (s, a) that are laid out."""
        first, second = critic.forward(self._pairs.flatten(0, 1)).view(self._pairs.shape[:3]).unbind(1)
        return first, second

    def _noise(self, like: Tensor) -> Tensor:
        G, B, _ = like.shape
        return self._generators.randn(G * B, self._columns.action_size).view(G, B, -1)


class DiscreteSac(ActorCritic):
    """For A actions: V(s) = Σ_a π(a|s) [min_j Q_j(s, a) - α log π(a|s)], exactly (Christodoulou 2019, eq. 10)."""

    def __init__(
        self, config: SacConfig, columns: ReplayColumns, generators: SeedGenerators, seeds: Sequence[int] = (0,)
    ) -> None:
        S, A = columns.observation_size, columns.action_size
        entropy = config.entropy_of(A)
        super().__init__(config, columns, generators, seeds, outputs=A, values=(S, A), target_entropy=entropy)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Sample one-hot actions: the first of A exponential clocks, running at the rates π(a|s), to ring."""
        log_policy = self.actor.forward(observation).log_softmax(-1)
        G, B, A = log_policy.shape
        clocks = self._generators.exponential(G * B, A).view(G, B, A)
        return one_hot((log_policy - clocks.log()).argmax(-1), A).to(observation.dtype)

    def _look(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        following, current = self._actor_at_both(rows).log_softmax(-1).chunk(2, dim=1)
        return following, current

    def _critic_gradient(self, rows: Tensor, following: Tensor) -> Tensor:
        columns, B = self._columns, rows.shape[1]
        alpha = self.log_alpha.exp().view(-1, 1, 1)
        values = self._values(self.target, rows[..., columns.next_observation]).amin(1) - alpha * following
        value = (following.exp() * values).sum(-1)
        taken = rows[:, None, :, columns.action]
        found = (self._values(self.critic, rows[..., columns.observation]) * taken).sum(-1)
        error = found - self._wanted(rows, value).unsqueeze(1)
        self.critic.backward(((2 / B) * error.unsqueeze(-1) * taken).flatten(0, 1))
        return error.square().sum((1, 2)) / B

    def _actor_gradient(self, rows: Tensor, current: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, policy = rows.shape[1], current.exp()
        alpha = self.log_alpha.exp()
        values = self._values(self.critic, rows[..., self._columns.observation]).amin(1)
        costs = alpha.view(-1, 1, 1) * current - values
        slope = policy * (costs - (policy * costs).sum(-1, keepdim=True)) / B
        self.actor.backward(slope, B)
        value, log_density = ((policy * part).sum((1, 2)) / B for part in (values, current))
        return alpha * log_density - value, log_density, value

    def _values(self, critic: Networks, observation: Tensor) -> Tensor:
        """Of every action at ``observation [G, B, S]``: ``[G, 2, B, A]``."""
        G, B, _ = observation.shape
        twice = observation.unsqueeze(1).expand(-1, 2, -1, -1).flatten(0, 1)
        return critic.forward(twice).view(G, 2, B, -1)


def train(
    model: Model,
    starts: Tensor,
    config: SacConfig,
    sampler: Sampler,
    *,
    seeds: Sequence[int] = (0,),
    reset_fraction: float = 1.0,
) -> Iterator[Epoch]:
    """Train a policy for every seed in ``model`` (PriMORL, Algorithm 4), reporting after every epoch.

    Every ``rollout_every`` updates the current policies are rolled out and their transitions enter the ring.
    Nothing but ``model`` and ``starts`` is seen, so by post-processing the policies, however many, are as private as
    they are, unless ``sampler`` brings rows from elsewhere. The same seeds give the same weights on a CPU, and a seed
    what it gives alone but for rounding.

    Args:
        model: the pessimistic MDP.
        starts: start states in the environment's units, ``[n, S]``; training runs on their device.
        config: see `SacConfig`.
        sampler: picks the batches.
        seeds: of initial weights, rollouts and batches; one policy each.
        reset_fraction: share of rollouts that begin at a start state, see `Rollouts`.

    Raises:
        PipelineError: actions have no finite bounds, or training diverged.
    """
    generators = SeedGenerators.of(seeds, starts.device)
    scaling = Scaling.of(model, config.reward_scale)
    algorithm = DiscreteSac if scaling.discrete_actions else Sac
    sac = algorithm(config, scaling.columns, generators, seeds)
    rollouts = Rollouts(
        model,
        scaling,
        starts,
        batch=config.rollout_batch,
        horizon=config.horizon,
        reset_fraction=reset_fraction,
        generators=generators,
    )
    buffer = ReplayBuffer(config.buffer_size, scaling.columns.width, starts.device, len(seeds))
    done = 0
    for number in range(1, config.epochs + 1):
        while done < number * config.updates_per_epoch:
            if done % config.rollout_every == 0:
                batch = rollouts.collect(sac.act)
                buffer.extend(batch.rows)
            until_rollout = config.rollout_every - done % config.rollout_every
            updates = min(until_rollout, number * config.updates_per_epoch - done)
            for rows in sampler(buffer, updates, config.batch_size, generators):
                sac.update(rows)
            done += updates
        of_model = zip(batch.reward.tolist(), batch.uncertainty.tolist(), strict=True)
        metrics = tuple(
            figures | {"model_reward": reward, "model_uncertainty": uncertainty}
            for figures, (reward, uncertainty) in zip(sac.pop_figures(), of_model, strict=True)
        )
        for seed, figures in zip(seeds, metrics, strict=True):
            if not all(map(math.isfinite, figures.values())):
                raise PipelineError(
                    f"params.yaml: policy: SAC diverged in epoch {number}, seed {seed}: {figures}; "
                    "lower learning_rate or reward_scale, or raise penalty"
                )
        yield Epoch(number, metrics, sac.snapshot(scaling))
