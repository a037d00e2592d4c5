"""Soft actor-critic on a model's transitions (Haarnoja et al. 2018; PriMORL, Algorithm 4)."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pipeline.errors import PipelineError
from pipeline.policy.exported import DeterministicPolicy, Layers, mlp
from pipeline.policy.model import Model
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
        target_entropy: H̄, of actions scaled to [-1, 1].
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


class Parameters:
    """One vector of parameters and its layers, which are views of it.

    A few kernels then update all of a network at once, where small layers would each cost a launch.
    """

    def __init__(self, vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
        self.vector = vector
        parts = torch.split(vector, [math.prod(shape) for shape in shapes])
        self.layers: Layers = tuple(
            part.view(shape).detach().requires_grad_() for part, shape in zip(parts, shapes, strict=True)
        )

    @classmethod
    def initial(cls, sizes: Sequence[int], batch: tuple[int, ...], generator: torch.Generator) -> "Parameters":
        """MLPs of the given layer sizes, U(-1/√in, 1/√in) throughout, as ``torch.nn.Linear`` begins.

        ``batch`` leads every shape: () is one network, (2,) are twins. Drawn on the CPU whatever the
        device, so that a seed means the same weights everywhere.
        """
        shapes: list[tuple[int, ...]] = []
        draws = []
        for inputs, outputs in itertools.pairwise(sizes):
            shapes += [(*batch, outputs, inputs), (*batch, 1, outputs)]
            draw = torch.rand(math.prod(batch) * outputs * (inputs + 1), generator=generator)
            draws.append((2 * draw - 1) / math.sqrt(inputs))
        return cls(torch.cat(draws), shapes)

    def to(self, device: torch.device) -> "Parameters":
        """A copy on ``device``."""
        return Parameters(self.vector.to(device, copy=True), [tuple(layer.shape) for layer in self.layers])

    def gradient(self, loss: Tensor) -> Tensor:
        """∂loss/∂vector, a vector of the same length."""
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, self.layers)])


class Adam:
    """Adam (Kingma and Ba 2015) on one vector, with the usual β = (0.9, 0.999) and ε = 1e-8.

    Half the time of ``torch.optim.Adam(fused=True)``, whose bookkeeping outweighs a small network's arithmetic.
    """

    def __init__(self, vector: Tensor, learning_rate: float) -> None:
        self._vector = vector
        self._learning_rate = learning_rate
        self._first = torch.zeros_like(vector)
        self._second = torch.zeros_like(vector)
        self._steps = 0

    def step(self, gradient: Tensor) -> None:
        """Move the vector along ``gradient``, in place."""
        self._steps += 1
        self._first.lerp_(gradient, 1 - 0.9)
        self._second.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        correction = math.sqrt(1 - 0.999**self._steps)
        scale = self._second.sqrt().add_(1e-8 * correction)
        rate = self._learning_rate * correction / (1 - 0.9**self._steps)
        self._vector.addcdiv_(self._first, scale, value=-rate)


def twin_values(layers: Layers, observation_action: Tensor) -> Tensor:
    """Q₁ and Q₂, two MLPs in one batched product: ``[B, S + A]`` to ``[2, B]``."""
    return mlp(layers, observation_action.expand(2, -1, -1)).squeeze(-1)


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


class Sac:
    """Actor, twin critics, their targets and α, and the one step that improves them.

    Args:
        config: see `SacConfig`.
        columns: layout of the rows given to ``update``.
        device: where the networks live.
        generator: of action noise, on ``device``.
    """

    def __init__(self, config: SacConfig, columns: Columns, device: torch.device, generator: torch.Generator) -> None:
        self._config = config
        self._columns = columns
        self._generator = generator
        S, A = columns.observation_size, columns.action_size
        initial = torch.Generator().manual_seed(config.seed)
        self.actor = Parameters.initial((S, *config.hidden, 2 * A), (), initial).to(device)
        self.critic = Parameters.initial((S + A, *config.hidden, 1), (2,), initial).to(device)
        self.target = self.critic.to(device)
        self.log_alpha = torch.zeros(1, device=device)
        self._actor_adam = Adam(self.actor.vector, config.learning_rate)
        self._critic_adam = Adam(self.critic.vector, config.learning_rate)
        self._alpha_adam = Adam(self.log_alpha, config.learning_rate)
        self._sums = torch.zeros(len(_FIGURES), device=device)
        self._updates = 0

    def act(self, observation: Tensor) -> Tensor:
        """Sample actions in [-1, 1] for standardised observations: ``[B, S]`` to ``[B, A]``."""
        return squashed_sample(self.actor.layers, observation, self._noise(len(observation)))[0]

    def critic_loss(self, rows: Tensor, noise: Tensor) -> Tensor:
        """Σ_i E (Q_i(s, a) - y)², y = r + γ (min_j Q̄_j(s', a') - α log π(a'|s')), a' ~ π(s').

        Args:
            rows: ``[B, width]``, see `Columns`.
            noise: of a', ``[B, A]``.
        """
        columns = self._columns
        with torch.no_grad():
            following = rows[:, columns.next_observation]
            action, log_density = squashed_sample(self.actor.layers, following, noise)
            value = twin_values(self.target.layers, torch.cat((following, action), dim=1)).amin(0)
            value -= self.log_alpha.exp() * log_density
            wanted = rows[:, columns.reward] + self._config.discount * rows[:, columns.continues] * value
        values = twin_values(self.critic.layers, rows[:, columns.observation_action])
        return (values - wanted).square().sum(0).mean()

    def actor_loss(self, rows: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E [α log π(a|s) - min_j Q_j(s, a)], a ~ π(s).

        Args:
            rows: ``[B, width]``, see `Columns`.
            noise: of a, ``[B, A]``.

        Returns:
            The loss, E log π(a|s) and E min_j Q_j(s, a), all 0-d.
        """
        observation = rows[:, self._columns.observation]
        action, log_density = squashed_sample(self.actor.layers, observation, noise)
        value = twin_values(self.critic.layers, torch.cat((observation, action), dim=1)).amin(0).mean()
        log_density = log_density.mean()
        return self.log_alpha[0].exp() * log_density - value, log_density, value

    def update(self, rows: Tensor) -> None:
        """One step of critics, targets, actor and α on ``rows [B, width]``.

        α descends -log α (E log π + H̄), the form whose step does not shrink with α itself.
        """
        critic_loss = self.critic_loss(rows, self._noise(len(rows)))
        self._critic_adam.step(self.critic.gradient(critic_loss))
        self.target.vector.lerp_(self.critic.vector, self._config.target_rate)

        actor_loss, log_density, value = self.actor_loss(rows, self._noise(len(rows)))
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
        """The actor's mean as a policy of its own, a copy on the CPU."""
        *hidden, weight, bias = (layer.detach().cpu() for layer in self.actor.layers)
        A = self._columns.action_size
        return DeterministicPolicy(
            tuple(layer.unsqueeze(0).clone() for layer in (*hidden, weight[:A], bias[:, :A])),
            scaling.observation_mean.cpu(),
            scaling.observation_scale.cpu(),
            scaling.action_low.cpu(),
            scaling.action_high.cpu(),
        )

    def _noise(self, rows: int) -> Tensor:
        return torch.randn(rows, self._columns.action_size, generator=self._generator, device=self.log_alpha.device)


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
    sac = Sac(config, scaling.columns, starts.device, generator)
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
