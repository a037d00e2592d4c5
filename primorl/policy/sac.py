"""Soft actor-critic on a model's transitions (Haarnoja et al. 2018; PriMORL, Algorithm 4).

`Sac` is for actions in a box. `DiscreteSac` (Christodoulou 2019) is for finitely many: its critics
have a value for each, so that where the other samples an action it takes the exact expectation over
all of them.

With a prior, such as a clone of the behaviour in the log, log π(a|s) - log π_b(a|s) takes the place
of log π(a|s), and the temperature α holds the divergence KL(π‖π_b) at a target κ (as in BRAC, Wu et
al. 2019).

Several seeds train side by side: G leads every shape, and nothing of one seed enters another. All
gradients are written out by hand (`tests/policy/test_sac.py` has the same by autograd), which
leaves out those that are not needed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from primorl.base import PipelineError
from primorl.model.numerics import Adam, SeedGenerators, flatten, relu_backward, unflatten
from primorl.model.pessimism import PessimisticModel
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import SacConfig
from primorl.policy.exported import DeterministicPolicy, Layers, initial_layers, side_by_side
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Rollouts, Sampler, Scaling

_LOG_ROOT = 0.5 * math.log(2 * math.pi)
_LEAST_LOG = -100.0  # of what the clone never does, so that divergences stay finite
_LOG_STD_LOW, _LOG_STD_HIGH = -20.0, 2.0  # Haarnoja's own code: keeps exp() and the entropy finite
_LOG_CONSTANT = _LOG_ROOT + 2 * math.log(2.0)
# at Adam's rate α does not get there within a training
_CONSTRAINT_RATE = 3e-3
_CONSTRAINT_GRADIENT = 1.0
_CONSTRAINT_LOG_ALPHA = (-7.0, 5.0)
_SLOWER = 1 / 3  # of all updates, the last, in which learning rates fall to 0
_WARM_UPS = 3  # steps before one is recorded as a CUDA graph, in which libraries set themselves up


@dataclass(frozen=True)
class Normals:
    """Independent normals, ``[.., A]``, truncated to [-1, 1], so that the divergence from them can
    fall to zero.
    """

    mean: Tensor
    std: Tensor

    def log_density(self, action: Tensor) -> Tensor:
        """Return the log-density of ``action [.., A]`` in [-1, 1]: ``[..]``."""
        inside = torch.special.ndtr((1 - self.mean) / self.std) - torch.special.ndtr(
            (-1 - self.mean) / self.std
        )
        normal = -0.5 * ((action - self.mean) / self.std).square() - self.std.log() - _LOG_ROOT
        density: Tensor = (normal - inside.log()).sum(-1)
        return density

    def slope(self, action: Tensor) -> Tensor:
        """Return ∂ log density / ∂ action, ``[.., A]``."""
        return (self.mean - action) / self.std.square()


@dataclass(frozen=True)
class KLConstraint:
    """A prior as G policies see it, and the divergence from it that each of them may have.

    Attributes:
        prior: π_b.
        scaling: of the observations that are asked about.
        targets: κ of every policy, ``[G]``: α holds the divergence KL(π‖π_b) at them.
    """

    prior: BehaviourPolicy
    scaling: Scaling
    targets: Tensor

    @classmethod
    def of(
        cls,
        prior: BehaviourPolicy,
        scaling: Scaling,
        divergences: Sequence[float],
        device: torch.device,
    ) -> "KLConstraint":
        """Set one target a policy: ``divergences`` are per dimension of actions in a box, or in all
        if they are discrete.
        """
        dimensions = 1 if scaling.discrete_actions else scaling.columns.action_size
        return cls(prior, scaling, dimensions * torch.tensor(list(divergences), device=device))

    def initial_actor(self, hidden: Sequence[int]) -> Layers | None:
        """Return the prior's own layers, one network, for a policy to begin with; None: its hidden
        layers have other sizes.

        Args:
            hidden: units of each hidden layer of the policy.
        """
        layers = self.prior.actor_layers(
            self.scaling.observation_mean, self.scaling.observation_scale
        )
        return layers if [bias.shape[-1] for bias in layers[1:-2:2]] == list(hidden) else None

    def normals(self, observation: Tensor) -> Normals:
        """Return the prior for standardised observations ``[.., S]``."""
        return Normals(*self.prior.mean_and_std(self._raw(observation)))

    def log_probabilities(self, observation: Tensor) -> Tensor:
        """Return log-probabilities for standardised observations ``[.., S]``: ``[.., A]``."""
        return self.prior.log_probabilities(self._raw(observation)).clamp(min=_LEAST_LOG)

    def _raw(self, observation: Tensor) -> Tensor:
        return observation * self.scaling.observation_scale + self.scaling.observation_mean


class Networks:
    """P ReLU MLPs of one shape: parameters and gradient as one vector each, layers as views of
    them.

    There is no graph: ``forward`` keeps the activations in buffers that are used again, and
    ``backward`` reads them. It makes only the products it is asked for. The first weight lies as
    [in, out] in memory, the others as [out, in]: products are several times as fast where the
    narrow side is the rows of the stored matrix.

    Args:
        layers: weights ``[P, out, in]`` and biases ``[P, 1, out]`` in turn; copied.
        device: where they shall live.
    """

    def __init__(self, layers: Layers, device: torch.device) -> None:
        stored = (layers[0].mT, *layers[1:])
        self.vector = flatten(stored).to(device)
        self.gradient = torch.zeros_like(self.vector)
        shapes = [tuple(layer.shape) for layer in stored]
        self._parameters = unflatten(self.vector, shapes)
        self._gradients = unflatten(self.gradient, shapes)
        self.layers: Layers = (self._parameters[0].mT, *self._parameters[1:])
        # Views that every update needs: making them anew would take as long as a small network's
        # products.
        self._forward = [
            (bias, weight.mT)
            for weight, bias in zip(self.layers[::2], self.layers[1::2], strict=True)
        ]
        self._outputs: dict[int, list[Tensor]] = {}
        self._slopes: dict[int, list[Tensor]] = {}
        self._kept: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the networks, ``[P, B, in]`` to ``[P, B, out]``: a buffer, good until the next call
        with as many rows.
        """
        buffers = self._buffers(self._outputs, inputs.shape[1])
        hidden = inputs
        self._kept = [inputs, *buffers]
        for (bias, weight), buffer in zip(self._forward, buffers, strict=True):
            if hidden is not inputs:
                hidden.relu_()
            hidden = torch.baddbmm(bias, hidden, weight, out=buffer)
        return hidden

    def backward(self, slope: Tensor, begin: int = 0) -> None:
        """Put ∂loss/∂parameters into ``gradient``, given the slope of a loss on the last
        ``forward``'s output.

        The slope, ``[P, b, out]``, is of the rows from ``begin`` on; the other rows have none.
        """
        for layer in reversed(range(len(self.layers) // 2)):
            inputs = self._kept[layer][:, begin:] if begin else self._kept[layer]
            weight, bias = self._gradients[2 * layer : 2 * layer + 2]
            if layer == 0:
                torch.bmm(inputs.mT, slope, out=weight)
            else:
                torch.bmm(slope.mT, inputs, out=weight)
            torch.sum(slope, dim=1, keepdim=True, out=bias)
            if layer > 0:
                slope = self._slope_before(layer, slope, inputs)

    def input_slope(self, slope: Tensor, begin: int) -> Tensor:
        """Return ∂loss/∂inputs ``[P, B, in - begin]`` of the inputs from number ``begin`` on, from
        the output's ``slope``.
        """
        for layer in reversed(range(1, len(self.layers) // 2)):
            slope = self._slope_before(layer, slope, self._kept[layer])
        return torch.bmm(slope, self._parameters[0][:, begin:].mT)

    def _slope_before(self, layer: int, slope: Tensor, activation: Tensor) -> Tensor:
        """Return the slope with respect to the input of the ReLU before ``layer``."""
        buffer = self._buffers(self._slopes, slope.shape[1])[layer - 1]
        torch.bmm(slope, self._parameters[2 * layer], out=buffer)
        relu_backward(buffer, activation, 0, grad_input=buffer)
        return buffer

    def _buffers(self, held: dict[int, list[Tensor]], rows: int) -> list[Tensor]:
        """Return buffers of all layers (slopes: of all but the last) for so many rows, kept in
        ``held``.
        """
        if rows not in held:
            biases = self.layers[1:-2:2] if held is self._slopes else self.layers[1::2]
            with torch.inference_mode(False):  # tensors that may be used outside of it as well
                held[rows] = [bias.new_empty(len(bias), rows, bias.shape[2]) for bias in biases]
        return held[rows]


@dataclass(frozen=True)
class Epoch:
    """An epoch: its number from 1, means over it of each seed, and all policies at its end side by
    side.
    """

    number: int
    metrics: tuple[dict[str, float], ...]
    policies: DeterministicPolicy


class ActorCritic(ABC):
    """Actor, twin critics, their targets and α of every seed, and the one step that improves them.

    Args:
        config: see `SacConfig`.
        columns: layout of the rows given to ``update``.
        generators: of the actions' randomness, one policy each; their seeds are also those of
            initial weights. The networks live on their device.
        constraint: a prior π_b that every policy is held near; None: there is none. With one,
            log π(a|s) - log π_b(a|s) takes the place of log π(a|s) everywhere, and κ that of -H̄. A
            prior with the hidden layers of ``config`` is also where every actor begins.
    """

    def __init__(
        self,
        config: SacConfig,
        columns: ReplayColumns,
        generators: SeedGenerators,
        constraint: KLConstraint | None,
    ) -> None:
        outputs, values, self._target_entropy = self._sizes(config, columns)
        self._config, self._columns = config, columns
        self._generators, self._constraint = generators, constraint
        device, G = generators.device, len(generators.generators)
        actors, critics = [], []
        begun = None if constraint is None else constraint.initial_actor(config.hidden)
        for generator in generators.generators:
            initial = torch.Generator().manual_seed(generator.initial_seed())
            random = initial_layers((columns.observation_size, *config.hidden, outputs), 1, initial)
            actors.append(begun or random)
            critics.append(initial_layers((values[0], *config.hidden, values[1]), 2, initial))
        self.actor, self.critic = (
            Networks(side_by_side(parts), device) for parts in (actors, critics)
        )
        self.target = Networks(self.critic.layers, device)
        self.log_alpha = torch.zeros(G, device=device)
        self._alpha_gradient = torch.zeros_like(self.log_alpha)
        self._critic_adam = Adam([self.critic.vector], [self.critic.gradient], config.learning_rate)
        learned, gradients = [self.actor.vector], [self.actor.gradient]
        if constraint is None:
            learned, gradients = [*learned, self.log_alpha], [*gradients, self._alpha_gradient]
        self._actor_adam = Adam(learned, gradients, config.learning_rate)
        held = "divergence" if constraint else "entropy"
        self._figures = ("critic_loss", "actor_loss", "q_mean", held, "alpha")
        self._sums = torch.zeros(len(self._figures), G, device=device)
        self._updates, self._updates_before_recording = 0, _WARM_UPS
        self._recorded: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    @staticmethod
    @abstractmethod
    def _sizes(config: SacConfig, columns: ReplayColumns) -> tuple[int, tuple[int, int], float]:
        """Return the outputs of the actor, inputs and outputs of each critic, H̄."""

    @abstractmethod
    def act(self, observation: Tensor) -> Tensor:
        """Sample actions for standardised observations: ``[G, B, S]`` to ``[G, B, A]``, in [-1, 1]
        or one-hot.
        """

    @abstractmethod
    def _look(self, rows: Tensor) -> tuple[Any, Any]:
        """Run the actor at s' and at s, in one product: it does not change in between."""

    @abstractmethod
    def _critic_gradient(self, rows: Tensor, following: Any) -> Tensor:
        """Leave the gradient of Σ_i E (Q_i(s, a) - y)², y = r + γ V̄(s'), in ``critic``; give the
        loss, ``[G]``.
        """

    @abstractmethod
    def _actor_gradient(self, rows: Tensor, current: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Leave the gradient of E [α log π(a|s) - min_j Q_j(s, a)], a ~ π(s), in ``actor``.

        Gives the loss, E log π(a|s) (with a constraint the divergence) and E min_j Q_j(s, a), all
        ``[G]``.
        """

    @torch.inference_mode()
    def update(self, rows: Tensor) -> None:
        """Take one step of critics, targets, actor and α on ``rows [G, B, width]``, the same shape
        in every call.

        On a GPU, after a few steps, one recorded graph is launched instead of every kernel. The GPU
        is waited for once, when it is recorded.
        """
        self._updates += 1
        if rows.device.type != "cuda" or self._updates_before_recording:
            self._updates_before_recording = max(0, self._updates_before_recording - 1)
            self._step(rows)
            return
        graph, place = self._recorded = self._recorded or self._record(rows)
        place.copy_(rows)
        graph.replay()

    def _record(self, rows: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Record a step on a copy of ``rows``, which is not made."""
        graph, place = torch.cuda.CUDAGraph(), rows.clone()
        for generator in self._generators.generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self._step(place)
        return graph, place

    def _step(self, rows: Tensor) -> None:
        """See `update`.

        α descends -log α (E log π + H̄), a form with steps that do not shrink with α itself. With a
        constraint it descends log α (κ - KL) by plain steps, with a gradient held within ±1.
        """
        following, current = self._look(rows)
        critic_loss = self._critic_gradient(rows, following)
        self._critic_adam.step()
        self.target.vector.lerp_(self.critic.vector, self._config.target_rate)
        actor_loss, log_density, value = self._actor_gradient(rows, current)
        if self._constraint is None:
            torch.sub(-self._target_entropy, log_density, out=self._alpha_gradient)
            self._actor_adam.step()
            log_density = -log_density
        else:
            self._actor_adam.step()
            slack = (self._constraint.targets - log_density).clamp_(
                -_CONSTRAINT_GRADIENT, _CONSTRAINT_GRADIENT
            )
            self.log_alpha.sub_(slack, alpha=_CONSTRAINT_RATE).clamp_(*_CONSTRAINT_LOG_ALPHA)
        self._sums += torch.stack(
            (critic_loss, actor_loss, value, log_density, self.log_alpha.exp())
        )

    def slow_down(self, left: float) -> None:
        """Let steps shrink to nothing over the last updates, so that the last policy is no worse
        than those before; ``left`` is the share of updates that is left.
        """
        share = min(1.0, left / _SLOWER)
        self._critic_adam.slow_down(share)
        self._actor_adam.slow_down(share)

    def pop_figures(self, **others: Tensor) -> tuple[dict[str, float], ...]:
        """Return for each seed the means over the updates since the last call, and ``others``,
        ``[G]`` each; waits for a GPU.
        """
        means = torch.stack((*(self._sums / self._updates), *others.values())).T.tolist()
        self._sums.zero_()
        self._updates = 0
        names = (*self._figures, *others)
        return tuple(dict(zip(names, of_seed, strict=True)) for of_seed in means)

    def snapshot(self, scaling: Scaling) -> DeterministicPolicy:
        """Copy the actors' means (or their logits) to the CPU, as policies of their own."""
        *hidden, weight, bias = self.actor.layers
        A = self._columns.action_size
        parts = (*hidden, weight[:, :A], bias[..., :A])
        layers = tuple(part.cpu().clone(memory_format=torch.contiguous_format) for part in parts)
        mean, scale = scaling.observation_mean.cpu(), scaling.observation_scale.cpu()
        low, high = scaling.action_low.cpu(), scaling.action_high.cpu()
        policy = DeterministicPolicy(layers, mean, scale, low, high, scaling.discrete_actions)
        return policy if self._constraint is None else policy.without(self._constraint.prior.rare)

    def _both_states(self, rows: Tensor) -> Tensor:
        """Return the states s' and s, one above the other: ``[G, 2 B, S]``."""
        G, B, _ = rows.shape
        S = self._columns.observation_size
        both = rows[..., : 2 * S].view(G, B, 2, S).transpose(1, 2)
        return both.reshape(G, 2 * B, S)

    def _target_values(self, rows: Tensor, value: Tensor) -> Tensor:
        """Return the critics' target y = r + γ V̄(s'), ``[G, B]``; V̄(s') is worth nothing after a
        termination.
        """
        reward, goes_on = rows[..., self._columns.reward], rows[..., self._columns.continues]
        return reward + self._config.discount * goes_on * value


@dataclass(frozen=True)
class Squashed:
    """Reparametrised actions tanh(x), x = μ + σ·noise, and the terms of their gradient.

    log π(a|s) = Σ [log N(x; μ, σ²) - log(1 - tanh² x)] (Haarnoja 2018b, eq. 26), where
    log(1 - tanh² x) = 2 (log 2 - x - softplus(-2x)) keeps its digits for large |x|.

    Attributes:
        action: ``[G, B, A]`` in [-1, 1].
        log_density: ``[G, B]``.
        spread: σ·noise, ``[G, B, A]``.
        free: where log σ lies within its bounds, and so has a slope: 1 or 0, ``[G, B, A]``.
    """

    action: Tensor
    log_density: Tensor
    spread: Tensor
    free: Tensor

    @classmethod
    def of(cls, output: Tensor, noise: Tensor) -> "Squashed":
        """Make actions from the actor's ``output [G, B, 2 A]``, μ and log σ side by side, and
        standard normal ``noise``.
        """
        mean, raw = output.chunk(2, dim=-1)
        log_std = raw.clamp(_LOG_STD_LOW, _LOG_STD_HIGH)
        spread = noise * log_std.exp()
        x = mean + spread
        log_density = 2 * (x + softplus(-2 * x)) - log_std - 0.5 * noise.square()
        constant = noise.shape[-1] * _LOG_CONSTANT
        return cls(x.tanh(), log_density.sum(-1) - constant, spread, log_std.eq(raw).to(raw.dtype))

    def slope(self, action_slope: Tensor, density_slope: Tensor) -> Tensor:
        """Return ∂loss/∂output ``[G, B, 2 A]``, given ∂loss/∂action ``[G, B, A]`` and ∂loss/∂log π
        ``[G, 1, 1]``.

        d tanh(x)/dx = 1 - a², d log π/dx = 2a at fixed noise, d log π/d log σ = that times σ·noise,
        minus 1.
        """
        of_x = action_slope * (1 - self.action.square()) + 2 * density_slope * self.action
        return torch.cat((of_x, (of_x * self.spread - density_slope) * self.free), dim=-1)


class _SampledAction(NamedTuple):
    sample: Squashed
    cost: Tensor  # what α multiplies, [G, B]: log π(a|s), less the prior's if there is one
    pull: Tensor | None  # the slope of -log π_b(a|s) in the action, [G, B, A]


class Sac(ActorCritic):
    """For actions in a box: V(s) = E [min_j Q_j(s, a) - α log π(a|s)] from one reparametrised
    sample a ~ π(s).
    """

    @staticmethod
    def _sizes(config: SacConfig, columns: ReplayColumns) -> tuple[int, tuple[int, int], float]:
        S, A = columns.observation_size, columns.action_size
        return 2 * A, (S + A, 1), config.entropy_of(None)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Sample actions in [-1, 1]."""
        return Squashed.of(self.actor.forward(observation), self._noise(observation)).action

    def _look(self, rows: Tensor) -> tuple[_SampledAction, _SampledAction]:
        states = self._both_states(rows)
        output = self.actor.forward(states)
        both, B = Squashed.of(output, self._noise(output)), rows.shape[1]
        cost, pull = both.log_density, None
        if self._constraint is not None:
            normals = self._constraint.normals(states)
            cost = cost - normals.log_density(both.action)
            pull = -normals.slope(both.action)
        halves = []
        for which in (slice(0, B), slice(B, None)):
            own = Squashed(*(part[:, which] for part in vars(both).values()))
            halves.append(
                _SampledAction(own, cost[:, which], None if pull is None else pull[:, which])
            )
        return halves[0], halves[1]

    def _critic_gradient(self, rows: Tensor, following: _SampledAction) -> Tensor:
        columns, B = self._columns, rows.shape[1]
        next_observation, action = rows[..., columns.next_observation], following.sample.action
        values = self._values(self.target, next_observation, action)
        value = values.amin(1) - self.log_alpha.exp().unsqueeze(1) * following.cost
        observation, action = rows[..., columns.observation], rows[..., columns.action]
        values = self._values(self.critic, observation, action)
        error = values - self._target_values(rows, value).unsqueeze(1)
        self.critic.backward((error * (2 / B)).view(-1, B, 1))
        return error.square().sum((1, 2)) / B

    def _actor_gradient(
        self, rows: Tensor, current: _SampledAction
    ) -> tuple[Tensor, Tensor, Tensor]:
        S, B = self._columns.observation_size, rows.shape[1]
        observation, action = rows[..., self._columns.observation], current.sample.action
        first, second = self._values(self.critic, observation, action).unbind(1)
        # -E min_j Q_j falls with the lesser one only.
        of_first = first.le(second).to(first.dtype).mul_(-1 / B)
        of_values = torch.stack((of_first, -1 / B - of_first), dim=1)
        slopes = self.critic.input_slope(of_values.view(-1, B, 1), S).view(
            -1, 2, B, self._columns.action_size
        )
        alpha = self.log_alpha.exp()
        of_action, of_cost = slopes.sum(1), (alpha / B).view(-1, 1, 1)
        if current.pull is not None:
            of_action = of_action + of_cost * current.pull
        self.actor.backward(current.sample.slope(of_action, of_cost), B)
        cost, mean_value = current.cost.mean(1), torch.minimum(first, second).mean(1)
        return alpha * cost - mean_value, cost, mean_value

    def _values(self, critic: Networks, observation: Tensor, action: Tensor) -> Tensor:
        """Return the values of both critics, ``[G, 2, B]``."""
        pairs = torch.cat((observation, action), -1).unsqueeze(1).expand(-1, 2, -1, -1)
        return critic.forward(pairs.flatten(0, 1)).view(pairs.shape[:3])

    def _noise(self, like: Tensor) -> Tensor:
        G, B, _ = like.shape
        return self._generators.randn(G * B, self._columns.action_size).view(G, B, -1)


class _Logs(NamedTuple):
    policy: Tensor  # log π(a|s) of every action, [G, B, A]
    cost: Tensor  # what α multiplies: the same, less the prior's


class DiscreteSac(ActorCritic):
    """For A actions: V(s) = Σ_a π(a|s) [min_j Q_j(s, a) - α log π(a|s)], exactly (Christodoulou
    2019, eq. 10).
    """

    @staticmethod
    def _sizes(config: SacConfig, columns: ReplayColumns) -> tuple[int, tuple[int, int], float]:
        S, A = columns.observation_size, columns.action_size
        return A, (S, A), config.entropy_of(A)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Sample one-hot actions: the first of A exponential clocks, running at the rates π(a|s),
        to ring.
        """
        log_policy = self.actor.forward(observation).log_softmax(-1)
        G, B, A = log_policy.shape
        clocks = self._generators.exponential(G * B, A).view(G, B, A)
        return one_hot((log_policy - clocks.log()).argmax(-1), A).to(observation.dtype)

    def _look(self, rows: Tensor) -> tuple[_Logs, _Logs]:
        states = self._both_states(rows)
        policy = self.actor.forward(states).log_softmax(-1)
        cost = policy
        if self._constraint is not None:
            cost = policy - self._constraint.log_probabilities(states)
        halves = zip(policy.chunk(2, 1), cost.chunk(2, 1), strict=True)
        following, current = (_Logs(*parts) for parts in halves)
        return following, current

    def _critic_gradient(self, rows: Tensor, following: _Logs) -> Tensor:
        columns, B = self._columns, rows.shape[1]
        alpha = self.log_alpha.exp().view(-1, 1, 1)
        values = self._values(self.target, rows[..., columns.next_observation]).amin(1)
        values = values - alpha * following.cost
        value = (following.policy.exp() * values).sum(-1)
        taken = rows[:, None, :, columns.action]
        found = (self._values(self.critic, rows[..., columns.observation]) * taken).sum(-1)
        error = found - self._target_values(rows, value).unsqueeze(1)
        self.critic.backward(((2 / B) * error.unsqueeze(-1) * taken).flatten(0, 1))
        return error.square().sum((1, 2)) / B

    def _actor_gradient(self, rows: Tensor, current: _Logs) -> tuple[Tensor, Tensor, Tensor]:
        B, policy = rows.shape[1], current.policy.exp()
        alpha = self.log_alpha.exp()
        values = self._values(self.critic, rows[..., self._columns.observation]).amin(1)
        costs = alpha.view(-1, 1, 1) * current.cost - values
        slope = policy * (costs - (policy * costs).sum(-1, keepdim=True)) / B
        self.actor.backward(slope, B)
        value, cost = ((policy * part).sum((1, 2)) / B for part in (values, current.cost))
        return alpha * cost - value, cost, value

    def _values(self, critic: Networks, observation: Tensor) -> Tensor:
        """Return the value of every action at ``observation [G, B, S]``: ``[G, 2, B, A]``."""
        G, B, _ = observation.shape
        twice = observation.unsqueeze(1).expand(-1, 2, -1, -1).flatten(0, 1)
        return critic.forward(twice).view(G, 2, B, -1)


def train(
    model: PessimisticModel,
    starts: Tensor,
    config: SacConfig,
    sampler: Sampler,
    *,
    seeds: Sequence[int] = (0,),
    reset_fraction: float = 1.0,
    prior: BehaviourPolicy | None = None,
    divergences: Sequence[float] = (),
) -> Iterator[Epoch]:
    """Train a policy for every seed, or for every seed and κ, in ``model`` (PriMORL, Algorithm 4);
    yield every epoch.

    Every ``rollout_every`` updates the current policies are rolled out and their transitions enter
    the ring. Nothing but ``model``, ``starts`` and ``prior`` is seen, so by post-processing the
    policies, however many, are as private as these together, unless ``sampler`` brings rows from
    elsewhere. The same seeds give the same weights on a CPU, and a seed gives the same as alone but
    for rounding.

    Args:
        model: the pessimistic MDP.
        starts: start states in the environment's units, ``[n, S]``; training runs on their device.
        config: see `SacConfig`.
        sampler: picks the batches.
        seeds: of initial weights, rollouts and batches; one policy each.
        reset_fraction: share of rollouts that begin at a start state, see `Rollouts`.
        prior: a policy on the device of ``starts`` that all others are held near; None: there is
            none.
        divergences: with a prior, targets κ of KL(π‖π_b), per dimension of actions in a box, or in
            all if they are discrete. Policies are those of the first seed, then of the second.

    Raises:
        PipelineError: training diverged.
    """
    scaling, constraint = Scaling.of(model, config.reward_scale), None
    if prior is not None:
        constraint = KLConstraint.of(prior, scaling, tuple(divergences) * len(seeds), starts.device)
        seeds = [seed for seed in seeds for _ in divergences]
    generators = SeedGenerators.of(seeds, starts.device)
    algorithm = DiscreteSac if scaling.discrete_actions else Sac
    sac = algorithm(config, scaling.columns, generators, constraint)
    rollouts = Rollouts(model, starts, config, generators, reset_fraction)
    buffer = ReplayBuffer(config.buffer_size, scaling.columns.width, starts.device, len(seeds))
    total = config.epochs * config.updates_per_epoch
    for done in range(total):
        if done % config.rollout_every == 0:
            transitions, rewards, uncertainties = rollouts.collect(sac.act)
            buffer.extend(transitions)
            batches = sampler(buffer, config.rollout_every, config.batch_size, generators)
            sac.slow_down(1 - done / total)
        sac.update(next(batches))
        number, rest = divmod(done + 1, config.updates_per_epoch)
        if rest == 0:
            metrics = sac.pop_figures(model_reward=rewards, model_uncertainty=uncertainties)
            _refuse_diverged(number, seeds, metrics)
            yield Epoch(number, metrics, sac.snapshot(scaling))


def _refuse_diverged(epoch: int, seeds: Sequence[int], metrics: Sequence[dict[str, float]]) -> None:
    """Refuse to go on from figures that are not finite."""
    for seed, figures in zip(seeds, metrics, strict=True):
        if not all(map(math.isfinite, figures.values())):
            raise PipelineError(
                f"params.yaml: policy: SAC diverged in epoch {epoch}, seed {seed}; lower "
                "learning_rate or reward_scale, or raise penalty"
            )
