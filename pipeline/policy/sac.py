"""Soft actor-critic on a model's transitions (Haarnoja et al. 2018; PriMORL, Algorithm 4).

`Sac` is for actions in a box. `DiscreteSac` (Christodoulou 2019) is for finitely many: its critics have a value for
each, so that where the other samples an action it takes the exact expectation over all of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from pipeline.errors import PipelineError
from pipeline.policy.exported import DeterministicPolicy, Layers, mlp
from pipeline.policy.model import Model
from pipeline.policy.networks import Adam, Parameters
from pipeline.policy.replay import Columns, ReplayBuffer, Scaling
from pipeline.policy.rollouts import Rollouts

Sampler = Callable[[ReplayBuffer, int, int, torch.Generator], Iterator[Tensor]]
"""From the model's buffer, a number of updates and a batch size to as many batches of rows.

``ReplayBuffer.batches`` is the one for policies that see the model and nothing else.
"""

_LOG_STD_LOW, _LOG_STD_HIGH = -20.0, 2.0  # Haarnoja's own code: keeps exp() and the entropy finite
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2.0)
_FIGURES = ("critic_loss", "actor_loss", "q_mean", "entropy", "alpha")


@dataclass(frozen=True)
class SacConfig:
    """Everything SAC is told.

    Attributes:
        hidden: units of each hidden layer, of actor and critics alike.
        learning_rate: Adam's, of actor, critics and log α.
        discount: γ.
        target_rate: τ in target ← target + τ (critic - target).
        target_entropy: H̄, of actions scaled to [-1, 1], or of discrete ones.
        reward_scale: multiplies every reward before the critics see it.
        batch_size: transitions an update.
        epochs: how often training reports.
        updates_per_epoch: updates between two reports.
        rollout_every: updates between two batches of rollouts.
        rollout_batch: rollouts in a batch.
        horizon: H, steps of a rollout.
        reset_fraction: share of rollouts that begin at a start state, see `Rollouts`.
        buffer_size: transitions kept.
        seed: of initial weights, rollouts and batches.
    """

    hidden: tuple[int, ...]
    learning_rate: float
    discount: float
    target_rate: float
    target_entropy: float
    reward_scale: float
    batch_size: int
    epochs: int
    updates_per_epoch: int
    rollout_every: int
    rollout_batch: int
    horizon: int
    reset_fraction: float
    buffer_size: int
    seed: int


@dataclass(frozen=True)
class Epoch:
    """What training reports: the epoch's number from 1, means over it, and the policy at its end."""

    number: int
    metrics: dict[str, float]
    policy: DeterministicPolicy


def twin_values(layers: Layers, inputs: Tensor) -> Tensor:
    """Q₁ and Q₂, two MLPs in one batched product: ``[B, in]`` to ``[2, B, out]``."""
    return mlp(layers, inputs.expand(2, -1, -1))


def squashed_sample(layers: Layers, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A reparametrised action tanh(x), x = μ + σ·noise, and its log-density.

    log π(a|s) = Σ [log N(x; μ, σ²) - log(1 - tanh² x)] (Haarnoja 2018b, eq. 26), where
    log(1 - tanh² x) = 2 (log 2 - x - softplus(-2x)) keeps its digits for large |x|.

    Args:
        layers: of the actor, one MLP whose outputs are μ and log σ side by side.
        observation: standardised, ``[B, S]``.
        noise: standard normal, ``[B, A]``.

    Returns:
        Actions ``[B, A]`` in [-1, 1] and log-densities ``[B]``.
    """
    mean, log_std = mlp(layers, observation).chunk(2, dim=-1)
    log_std = log_std.clamp(_LOG_STD_LOW, _LOG_STD_HIGH)
    x = torch.addcmul(mean, noise, log_std.exp())
    log_density = 2 * (x + softplus(-2 * x)) - log_std - 0.5 * noise.square()
    constant = noise.shape[-1] * (_HALF_LOG_2PI + 2 * _LOG_2)
    return x.tanh(), log_density.sum(-1) - constant


class ActorCritic(ABC):
    """Actor, twin critics, their targets and α, and the one step that improves them.

    Args:
        config: see `SacConfig`.
        columns: layout of the rows given to ``update``.
        device: where the networks live.
        generator: of the actions' randomness, on ``device``.
        outputs: of the actor.
        values: input and output size of each critic.
    """

    def __init__(
        self,
        config: SacConfig,
        columns: Columns,
        device: torch.device,
        generator: torch.Generator,
        outputs: int,
        values: tuple[int, int],
    ) -> None:
        self._config = config
        self._columns = columns
        self._generator = generator
        initial = torch.Generator().manual_seed(config.seed)
        self.actor = Parameters.initial((columns.observation_size, *config.hidden, outputs), (), initial).to(device)
        self.critic = Parameters.initial((values[0], *config.hidden, values[1]), (2,), initial).to(device)
        self.target = self.critic.to(device)
        self.log_alpha = torch.zeros(1, device=device)
        self._actor_adam = Adam(self.actor.vector, config.learning_rate)
        self._critic_adam = Adam(self.critic.vector, config.learning_rate)
        self._alpha_adam = Adam(self.log_alpha, config.learning_rate)
        self._sums = torch.zeros(len(_FIGURES), device=device)
        self._updates = 0

    @abstractmethod
    def act(self, observation: Tensor) -> Tensor:
        """Sample actions for standardised observations: ``[B, S]`` to ``[B, A]``, in [-1, 1] or one-hot."""

    @abstractmethod
    def critic_loss(self, rows: Tensor) -> Tensor:
        """Σ_i E (Q_i(s, a) - y)², y = r + γ V̄(s'), on ``rows [B, width]``, see `Columns`; 0-d."""

    @abstractmethod
    def actor_loss(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E [α log π(a|s) - min_j Q_j(s, a)], a ~ π(s), on ``rows [B, width]``.

        Returns:
            The loss, E log π(a|s) and E min_j Q_j(s, a), all 0-d.
        """

    def update(self, rows: Tensor) -> None:
        """One step of critics, targets, actor and α on ``rows [B, width]``.

        α descends -log α (E log π + H̄), the form whose step does not shrink with α itself.
        """
        critic_loss = self.critic_loss(rows)
        self._critic_adam.step(self.critic.gradient(critic_loss))
        self.target.vector.lerp_(self.critic.vector, self._config.target_rate)

        actor_loss, log_density, value = self.actor_loss(rows)
        self._actor_adam.step(self.actor.gradient(actor_loss))
        log_density = log_density.detach()
        self._alpha_adam.step(-(log_density + self._config.target_entropy).view(1))

        alpha = self.log_alpha[0].exp()
        figures = (critic_loss.detach(), actor_loss.detach(), value.detach(), -log_density, alpha)
        self._sums += torch.stack(figures)
        self._updates += 1

    def pop_figures(self) -> dict[str, float]:
        """Means over the updates since the last call; the only place where a GPU is waited for."""
        means = (self._sums / self._updates).tolist()
        self._sums.zero_()
        self._updates = 0
        return dict(zip(_FIGURES, means, strict=True))

    def snapshot(self, scaling: Scaling) -> DeterministicPolicy:
        """The actor's mean (or its logits) as a policy of its own, a copy on the CPU."""
        *hidden, weight, bias = (layer.detach().cpu() for layer in self.actor.layers)
        A = self._columns.action_size
        return DeterministicPolicy(
            tuple(layer.unsqueeze(0).clone() for layer in (*hidden, weight[:A], bias[:, :A])),
            scaling.observation_mean.cpu(),
            scaling.observation_scale.cpu(),
            scaling.action_low.cpu(),
            scaling.action_high.cpu(),
            scaling.discrete_actions,
        )

    def _squared_error(self, rows: Tensor, values: Tensor, following_value: Tensor) -> Tensor:
        """Σ_i E (values_i - y)² for ``values [2, B]`` and V̄(s') ``[B]``, which is worth nothing after a termination."""
        columns = self._columns
        wanted = rows[:, columns.reward] + self._config.discount * rows[:, columns.continues] * following_value
        return (values - wanted).square().sum(0).mean()


class Sac(ActorCritic):
    """For actions in a box: V(s) = E [min_j Q_j(s, a) - α log π(a|s)] from one reparametrised sample a ~ π(s)."""

    def __init__(self, config: SacConfig, columns: Columns, device: torch.device, generator: torch.Generator) -> None:
        S, A = columns.observation_size, columns.action_size
        super().__init__(config, columns, device, generator, outputs=2 * A, values=(S + A, 1))

    def act(self, observation: Tensor) -> Tensor:
        """Sample actions in [-1, 1]."""
        return squashed_sample(self.actor.layers, observation, self._noise(len(observation)))[0]

    def critic_loss(self, rows: Tensor, noise: Tensor | None = None) -> Tensor:
        """`ActorCritic.critic_loss`; ``noise [B, A]`` is that of a', drawn where it is not given."""
        columns = self._columns
        noise = self._noise(len(rows)) if noise is None else noise
        with torch.no_grad():
            following = rows[:, columns.next_observation]
            action, log_density = squashed_sample(self.actor.layers, following, noise)
            value = twin_values(self.target.layers, torch.cat((following, action), dim=1)).amin(0).squeeze(-1)
            value -= self.log_alpha.exp() * log_density
        values = twin_values(self.critic.layers, rows[:, columns.observation_action]).squeeze(-1)
        return self._squared_error(rows, values, value)

    def actor_loss(self, rows: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """`ActorCritic.actor_loss`; ``noise [B, A]`` is that of a, drawn where it is not given."""
        noise = self._noise(len(rows)) if noise is None else noise
        observation = rows[:, self._columns.observation]
        action, log_density = squashed_sample(self.actor.layers, observation, noise)
        value = twin_values(self.critic.layers, torch.cat((observation, action), dim=1)).amin(0).mean()
        log_density = log_density.mean()
        return self.log_alpha[0].exp() * log_density - value, log_density, value

    def _noise(self, rows: int) -> Tensor:
        return torch.randn(rows, self._columns.action_size, generator=self._generator, device=self.log_alpha.device)


class DiscreteSac(ActorCritic):
    """For A actions: V(s) = Σ_a π(a|s) [min_j Q_j(s, a) - α log π(a|s)], exactly (Christodoulou 2019, eq. 10)."""

    def __init__(self, config: SacConfig, columns: Columns, device: torch.device, generator: torch.Generator) -> None:
        S, A = columns.observation_size, columns.action_size
        super().__init__(config, columns, device, generator, outputs=A, values=(S, A))

    def act(self, observation: Tensor) -> Tensor:
        """Sample one-hot actions: the first of A exponential clocks, running at the rates π(a|s), to ring."""
        log_policy = self._log_policy(observation)
        clocks = torch.empty_like(log_policy).exponential_(generator=self._generator)
        return one_hot((log_policy - clocks.log()).argmax(-1), self._columns.action_size).to(observation.dtype)

    def critic_loss(self, rows: Tensor) -> Tensor:
        """`ActorCritic.critic_loss`."""
        columns = self._columns
        with torch.no_grad():
            following = rows[:, columns.next_observation]
            log_policy = self._log_policy(following)
            values = twin_values(self.target.layers, following).amin(0) - self.log_alpha.exp() * log_policy
            value = (log_policy.exp() * values).sum(-1)
        values = twin_values(self.critic.layers, rows[:, columns.observation])
        return self._squared_error(rows, (values * rows[:, columns.action]).sum(-1), value)

    def actor_loss(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`ActorCritic.actor_loss`."""
        observation = rows[:, self._columns.observation]
        log_policy = self._log_policy(observation)
        policy = log_policy.exp()
        with torch.no_grad():
            values = twin_values(self.critic.layers, observation).amin(0)
        value, log_density = ((policy * part).sum(-1).mean() for part in (values, log_policy))
        return self.log_alpha[0].exp() * log_density - value, log_density, value

    def _log_policy(self, observation: Tensor) -> Tensor:
        """Logarithms of π(·|s), ``[B, A]``."""
        return mlp(self.actor.layers, observation).log_softmax(-1)


def train(model: Model, starts: Tensor, config: SacConfig, sampler: Sampler) -> Iterator[Epoch]:
    """Train a policy in ``model`` (PriMORL, Algorithm 4), reporting after every epoch.

    Every ``rollout_every`` updates the current policy is rolled out and its transitions enter the ring.
    Nothing but ``model`` and ``starts`` is seen, so by post-processing the policy is as private as they are, unless
    ``sampler`` brings rows from elsewhere. The same seed gives the same weights on a CPU.

    Args:
        model: the pessimistic MDP.
        starts: start states in the environment's units, ``[n, S]``; training runs on their device.
        config: see `SacConfig`.
        sampler: picks the batches.

    Raises:
        PipelineError: actions have no finite bounds, or training diverged.
    """
    generator = torch.Generator(starts.device).manual_seed(config.seed)
    scaling = Scaling.of(model, config.reward_scale)
    algorithm = DiscreteSac if scaling.discrete_actions else Sac
    sac = algorithm(config, scaling.columns, starts.device, generator)
    rollouts = Rollouts(
        model,
        scaling,
        starts,
        batch=config.rollout_batch,
        horizon=config.horizon,
        reset_fraction=config.reset_fraction,
        generator=generator,
    )
    buffer = ReplayBuffer(config.buffer_size, scaling.columns.width, starts.device)
    done = 0
    for number in range(1, config.epochs + 1):
        while done < number * config.updates_per_epoch:
            if done % config.rollout_every == 0:
                batch = rollouts.collect(sac.act)
                buffer.extend(batch.rows)
            until_rollout = config.rollout_every - done % config.rollout_every
            updates = min(until_rollout, number * config.updates_per_epoch - done)
            for rows in sampler(buffer, updates, config.batch_size, generator):
                sac.update(rows)
            done += updates
        metrics = sac.pop_figures()
        metrics |= {"model_reward": float(batch.reward), "model_uncertainty": float(batch.uncertainty)}
        if not all(map(math.isfinite, metrics.values())):
            raise PipelineError(
                f"params.yaml: policy: SAC diverged in epoch {number}: {metrics}; "
                "lower learning_rate or reward_scale, or raise penalty"
            )
        yield Epoch(number, metrics, sac.snapshot(scaling))
